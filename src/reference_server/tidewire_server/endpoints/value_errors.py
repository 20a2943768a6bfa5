"""Error messages about a user's value. The paths in these messages are relative to the value, not to the job's
state.
"""

import re
from typing import Final

from tidewire.protocol.document.diff_shapes import DiffError

_AT: Final = re.compile(r"at (['\"])(.*?)\1: ", re.DOTALL)
"""Pattern of the path at the beginning of an error message of `strict_json`."""


def said_of_value(error: ValueError, place: str = "") -> str:
    """Rewrite the message of an error, so that its path is relative to the user's value.

    Args:
        error: An error that `strict_json` or the document raised.
        place: The path of the value in the document.
    """
    reason, pointer = str(error), ""
    if isinstance(error, DiffError):
        if error.path is not None and not error.path.startswith(place):
            return reason
        reason, pointer = error.reason, (error.path or place)[len(place) :]
    if (found := _AT.match(reason)) is not None:
        return f"{named(pointer + found[2])}: {reason[found.end() :]}"
    return f"{pointer}: {reason}" if pointer else reason


def named(pointer: str) -> str:
    """Return a path within the value for an error message, or "the value" if the path is empty."""
    return pointer or "the value"
