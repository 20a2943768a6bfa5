"""HTTP, and nothing above it: the only importer of httpx and httpx_sse.

What those two raise becomes an error of ours here, and nowhere else. Proxies and certificates come from the
environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`), as httpx reads it.
"""

import contextlib
import re
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import httpx
import httpx_sse

from tidewire.errors import (
    ClientClosedError,
    ConnectTimeoutError,
    NotATidewireServerError,
    ProtocolError,
    SilenceTimeoutError,
    TransportError,
    Where,
)
from tidewire.options import CONNECT_TIMEOUT

if TYPE_CHECKING:
    from tidewire.segments import Segments

ANSWER_TIMEOUT: Final = 30.0
"""Seconds without a byte of the answer to a request that is answered at once."""
WHOLE_ANSWER_TIMEOUT: Final = 300.0
"""Seconds for the whole of such an answer, however its bytes trickle in."""
OVERHEAR_TIMEOUT: Final = 1.0
"""Seconds that a server that does not answer in HTTP has to say anything at all."""
CLOSE_TIMEOUT: Final = 2.0
"""Seconds that closing a connection in good order may take."""
MAX_BODY_BYTES: Final = 64 * 2**20
"""Bytes of the body of one answer that is no stream."""
REFUSAL_BYTES: Final = 64 * 2**10
"""Bytes that are read of the body that came where a stream was asked for."""
KEPT_ALIVE: Final = 100
"""Idle connections that are kept for the next request. Open ones are not bounded here: servers bound streams."""

_USER_AGENT = "tidewire-python"


@dataclass(frozen=True, slots=True)
class Answer:
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
        request_id = self.headers.get("x-request-id")
        return Where(self.method, self.url, status_code=self.status, request_id=request_id, **members)


class Connection:
    """An open answer to a GET whose body has not been read yet: a stream, or the reason why there is none.

    Attributes:
        url: Where the answer came from.
        status: The HTTP status.
        headers: Names in lower case.
        waited_for: Whether somebody waits for its next bytes.
    """

    def __init__(
        self, source: httpx_sse.EventSource, owner: "Transport", closing: contextlib.AsyncExitStack
    ) -> None:
        response = source.response
        self.url: str = str(response.url)
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._owner = owner
        self._closing = closing
        self._body = _body_of(response)
        self.waited_for: bool = False
        owner.open.add(self)

    async def read(self, limit: float) -> bytes | None:
        """The next bytes, all that have come; None at the end of the body.

        Args:
            limit: Seconds without a byte.

        Raises:
            SilenceTimeoutError: No byte came.
            TransportError: The connection broke.
        """
        self.waited_for = True
        try:
            return await self._body.read(limit)
        except TimeoutError as error:
            raise SilenceTimeoutError(
                f"no byte for {max(limit, 0):.3g} s", where=Where("GET", self.url)
            ) from error
        except (httpx.HTTPError, ConnectionError) as error:
            raise TransportError(_cut(error), where=Where("GET", self.url)) from error
        finally:
            self.waited_for = False

    async def answer(self) -> Answer:
        """Read what is no stream, as far as `REFUSAL_BYTES`: enough to say what came instead."""
        body = bytearray()
        with anyio.move_on_after(CLOSE_TIMEOUT):
            while len(body) < REFUSAL_BYTES and (chunk := await self.read(2 * CLOSE_TIMEOUT)):
                body += chunk
        return Answer("GET", self.url, self.status, self.headers, bytes(body))

    async def aclose(self) -> None:
        """Close, also when the caller is being cancelled."""
        self._owner.open.discard(self)
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            with contextlib.suppress(httpx.HTTPError):
                await self._closing.aclose()
            await self._body.unwind()

    def abandon(self) -> None:
        """Close from where nothing can be awaited, such as a finaliser in any thread.

        The other side sees the close at once; what is left of it here is let go with the next request.
        """
        network = self._response.extensions.get("network_stream")
        if network is not None:
            hang_up(network.get_extra_info("socket"))
        self._owner.abandoned.append(self)


class _Chunks:
    """A body as httpx reads it: one chunk of the server's at a time."""

    def __init__(self, response: httpx.Response) -> None:
        # Raw bytes: a stream has no content coding.
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_raw()  # type: ignore[assignment]

    async def read(self, limit: float) -> bytes | None:
        with anyio.fail_after(limit):
            try:
                return await self._chunks.__anext__()
            except StopAsyncIteration:
                return None

    async def unwind(self) -> None:
        # httpx stacks generators that do not close one another. A read from the closed connection unwinds them
        # all; left alone, each would wait for the garbage collector, which trio complains of.
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError, StopAsyncIteration):
            while True:
                await self._chunks.__anext__()


def _body_of(response: httpx.Response) -> "_Chunks | Segments":
    # Loaded when a stream is there: httpcore loads every event loop that it finds.
    from tidewire.segments import segments_of  # noqa: PLC0415

    return segments_of(response.stream, response.extensions) or _Chunks(response)


