"""Send the head and the body of a request together.

httpcore writes the head and the body separately. Each write is a system call and a packet, and costs as much CPU as
parsing the events of a short job (`bench/client.py`).

The pool and the backend inside an httpx transport are not public. If they are not of the expected kind, `join_writes`
does nothing, and the head and the body are sent separately.
"""

import ssl
from typing import Any, Final

import httpcore

LONGEST: Final = 16 * 2**10
"""Maximum size in bytes of the two parts that are joined. A longer body is not copied."""


class JoinedWrites(httpcore.AsyncNetworkStream):
    """A connection that holds the head of a request back until the next write, and then sends both together.

    After the last part of a request, httpcore writes the end of the body, which is empty bytes if the body has a
    length. A request without a body is therefore sent at this write.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._held = b""

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        held, self._held = self._held, b""
        if len(buffer) > LONGEST:
            await self._stream.write(held, timeout)
            await self._stream.write(buffer, timeout)
        elif held or not buffer:
            await self._stream.write(held + buffer, timeout)
        else:
            self._held = buffer

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        # The server cannot respond to bytes that were not sent.
        if self._held:
            await self.write(b"", timeout)
        return await self._stream.read(max_bytes, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return JoinedWrites(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.AsyncNetworkBackend):
    """Opens connections as another backend does, and joins their writes."""

    def __init__(self, backend: httpcore.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return JoinedWrites(await self._backend.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        return JoinedWrites(await self._backend.connect_unix_socket(*args, **options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def join_writes(transport: object) -> None:
    """Join the writes of all connections that an httpx transport will open."""
    pool = getattr(transport, "_pool", None)
    backend = getattr(pool, "_network_backend", None)
    if isinstance(pool, httpcore.AsyncConnectionPool) and isinstance(backend, httpcore.AsyncNetworkBackend):
        pool._network_backend = _Backend(backend)
