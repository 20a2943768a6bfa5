"""JSON response with a body of texts that it shares with other responses (`SharedResponse`).

A large response is sent in small slices, and each slice waits until the client has received the previous slices. A client
that reads slowly therefore keeps the shared texts and one slice in memory, and no copy of the response.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender
from tidewire_server.jobs.shared_texts import MIN_SHARED_BYTES, SharedText

_SLICE_BYTES: Final = 32 * 1024


def slices(data: bytes) -> Iterator[bytes]:
    """Split a large text into slices. Each slice is sent when the client has received the previous slices."""
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


class SharedResponse(Response):
    """JSON response with the `Cache-Control: no-store` header."""

    def __init__(
        self, parts: Sequence[SharedText], status: int, headers: Mapping[str, str], stall_timeout: float
    ) -> None:
        """Create a response.

        Args:
            parts: Parts of the body.
            status: Status of the response.
            headers: Additional headers.
            stall_timeout: Number of seconds within which the client must accept at least one byte.
        """
        size = sum(map(len, parts))
        small = size <= MIN_SHARED_BYTES
        super().__init__(
            b"".join(part.data for part in parts) if small else b"",
            status,
            {"cache-control": "no-store", **headers},
            "application/json",
        )
        self._parts = () if small else parts
        self._stall_timeout = stall_timeout
        if not small:
            self.headers["content-length"] = str(size)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        if not self._parts or scope["method"] == "HEAD":
            await super().__call__(scope, receive, send)
            return
        sender = BackpressuredSender(
            send,
            send,
            receive,
            scope["tidewire.http.response"],
            stall_timeout=self._stall_timeout,
            gone=_ignore_disconnect,
        )
        async with sender:
            sender.begin(self.raw_headers, self.status_code)
            for part in self._parts:
                for piece in slices(part.data):
                    await sender.write(piece)
            await sender.end(b"")


def _ignore_disconnect() -> None:
    """Do nothing, because the next write reports the disconnect."""
