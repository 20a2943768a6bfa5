"""Four repairs of httpx and httpcore, each with the upstream report; drop one when its report is fixed in a release.

`Pool` also does less per request than httpx: it parses a URL once, and looks for cookies only in a response that sets one.

| repair | what goes wrong without it | upstream |
|---|---|---|
| `OnePiece` | a request body is an async generator that a broken connection leaves open; trio warns about it | encode/httpx#3597, encode/httpx#3686 |
| `Opening`, `Pool` | `AsyncClient.stream` nests two async generators; an event loop that ends while a stream is open closes both at once and prints an error | encode/httpx#3593, encode/httpcore#1019 |
| `TlsCleanup` | a TCP connection leaks when its TLS handshake is cancelled: httpcore closes it only after an error | encode/httpcore#443 |
| `repair`, `clean_up_tls` | httpx request hooks that install the first and the third | |
"""

import contextlib
from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any

import anyio
import httpx

from tidewire.http.response import CLOSE_TIMEOUT


class OnePiece(httpx.AsyncByteStream):
    """A request's body. httpx's own is a generator, which a connection that breaks leaves open; trio complains of it."""

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
    """A request whose answer is left open.

    httpx's own is a generator. Two of them, one within the other, are both closed by an event loop that ends while a
    stream is open, and the loop prints that they stood in each other's way. Of one, the loop closes the stream.
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
    """Cookies, looked for where there are some: to look, httpx parses the request's URL twice more."""

    def extract_cookies(self, response: httpx.Response) -> None:
        if "set-cookie" in response.headers:
            super().extract_cookies(response)


class Pool(httpx.AsyncClient):
    """httpx's pool, with what this file is about. A URL is parsed once: most requests of a client go to the same few."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        self._own_cookies = _Cookies()

    @property  # type: ignore[misc] # its setter would make them plain ones
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
    """What httpcore tells of one request's connection (its `trace` extension), by which the bare one is found."""

    def __init__(self) -> None:
        self._bare: Any = None

    async def __call__(self, event: str, told: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._bare = told["return_value"]
        elif event.endswith(".start_tls.failed") and self._bare is not None:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._bare.aclose()


async def repair(request: httpx.Request) -> None:
    request.stream = OnePiece(request.content)


async def clean_up_tls(request: httpx.Request) -> None:
    request.extensions["trace"] = TlsCleanup()
