"""`Checkpoint`, a saved position in a job's updates. A program can continue reading the job from a checkpoint later,
even in another process or on another machine.
"""

from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self

from tidewire.errors import CheckpointError
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import PROTOCOL, check_state
from tidewire.protocol.wire_model import MessageError

NO_CHECKPOINT: Final = "Pass the unchanged output of checkpoint.to_json()."


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredUpdate:
    """Update of one item of a batch job that was received, but not delivered before the checkpoint was taken.

    Attributes:
        index: Index of the item.
        first_seq: Sequence number of the first event that the update covers.
        deleted: Number of code points that the update removes from the end of the item's text.
        text: Text that the update then appends.
        visible: Whether the item's value changed. A loop over the job yields only such updates.
    """

    index: int
    first_seq: int
    deleted: int = 0
    text: str = ""
    visible: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Position up to which a job's updates were delivered, together with the job's state at that position.

    An event of a batch job can yield several updates, one for each item that the event changes. A checkpoint that is
    taken between two of these updates contains the state after the whole event, and the updates of the event that were
    not delivered yet. The program that resumes gets exactly these updates first. It would not be enough to store the
    state before the event and the number of delivered updates. After the resume, the server may merge the event with
    later events or send a snapshot. The client could then not identify the updates that were already delivered.

    Store the checkpoint in the same transaction as your program's results for the updates before the checkpoint. Then
    no update is lost or processed twice. If the two are stored separately, a crash between the two writes makes the
    program process some updates again.

    Attributes:
        protocol: Version of the protocol.
        job: Id of the job.
        url: Base URL of the server. None makes the checkpoint valid for any server.
        state: State of the job at `cursor`. None if no update was delivered yet.
        columns: JSON Pointers of the columns, which are the values in the state that grow by appending.
        cursor: Id of the last delivered event. None if no update was delivered yet.
        undelivered: Updates of a batch job up to `cursor` that were not delivered yet, in their order. Empty unless the
            checkpoint was taken between two updates of one event.

    Example:
        path.write_text(job.checkpoint().to_json())
        job = client.job(checkpoint=Checkpoint.from_json(path.read_text()))
    """

    protocol: Literal["tidewire/1"] = PROTOCOL
    job: str
    url: str | None = None
    state: dict[str, Any] | None = None
    columns: tuple[str, ...] = ()
    cursor: str | None = None
    undelivered: tuple[UndeliveredUpdate, ...] = ()

    def __post_init__(self) -> None:
        # A checkpoint that was parsed from JSON has a list in `columns`, because JSON has no tuples.
        object.__setattr__(self, "columns", tuple(self.columns))
        object.__setattr__(self, "undelivered", tuple(self.undelivered))
        if (self.state is None) != (self.cursor is None):
            raise ValueError("state and cursor must both be set or both be None")
        if self.cursor is not None:
            Cursor.parse(self.cursor)
            try:
                check_state(self.state, what="state")
            except MessageError as error:
                raise ValueError(str(error)) from None
        if self.undelivered:
            _check_undelivered(self)

    def to_json(self) -> str:
        """Serialize the checkpoint as compact JSON text."""
        from pydantic_core import to_json  # noqa: PLC0415 - most programs save no checkpoint

        members = {each.name: getattr(self, each.name) for each in fields(self)}
        if not self.undelivered:
            # Earlier versions of the client refuse checkpoints with members that they do not know.
            del members["undelivered"]
        return to_json({name: value for name, value in members.items() if value is not None}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Parse a checkpoint from the output of `to_json`.

        Raises:
            CheckpointError: The text is not a valid checkpoint.
            TypeError: The argument is not a text.
        """
        if not isinstance(text, str | bytes | bytearray):
            raise TypeError(f"a checkpoint must be the output of checkpoint.to_json(), not {text!r:.80}")
        # Most programs load no checkpoint, and importing pydantic would delay their start.
        from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415

        from tidewire.protocol.jsonable import describe  # noqa: PLC0415

        try:
            return TypeAdapter(cls).validate_python(_members(text, {each.name for each in fields(cls)}))
        except ValueError as error:
            why = describe(error) if isinstance(error, ValidationError) else error
            raise CheckpointError(f"the checkpoint is not valid: {why}", advice=NO_CHECKPOINT) from None


def _members(text: str | bytes, names: set[str]) -> Any:
    from pydantic_core import from_json  # noqa: PLC0415

    try:
        members = from_json(text)
    except ValueError as error:
        raise ValueError(f"Invalid JSON: {error}") from None
    if isinstance(members, dict) and (unknown := members.keys() - names):
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    return members


def _check_undelivered(checkpoint: Checkpoint) -> None:
    if checkpoint.cursor is None or checkpoint.state is None:
        raise ValueError("undelivered updates need a state and a cursor")
    count, seq = len(checkpoint.state["items"]), Cursor.parse(checkpoint.cursor).seq
    for update in checkpoint.undelivered:
        if not (0 <= update.index < count and 0 <= update.first_seq <= seq and update.deleted >= 0):
            raise ValueError(f"the undelivered update of item {update.index} does not belong to the state")
