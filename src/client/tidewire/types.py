"""Updates that a job yields to its reader, and the validation of values by type."""

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
"""Type of the argument `returns`: a class, or a pydantic TypeAdapter for other types (a union, an annotated type)."""


class Unset(Enum):
    """Type of the sentinel `UNSET`."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final[Literal[Unset.UNSET]] = Unset.UNSET
"""Sentinel for an argument that was not passed. None cannot serve, because it is a JSON value."""


class TextDelta(NamedTuple):
    """Change of a text: its last `deleted` code points were removed, then `text` was appended."""

    deleted: int
    text: str


class Position(NamedTuple):
    """Position in a job's event stream, with the job's state at that position."""

    view: View
    columns: tuple[str, ...]
    cursor: Cursor

    def text(self, pointer: str) -> str | None:
        """Return the text at a JSON Pointer, or None if there is no text."""
        try:
            value = self.view.value(pointer)
        except LookupError:
            return None
        return value if isinstance(value, str) else None


class ResultType(Generic[T]):
    """Validator for the values of a job, created from `returns`. Without `returns`, all JSON values are valid."""

    def __init__(self, returns: Any = None) -> None:
        self._adapter: TypeAdapter[T] | None
        if returns is None or isinstance(returns, TypeAdapter):
            self._adapter = returns
        else:
            if isinstance(returns, str):
                raise TypeError(f"returns must be a type, not the name of a type: {returns!r}")
            try:
                self._adapter = TypeAdapter(returns)
            except (PydanticUserError, PydanticUndefinedAnnotation) as error:
                what = f"returns must be a type that pydantic can validate, or a TypeAdapter, not {returns!r}"
                raise TypeError(f"{what}: {str(error).partition(chr(10))[0]}") from error
        # `list[int].__name__` is just "list", so only plain classes are shown by their name.
        self._name = returns.__name__ if isinstance(returns, type) else repr(returns)

    def validate(self, value: JsonValue, *, where: Where = NOWHERE, midway: bool = False) -> T:
        """Validate a value in pydantic's JSON mode, which for example parses dates from strings.

        Args:
            value: The value to validate.
            where: Location for the error message.
            midway: Whether the job is still running, which changes the error message.

        Raises:
            InvalidValueError: The value does not match the type.
        """
        if self._adapter is None:
            return value  # type: ignore[return-value]
        # To save memory, drop the value once it is serialized, and serialize a plain text without an extra copy.
        written = json.dumps(value, ensure_ascii=False) if isinstance(value, str) else to_json(value)
        del value
        try:
            return self._adapter.validate_json(written)
        except ValidationError as error:
            what = f"the value is not a valid {self._name}: {describe(error)}"
            if midway:
                what = f"at this point {what}"
                advice = "The job is still running, so its value may be incomplete. Use update.value, or wait for result()."
            else:
                advice = "Pass a `returns` type that matches the endpoint's schema: client.describe(name).value_schema."
            raise InvalidValueError(what, where=where, advice=advice) from error


class Update(Generic[T]):
    """A job's value at one event, with the change of its text since the previous update.

    Attributes:
        text: Text appended to the value's first text column, after `deleted` code points were removed from its end.
        deleted: Number of code points removed from the end of the text, for example by a rollback or a restart.
        first_seq: Seq of the first event that this update covers, directly after the previous update.
        cursor: Id of the last event that this update covers.
    """

    __slots__ = ("_shape", "cursor", "deleted", "first_seq", "index", "place", "settles", "text", "visible")

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
        self.settles: bool = settles
        self._shape = shape
        self.text: str = text
        self.cursor: Cursor = place.cursor
        self.deleted: int = deleted
        self.first_seq: int = first_seq
        self.index: int = index
        self.visible: bool = visible

    @property
    def seq(self) -> int:
        """Seq of the last event that this update covers."""
        return self.cursor.seq

    @property
    def id(self) -> str:
        """Id of the last event that this update covers, in the form `epoch-seq`."""
        return str(self.cursor)

    @property
    def value(self) -> JsonValue:
        """The complete value at this event. Each access returns a new copy. Later events do not change it."""
        return self.member("value")

    def parse(self) -> T:
        """Validate the value at this event against the job's `returns` type.

        Raises:
            InvalidValueError: The value does not match the type. While the job is running, this may only mean that
                the value is incomplete.
        """
        where = Where(last_event_id=self.id)
        return self._shape.validate(self.value, where=where, midway=self.status not in ENDED)

    @property
    def status(self) -> str:
        """Status of the item at this event, such as `running` or `succeeded`."""
        return str(self.member("status"))

    def member(self, name: str) -> JsonValue:
        """Return a member of the item at this event, or None if the item does not have it."""
        try:
            return self.place.view.value(f"/items/{self.index}/{name}")
        except LookupError:
            return None

    def with_text(self, text: str) -> "Update[T]":
        """Return a copy of this update with another `text`, without deletions."""
        return type(self)(self.place, self._shape, self.first_seq, text=text, index=self.index)

    def __repr__(self) -> str:
        if self.text or self.deleted:
            deleted = f" deleted={self.deleted}" if self.deleted else ""
            return f"<{type(self).__name__} {self.id}{deleted} text={self.text[:40]!r}>"
        return f"<{type(self).__name__} {self.id} value={reprlib.repr(self.value)}>"


class ItemUpdate(Update[T]):
    """The value of one batch item at one event, with the change of its text since the item's previous update.

    Attributes:
        index: Index of the input in the batch, from 0.
    """

    __slots__ = ()

    @property
    def error(self) -> Problem | None:
        """Problem details of a failed item, or None."""
        error: Any = self.member("error")
        return None if error is None else Problem.model_validate(error)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} index={self.index}>"
