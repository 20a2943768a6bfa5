"""Error messages about a user's value. The paths in these messages are relative to the value, not to the job's
state.
"""

import re
from collections.abc import Callable
from typing import Any, Final

from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.jsonable import place_of

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


def said_of_part(value: Any, makes: Callable[[Any], Any], reason: str) -> str:
    """Return the error message for a value that has no JSON form. The message names the innermost part that cannot be
    converted.

    Args:
        value: The value.
        makes: Function that converts a part of the value, and raises an error if the part has no JSON form.
        reason: Description of the error, which becomes a part of the message.
    """
    return f"{named(place_of(value, makes))}: not JSON: {reason}"


def named(pointer: str) -> str:
    """Return a path within the value for an error message, or "the value" if the path is empty."""
    return pointer or "the value"
