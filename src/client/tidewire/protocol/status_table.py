"""What a client does with the status of an answer: the table of HTTP.

Rules. A GET is always repeated safely; a submit of unknown fate only with an idempotency key that the server honours.
A server's Retry-After is a lower bound.
Answers that say nothing of the job itself (a proxy's 502, a page of another server) are as a cut, a bounded number
of times in a row. Redirects are followed for GET on the same origin only.
"""

from enum import Enum
from types import MappingProxyType


class Action(Enum):
    """What follows an answer."""

    USE = "use"
    """The body is what was asked for."""
    READ_JOB = "read_job"
    """The stream has nothing more for this cursor: GET the job. Ended → deliver its state; running → a cut, without
    a cursor."""
    RESYNC = "resync"
    """Drop the cursor, wait as after a cut, GET without one."""
    REFRESH = "refresh"
    """Refresh the credentials once and repeat; the second time it is fatal."""
    WAIT = "wait"
    """Wait Retry-After (else the backoff), with jitter, and repeat."""
    REDIRECT = "redirect"
    """GET the new place if it is on the same origin; else fatal."""
    CUT = "cut"
    """As a cut: wait and repeat, at most `MAX_SERVER_FAULTS` in a row."""
    FATAL = "fatal"
    """Raise the problem."""


MAX_SERVER_FAULTS = 10
"""Answers in a row of kind CUT (5xx, wrong content type or coding) before they are fatal."""

_ANY = MappingProxyType(
    {
        200: Action.USE,
        401: Action.REFRESH,
        403: Action.REFRESH,
        429: Action.WAIT,
        503: Action.WAIT,
        301: Action.REDIRECT,
        302: Action.REDIRECT,
        303: Action.REDIRECT,
        307: Action.REDIRECT,
        308: Action.REDIRECT,
    }
)

# Beside `_ANY`, by what was asked for. Other 4xx are FATAL (404 job not found, 410 expired, 422 with the member that
# is wrong); other 5xx and whatever else are CUT.
_STREAM = MappingProxyType({**_ANY, 204: Action.READ_JOB, 400: Action.RESYNC})
# 304 is only answered to a request that named what it holds.
_REQUEST = MappingProxyType({**_ANY, 201: Action.USE, 202: Action.USE, 204: Action.USE, 304: Action.USE})
_SUBMIT = MappingProxyType({**_ANY, 201: Action.USE, 409: Action.WAIT})


class RequestKind(Enum):
    """What a request asked for: each has its own column of the table."""

    STREAM = "stream"
    REQUEST = "request"
    SUBMIT = "submit"


_TABLE = MappingProxyType(
    {RequestKind.STREAM: _STREAM, RequestKind.REQUEST: _REQUEST, RequestKind.SUBMIT: _SUBMIT}
)


def action_for(status: int, asked: RequestKind, *, has_cursor: bool = False) -> Action:
    """Look up what follows a status.

    Args:
        status: The HTTP status code.
        asked: What the request asked for.
        has_cursor: Whether a stream was asked for with a cursor; a 400 without one is fatal.
    """
    found = _TABLE[asked].get(status)
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
