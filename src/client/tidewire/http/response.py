"""HTTP responses. A `Response` was read completely. A `Connection` is open, and its body is read while it arrives."""

import contextlib
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import anyio

from tidewire.errors import SilenceTimeoutError, TransportError, Where
from tidewire.http.connection_diagnosis import text_of
from tidewire.http.owning_loop import OwningLoop

CLOSE_TIMEOUT: Final = 2.0
"""Time limit for closing a connection gracefully, in seconds."""
REFUSAL_BYTES: Final = 64 * 2**10
"""Maximum number of bytes that the client reads from a response that is not the requested stream."""
UNREAD_STREAMS: Final = 8
"""Maximum number of open event streams that the server sent in response to submitted jobs, and that were not read yet.
When this number is reached, requests to submit a job ask for JSON instead of an event stream."""


class Response(NamedTuple):
    """A response that was read completely."""

    method: str
    url: str
    """URL of the request."""
    status: int
    headers: Mapping[str, str]
    """Response headers, with names in lower case."""
    body: bytes

    async def aclose(self) -> None:
        """Do nothing, because the response was read completely."""

    def where(self, **members: Any) -> Where:
        """Describe the response for an error message."""
        return _where(self, **members)


class Body(ABC):
    """The body of a response that is read while it arrives. Only one task at a time may read it.

    The limit applies to the time that reads wait, including cancelled reads. The time between two reads does not count,
    because the caller may be slow.

    Attributes:
        resumable: Whether `read` may be called again after a call of `read` was cancelled.
        being_read: Whether a task is waiting in `read`.
        was_read: Whether `read` was called.
        limit: Maximum time in seconds that reads may wait.
    """

    resumable: bool = False
    being_read: bool = False
    was_read: bool = False
    limit: float = math.inf

    def __init__(self, where: Where) -> None:
        self._where = where
        self._waited = 0.0
        """Time in seconds that counts toward the limit."""
        self._limits_silence = False
        """Whether each received byte resets `_waited`."""

    def set_limit(self, seconds: float, *, of_silence: bool) -> None:
        """Limit the time that reads wait: since the last byte if `of_silence`, otherwise in all reads together."""
        if (seconds, of_silence) != (self.limit, self._limits_silence):
            self.limit, self._limits_silence, self._waited = seconds, of_silence, 0.0
            self.close()

    @abstractmethod
    async def read(self) -> bytes | None:
        """Wait for the next bytes of the body and return all bytes that have arrived. Returns None at the end of the
        body.

        Raises:
            SilenceTimeoutError: The limit passed.
            TransportError: The connection broke, or the bytes are not valid HTTP.
        """

    def close(self) -> None:  # noqa: B027 - bodies without a timer need not implement it
        """Stop all timers. Called when the limit changes or the connection is closed."""

    async def unwind(self) -> None:  # noqa: B027 - not all bodies have resources
        """Release resources after the connection was closed."""

    def _timed_out(self) -> SilenceTimeoutError:
        return SilenceTimeoutError(f"no data for {self.limit:.3g} s", where=self._where)

    def _broken(self, error: Exception) -> TransportError:
        return TransportError(broken_connection(error), where=self._where)


class Connection:
    """A response whose body was not read completely. It is an event stream, or the error response to a request for an
    event stream.

    Attributes:
        method: Method of the request. It is GET, or POST if the request has submitted a job.
        url: URL of the request.
        status: HTTP status of the response.
        headers: Response headers, with names in lower case.
        body: The body to read.
    """

    def __init__(
        self,
        response: tuple[str, str, int, Mapping[str, str]],
        body: Body,
        *,
        network: Any,
        loop: OwningLoop,
        siblings: "set[Connection]",
        close: Callable[[], Awaitable[None]],
    ) -> None:
        """Create an open response and add it to the open connections of its client.

        Args:
            response: Method, URL, status and headers.
            body: The body to read.
            network: httpcore2's stream of the connection, or None if it is unknown.
            loop: The event loop of the connection.
            siblings: The open connections of the client.
            close: Coroutine function that closes the response and suppresses network errors.
        """
        self.method: str
        self.url: str
        self.status: int
        self.headers: Mapping[str, str]
        self.method, self.url, self.status, self.headers = response
        self.body: Body = body
        self._network = network
        self._loop = loop
        self._siblings = siblings
        self._close = close
        siblings.add(self)

    @property
    def is_unread_submit(self) -> bool:
        """Whether this is the response to a request that submitted a job, and nothing of its body was read yet."""
        return self.method == "POST" and not self.body.was_read

    async def read_response(self) -> Response:
        """Read up to `REFUSAL_BYTES` of the body of a response that is not a stream, for an error message."""
        body = bytearray()
        with anyio.move_on_after(CLOSE_TIMEOUT):
            while len(body) < REFUSAL_BYTES and (chunk := await self.body.read()):
                body += chunk
        return Response(self.method, self.url, self.status, self.headers, bytes(body))

    def where(self, **members: Any) -> Where:
        """Describe the response for an error message."""
        return _where(self, **members)

    async def aclose(self) -> None:
        """Close the response. The close is completed even if the calling task is being cancelled. Further calls do
        nothing.
        """
        if self not in self._siblings:
            return
        self._siblings.remove(self)
        self.body.close()
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await self._close()
            await self.body.unwind()

    def close_soon(self) -> None:
        """Close the response without awaiting. Finalizers and other threads use this method.

        The server sees the end of the connection at once. The event loop releases the other resources later, if it is
        still running.
        """
        # Do not shut the socket down in a forked process. The processes share the socket, so a shutdown would end the
        # connection of the parent process.
        if not self._loop.forked:
            shutdown_socket(self._network)
        self._loop.start_soon(self.aclose)


def broken_connection(error: Exception) -> str:
    """Return the error message for a broken connection."""
    return f"the connection broke: {text_of(error)}"


def shutdown_socket(network: Any) -> None:
    """Shut down a TCP connection in both directions. May be called on any thread, with a stream of any event loop."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        raw = network.get_extra_info("socket")
        duplicate = socket.fromfd(raw.fileno(), raw.family, raw.type)
        try:
            duplicate.shutdown(socket.SHUT_RDWR)
        finally:
            duplicate.close()


def _where(response: Response | Connection, **members: Any) -> Where:
    request_id = response.headers.get("x-request-id")
    return Where(response.method, response.url, status_code=response.status, request_id=request_id, **members)
