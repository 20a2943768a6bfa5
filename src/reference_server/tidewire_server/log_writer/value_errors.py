"""Rewrite internal errors as paths relative to the user's value."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pydantic import BaseModel

from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.strict_json import MAX_DEPTH

_AT: Final = re.compile(r"at (['\"])(.*?)\1: ", re.DOTALL)
"""How `strict_json` names a place, at the beginning of its message."""


def said_of_value(error: ValueError, place: str = "") -> str:
    """The message of an error about a value, with paths relative to the value.

    Args:
        error: Raised by `strict_json` or by the document.
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
    """The message for a value that has no JSON form: the path of the part, and the reason."""
    return f"{named(_place(value, makes, 0))}: this is no JSON: {reason}"


def named(pointer: str) -> str:
    """A path within a value, as an error message begins with it."""
    return pointer or "the value"


def _place(value: Any, makes: Callable[[Any], Any], depth: int) -> str:
    """The pointer to the innermost part that has no JSON form."""
    if depth < MAX_DEPTH:
        for name, member in _parts(value):
            try:
                makes(member)
            except Exception:  # noqa: BLE001 - whatever it is, here it is
                return f"/{escape(str(name))}{_place(member, makes, depth + 1)}"
    return ""


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, list | tuple):
        return enumerate(value)
    return vars(value).items() if isinstance(value, BaseModel) else ()
