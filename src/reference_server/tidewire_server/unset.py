"""A stand-in for "no value", where None is one."""

from enum import Enum
from typing import Final


class Unset(Enum):
    """Its one member is `UNSET`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
