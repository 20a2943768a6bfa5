"""Objects that a generator can yield instead of a whole value: `Append`, and `Last` to end a row of a batch."""

import types
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, TypeVar, Union, get_args, get_origin

T = TypeVar("T")


class Unset(Enum):
    """Type of the sentinel `UNSET`. The sentinel represents "no value", because None is a valid value."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Append(Generic[T]):
    """Append a string to a text, or elements to an array. The cost does not depend on the current length of the value.

    A generator that yields a plain string replaces the whole text with this string. With `Append`, it adds a piece.

    A generator without an annotation begins with the value null. If it yields an `Append` first, this string or list
    becomes the value. With the annotation `-> Iterator[Append[str]]`, the endpoint's description also contains the type
    of the value.

    Example:
        yield Append(" world")
        yield {0: Append(" world"), 3: Append("!")}  # in a batched generator, for two rows
    """

    x: T
    at: str | None = None
    """JSON Pointer within the value. The default is the endpoint's column if it has exactly one column, otherwise the whole
    value."""


@dataclass(frozen=True, slots=True)
class Last(Generic[T]):
    """End a row while the other rows of the batch continue. The value in `Last` becomes the row's final value. An `Append` in
    `Last` is first appended to the row's current value. If `Last` is empty, the row keeps its current value.

    Example:
        yield {0: Append(" world"), 3: Last(Append("!")), 5: Last()}
    """

    value: T | Append[T] | Unset = UNSET


def value_type(annotation: Any) -> Any:
    """Return the type of one value: remove exception classes, `Append` and `Last` from an annotation."""
    if get_origin(annotation) in {Append, Last}:
        return value_type(get_args(annotation)[0])
    if annotation in (Append, Last):
        return Any
    if get_origin(annotation) not in {Union, types.UnionType}:
        return annotation
    values = [each for each in get_args(annotation) if each not in (Append, Last) and not _is_exception(each)]
    if not values:
        return Any
    return Union[tuple(map(value_type, values))]  # noqa: UP007 - the members are only known at run time


def _is_exception(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def contains_append(annotation: Any) -> bool:
    """Whether the annotation of the yielded objects contains `Append`."""
    if get_origin(annotation) in {Union, types.UnionType}:
        return any(map(contains_append, get_args(annotation)))
    return annotation is Append or get_origin(annotation) is Append
