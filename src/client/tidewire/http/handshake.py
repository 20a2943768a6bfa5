"""TLS handshakes that are broken off: httpcore closes their connection after an error, but not after a cancellation."""

from collections.abc import Mapping
from typing import Any

import anyio

from tidewire.http.connection import CLOSE_TIMEOUT


class Handshake:
    """What httpcore tells of one request's connection (its `trace` extension), by which the bare one is found."""

    def __init__(self) -> None:
        self._bare: Any = None

    async def __call__(self, event: str, told: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._bare = told["return_value"]
        elif event.endswith(".start_tls.failed") and self._bare is not None:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._bare.aclose()
