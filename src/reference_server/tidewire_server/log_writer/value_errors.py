"""What is wrong with a value, in the words of whoever gave it: the place within the value, and nothing of documents."""

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
    """An error about a value, without the document in which it was to be written.

    Args:
        error: Of `strict_json`, or of the document.
        place: Where the value stands in the document.
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
    """Why there is no JSON for a value, and which part of it has none."""
    return f"{named(_place(value, makes, 0))}: this is no JSON: {reason}"


def named(pointer: str) -> str:
    """A place within a value, as it begins a sentence."""
    return pointer or "the value"


def _place(value: Any, makes: Callable[[Any], Any], depth: int) -> str:
    """The pointer to the innermost part for which there is no JSON."""
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
