"""What a job hands to its reader, and how values are validated."""

import json
import reprlib
from enum import Enum
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from pydantic import (
    JsonValue,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import to_json

from tidewire.errors import NOWHERE, InvalidValueError, Where
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED, describe
from tidewire.protocol.problems import Problem

T = TypeVar("T")

Returns = type[T] | TypeAdapter[T]
"""What `returns=` takes: a type, or a pydantic TypeAdapter for what is no class (a union, an annotated type)."""


class Unset(Enum):
    """The type of `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Literal[Unset.UNSET]] = Unset.UNSET
"""No value was given; None is a JSON value."""


class TextDelta(NamedTuple):
    """How a text changed: its last `deleted` code points are void, then `text` came."""

    deleted: int
    text: str


class Position(NamedTuple):
    """A place in a job's stream, with the state there."""

    view: View
    columns: tuple[str, ...]
    cursor: Cursor

    def text(self, pointer: str) -> str | None:
        """The text at a pointer, None where there is none."""
        try:
            value = self.view.value(pointer)
        except LookupError:
            return None
        return value if isinstance(value, str) else None


class ResultType(Generic[T]):
    """What values are validated as; without `returns`, any JSON."""

    def __init__(self, returns: Any = None) -> None:
        self._adapter: TypeAdapter[T] | None
        if returns is None or isinstance(returns, TypeAdapter):
            self._adapter = returns
        else:
            if isinstance(returns, str):
                raise TypeError(f"returns is a type, not its name {returns!r}")
            try:
                self._adapter = TypeAdapter(returns)
            except (PydanticUserError, PydanticUndefinedAnnotation) as error:
                what = f"returns is a type that pydantic can validate, or a TypeAdapter, not {returns!r}"
                raise TypeError(f"{what}: {str(error).partition(chr(10))[0]}") from error
        # A generic alias answers to the name of its origin: only a class goes by its name.
        self._name = returns.__name__ if isinstance(returns, type) else repr(returns)

    def validate(self, value: JsonValue, *, where: Where = NOWHERE, midway: bool = False) -> T:
        """Validate a value by the rules for JSON: what JSON cannot say is read from its usual form.

        Raises:
            InvalidValueError: It does not fit.
        """
        if self._adapter is None:
            return value  # type: ignore[return-value]
        # A long value is let go of as soon as it is written, and a text is written without a copy beside it.
        written = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else to_json(value)
        del value
        try:
            return self._adapter.validate_json(written)
        except ValidationError as error:
            what = f"the value is no valid {self._name}: {describe(error)}"
            if midway:
                what = f"at this point {what}"
                advice = "The job still runs, so its value may not be whole yet: use update.value, or wait for result()."
            else:
                advice = (
                    "Give `returns` the type that the endpoint describes: client.describe(name).value_schema."
                )
            raise InvalidValueError(what, where=where, advice=advice) from error


class ItemChange(Generic[T]):
    """An item's value at one event and its change since the previous one. The readers of a job pass these on;
    `Update` shows them.

    Attributes:
        place: The event, and the state there.
        shape: What `parse` validates the value as.
        first_seq: The seq of the first event that this change covers.
        deleted: Code points retracted from the end of the text.
        text: Text that was added after that.
        index: The item.
        visible: Whether the item's value or status changed; a loop over a job yields no other changes.
        settles: Whether the reader has received everything up to `place` with this change.
    """

    __slots__ = ("deleted", "first_seq", "index", "place", "settles", "shape", "text", "visible")

    def __init__(
        self,
        place: Position,
        shape: ResultType[T],
        first_seq: int,
        *,
        deleted: int = 0,
        text: str = "",
        index: int = 0,
        visible: bool = True,
        settles: bool = True,
    ) -> None:
        self.place: Position = place
        self.shape: ResultType[T] = shape
        self.first_seq: int = first_seq
        self.deleted: int = deleted
        self.text: str = text
        self.index: int = index
        self.visible: bool = visible
        self.settles: bool = settles

    @property
    def cursor(self) -> Cursor:
        """The id of the last event that this change covers."""
        return self.place.cursor

    def member(self, name: str) -> JsonValue:
        """A member of the item at this event; None where the item does not have it."""
        try:
            return self.place.view.value(f"/items/{self.index}/{name}")
        except LookupError:
            return None

    def with_text(self, text: str) -> "ItemChange[T]":
        """The same change with only a part of its text, which is still to be delivered."""
        return ItemChange(self.place, self.shape, self.first_seq, text=text, index=self.index)


class Update(Generic[T]):
    """A job's value at one event, and its change since the previous update."""

    __slots__ = ("_change",)

    def __init__(self, change: ItemChange[T]) -> None:
        self._change = change

    @property
    def text(self) -> str:
        """What the value's first text column gained, after `deleted` code points were removed from its end."""
        return self._change.text

    @property
    def deleted(self) -> int:
        """Code points at the end of the text that were retracted (by a rollback or a new attempt)."""
        return self._change.deleted

    @property
    def first_seq(self) -> int:
        """The seq of the first event that this update covers: the one after the previous update."""
        return self._change.first_seq

    @property
    def seq(self) -> int:
        """The seq of the last event that this update covers."""
        return self._change.place.cursor.seq

    @property
    def cursor(self) -> Cursor:
        """The id of the last event that this update covers, as epoch and seq."""
        return self._change.place.cursor

    @property
    def id(self) -> str:
        """The id of the last event that this update covers: `epoch-seq`."""
        return str(self._change.place.cursor)

    @property
    def status(self) -> str:
        """The status of the item at this event."""
        return str(self._change.member("status"))

    @property
    def value(self) -> JsonValue:
        """The whole value at this event. Each access makes a new copy; a kept update keeps its value."""
        return self._change.member("value")

    def parse(self) -> T:
        """The value at this event, validated as the type that the job `returns`.

        Raises:
            InvalidValueError: The value is not valid. While the job runs it may be incomplete.
        """
        where = Where(last_event_id=self.id)
        return self._change.shape.validate(self.value, where=where, midway=self.status not in ENDED)

    def __repr__(self) -> str:
        if self.text or self.deleted:
            deleted = f" deleted={self.deleted}" if self.deleted else ""
            return f"<{type(self).__name__} {self.id}{deleted} text={self.text[:40]!r}>"
        return f"<{type(self).__name__} {self.id} value={reprlib.repr(self.value)}>"


class ItemUpdate(Update[T]):
    """The value of one item of a batch at one event, and its change since the previous update of that item."""

    __slots__ = ()

    @property
    def index(self) -> int:
        """Which input, from 0."""
        return self._change.index

    @property
    def error(self) -> Problem | None:
        """Why the item failed; None if it did not."""
        error: Any = self._change.member("error")
        return None if error is None else Problem.model_validate(error)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} index={self.index}>"
