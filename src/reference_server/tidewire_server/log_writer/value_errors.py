"""Error messages about a user's value. The paths in these messages are relative to the value, not to the job's
state.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pydantic import BaseModel

from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.strict_json import MAX_DEPTH

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
    return f"{named(_place(value, makes, 0))}: not JSON: {reason}"


def named(pointer: str) -> str:
    """Return a path within the value for an error message, or "the value" if the path is empty."""
    return pointer or "the value"


def _place(value: Any, makes: Callable[[Any], Any], depth: int) -> str:
    """Return the JSON Pointer of the innermost part of a value that has no JSON form."""
    if depth < MAX_DEPTH:
        for name, member in _parts(value):
            try:
                makes(member)
            except Exception:  # noqa: BLE001 - any error means that this part has no JSON form
                return f"/{escape(str(name))}{_place(member, makes, depth + 1)}"
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    return vars(value).items() if isinstance(value, BaseModel) else ()
