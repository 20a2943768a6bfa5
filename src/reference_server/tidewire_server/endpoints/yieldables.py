"""What a batched generator may yield for a row, beside a whole value: `Append` and `Last`."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

T = TypeVar("T")


class Unset(Enum):
    """Stands for "no value" where None is one. Its one member is `UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


@dataclass(frozen=True, slots=True)
class Append(Generic[T]):
    """Grow a row's value, which costs the same however long it is: a text by a text, an array by elements.

    Example:
        yield {0: Append(" world"), 3: Append("!")}
    """

    x: T
    at: str | None = None
    """JSON Pointer within the value; without it the endpoint's one column grows, else the value itself."""


@dataclass(frozen=True, slots=True)
class Last(Generic[T]):
    """End a row, while the others go on: with its last value, its last `Append`, or as it is.

    Example:
        yield {0: Append(" world"), 3: Last(Append("!")), 5: Last()}
    """

    value: T | Append[T] | Unset = UNSET
