"""What the client does with an HTTP status: one table for event streams, reads and submits.

Rows are statuses, columns are kinds of requests. Where the table has no entry, a 4xx is FATAL (the server has understood
the request and refused it) and any other status is a CUT (a proxy's 502 says nothing about the job). `request_policy`
adds what depends on earlier attempts. The table in `docs/reference/client.md` is generated from this one.
"""

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Action(Enum):
    """What follows a status."""

    USE = "use"
    """The body is what was asked for."""
    READ_JOB = "read_job"
    """The stream has nothing more for this cursor. GET the job: if it has ended, deliver its state; if not, treat it as
    a cut, and drop the cursor."""
    RESYNC = "resync"
    """The cursor was rejected. Drop it, wait as after a cut, and GET without one."""
    REFRESH = "refresh"
    """Refresh the credentials once and repeat; then FATAL."""
    WAIT = "wait"
    """Overloaded. Wait for Retry-After, else for the backoff, with jitter, and repeat."""
    REDIRECT = "redirect"
    """GET the new place if it is on the same origin; else FATAL."""
    CUT = "cut"
    """Transient, as a connection that broke: wait and repeat, at most `MAX_SERVER_FAULTS` times in a row."""
    FATAL = "fatal"
    """Raise the problem."""


class RequestKind(Enum):
    """What a request asks for: a column of the table."""

    STREAM = "stream"
    """GET of an event stream."""
    REQUEST = "request"
    """Any other request that is safe to repeat: reads, and cancels."""
    SUBMIT = "submit"
    """POST of a job."""


class Row(NamedTuple):
    """What follows one status, by kind of request."""

    stream: Action | None
    request: Action | None
    submit: Action | None


MAX_SERVER_FAULTS = 10
"""Responses in a row of kind CUT (5xx, wrong content type or coding) before they are fatal."""

_USE, _WAIT, _REFRESH, _REDIRECT = Action.USE, Action.WAIT, Action.REFRESH, Action.REDIRECT

#            stream            request    submit
STATUS_TABLE: Final = MappingProxyType(
    {
        200: Row(_USE, _USE, _USE),
        201: Row(None, _USE, _USE),
        202: Row(None, _USE, None),
        204: Row(Action.READ_JOB, _USE, None),
        301: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        302: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        303: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        # Only sent in response to a request that named what it holds.
        304: Row(None, _USE, None),
        307: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        308: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        # A stream that was requested without a cursor has no cursor to reject: FATAL.
        400: Row(Action.RESYNC, None, None),
        401: Row(_REFRESH, _REFRESH, _REFRESH),
        403: Row(_REFRESH, _REFRESH, _REFRESH),
        # Another submit with the same idempotency key is still being processed.
        409: Row(None, None, _WAIT),
        429: Row(_WAIT, _WAIT, _WAIT),
        503: Row(_WAIT, _WAIT, _WAIT),
    }
)


def action_for(status: int, kind: RequestKind, *, has_cursor: bool = False) -> Action:
    """Look up what follows a status.

    Args:
        status: The HTTP status code.
        kind: The kind of request, which selects the column.
        has_cursor: Whether a stream was asked for with a cursor; a 400 without one is fatal.
    """
    row = STATUS_TABLE.get(status)
    found: Action | None = None if row is None else getattr(row, kind.value)
    if found is Action.RESYNC and not has_cursor:
        return Action.FATAL
    if found is not None:
        return found
    return Action.FATAL if 400 <= status < 500 else Action.CUT


def is_event_stream(content_type: str | None) -> bool:
    """Whether a Content-Type names an event stream. Parameters do not matter: the stream is always UTF-8."""
    return content_type is not None and content_type.partition(";")[0].strip().lower() == "text/event-stream"


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header in its delay form; None where it is absent, a date, or nonsense.

    However long it is: what no retry policy has ends the attempts, and is not taken for nothing. [TW-CLI-046]
    """
    if value is None or not (value.isascii() and value.isdigit()):
        return None
    return float(value)
