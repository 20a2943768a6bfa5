"""What a script saves to go on with a job later, in another process or on another machine."""

from typing import Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from tidewire.errors import CheckpointError
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import PROTOCOL, MessageError, check_state, describe

NO_CHECKPOINT: Final = "Give it what checkpoint.to_json() wrote."


class Checkpoint(BaseModel):
    """How far a job was read, with all that is needed to read on from there.

    A cursor is worth as much as the state kept with it, so both are here. Nothing is lost or doubled where the
    checkpoint is stored together with what was made of the updates before it, in one transaction; where it is not,
    a crash between the two repeats what came between.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    protocol: Literal["tidewire/1"] = PROTOCOL
    job: str
    """The job's id."""
    url: str | None = None
    """The server that it was read from; None fits every server."""
    state: dict[str, Any] | None = None
    """The job's state at `cursor`; None: nothing was handed over yet."""
    columns: tuple[str, ...] = ()
    cursor: str | None = None
    """The id of the last event that was handed over."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.state is None) != (self.cursor is None):
            raise ValueError("state and cursor belong together: both, or neither")
        if self.cursor is not None:
            Cursor.parse(self.cursor)
            try:
                check_state(self.state, what="state")
            except MessageError as error:
                raise ValueError(str(error)) from None
        return self

    def to_json(self) -> str:
        """The checkpoint as compact JSON text."""
        return self.model_dump_json(exclude_none=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read a checkpoint back.

        Raises:
            CheckpointError: The text is none.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise CheckpointError(f"this is no checkpoint: {describe(error)}", advice=NO_CHECKPOINT) from None
