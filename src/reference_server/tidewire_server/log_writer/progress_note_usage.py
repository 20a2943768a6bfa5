"""Validation of what a function reports in addition to its value: progress, notes and usage.

The call that reports raises the error. Otherwise readers would receive an event that violates the protocol.
"""

import math
from typing import Any, Final

from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.document.json_values import is_text
from tidewire.protocol.strict_json import MAX_INTEGER
from tidewire_server.log_writer.user_values import plain

MAX_REPORT_TEXT: Final = 1000
"""Characters of a unit or a phase: the latest report of each item is kept, and sent to whoever connects."""

_LEVELS: Final = ("info", "warning", "error")


def progress(current: Any, total: Any, unit: Any, phase: Any, item: int) -> messages.Progress:
    """A progress report of an item.

    Raises:
        ValueError: A number is not finite, or a text is not valid or too long.
    """
    return messages.Progress(
        current=_number("current", current),
        total=None if total is None else _number("total", total),
        unit=None if unit is None else _short_text("unit", unit),
        phase=None if phase is None else _short_text("phase", phase),
        item=item,
    )


def note(text: Any, level: Any) -> dict[str, JsonValue]:
    """A note, as a job's state holds it.

    Raises:
        ValueError: The text is not valid, or the level is unknown.
    """
    if level not in _LEVELS:
        raise ValueError(f"a note's level is 'info', 'warning' or 'error', not {level!r}")
    if not isinstance(text, str) or not is_text(text):
        raise ValueError(f"a note is a text, and {_shown(text)} is not one")
    return {"level": level, "text": str(text)}


def usage(numbers: dict[str, Any]) -> dict[str, int | float]:
    """Usage numbers by name.

    Raises:
        ValueError: Something is not a number, or passes ±2^53.
    """
    checked: dict[str, int | float] = plain(numbers)
    for name, number in checked.items():
        if type(number) not in {int, float} or not abs(number) <= MAX_INTEGER:
            raise ValueError(f"usage takes numbers up to ±2^53, and {name!r} is not one")
    return checked


def _number(name: str, given: Any) -> int | float:
    number = plain(given)
    if type(number) is float and math.isfinite(number):
        return number
    if type(number) is int and abs(number) <= MAX_INTEGER:
        return number
    raise ValueError(
        f"progress takes finite numbers, integers up to ±2^53: {name}={_shown(given)} is not one"
    )


def _short_text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not is_text(given):
        raise ValueError(f"progress takes {name} as a text, and {_shown(given)} is not one")
    if len(given) > MAX_REPORT_TEXT:
        raise ValueError(
            f"progress takes {name} of up to {MAX_REPORT_TEXT} characters, and this one has {len(given)}"
        )
    return str(given)


def _shown(given: Any) -> str:
    shown = repr(given)
    return shown if len(shown) <= 80 else f"a {type(given).__name__}"
