"""`TlsCleanup`, a workaround for a bug in httpcore2: a TCP connection leaks when its TLS handshake is cancelled, because
httpcore2 closes the connection only after an error (encode/httpcore#443). Remove the workaround when a release has fixed
the bug.

This module uses public members only. `fast_body_reader` uses private ones.
"""

from collections.abc import Mapping
from typing import Any

import anyio

from tidewire.http.response import CLOSE_TIMEOUT


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
