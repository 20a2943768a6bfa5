"""Send a response with backpressure to a slow reader, and detect readers that stall or disconnect.

the reader                                | a call that sends data
------------------------------------------+------------------------------------------------------------
has received everything sent before       | returns immediately
is slow                                   | waits while the reader accepts at least one byte per `stall_timeout`
accepts no byte for `stall_timeout`       | raises `StalledError`
has disconnected                          | raises `GoneError`

A sender is an asynchronous context manager. Its block ends without an exception in these three cases:

the block ends because                    | the context manager
------------------------------------------+------------------------------------------------------------
the reader has disconnected               | does nothing
the reader has stalled                    | sets `stalled`, and aborts the connection
the ASGI server cancels the response      | aborts the connection, if the ASGI server is uvicorn
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Send

from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection

_ABORT_SECONDS: Final = 1.0
"""Number of seconds to wait until the ASGI server detects that the connection was aborted."""


_MAX_IGNORED_BYTES: Final = 64 * 1024
"""Maximum size in bytes of an unexpected request body, such as a body of a GET request, which is read and discarded."""


class GoneError(Exception):
    """Raised when the reader has disconnected."""


class StalledError(Exception):
    """Raised when the reader has accepted no byte for `stall_timeout` seconds."""


class BackpressuredSender:
    """Sends the head and body of one response. `write` and `end` raise `GoneError` or `StalledError`."""

    __slots__ = (
        *("_connection", "_head", "_listener", "_loop", "_on_gone", "_receive"),
        *("_send", "_send_head", "_stall_timeout"),
        *("gone", "sent_at", "stalled"),
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
        """Create a sender. `listen` or the first `write` starts a task that waits for a disconnect. The end of the block stops the
        task.

        Args:
            send_head: ASGI `send` for the response head. It passes the head through the middleware, which may add headers.
            send: ASGI `send` of the server, which is used for the response body.
            receive: ASGI `receive` of the server.
            connection: Connection that `send` and `receive` use.
            stall_timeout: Number of seconds within which the reader must accept at least one byte.
            gone: Function that is called when the reader has disconnected.
        """
        self._send_head = send_head
        self._send = send
        self._receive = receive
        self._on_gone = gone
        self._connection = connection
        self._stall_timeout = stall_timeout
        self._loop = asyncio.get_running_loop()
        self.gone = False
        self.stalled = False
        """Whether the block has ended because the reader has stalled."""
        self.sent_at = self._loop.time()
        """Event loop time at which data was last sent.

        Code that writes to the connection directly must update this attribute.
        """
        self._head: Message | None = None
        """Response head, until it has been sent together with the first part of the body."""
        self._listener: asyncio.Task[None] | None = None

    def begin(self, headers: list[tuple[bytes, bytes]], status: int = 200) -> None:
        """Set the response head. The head is sent together with the first part of the body."""
        self._head = {"type": "http.response.start", "status": status, "headers": headers}

    def listen(self) -> None:
        """Start the task that waits for a disconnect, unless it runs already."""
        if self._listener is None:
            self._listener = asyncio.create_task(self._listen(self._receive, self._on_gone))

    async def write(self, body: bytes) -> None:
        """Send a part of the body that is not the last part."""
        self.listen()
        await self._send_message({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes) -> None:
        """Send the last part of the body."""
        await self._send_message({"type": "http.response.body", "body": body, "more_body": False})

    def behind(self) -> bool | None:
        """Return whether earlier data is still buffered, or None if the ASGI server does not expose its buffer."""
        return self._connection.behind()

    async def wait_until_sent(self) -> None:
        """Wait until the write buffer is empty, by sending an empty part of the body."""
        await self.write(b"")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            self.stalled = isinstance(error, StalledError)
            # At shutdown, the ASGI server cancels responses to slow readers. It would log a traceback for an exception.
            if self.stalled or (isinstance(error, asyncio.CancelledError) and self.behind() is not None):
                await self._abort()
                return True
            return isinstance(error, GoneError | ClientDisconnect)
        finally:
            # Clear the attribute to break the reference cycle with the task. Otherwise only the garbage collector would
            # free both.
            listener, self._listener = self._listener, None
            if listener is not None:
                listener.cancel()

    async def _abort(self) -> None:
        """Abort the connection because the response is incomplete, and wait until the ASGI server has detected the
        abort.
        """
        self._connection.abort()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=_ABORT_SECONDS)

    async def _send_message(self, message: Message) -> None:
        while True:
            if self.gone or self._connection.lost():
                raise GoneError
            if self._head is not None:
                head, self._head = self._head, None
                with self._connection.coalesce_writes():
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
                # The ASGI server waits before it accepts the message. If this call times out, nothing was written, so the call
                # can be repeated.
                async with asyncio.timeout(self._stall_timeout):
                    await self._send(message)
            except TimeoutError:
                if before is None or (self._connection.unacknowledged() or 0) >= before:
                    raise StalledError from None
            else:
                break
        self.sent_at = self._loop.time()

    async def _listen(self, receive: Receive, gone: Callable[[], None]) -> None:
        ignored = 0
        while (message := await receive())["type"] != "http.disconnect":
            ignored += len(message.get("body", b""))
            if ignored > _MAX_IGNORED_BYTES:
                self._connection.abort()
        self.gone = True
        gone()
