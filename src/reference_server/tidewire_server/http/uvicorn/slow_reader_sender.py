"""The body of one answer on its way to one reader, however slowly that takes it.

the reader                                | a message
------------------------------------------+------------------------------------------------------------
has taken what was sent before            | is handed over at once
is slow                                   | waits for room, as long as some byte is taken each `stall_timeout`
takes no byte for `stall_timeout`         | is given up: `StalledError`, and the connection can be dropped
has gone                                  | is given up: `GoneError`
"""

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.types import Message, Receive, Send

from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection

_ABORT_SECONDS: Final = 1.0
"""How long the ASGI server has to notice that a connection is gone."""


class GoneError(Exception):
    """The reader is gone."""


class StalledError(Exception):
    """The reader took no byte for `stall_timeout`."""


class BackpressuredSender:
    """One answer's head and body. Each method raises `GoneError` or `StalledError` where nobody takes it."""

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
        """Begin to listen for the reader's leaving; `close` ends that.

        Args:
            send_head: Sends the head: `send` behind middleware, which adds headers.
            send: Of the ASGI server; sends the body.
            receive: Of the ASGI server.
            connection: What lies beneath them.
            stall_timeout: Seconds in which the reader takes at least one byte.
            gone: Called when it has left.
        """
        self._send_head = send_head
        self._send = send
        self._connection = connection
        self._stall_timeout = stall_timeout
        self._loop = asyncio.get_running_loop()
        self.gone = False
        self.sent_at = self._loop.time()
        """When something was sent last; set also by whoever writes to the connection at once."""
        self._head: Message | None = None
        """What has to come before anything else."""
        self._listener: asyncio.Task[None] | None = asyncio.create_task(self._listen(receive, gone))

    def begin(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head, with whatever is sent first of the body."""
        self._head = {"type": "http.response.start", "status": 200, "headers": headers}

    async def write(self, body: bytes) -> None:
        """Send more of the body."""
        await self._deliver({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes) -> None:
        """Send the last of the body."""
        await self._deliver({"type": "http.response.body", "body": body, "more_body": False})

    def behind(self) -> bool | None:
        """Whether the reader has not made room for what was written last; None where that cannot be seen."""
        return self._connection.behind()

    async def make_room(self) -> None:
        """Wait until what was written has gone out: an empty body waits for room, and writes nothing."""
        await self.write(b"")

    async def abort(self) -> None:
        """Drop the connection, and let the ASGI server notice before this answer returns unfinished."""
        self._connection.abort()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=_ABORT_SECONDS)

    def close(self) -> None:
        """Stop listening."""
        # Not kept: the task and this would hold each other until the garbage collector comes by.
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.cancel()

    async def _deliver(self, message: Message) -> None:
        while True:
            if self.gone or self._connection.lost():
                raise GoneError
            if self._head is not None:
                head, self._head = self._head, None
                self._connection.gather()
                await self._send_head(head)
                self._connection.begun()
                await self._send(message)
                self._connection.hold_little()
                break
            if self._connection.behind() is False:
                await self._send(message)
                break
            before = self._connection.untaken()
            try:
                # The ASGI server waits for room before it takes the message, so a send that timed out took nothing.
                async with asyncio.timeout(self._stall_timeout):
                    await self._send(message)
            except TimeoutError:
                if before is None or (self._connection.untaken() or 0) >= before:
                    raise StalledError from None
            else:
                break
        self.sent_at = self._loop.time()

    async def _listen(self, receive: Receive, gone: Callable[[], None]) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        gone()
