"""What a request brought: an answer that was read whole, or a stream that stands open."""

import contextlib
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio

from tidewire.errors import SilenceTimeoutError, TransportError, Where
from tidewire.http.owning_loop import OwningLoop

CLOSE_TIMEOUT: Final = 2.0
"""Seconds that closing a connection in good order may take."""
REFUSAL_BYTES: Final = 64 * 2**10
"""Bytes that are read of the body that came where a stream was asked for."""
UNREAD_STREAMS: Final = 8
"""Streams that answered submits and of which nothing was read yet. At this number, a submit asks for JSON."""


@dataclass(frozen=True, slots=True)
class Response:
    """An answer that was read whole."""

    method: str
    url: str
    """Where it came from."""
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    async def aclose(self) -> None:
        """Nothing: it was read whole."""

    def where(self, **members: Any) -> Where:
        """Where this answer came from, for an error."""
        return _where(self, **members)


class Body(Protocol):
    """The body of an answer, as it comes in."""

    resumable: bool
    """Whether a `read` that was cancelled may be followed by another one."""

    async def read(self, limit: float) -> bytes | None:
        """What has come, None at its end.

        Args:
            limit: Seconds without a byte.

        Raises:
            TimeoutError: No byte came.
            ConnectionError: The connection broke, or what came is no HTTP.
        """

    async def unwind(self) -> None:
        """End what was begun, once the connection is closed."""


class Connection:
    """An open answer whose body has not been read yet: a stream, or the reason why there is none.

    Attributes:
        method: What was asked: GET or, where the stream answers a submit, POST.
        url: Where the answer came from.
        status: The HTTP status.
        headers: Names in lower case.
        resumable: Whether a `read` that was cancelled may be followed by another one.
        waited_for: Whether somebody waits for its next bytes.
    """

    def __init__(
        self,
        answer: tuple[str, str, int, Mapping[str, str]],
        body: Body,
        *,
        raw: Any,
        owner: "Owner",
        closing: contextlib.AsyncExitStack,
    ) -> None:
        """Take a connection over.

        Args:
            answer: Method, URL, status and headers.
            body: What is to be read.
            raw: Its socket, where that is known.
            owner: Who has to know which connections there are.
            closing: Closes it, and raises nothing of the network.
        """
        self.method: str
        self.url: str
        self.status: int
        self.headers: Mapping[str, str]
        self.method, self.url, self.status, self.headers = answer
        self.resumable: bool = body.resumable
        self.waited_for: bool = False
        self._body = body
        self._raw = raw
        self._owner = owner
        self._closing = closing
        self._unread = self.method == "POST"
        owner.unread += self._unread
        owner.open.add(self)

    async def read(self, limit: float) -> bytes | None:
        """The next bytes, all that have come; None at the end of the body.

        Args:
            limit: Seconds without a byte.

        Raises:
            SilenceTimeoutError: No byte came.
            TransportError: The connection broke.
        """
        self._count_as_read()
        self.waited_for = True
        try:
            return await self._body.read(limit)
        except TimeoutError as error:
            raise SilenceTimeoutError(
                f"no byte for {max(limit, 0):.3g} s", where=Where(self.method, self.url)
            ) from error
        except ConnectionError as error:
            raise TransportError(cut(error), where=Where(self.method, self.url)) from error
        finally:
            self.waited_for = False

    def _count_as_read(self) -> None:
        self._owner.unread -= self._unread
        self._unread = False

    async def answer(self) -> Response:
        """Read what is no stream, as far as `REFUSAL_BYTES`: enough to say what came instead."""
        body = bytearray()
        with anyio.move_on_after(CLOSE_TIMEOUT):
            while len(body) < REFUSAL_BYTES and (chunk := await self.read(2 * CLOSE_TIMEOUT)):
                body += chunk
        return Response(self.method, self.url, self.status, self.headers, bytes(body))

    def where(self, **members: Any) -> Where:
        """Where this answer came from, for an error."""
        return _where(self, **members)

    async def aclose(self) -> None:
        """Close, also when the caller is being cancelled."""
        self._count_as_read()
        self._owner.open.discard(self)
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await self._closing.aclose()
            await self._body.unwind()

    def close_soon(self) -> None:
        """Close from where nothing can be awaited, such as a finalizer in any thread.

        The other side sees the close at once. The event loop closes the rest, if it still runs.
        """
        # A forked process has the same socket: a shutdown there would end it for the reader in this one.
        if not self._owner.loop.forked:
            hang_up(self._raw)
        self._owner.loop.start_soon(self.aclose)


class Owner(Protocol):
    """Who has to know of its connections."""

    loop: OwningLoop
    open: set[Connection]
    unread: int


def cut(error: Exception) -> str:
    """A connection that broke, in words."""
    return f"the connection broke: {str(error) or type(error).__name__}"


def hang_up(raw: Any) -> None:
    """End a TCP connection in both directions, whatever event loop owns its socket, from any thread."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        twin = socket.fromfd(raw.fileno(), raw.family, raw.type)
        try:
            twin.shutdown(socket.SHUT_RDWR)
        finally:
            twin.close()


def _where(answer: Response | Connection, **members: Any) -> Where:
    request_id = answer.headers.get("x-request-id")
    return Where(answer.method, answer.url, status_code=answer.status, request_id=request_id, **members)
