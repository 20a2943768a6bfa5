"""An httpx2 transport that passes requests to a fake server in the same process, without a socket."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass

import anyio
import httpx2

from tidewire.testing.fake_server_job import Signal


@dataclass(frozen=True, slots=True)
class FakeRequest:
    """An HTTP request with its complete body."""

    method: str
    target: str
    """Path and query of the requested URL."""
    headers: Mapping[str, str]
    """Headers of the request. Their names are in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class FakeResponse:
    """An HTTP response.

    Its body is bytes or, for an event stream, an iterator of encoded events and connection faults.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes | Signal]


class FakeTransport(httpx2.AsyncBaseTransport):
    """Transport that calls a function for each request, and converts the result of the function to an httpx2 response."""

    def __init__(self, answer: Callable[[FakeRequest], FakeResponse], on_cut: Callable[[], None]) -> None:
        self._answer = answer
        self._on_cut = on_cut

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        target = request.url.raw_path.decode("ascii")
        headers = {name.lower(): value for name, value in request.headers.items()}
        reply = self._answer(FakeRequest(request.method, target, headers, body))
        frames = iter((reply.body,)) if isinstance(reply.body, bytes) else reply.body
        return httpx2.Response(reply.status, headers=reply.headers, stream=_Stream(frames, self._on_cut))


class _Stream(httpx2.AsyncByteStream):
    """Body of a response. It is a class, because trio would warn about an async generator that is not closed."""

    def __init__(self, frames: Iterator[bytes | Signal], on_cut: Callable[[], None]) -> None:
        self._frames = frames
        self._on_cut = on_cut
        self._closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        # Let other tasks run between two events, as a read from a socket would.
        await anyio.lowlevel.checkpoint()
        frame = b""
        while frame == b"":
            if self._closed:
                raise StopAsyncIteration
            found = next(self._frames, None)
            if found is None:
                raise StopAsyncIteration
            if isinstance(found, Signal):
                await self._break(found)
            else:
                frame = found
        return frame

    async def _break(self, signal: Signal) -> None:
        self._closed = True
        self._on_cut()
        if signal is Signal.STALL:
            await anyio.sleep_forever()
        raise httpx2.ReadError("the fake server broke the connection")

    async def aclose(self) -> None:
        self._closed = True
