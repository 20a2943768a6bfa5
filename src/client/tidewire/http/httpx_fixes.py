"""Workarounds for bugs in httpx and httpcore. Remove a workaround when a release has fixed the bug in the column
`upstream`.

`Pool` also stores no cookies, and reduces the work for each request by caching parsed URLs.

| workaround | bug | upstream |
|---|---|---|
| `OnePiece` | a request body is an async generator that a broken connection leaves open; trio warns about it | encode/httpx#3597, encode/httpx#3686 |
| `Opening`, `Pool` | `AsyncClient.stream` nests two async generators; an event loop that ends while a stream is open closes both at once and prints an error | encode/httpx#3593, encode/httpcore#1019 |
| `TlsCleanup` | a TCP connection leaks when its TLS handshake is cancelled: httpcore closes it only after an error | encode/httpcore#443 |
| `bound_informational` | a request never ends if the server sends informational responses (1xx) without end: httpcore and h11 read them in a loop | not reported |
| `repair`, `clean_up_tls` | httpx request hooks that install `OnePiece` and `TlsCleanup` | |
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache, wraps
from typing import Any, Final

import anyio
import h11
import httpx

from tidewire.http.response import CLOSE_TIMEOUT

MAX_INFORMATIONAL: Final = 100
"""Maximum number of informational responses, such as `100 Continue`, that may precede the response to a request."""
TOO_MANY_INFORMATIONAL: Final = f"more than {MAX_INFORMATIONAL} informational responses (status 1xx)"
"""Message of the httpx.RemoteProtocolError that is raised if a server sends more informational responses."""
_BOUNDED: Final = "tidewire.bounded"
"""Extension of the requests to which `bound_informational` applies."""


class OnePiece(httpx.AsyncByteStream):
    """Request body that is not a generator. httpx uses a generator, which stays open if the connection breaks, and trio
    then emits a warning.
    """

    def __init__(self, body: bytes) -> None:
        self._whole = body
        self._left: bytes | None = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return OnePiece(self._whole)

    async def __anext__(self) -> bytes:
        if self._left is None:
            raise StopAsyncIteration
        body, self._left = self._left, None
        return body


class Opening(contextlib.AbstractAsyncContextManager[httpx.Response]):
    """Async context manager for a streamed response.

    It replaces `httpx.AsyncClient.stream`, which is an async generator. `aconnect_sse` is also an async generator. If
    one of them contained the other, an event loop that ends while a stream is open would close both at the same time
    and print an error. With a class in place of the inner generator, the event loop closes the stream without an error.
    """

    def __init__(self, client: httpx.AsyncClient, request: httpx.Request) -> None:
        self._client = client
        self._request = request
        self._response: httpx.Response | None = None

    async def __aenter__(self) -> httpx.Response:
        self._response = await self._client.send(self._request, stream=True)
        return self._response

    async def __aexit__(self, *_: object) -> None:
        if self._response is not None:
            await self._response.aclose()


class _NoCookies(httpx.Cookies):
    """Cookie jar that stores no cookies. The clients that `with_options` returns share one pool. A stored cookie would
    let callers with different credentials share one session of a gateway.
    """

    def extract_cookies(self, response: httpx.Response) -> None:
        """Do nothing."""


class Pool(httpx.AsyncClient):
    """httpx's client with the workarounds of this module and a cache of parsed URLs."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        bound_informational()
        self._own_cookies = _NoCookies()

    @property  # type: ignore[misc] # httpx's setter would replace the jar by a plain `httpx.Cookies`
    def cookies(self) -> httpx.Cookies:
        return self._own_cookies

    def build_request(self, method: str, url: httpx.URL | str, **members: Any) -> httpx.Request:
        return super().build_request(method, _parsed(url) if isinstance(url, str) else url, **members)

    def stream(self, method: str, url: httpx.URL | str, **members: Any) -> Opening:  # type: ignore[override]
        return Opening(self, self.build_request(method, url, **members))


@lru_cache(maxsize=64)
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)


class TlsCleanup:
    """Trace callback of httpcore that closes the TCP connection of a request when the TLS handshake fails."""

    def __init__(self) -> None:
        self._tcp_stream: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._tcp_stream = info["return_value"]
        elif event.endswith(".start_tls.failed") and self._tcp_stream is not None:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._tcp_stream.aclose()


def bound_informational() -> None:
    """Make httpcore count the informational responses to this client's requests. Requests of other clients in the process
    are not affected.

    The objects that read responses are created deep inside httpcore's connection pools, so this function replaces a
    method of their class.
    """
    import httpcore  # noqa: PLC0415 - it imports every installed event loop library

    connection_class: Any = httpcore.AsyncHTTP11Connection
    receive = connection_class._receive_response_headers
    if receive.__module__ == __name__:
        return

    @wraps(receive, assigned=())
    async def _receive_response_headers(self: Any, request: Any) -> Any:
        if _BOUNDED not in request.extensions:
            return await receive(self, request)
        http, count = self._h11_state, 0
        next_event = http.next_event

        def counted() -> Any:
            nonlocal count
            event = next_event()
            count += type(event) is h11.InformationalResponse
            if count > MAX_INFORMATIONAL:
                raise httpcore.RemoteProtocolError(TOO_MANY_INFORMATIONAL)
            return event

        http.next_event = counted
        try:
            return await receive(self, request)
        finally:
            del http.next_event

    connection_class._receive_response_headers = _receive_response_headers


async def repair(request: httpx.Request) -> None:
    request.stream = OnePiece(request.content)
    request.extensions[_BOUNDED] = True


async def clean_up_tls(request: httpx.Request) -> None:
    request.extensions["trace"] = TlsCleanup()
