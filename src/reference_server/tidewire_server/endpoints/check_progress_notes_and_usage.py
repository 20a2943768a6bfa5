"""Validation of the progress, notes and usage that a function reports in addition to its value.

An invalid argument raises an error where the function reports it. Without this validation, readers would receive events
that violate the protocol.
"""

import math
from typing import Any, Final

from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.document.json_values import is_text
from tidewire.protocol.strict_json import MAX_INTEGER
from tidewire_server.endpoints.user_values import plain

MAX_REPORT_TEXT: Final = 1000
"""Maximum number of characters of a `unit` or `phase` in a progress report. The limit bounds the memory of the server,
which keeps the latest report of each item for new readers."""

_LEVELS: Final = ("info", "warning", "error")


def progress(current: Any, total: Any, unit: Any, phase: Any, item: int) -> messages.Progress:
    """Validate a progress report of an item, and create the progress event.

    Raises:
        ValueError: A number is not finite, an integer is outside ±2^53, or a text is invalid or too long.
    """
    return messages.Progress(
        current=_number("current", current),
        total=None if total is None else _number("total", total),
        unit=None if unit is None else _short_text("unit", unit),
        phase=None if phase is None else _short_text("phase", phase),
        item=item,
    )


def note(text: Any, level: Any) -> dict[str, JsonValue]:
    """Validate a note, and convert it to the JSON object that is stored in a job's state.

    Raises:
        ValueError: The text is not a string or not valid Unicode, or the level is unknown.
    """
    if level not in _LEVELS:
        raise ValueError(f"a note's level must be 'info', 'warning' or 'error', not {level!r}")
    if not isinstance(text, str) or not is_text(text):
        raise ValueError(f"a note must be a string, not {_shown(text)}")
    return {"level": level, "text": str(text)}


def usage(numbers: dict[str, Any]) -> dict[str, int | float]:
    """Validate reported usage, and convert its numbers to plain JSON numbers.

    Raises:
        ValueError: A value is not a number, or is outside ±2^53.
    """
    checked: dict[str, int | float] = plain(numbers)
    for name, number in checked.items():
        if type(number) not in {int, float} or not abs(number) <= MAX_INTEGER:
            raise ValueError(f"the usage {name!r} must be a number from -2^53 to 2^53")
    return checked


def _number(name: str, value: Any) -> int | float:
    number = plain(value)
    if type(number) is float and math.isfinite(number):
        return number
    if type(number) is int and abs(number) <= MAX_INTEGER:
        return number
    raise ValueError(f"progress: {name} must be a finite number (integers up to ±2^53), not {_shown(value)}")


def _short_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not is_text(value):
        raise ValueError(f"progress: {name} must be a string, not {_shown(value)}")
    if len(value) > MAX_REPORT_TEXT:
        raise ValueError(f"progress: {name} must have at most {MAX_REPORT_TEXT} characters, not {len(value)}")
    return str(value)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"a {type(value).__name__}"
