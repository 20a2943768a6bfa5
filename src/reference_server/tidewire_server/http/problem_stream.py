"""A problem as an event stream, for readers that cannot see a status: an EventSource hides it from its page."""

from starlette.responses import Response

from tidewire.protocol.cursor import ENDED_BY_PROBLEM
from tidewire.protocol.messages import ephemeral_frame
from tidewire.protocol.problems import Problem
from tidewire_server.http.event_stream import HEADERS


def problem_stream(found: Problem, *, retry: float) -> Response:
    """The response with a problem inside an event stream.

    A problem that is not retryable has the id that is answered with 204: only this ends an EventSource.
    """
    wait = found.retry_after_ms if found.retryable and found.retry_after_ms else round(retry * 1000)
    last = None if found.retryable else str(ENDED_BY_PROBLEM)
    frame = ephemeral_frame("problem", found, id=last, retry_ms=wait)
    response = Response(frame, headers={name.decode(): value.decode() for name, value in HEADERS})
    # Like every event stream: an intermediary that adds comments or changes line ends would break a length.
    del response.headers["content-length"]
    return response
