"""Updates that a job yields while the client reads the job."""

import reprlib
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from tidewire.errors import VoidTextError, Where
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED
from tidewire.protocol.problems import Problem
from tidewire.protocol.strict_json import JsonValue
from tidewire.result_type import ResultType

T = TypeVar("T")


class TextDelta(NamedTuple):
    """Change of a text. The change removed `deleted` code points from the end of the text, and then appended `text`."""

    deleted: int
    text: str


class Position(NamedTuple):
    """A position in the event stream of a job, with the state of the job at this position."""

    view: View
    columns: tuple[str, ...]
    cursor: Cursor

    def text(self, pointer: str) -> str | None:
        """Return the text at a JSON Pointer, or None if there is no text at the pointer."""
        try:
            value = self.view.value(pointer)
        except LookupError:
            return None
        return value if isinstance(value, str) else None


_CAUSES: Final = {
    None: "by a rollback",
    "restart": "because a new attempt of the job started",
    "rewound": "because the server's log had lost its last events",
}
"""Explanations of a retraction for error messages. The keys are the `reason` members of snapshots."""

UNKNOWN: Final = ""
"""Value of `ItemChange.snapshot` if the client does not know whether a snapshot or a diff caused the change."""


@dataclass(slots=True, eq=False)
class ItemChange(Generic[T]):
    """The value of an item after an event, with the change since the previous `ItemChange`.

    `Update` wraps this class and has only the methods for users.

    Attributes:
        position: The event, and the job's state after the event.
        shape: Validator with which `Update.parse` validates the value.
        first_seq: Sequence number of the first event that this change covers.
        deleted: Number of code points that were removed from the end of the text.
        text: Text that was then appended.
        index: Index of the item in the job.
        visible: Whether the item's value or status changed. A loop over a job yields only such changes.
        settles: Whether a reader that has received this change has also received all other changes up to `position`.
        snapshot: The `reason` of the last snapshot that this change covers; None if it covers only diffs.
        deleted_was_read: Whether the caller has read `Update.deleted`.
    """

    position: Position
    shape: ResultType[T]
    first_seq: int
    deleted: int = 0
    text: str = ""
    index: int = 0
    visible: bool = True
    settles: bool = True
    snapshot: str | None = None
    deleted_was_read: bool = False

    @property
    def cursor(self) -> Cursor:
        """Id of the last event that this change covers."""
        return self.position.cursor

    def member(self, name: str) -> JsonValue:
        """Return a member of the item, as it was after this event. Return None if the item did not have the member."""
        try:
            return self.position.view.value(f"/items/{self.index}/{name}")
        except LookupError:
            return None

    @property
    def cause(self) -> str:
        """Explanation of why text was retracted. It is used at the end of error messages."""
        return _CAUSES.get(self.snapshot, "by a rollback or a new attempt of the job")

    def unread_retraction(self, *, of_batch: bool) -> VoidTextError:
        """Create the error for a loop that reads the text of this change, but not the number of deleted code points."""
        count = "1 code point" if self.deleted == 1 else f"{self.deleted} code points"
        what = f"the server retracted {count} at the end of the text, {self.cause}"
        advice = (
            "Read update.deleted before update.text, and remove that many code points from the end of your text; "
            "update.value is the whole value."
        )
        if not of_batch:
            advice += " iter_text_deltas() yields the same two members."
            if self.member("stable") is not None:
                advice += " iter_text() yields only text that is stable."
        return VoidTextError(what, where=Where(last_event_id=str(self.cursor)), advice=advice)

    def with_text(self, text: str) -> "ItemChange[T]":
        """Return a copy of this change with another text, and without deleted code points."""
        return ItemChange(self.position, self.shape, self.first_seq, text=text, index=self.index)


@dataclass(slots=True, eq=False, repr=False)
class Update(Generic[T]):
    """The value of a job after an event, with the change of its text since the previous update."""

    _change: ItemChange[T]

    @property
    def text(self) -> str:
        """Text that was appended to the growing text in the value. Before that, `deleted` code points were removed from
        the end of the growing text.

        If the value contains several growing texts, this property refers to the first of them.

        Raises:
            VoidTextError: This update retracts text, and `deleted` of this update was not read before. A loop that only
                prints `text` would print the text after the retraction a second time. The job is not affected.
        """
        change = self._change
        if change.deleted and not change.deleted_was_read:
            raise change.unread_retraction(of_batch=isinstance(self, ItemUpdate))
        return change.text

    @property
    def deleted(self) -> int:
        """Number of code points that were removed from the end of the text, for example after a restart of the job.

        It is nearly always 0. A loop that reads it before `text` is responsible for removing the retracted text.
        """
        self._change.deleted_was_read = True
        return self._change.deleted

    @property
    def first_seq(self) -> int:
        """Sequence number of the first event that this update covers.

        This event directly follows the last event of the previous update.
        """
        return self._change.first_seq

    @property
    def seq(self) -> int:
        """Sequence number of the last event that this update covers."""
        return self._change.position.cursor.seq

    @property
    def cursor(self) -> Cursor:
        """Id of the last event that this update covers, as a pair of epoch and sequence number."""
        return self._change.position.cursor

    @property
    def id(self) -> str:
        """Id of the last event that this update covers, in the form `epoch-seq`."""
        return str(self._change.position.cursor)

    @property
    def status(self) -> str:
        """Status that the item had after this event, such as `running` or `succeeded`."""
        return str(self._change.member("status"))

    @property
    def value(self) -> Any:
        """The complete value after this event. Each access returns a new copy, which later events do not change.

        The copy takes time proportional to the size of the value.
        """
        return self._change.member("value")

    def parse(self) -> T:
        """Validate the value after this event with the type that was passed as `returns`.

        Raises:
            InvalidValueError: The value does not match the type. While the job is running, this may only mean that
                the value is incomplete.
        """
        where = Where(last_event_id=self.id)
        return self._change.shape.validate(self.value, where=where, running=self.status not in ENDED)

    def __repr__(self) -> str:
        # Do not use the properties: `text` can raise an error, and reading `deleted` has an effect on `text`.
        change = self._change
        if change.text or change.deleted:
            deleted = f" deleted={change.deleted}" if change.deleted else ""
            return f"<{type(self).__name__} {self.id}{deleted} text={change.text[:40]!r}>"
        return f"<{type(self).__name__} {self.id} value={reprlib.repr(self.value)}>"


class ItemUpdate(Update[T]):
    """The value of one item of a batch after an event, with the change of its text since the item's previous update."""

    __slots__ = ()

    @property
    def index(self) -> int:
        """Index of the input in the batch, from 0."""
        return self._change.index

    @property
    def error(self) -> Problem | None:
        """Problem details if the item failed, otherwise None."""
        error: Any = self._change.member("error")
        return None if error is None else Problem.model_validate(error)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} index={self.index}>"
