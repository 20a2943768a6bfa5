"""Workarounds for bugs in httpx and httpcore. Remove a workaround when a release has fixed the bug in the column
`upstream`.

`Pool` also reduces the work for each request. It caches parsed URLs, and does not search for cookies in responses
without Set-Cookie.

| workaround | bug | upstream |
|---|---|---|
| `OnePiece` | a request body is an async generator that a broken connection leaves open; trio warns about it | encode/httpx#3597, encode/httpx#3686 |
| `Opening`, `Pool` | `AsyncClient.stream` nests two async generators; an event loop that ends while a stream is open closes both at once and prints an error | encode/httpx#3593, encode/httpcore#1019 |
| `TlsCleanup` | a TCP connection leaks when its TLS handshake is cancelled: httpcore closes it only after an error | encode/httpcore#443 |
| `repair`, `clean_up_tls` | httpx request hooks that install `OnePiece` and `TlsCleanup` | |
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any

import anyio
import httpx

from tidewire.http.response import CLOSE_TIMEOUT


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
    """Async context manager for a streamed response, which is a class instead of httpx's generator.

    `aconnect_sse` is a generator that would contain httpx's generator. An event loop that ends while a stream is open
    closes both generators at the same time and prints an error. If there is only one generator, the event loop closes
    the stream without an error.
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


class _Cookies(httpx.Cookies):
    """Cookie jar that skips responses without Set-Cookie. httpx's own cookie jar parses the URL of the request twice
    for such a response.
    """

    def extract_cookies(self, response: httpx.Response) -> None:
        if "set-cookie" in response.headers:
            super().extract_cookies(response)


class Pool(httpx.AsyncClient):
    """httpx's client with the workarounds of this module and a cache of parsed URLs."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        self._own_cookies = _Cookies()

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


async def repair(request: httpx.Request) -> None:
    request.stream = OnePiece(request.content)


async def clean_up_tls(request: httpx.Request) -> None:
    request.extensions["trace"] = TlsCleanup()
