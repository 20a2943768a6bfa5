"""Objects that a batched generator can yield for a row instead of a whole value: `Append` and `Last`."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Unset(Enum):
    """Type of the sentinel `UNSET`, which means "no value" where None is a valid value."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Append(Generic[T]):
    """Append to a row's value: a string to a text, or elements to an array. The cost does not depend on the value's size.

    Example:
        yield {0: Append(" world"), 3: Append("!")}
    """

    x: T
    at: str | None = None
    """JSON Pointer within the value. Default: the endpoint's only column, or the whole value if there is no such column."""


@dataclass(frozen=True, slots=True)
class Last(Generic[T]):
    """End a row while the other rows continue, with a final value, a final `Append`, or its current value.

    Example:
        yield {0: Append(" world"), 3: Last(Append("!")), 5: Last()}
    """

    value: T | Append[T] | Unset = UNSET
