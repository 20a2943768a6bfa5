"""`Checkpoint`: what a script stores to continue reading a job later, in another process or on another machine."""

from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from tidewire.errors import CheckpointError
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import PROTOCOL, MessageError, check_state, describe

NO_CHECKPOINT: Final = "Give it what checkpoint.to_json() wrote."


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The position up to which a job was read, with everything needed to continue from there.

    A cursor is worth as much as the state stored with it, so both are here. Nothing is lost or doubled if the
    checkpoint is stored together with the results of the updates before it, in one transaction; if it is not, a crash
    between the two repeats the updates between.

    Attributes:
        protocol: The protocol's version.
        job: The job's id.
        url: The server that it was read from; None fits every server.
        state: The job's state at `cursor`; None: nothing was delivered yet.
        columns: JSON Pointers of the state's columns.
        cursor: The id of the last event that was delivered.
    """

    protocol: Literal["tidewire/1"] = PROTOCOL
    job: str
    url: str | None = None
    state: dict[str, Any] | None = None
    columns: tuple[str, ...] = ()
    cursor: str | None = None

    def __post_init__(self) -> None:
        # A list, as JSON has it, is taken as well.
        object.__setattr__(self, "columns", tuple(self.columns))
        if (self.state is None) != (self.cursor is None):
            raise ValueError("state and cursor belong together: both, or neither")
        if self.cursor is not None:
            Cursor.parse(self.cursor)
            try:
                check_state(self.state, what="state")
            except MessageError as error:
                raise ValueError(str(error)) from None

    def to_json(self) -> str:
        """The checkpoint as compact JSON text."""
        members = {each.name: getattr(self, each.name) for each in fields(self)}
        return to_json({name: value for name, value in members.items() if value is not None}).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a checkpoint back.

        Raises:
            CheckpointError: The text is not a checkpoint.
        """
        try:
            return TypeAdapter(cls).validate_python(_members(text, {each.name for each in fields(cls)}))
        except ValueError as error:
            why = describe(error) if isinstance(error, ValidationError) else error
            raise CheckpointError(f"this is not a checkpoint: {why}", advice=NO_CHECKPOINT) from None


def _members(text: str | bytes, names: set[str]) -> Any:
    try:
        members = from_json(text)
    except ValueError as error:
        raise ValueError(f"Invalid JSON: {error}") from None
    if isinstance(members, dict) and (unknown := members.keys() - names):
        raise ValueError(f"unknown members: {', '.join(sorted(unknown))}")
    return members
