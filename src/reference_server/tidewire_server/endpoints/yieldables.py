"""Objects that a batched generator can yield for a row instead of a whole value: `Append` and `Last`."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Unset(Enum):
    """Type of the sentinel `UNSET`, which represents "no value" because None is a valid value."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Append(Generic[T]):
    """Append to a row's value: a string to a text, or elements to an array. The cost does not depend on the current
    length of the value.

    Example:
        yield {0: Append(" world"), 3: Append("!")}
    """

    x: T
    at: str | None = None
    """JSON Pointer within the value. The default is the endpoint's column if it has exactly one column, otherwise the whole
    value."""


@dataclass(frozen=True, slots=True)
class Last(Generic[T]):
    """End a row while the other rows of the batch continue. The row's final value is the value in `Last`, or the row's
    value after the `Append` in `Last`. If `Last` is empty, the row keeps its current value.

    Example:
        yield {0: Append(" world"), 3: Last(Append("!")), 5: Last()}
    """

    value: T | Append[T] | Unset = UNSET
