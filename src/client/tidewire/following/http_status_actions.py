"""Table of the client's reactions to HTTP statuses, for event streams, requests to submit a job and all other requests.

The rows of the table are statuses, and the columns are kinds of requests. If the table has no entry for a status 4xx,
the action is FATAL, because the server has understood the request and refused it. If it has no entry for another
status, the action is CUT, because the response may come from a proxy and then says nothing about the job. The module
`request_policy` adds the limits that depend on earlier attempts. The table in `docs/reference/client.md` is generated
from this table.
"""

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple


class Action(Enum):
    """Action of the client after a response."""

    USE = "use"
    """Use the body of the response, because the request succeeded."""
    READ_JOB = "read_job"
    """The stream has no more events after this cursor. Request the job with GET. If the job has ended, deliver its
    final state. Otherwise drop the cursor and continue as after a lost connection."""
    RESYNC = "resync"
    """The server rejected the cursor. Drop the cursor, wait as after a lost connection, and request the stream
    without a cursor."""
    REFRESH = "refresh"
    """Refresh the credentials and retry, once for each request. The next time, the action is FATAL."""
    WAIT = "wait"
    """The server is overloaded, or the request did not arrive in time. Wait for the time in Retry-After and retry; such
    a wait does not count as a failure. Without that header, wait and retry as after a failure."""
    REDIRECT = "redirect"
    """Send the GET request to the new location, if the location has the same origin. Otherwise the action is FATAL."""
    CUT = "cut"
    """The failure may be temporary, as for a lost connection. Wait and retry within the retry policy."""
    FIRST_CONTACT = "first_contact"
    """There may be no server at this address. Make at most three attempts, with short waits. Then the action is
    FATAL."""
    FATAL = "fatal"
    """Raise the error that the response describes."""


class RequestKind(Enum):
    """Kind of a request. Each kind has a column in `STATUS_TABLE`."""

    STREAM = "stream"
    """GET request for an event stream."""
    REQUEST = "request"
    """Any other request that is safe to repeat, such as a request to read or cancel a job."""
    SUBMIT = "submit"
    """POST request that submits a job."""


class Row(NamedTuple):
    """The actions for one status, by the kind of the request. None means the default action for the status."""

    stream: Action | None
    request: Action | None
    submit: Action | None


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
        # The server rejects the cursor with 400. If the request had no cursor, `action_for` returns FATAL.
        400: Row(Action.RESYNC, None, None),
        401: Row(_REFRESH, _REFRESH, _REFRESH),
        403: Row(_REFRESH, _REFRESH, _REFRESH),
        # The request did not arrive completely in time, so the server has not started to process it. [TW-CLI-064]
        408: Row(_WAIT, _WAIT, _WAIT),
        # The server is still processing another request with the same idempotency key.
        409: Row(None, None, _WAIT),
        429: Row(_WAIT, _WAIT, _WAIT),
        503: Row(_WAIT, _WAIT, _WAIT),
    }
)


def action_for(status: int, kind: RequestKind, *, has_cursor: bool = False) -> Action:
    """Return the client's action for a response.

    Args:
        status: The HTTP status code.
        kind: The kind of the request.
        has_cursor: Whether the request for a stream had a cursor. If not, the action for the status 400 is FATAL.
    """
    row = STATUS_TABLE.get(status)
    found: Action | None = None if row is None else getattr(row, kind.value)
    if found is Action.RESYNC and not has_cursor:
        return Action.FATAL
    if found is not None:
        return found
    return Action.FATAL if 400 <= status < 500 else Action.CUT


def is_event_stream(content_type: str | None) -> bool:
    """Whether a Content-Type is `text/event-stream`. Its parameters, such as `charset`, are ignored, because an event
    stream is always UTF-8.
    """
    return content_type is not None and content_type.partition(";")[0].strip().lower() == "text/event-stream"


def retry_after(value: str | None) -> float | None:
    """Parse the number of seconds in a Retry-After header. Returns None if the header is absent, a date or invalid.

    The number is not limited here. If the retry policy does not allow such a long wait, the caller raises an error
    (TW-CLI-046).
    """
    if value is None or not (value.isascii() and value.isdigit()):
        return None
    return float(value)
