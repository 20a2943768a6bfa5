"""`visible`, `visible_json` and `one_line`, which escape the control characters of texts that did not come from this
program.

Commands pass all text for a terminal through `visible` or `visible_json`. They write text to a pipe unchanged.
`one_line` is for the client's warnings, which Python prints to the terminal by default.
"""

import json
import re
from typing import Any, Final

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that act on a terminal: the control characters of ASCII and Latin-1 except tab and line feed, the line
separators of Unicode, and the bidirectional controls, which can change the order in which text is displayed."""

LINE_LIMIT: Final = 500
"""Maximum number of characters of a text in a log message."""


def visible(text: str) -> str:
    r"""Write control characters as escapes such as `\x1b` and `\u202e`.

    A text from a server could otherwise change the title of the terminal, write to the clipboard, or erase and replace
    lines that other programs have printed.
    """
    return _CONTROL.sub(_escaped, text)


def one_line(text: str) -> str:
    """Write a text as one line of a log message, which has at most `LINE_LIMIT` characters before they are escaped."""
    line = " ".join(text[: LINE_LIMIT + 1].split())
    return visible(line if len(line) <= LINE_LIMIT else line[: LINE_LIMIT - 1] + "…")


def visible_json(value: Any, *, indent: int | None = None) -> str:
    """Serialize a value as compact or indented JSON. Control characters are written as JSON escapes, so a program that
    parses the JSON gets the same value.
    """
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, ensure_ascii=False, separators=separators, indent=indent)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"
