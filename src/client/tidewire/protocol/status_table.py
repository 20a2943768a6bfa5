"""What the client does with an HTTP status: one table for event streams, reads and submits.

Rows are statuses, columns are kinds of requests. Where the table has no entry, a 4xx is FATAL (the server has understood
the request and refused it) and any other status is a CUT (a proxy's 502 says nothing about the job). `request_policy`
adds the limits that depend on earlier attempts. The table in `docs/reference/client.md` is generated from this one.
"""

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Action(Enum):
    """What the client does after a response with some status."""

    USE = "use"
    """Use the body: the request succeeded."""
    READ_JOB = "read_job"
    """The stream has no more events after this cursor. GET the job: if it has ended, deliver its final state; if not,
    drop the cursor and continue as after a broken connection."""
    RESYNC = "resync"
    """The server rejected the cursor. Drop it, wait as after a broken connection, and GET the stream without a cursor."""
    REFRESH = "refresh"
    """Refresh the credentials and retry, once per request; then FATAL."""
    WAIT = "wait"
    """The server is overloaded. Wait for Retry-After, otherwise for the backoff, with jitter, and retry."""
    REDIRECT = "redirect"
    """GET the new location if it is on the same origin; otherwise FATAL."""
    CUT = "cut"
    """A transient failure, like a broken connection: wait and retry. A stream allows `MAX_SERVER_FAULTS` in a row."""
    FATAL = "fatal"
    """Raise the error that the response describes."""


class RequestKind(Enum):
    """Kind of a request, which selects the column of the status table."""

    STREAM = "stream"
    """GET of an event stream."""
    REQUEST = "request"
    """Any other request that is safe to repeat: a read or a cancel."""
    SUBMIT = "submit"
    """POST of a job."""


class Row(NamedTuple):
    """The actions for one status, by kind of request. None: the default for the status."""

    stream: Action | None
    request: Action | None
    submit: Action | None


MAX_SERVER_FAULTS = 10
"""Number of consecutive unusable responses to a stream request (5xx, wrong content type or coding) that are retried."""

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
        # The server sends 304 only in response to a conditional request.
        304: Row(None, _USE, None),
        307: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        308: Row(_REDIRECT, _REDIRECT, _REDIRECT),
        # FATAL if the stream was requested without a cursor, because then the cursor cannot be the reason.
        400: Row(Action.RESYNC, None, None),
        401: Row(_REFRESH, _REFRESH, _REFRESH),
        403: Row(_REFRESH, _REFRESH, _REFRESH),
        # The server is still processing another submit with the same idempotency key.
        409: Row(None, None, _WAIT),
        429: Row(_WAIT, _WAIT, _WAIT),
        503: Row(_WAIT, _WAIT, _WAIT),
    }
)


def action_for(status: int, kind: RequestKind, *, has_cursor: bool = False) -> Action:
    """Look up the action for a response.

    Args:
        status: The HTTP status code.
        kind: The kind of the request.
        has_cursor: Whether the request for a stream carried a cursor. Without one, a 400 is fatal.
    """
    row = STATUS_TABLE.get(status)
    found: Action | None = None if row is None else getattr(row, kind.value)
    if found is Action.RESYNC and not has_cursor:
        return Action.FATAL
    if found is not None:
        return found
    return Action.FATAL if 400 <= status < 500 else Action.CUT


def is_event_stream(content_type: str | None) -> bool:
    """Whether a Content-Type is `text/event-stream`. Parameters are ignored: the stream is always UTF-8."""
    return content_type is not None and content_type.partition(";")[0].strip().lower() == "text/event-stream"


def retry_after(value: str | None) -> float | None:
    """Parse the seconds of a Retry-After header; None if the header is absent, a date or invalid.

    The number is not capped: a delay that the retry policy does not allow must end the retries. [TW-CLI-046]
    """
    if value is None or not (value.isascii() and value.isdigit()):
        return None
    return float(value)
