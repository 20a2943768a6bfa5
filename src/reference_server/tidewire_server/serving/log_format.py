"""Log formatters that prevent callers' texts from forging log lines or controlling a terminal, and a filter for warnings.

The log contains tracebacks of user functions, and the message of an exception often contains the caller's input.
"""

import copy
import json
import logging
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from typing import Final, Literal

from tidewire_server import tracing

EVERY: Final = 1000
"""After the first warning of a kind, one of this number of repetitions is logged."""

_MAX_KINDS: Final = 100
_MAX_LENGTH: Final = 16 * 1024
"""Maximum length of a message or a traceback. The middle of a longer text is omitted."""
_INDENT: Final = "    "
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"  # the last ones change the text direction
)
_OF_A_JOB: Final = re.compile(r"(?:[a-z ]+ )?job ([0-9a-f]{32})\b")
"""Matches the beginning of the server's own messages about a job. Texts of callers never occur at this position."""


class EscapingFormatter(logging.Formatter):
    """Formatter that writes one unindented line for each record.

    It escapes control characters, and indents tracebacks. A line without indentation is therefore always the start of a
    record, even if a message or an exception contains line breaks.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, followed by its traceback and stack."""
        # Use a copy, because `record.exc_text` may contain the traceback that another formatter has formatted.
        head = copy.copy(record)
        head.exc_info = head.exc_text = head.stack_info = None
        lines = [_escaped(_shortened(super().format(head).rstrip("\n")))]
        details = [self.formatException(record.exc_info)] if record.exc_info else []
        details += [self.formatStack(record.stack_info)] if record.stack_info else []
        for detail in details:
            lines += [_INDENT + _escaped(line) for line in _shortened(detail).split("\n")]
        return "\n".join(lines)


class JsonFormatter(logging.Formatter):
    """Formatter that writes one JSON object per line, in ASCII.

    The member `job` is the id of a job: the server's message concerns this job, or the job's function wrote the record. The
    members `job`, `trace_id` (see `tracing`), `traceback` and `stack` are omitted if they have no value.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Format a record, with its traceback and stack."""
        message = record.getMessage()
        about = _OF_A_JOB.match(message) if record.name.startswith("tidewire_server") else None
        members = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            "job": about[1] if about else tracing.JOB_ID.get(),
            "trace_id": tracing.trace_id(),
            "traceback": self.formatException(record.exc_info) if record.exc_info else None,
            "stack": self.formatStack(record.stack_info) if record.stack_info else None,
        }
        return json.dumps({name: _shortened(text) for name, text in members.items() if text is not None})


class LogThrottle(logging.Filter):
    """Logging filter that drops most repetitions of the same warning. Log records of other levels pass the filter."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log the record."""
        kind = str(record.msg)
        if record.levelno != logging.WARNING or (kind not in self._seen and len(self._seen) >= _MAX_KINDS):
            return True
        self._seen[kind] += 1
        seen = self._seen[kind]
        if seen % EVERY == 0:
            record.msg = f"{kind} ({seen} times so far; logged once in {EVERY})"
        return seen == 1 or seen % EVERY == 0


def set_up_logging(log_format: Literal["text", "json"] = "text") -> None:
    """Log warnings to stderr, unless the program has configured logging itself."""
    handler = logging.StreamHandler(sys.stderr)
    text = EscapingFormatter("%(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if log_format == "json" else text)
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def _shortened(text: str) -> str:
    if len(text) <= _MAX_LENGTH:
        return text
    half = _MAX_LENGTH // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters omitted … {text[-half:]}"


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