class _Body(httpx.AsyncByteStream):
    """A request's body. httpx's own is a generator, which a connection that breaks leaves open; trio complains of it."""

    def __init__(self, body: bytes) -> None:
        self._whole = body
        self._left: bytes | None = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _Body(self._whole)

    async def __anext__(self) -> bytes:
        if self._left is None:
            raise StopAsyncIteration
        body, self._left = self._left, None
        return body


class Transport:
    """Makes requests on one pool of connections. Bound to the event loop on which it is first used."""

    def __init__(self, *, verify: bool | ssl.SSLContext = True, proxy: str | None = None) -> None:
        self.open: set[Connection] = set()
        self.abandoned: list[Connection] = []
        self._verify = verify
        self._proxy = proxy
        self._client: httpx.AsyncClient | None = None
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_timeout: float = ANSWER_TIMEOUT,
        whole_timeout: float = WHOLE_ANSWER_TIMEOUT,
    ) -> Answer:
        """Make one request and read its answer.

        Args:
            method: GET, POST, …
            url: Absolute.
            headers: Beside the client's own name.
            body: What to send.
            connect_timeout: Seconds for the connection.
            answer_timeout: Seconds without a byte of the answer.
            whole_timeout: Seconds for the whole answer, those for the connection among them.

        Raises:
            TransportError: No connection, or it broke; `sent` says whether the request may have arrived.
            NotATidewireServerError: What answered does not speak HTTP.
            ProtocolError: The body is larger than `MAX_BODY_BYTES`.
        """
        client = await self._ready()
        content = bytearray()
        timeout = httpx.Timeout(answer_timeout, connect=connect_timeout, pool=None)
        with self._errors(method, url, connect_timeout), _in_all(whole_timeout, method, url):
            request = client.build_request(
                method, url, headers=_headers(headers), content=body, timeout=timeout
            )
            request.stream = _Body(body or b"")
            async with contextlib.aclosing(await client.send(request, stream=True)) as response:
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_BODY_BYTES:
                        where = Where(method, url, status_code=response.status_code)
                        raise ProtocolError(f"an answer of more than {MAX_BODY_BYTES} bytes", where=where)
        return Answer(method, str(response.url), response.status_code, response.headers, bytes(content))

    async def open_stream(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_timeout: float,
    ) -> Connection:
        """GET an event stream, as far as its headers.

        Args:
            url: The stream's.
            headers: Beside those that every stream is asked for with.
            connect_timeout: Seconds for the connection.
            answer_timeout: Seconds for the status line, those for the connection among them.

        Raises:
            TransportError: No connection, it broke, or no answer came in time.
            NotATidewireServerError: What answered does not speak HTTP.
        """
        client = await self._ready()
        timeout = httpx.Timeout(None, connect=connect_timeout, write=answer_timeout)
        with self._errors("GET", url, connect_timeout):
            async with contextlib.AsyncExitStack() as stack:
                with anyio.move_on_after(max(connect_timeout, answer_timeout)):
                    opening = httpx_sse.aconnect_sse(
                        client,
                        "GET",
                        url,
                        # A stream is the last thing on its connection: a server may hang up at its end, and the
                        # next request must not run into that.
                        headers=_headers(headers) | {"Accept-Encoding": "identity", "Connection": "close"},
                        timeout=timeout,
                    )
                    source = await stack.enter_async_context(opening)
                    return Connection(source, self, stack.pop_all())
        raise SilenceTimeoutError(f"no answer within {answer_timeout:g} s", where=Where("GET", url))

    async def overhear(self, url: str) -> bytes:
        """The first bytes that a server without TLS says to a GET, whatever it speaks; none where it says nothing.

        An HTTP parser waits for the end of what it takes for headers, and keeps to itself what it read.
        """
        scheme, host, port = origin(url)
        if scheme != "http" or port is None:
            return b""
        with (
            anyio.move_on_after(OVERHEAR_TIMEOUT),
            contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream),
        ):
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                return await stream.receive(80)
        return b""

    async def aclose(self) -> None:
        """Close every connection. Further requests are refused."""
        self._closed = True
        await self.bury()
        # One that is waited for ends with the pool, and its reader unwinds it.
        for connection in [one for one in self.open if not one.waited_for]:
            await connection.aclose()
        if self._client is not None:
            await self._client.aclose()

    async def _ready(self) -> httpx.AsyncClient:
        if self._closed:
            raise ClientClosedError("this client was closed")
        await self.bury()
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_ALIVE)
            self._client = httpx.AsyncClient(
                verify=self._verify,
                proxy=self._proxy,
                limits=limits,
                follow_redirects=False,
                mounts=_MOUNTED,
            )
        return self._client

    async def bury(self) -> None:
        """Let go of what is left of connections that were abandoned."""
        while self.abandoned:
            await self.abandoned.pop().aclose()

    @contextlib.contextmanager
    def _errors(self, method: str, url: str, connect_timeout: float) -> Iterator[None]:
        where = Where(method, url)
        try:
            yield
        except httpx.ConnectTimeout as error:
            what = f"no connection to {_address(url)} within {connect_timeout:g} s"
            raise ConnectTimeoutError(what, where=where, advice=_UNREACHABLE) from error
        except (httpx.ConnectError, httpx.ProxyError) as error:
            raise _no_connection(error, url, where) from error
        except httpx.ReadTimeout as error:
            raise SilenceTimeoutError("no answer in time", where=where) from error
        except httpx.RemoteProtocolError as error:
            if _is_cut(error):
                raise TransportError(_cut(error), where=where) from error
            raise no_http(url, str(error), where) from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise TransportError(_cut(error), where=where) from error
        except (httpx.InvalidURL, httpx.CookieConflict) as error:
            # Not that of the request, which was parsed before: httpx reads a redirect's also where it follows none.
            raise ProtocolError(f"an answer with a link that is none: {error}", where=where) from error
        except RuntimeError as error:
            # httpx's only word for a client that another task closed meanwhile.
            if self._closed:
                raise ClientClosedError("this client was closed meanwhile", where=where) from error
            raise


