"""A problem as an event stream, for readers that cannot see a status: an EventSource shows its page none."""

from starlette.types import Send

from tidewire.protocol.cursor import ENDED_BY_PROBLEM
from tidewire.protocol.messages import Hello, ephemeral_frame
from tidewire.protocol.problems import Problem
from tidewire_server.http.event_stream import HEADERS


async def send_problem(
    send: Send,
    found: Problem,
    *,
    retry: float,
    hello: Hello | None = None,
    headers: list[tuple[bytes, bytes]] | None = None,
) -> None:
    """Answer with a problem inside an event stream.

    A fatal one carries the id that is answered 204, which is the only thing that ends an EventSource.
    """
    wait = found.retry_after_ms if found.retryable and found.retry_after_ms else round(retry * 1000)
    frames = b"" if hello is None else ephemeral_frame("hello", hello)
    last = None if found.retryable else str(ENDED_BY_PROBLEM)
    frames += ephemeral_frame("problem", found, id=last, retry_ms=wait)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS + (headers or [])})
    await send({"type": "http.response.body", "body": frames, "more_body": False})
