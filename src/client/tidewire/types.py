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


class Update(Generic[T]):
    """How a job's value is at one event, and what became of it since the update before.

    Attributes:
        text: What the value's first text column gained, after `deleted` code points were taken from its end.
        deleted: Code points at the end of the text that have become void (a rollback, a restart).
        first_seq: The seq of the first event that this update covers: the one after the update before.
        cursor: The id of the last event that it covers.
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
        """The seq of the last event that this update covers."""
        return self.cursor.seq

    @property
    def id(self) -> str:
        """The id of the last event that this update covers: `epoch-seq`."""
        return str(self.cursor)

    @property
    def value(self) -> JsonValue:
        """The whole value at this event, made anew when read; it stays right when the update is kept."""
        return self.member("value")

    def parse(self) -> T:
        """The value at this event, validated as what the job `returns`.

        Raises:
            InvalidValueError: It is not valid, which midway may only mean that it is not whole yet.
        """
        where = Where(last_event_id=self.id)
        return self._shape.validate(self.value, where=where, midway=self.status not in ENDED)

    @property
    def status(self) -> str:
        """The status of what the value belongs to, at this event."""
        return str(self.member("status"))

    def member(self, name: str) -> JsonValue:
        """A member of the item as it is at this event; None where there is none."""
        try:
            return self.place.view.value(f"/items/{self.index}/{name}")
        except LookupError:
            return None

    def with_text(self, text: str) -> "Update[T]":
        """The same update, of whose text only a part is left to hand over."""
        return type(self)(self.place, self._shape, self.first_seq, text=text, index=self.index)

    def __repr__(self) -> str:
        if self.text or self.deleted:
            void = f" deleted={self.deleted}" if self.deleted else ""
            return f"<{type(self).__name__} {self.id}{void} text={self.text[:40]!r}>"
        return f"<{type(self).__name__} {self.id} value={reprlib.repr(self.value)}>"


class ItemUpdate(Update[T]):
    """How one item of a batch is at one event, and what became of it since.

    Attributes:
        index: Which input, from 0.
    """

    __slots__ = ()

    @property
    def error(self) -> Problem | None:
        """Why the item failed, if it did."""
        error: Any = self.member("error")
        return None if error is None else Problem.model_validate(error)

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} index={self.index}>"
