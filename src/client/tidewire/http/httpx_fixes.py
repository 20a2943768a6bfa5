"""Workarounds for bugs in httpx and httpcore. Remove a workaround when a release has fixed the bug in the column
`upstream`.

| workaround | bug | upstream |
|---|---|---|
| `OnePiece` | a request body is an async generator that a broken connection leaves open; trio warns about it | encode/httpx#3597, encode/httpx#3686 |
| `TlsCleanup` | a TCP connection leaks when its TLS handshake is cancelled: httpcore closes it only after an error | encode/httpcore#443 |

`Pool` is httpx's client without cookies. This module uses public members only. `fast_body_reader` uses private ones.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import httpx

from tidewire.http.response import CLOSE_TIMEOUT


class OnePiece(httpx.AsyncByteStream):
    """Request body that is not a generator. httpx uses a generator, which stays open if the connection breaks, and trio
    then emits a warning.

    Args:
        body: The body.
        on_sent: Function to call when the whole request was sent.
    """

    def __init__(self, body: bytes, on_sent: Callable[[], None]) -> None:
        self._whole = body
        self._left: bytes | None = body or None
        self._on_sent = on_sent

    def __aiter__(self) -> AsyncIterator[bytes]:
        return OnePiece(self._whole, self._on_sent)

    async def __anext__(self) -> bytes:
        if self._left is None:
            self._on_sent()
            raise StopAsyncIteration
        body, self._left = self._left, None
        return body


class _NoCookies(httpx.Cookies):
    """Cookie jar that stores no cookies. The clients that `with_options` returns share one pool. A stored cookie would
    let callers with different credentials share one session of a gateway.
    """

    def extract_cookies(self, response: httpx.Response) -> None:
        """Do nothing."""


class Pool(httpx.AsyncClient):
    """httpx's client, which stores no cookies."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        self._own_cookies = _NoCookies()

    @property  # type: ignore[misc] # httpx's setter would replace the jar by a plain `httpx.Cookies`
    def cookies(self) -> httpx.Cookies:
        return self._own_cookies


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