def mount(url: str, transport: httpx.AsyncBaseTransport) -> None:
    """Let something in this process answer for an origin, to every client that sends its first request from now on.

    Raises:
        ValueError: Something does already.
    """
    if url in _MOUNTED:
        raise ValueError(f"something in this process answers for {url} already")
    _MOUNTED[url] = transport


def unmount(url: str) -> None:
    """Undo `mount`."""
    del _MOUNTED[url]


_MOUNTED: Final[dict[str, httpx.AsyncBaseTransport]] = {}
"""Origins that are answered in this process: none but in tests, where `tidewire.testing` has put a fake server."""


@contextlib.contextmanager
def _in_all(seconds: float, method: str, url: str) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise SilenceTimeoutError(f"no whole answer within {seconds:g} s", where=Where(method, url))


def hang_up(raw: Any) -> None:
    """End a TCP connection in both directions, whatever event loop owns its socket, from any thread."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        twin = socket.fromfd(raw.fileno(), raw.family, raw.type)
        try:
            twin.shutdown(socket.SHUT_RDWR)
        finally:
            twin.close()


def no_http(url: str, instead: str, where: Where) -> NotATidewireServerError:
    """The error for a server of another kind altogether."""
    return NotATidewireServerError(
        f"what listens at {_address(url)} does not speak HTTP: {instead}", where=where
    )


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL.

    Raises:
        ValueError: It is none.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    port = parsed.port or {"http": 80, "https": 443}.get(parsed.scheme)
    return parsed.scheme, parsed.host, port


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs have scheme, host and port in common.

    Raises:
        ValueError: One is no URL.
    """
    roots = _ROOT.match(one), _ROOT.match(other)
    # Two that are spelt alike need not be parsed, which costs more than all else that is done with a link.
    if roots[0] is not None and roots[1] is not None and roots[0][0] == roots[1][0]:
        return True
    return origin(one) == origin(other)


def resolve(base: str, reference: str) -> str:
    """A URI reference, resolved against the URL of the answer that carried it.

    Raises:
        ProtocolError: It is none.
    """
    root = _ROOT.match(base)
    if root is not None and _PLAIN_PATH.fullmatch(reference):
        return root[0] + reference
    try:
        return str(httpx.URL(base).join(reference))
    except httpx.InvalidURL as error:
        raise ProtocolError(f"{reference[:200]!r} is no link: {error}", where=Where(url=base)) from None


_ROOT: Final = re.compile(r"https?://[a-z0-9.-]+(?::[1-9][0-9]{0,4})?(?=/|\Z)")
"""Scheme, host and port as most URLs spell them; nothing of it means anything else."""
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9_-][A-Za-z0-9_/-]*")
"""Links that stand after such a root as they are: no host of their own, no dots, nothing to quote."""

_UNREACHABLE = (
    "Check that the server runs, the host and the port, and what stands between (firewall, proxy settings)."
)


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return {"User-Agent": _USER_AGENT, **headers}


def _address(url: str) -> str:
    _, host, port = origin(url)
    return f"{host}:{port}"


def _is_cut(error: httpx.RemoteProtocolError) -> bool:
    # httpcore's words for an end of file before the status line and within a body; all else is h11's refusal of
    # what it read.
    text = str(error)
    return text.startswith(("Server disconnected", "peer closed connection"))


def _cut(error: Exception) -> str:
    return f"the connection broke: {str(error) or type(error).__name__}"


def _no_connection(error: Exception, url: str, where: Where) -> TransportError:
    text = str(error)
    causes = list(_causes(error))
    advice = _UNREACHABLE
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        what = f"TLS with {_address(url)} failed: {text}"
        advice = "Check the scheme (a server without TLS is http://…) and the certificate (verify=…)."
    elif any(isinstance(cause, socket.gaierror) for cause in causes):
        what = f"the host of {url} is not known: {text}"
        advice = "Check the spelling of the host."
    elif any(isinstance(cause, ConnectionRefusedError) for cause in causes) or "attempts" in text:
        what = f"nothing listens at {_address(url)}"
    else:
        what = f"no connection to {_address(url)}: {text or type(error).__name__}"
    failed = TransportError(what, where=where, advice=advice)
    failed.sent = False
    return failed


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
