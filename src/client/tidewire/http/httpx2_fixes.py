"""`Pool`, which is the client of httpx2 without cookies, and `TlsCleanup`, a workaround for a bug in httpcore2: a TCP connection
leaks when its TLS handshake is cancelled, because httpcore2 closes the connection only after an error (encode/httpcore#443).
Remove the workaround when a release has fixed the bug.

This module uses public members only. `fast_body_reader` uses private ones.
"""

from collections.abc import Mapping
from typing import Any

import anyio
import httpx2

from tidewire.http.response import CLOSE_TIMEOUT


class _NoCookies(httpx2.Cookies):
    """Cookie jar that stores no cookies. The clients that `with_options` returns share one pool. A stored cookie would
    let callers with different credentials share one session of a gateway.
    """

    def extract_cookies(self, response: httpx2.Response) -> None:
        """Do nothing."""


class Pool(httpx2.AsyncClient):
    """httpx2's client, which stores no cookies."""

    def __init__(self, **members: Any) -> None:
        super().__init__(**members)
        self._own_cookies = _NoCookies()

    @property  # type: ignore[misc] # httpx2's setter would replace the jar by a plain `httpx2.Cookies`
    def cookies(self) -> httpx2.Cookies:
        return self._own_cookies


class TlsCleanup:
    """Trace callback of httpcore2 that closes the TCP connection of a request when the TLS handshake fails."""

    def __init__(self) -> None:
        self._tcp_stream: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._tcp_stream = info["return_value"]
        elif event.endswith(".start_tls.failed") and self._tcp_stream is not None:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._tcp_stream.aclose()
