"""Problem responses in the form of an event stream. Browsers need them, because `EventSource` hides the HTTP status of
a response from the page.
"""

from starlette.responses import Response

from tidewire.protocol.cursor import ENDED_BY_PROBLEM
from tidewire.protocol.messages import ephemeral_frame
from tidewire.protocol.problems import Problem
from tidewire_server.http.event_stream import HEADERS


def problem_stream(found: Problem, *, retry: float) -> Response:
    """Create an event-stream response that contains one `problem` event.

    If the problem is not retryable, the event has a special id. The `EventSource` reconnects and sends this id as its
    cursor. The server then responds with 204, which is the only way to stop an `EventSource`.
    """
    wait = found.retry_after_ms if found.retryable and found.retry_after_ms else round(retry * 1000)
    last = None if found.retryable else str(ENDED_BY_PROBLEM)
    frame = ephemeral_frame("problem", found, id=last, retry_ms=wait)
    response = Response(frame, headers={name.decode(): value.decode() for name, value in HEADERS})
    # Event streams have no Content-Length, because intermediaries may add comments or change line endings.
    del response.headers["content-length"]
    return response
