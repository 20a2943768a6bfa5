"""Send a response to a slow reader with backpressure, and detect readers that stall or disconnect.

the reader                                | a send
------------------------------------------+------------------------------------------------------------
has received everything sent before       | returns immediately
is slow                                   | waits, as long as the reader accepts a byte every `stall_timeout`
accepts no byte for `stall_timeout`       | raises `StalledError`; the caller should then abort the connection
has disconnected                          | raises `GoneError`
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Receive, Send

from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection

_ABORT_SECONDS: Final = 1.0
"""Seconds to wait for the ASGI server to notice an aborted connection."""


class GoneError(Exception):
    """The reader has disconnected."""


class StalledError(Exception):
    """The reader accepted no byte for `stall_timeout`."""


class BackpressuredSender:
    """Sends the head and body of one response. `write` and `end` raise `GoneError` or `StalledError`."""

    __slots__ = (
        *("_connection", "_head", "_listener", "_loop", "_send", "_send_head", "_stall_timeout"),
        *("gone", "sent_at"),
    )

    def __init__(
        self,
        send_head: Send,
        send: Send,
        receive: Receive,
        connection: UvicornConnection,
        *,
        stall_timeout: float,
        gone: Callable[[], None],
    ) -> None:
        """Start listening for a disconnect. `close` stops the listener.

        Args:
            send_head: ASGI `send` wrapped by the middleware, which adds headers. Used for the response head.
            send: ASGI `send` of the server. Used for the response body.
            receive: ASGI `receive` of the server.
            connection: Connection behind `send` and `receive`.
            stall_timeout: Seconds within which the reader must accept at least one byte.
            gone: Called when the reader has disconnected.
        """
        self._send_head = send_head
        self._send = send
        self._connection = connection
        self._stall_timeout = stall_timeout
        self._loop = asyncio.get_running_loop()
        self.gone = False
        self.sent_at = self._loop.time()
        """Event loop time of the last send. Callers that write to the connection directly must update it."""
        self._head: Message | None = None
        """Response head that the next send must send first."""
        self._listener: asyncio.Task[None] | None = asyncio.create_task(self._listen(receive, gone))

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Set the response head. It is sent together with the first part of the body."""
        self._head = {"type": "http.response.start", "status": 200, "headers": headers}

    async def write(self, body: bytes) -> None:
        """Send a part of the body, which is not the last one."""
        await self._send_message({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes) -> None:
        """Send the last part of the body."""
        await self._send_message({"type": "http.response.body", "body": body, "more_body": False})

    def behind(self) -> bool | None:
        """Return whether earlier writes are still buffered. None if the ASGI server does not expose its buffer."""
        return self._connection.behind()

    async def wait_until_sent(self) -> None:
        """Wait until the write buffer is empty, by sending an empty body part."""
        await self.write(b"")

    async def abort(self) -> None:
        """Abort the connection and wait until the ASGI server has noticed, since the response is incomplete."""
        self._connection.abort()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=_ABORT_SECONDS)

    def close(self) -> None:
        """Stop the listener."""
        # Clear the attribute to break the reference cycle with the task, which only the garbage collector would free.
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()

    async def _send_message(self, message: Message) -> None:
        while True:
            if self.gone or self._connection.lost():
                raise GoneError
            if self._head is not None:
                head, self._head = self._head, None
                self._connection.coalesce_writes()
                await self._send_head(head)
                self._connection.body_started()
                await self._send(message)
                self._connection.limit_buffering()
                break
            if self._connection.behind() is False:
                await self._send(message)
                break
            before = self._connection.unacknowledged()
            try:
                # The ASGI server waits before it accepts the message, so a send that timed out has written nothing.
                async with asyncio.timeout(self._stall_timeout):
                    await self._send(message)
            except TimeoutError:
                if before is None or (self._connection.unacknowledged() or 0) >= before:
                    raise StalledError from None
            else:
                break
        self.sent_at = self._loop.time()

    async def _listen(self, receive: Receive, gone: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        gone()
