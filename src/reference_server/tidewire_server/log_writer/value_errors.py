"""Rewriting of internal errors, so that their paths are relative to the user's value."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from pydantic import BaseModel

from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.strict_json import MAX_DEPTH

_AT: Final = re.compile(r"at (['\"])(.*?)\1: ", re.DOTALL)
"""The path at the beginning of a message of `strict_json`."""


def said_of_value(error: ValueError, place: str = "") -> str:
    """Return the message of an error about a value, with paths relative to the value.

    Args:
        error: An error of `strict_json` or of the document.
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
    """Return the message for a value without a JSON form: the path of the innermost such part, and the reason."""
    return f"{named(_place(value, makes, 0))}: not JSON: {reason}"


def named(pointer: str) -> str:
    """Return the beginning of an error message: a path within the value, or "the value" itself."""
    return pointer or "the value"


def _place(value: Any, makes: Callable[[Any], Any], depth: int) -> str:
    """Return the JSON Pointer of the innermost part without a JSON form."""
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
