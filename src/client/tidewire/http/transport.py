"""HTTP, and nothing above it: the only importer of httpx and httpx_sse.

What those two raise becomes an error of ours here, and nowhere else. Proxies and certificates come from the
environment (`HTTPS_PROXY`, `NO_PROXY`, `SSL_CERT_FILE`), as httpx reads it.
"""

import contextlib
import ssl
import sys
import warnings
from collections.abc import AsyncGenerator, Iterator, Mapping
from functools import partial
from typing import Final

import anyio
import httpx
import httpx_sse
from anyio import to_thread

from tidewire.errors import (
    ClientClosedError,
    ConnectTimeoutError,
    ProtocolError,
    SilenceTimeoutError,
    TransportError,
    Where,
)
from tidewire.http.body_decompression import CODING, BoundedDecompressor, DecompressionError
from tidewire.http.connection_diagnosis import (
    UNREACHABLE,
    goes_through_a_proxy,
    no_http,
    sniff,
    unreachable,
    unusable_environment,
)
from tidewire.http.httpx_fixes import Pool, clean_up_tls, repair
from tidewire.http.owning_loop import OwningLoop
from tidewire.http.response import CLOSE_TIMEOUT, Body, Connection, Response, cut
from tidewire.options import CONNECT_TIMEOUT, overlaid
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.status_table import is_event_stream

UNCLOSED: Final = "a tidewire client was not closed: use it in a `with` or `async with` block, or close it"
ANSWER_TIMEOUT: Final = 30.0
"""Seconds without a byte of the answer to a request that is answered at once."""
WHOLE_ANSWER_TIMEOUT: Final = 300.0
"""Seconds for the whole of such an answer, however its bytes trickle in."""
LEAST_BODY_BYTES: Final = 16 * 2**20
"""Bytes of the body of one answer that are held in any case; else it may be as large as a state. [TW-FRM-078]"""
KEPT_ALIVE: Final = 100
"""Idle connections that are kept for the next request. Open ones are not bounded here: servers bound streams."""

_USER_AGENT = "tidewire-python"


class Transport:
    """Makes requests on one pool of connections.

    Attributes:
        loop: The event loop that the pool belongs to.
        open: Connections that were not closed.
        unread: Streams that answered submits and of which nothing was read yet.
    """

    def __init__(self, *, verify: bool | ssl.SSLContext = True, proxy: str | None = None) -> None:
        self.loop: OwningLoop = OwningLoop()
        self.open: set[Connection] = set()
        self.unread: int = 0
        self._verify = verify
        self._proxy = proxy
        self._client: httpx.AsyncClient | None = None
        self._making: anyio.Lock | None = None
        """Held while the pool is made. Made on the event loop that uses it: a lock belongs to one kind of these."""
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
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> Response:
        """Make one request and read its answer.

        Args:
            method: GET, POST, …
            url: Absolute.
            headers: Beside the client's own name.
            body: What to send.
            connect_timeout: Seconds for the connection.
            answer_timeout: Seconds without a byte of the answer.
            whole_timeout: Seconds for the whole answer, those for the connection among them.
            max_state_bytes: Bytes of the body, unless they are fewer than `LEAST_BODY_BYTES`.

        Raises:
            TransportError: No connection, or it broke; `sent` says whether the request may have arrived.
            NotATidewireServerError: What answered does not speak HTTP.
            ProtocolError: The body is larger than allowed.
        """
        client = await self._ready(url)
        timeout = httpx.Timeout(answer_timeout, connect=connect_timeout, pool=None)
        with self._errors(method, url, connect_timeout), _in_all(whole_timeout, method, url):
            request = client.build_request(
                method, url, headers=_headers(headers), content=body, timeout=timeout
            )
            async with contextlib.aclosing(await client.send(request, stream=True)) as response:
                answer = await _whole(method, response, max_state_bytes)
        return answer

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
        client = await self._ready(url)
        timeout = httpx.Timeout(None, connect=connect_timeout, write=answer_timeout)
        with self._errors("GET", url, connect_timeout):
            async with contextlib.AsyncExitStack() as stack:
                with anyio.move_on_after(max(connect_timeout, answer_timeout)):
                    opening = httpx_sse.aconnect_sse(
                        client, "GET", url, headers=_of_stream(headers) | _LAST, timeout=timeout
                    )
                    source = await stack.enter_async_context(opening)
                    return self._connection("GET", source.response, stack.pop_all())
        raise SilenceTimeoutError(f"no answer within {answer_timeout:g} s", where=Where("GET", url))

    async def submit(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes,
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_timeout: float = ANSWER_TIMEOUT,
        whole_timeout: float = WHOLE_ANSWER_TIMEOUT,
        max_state_bytes: int = MAX_STATE_BYTES,
    ) -> Response | Connection:
        """POST, and ask for an event stream as the answer. What comes instead is read whole.

        Arguments and errors are those of `request`.
        """
        client = await self._ready(url)
        timeout = httpx.Timeout(answer_timeout, connect=connect_timeout, pool=None)
        with self._errors("POST", url, connect_timeout), _in_all(whole_timeout, "POST", url):
            async with contextlib.AsyncExitStack() as stack:
                opening = httpx_sse.aconnect_sse(
                    client, "POST", url, headers=_of_stream(headers), content=body, timeout=timeout
                )
                response = (await stack.enter_async_context(opening)).response
                if response.status_code == httpx.codes.OK and is_event_stream(
                    response.headers.get("content-type")
                ):
                    answer: Response | Connection = self._connection("POST", response, stack.pop_all())
                else:
                    answer = await _whole("POST", response, max_state_bytes)
        return answer

    def _connection(
        self, method: str, response: httpx.Response, opened: contextlib.AsyncExitStack
    ) -> Connection:
        network = response.extensions.get("network_stream")
        closing = contextlib.AsyncExitStack()
        closing.enter_context(contextlib.suppress(httpx.HTTPError))
        closing.push_async_exit(opened)
        return Connection(
            (method, str(response.url), response.status_code, response.headers),
            _body_of(response),
            raw=None if network is None else network.get_extra_info("socket"),
            owner=self,
            closing=closing,
        )

    async def sniff(self, url: str) -> bytes:
        """What a server without TLS says, whatever it speaks; none where it says nothing, or is behind a proxy."""
        scheme, host, port = origin(url)
        if scheme != "http" or port is None or self._proxy is not None or url in _MOUNTED:
            return b""
        if goes_through_a_proxy(host, port):
            return b""
        return await sniff(host, port)

    async def aclose(self) -> None:
        """Close every connection. Further requests are refused.

        Raises:
            EventLoopError: The connections belong to another event loop.
        """
        if self._client is not None and not self._closed:
            self.loop.check()
        self._closed = True
        # One that is waited for ends with the pool, and its reader unwinds it.
        try:
            await self.loop.finish(CLOSE_TIMEOUT)
            # All at once: each of them takes `CLOSE_TIMEOUT` seconds at most.
            async with anyio.create_task_group() as tasks:
                for connection in [one for one in self.open if not one.waited_for]:
                    tasks.start_soon(connection.aclose)
        finally:
            if self._client is not None:
                await self._client.aclose()

    async def _ready(self, url: str) -> httpx.AsyncClient:
        self._check_open()
        self.loop.check()
        if self._client is None:
            self._making = self._making or anyio.Lock()
            async with self._making:
                # Closed or made while this waited.
                self._check_open()
                if self._client is None:
                    self._client = await self._pool(url)
        return self._client

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("this client was closed")

    async def _pool(self, url: str) -> httpx.AsyncClient:
        # All requests go to one origin, so its scheme tells whether certificates are needed. To load these takes as
        # long as a tenth of all imports; a context without any refuses every server.
        scheme, host, port = origin(url)
        secure = scheme == "https"
        proxied = self._proxy is not None or goes_through_a_proxy(host, port or 0)
        verify = (
            self._verify if secure or self._verify is not True else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        make = partial(
            Pool,
            verify=verify,
            proxy=self._proxy,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=KEPT_ALIVE),
            follow_redirects=False,
            mounts=_MOUNTED,
            # A proxy may be one with TLS.
            event_hooks={"request": [repair, clean_up_tls] if secure or proxied else [repair]},
        )
        try:
            if not secure and "httpcore" in sys.modules:
                return make()
            # httpx imports httpcore, and that every event loop that it finds, when it makes the first pool; that and the
            # certificates would hold the event loop for a tenth of a second. Do not use the common limiter: its threads
            # may all wait for this request.
            client = await to_thread.run_sync(make, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
            # What the caller gave was looked at when it was given.
            raise unusable_environment(error) from error
        self._check_open()
        return client

    def __del__(self) -> None:
        if self._client is None or self._closed or self.loop.forked or sys.is_finalizing():
            return
        for connection in [*self.open]:
            connection.close_soon()
        self.loop.start_soon(self.aclose)
        warnings.warn(UNCLOSED, ResourceWarning, stacklevel=2, source=self)

    @contextlib.contextmanager
    def _errors(self, method: str, url: str, connect_timeout: float) -> Iterator[None]:
        where = Where(method, url)
        try:
            yield
        except httpx.ConnectTimeout as error:
            what = f"no connection to {_address(url)} within {connect_timeout:g} s"
            raise ConnectTimeoutError(what, where=where, advice=UNREACHABLE) from error
        except (httpx.ConnectError, httpx.ProxyError) as error:
            raise unreachable(_address(url), url, error, where) from error
        except httpx.ReadTimeout as error:
            raise SilenceTimeoutError("no answer in time", where=where) from error
        except httpx.RemoteProtocolError as error:
            if _is_cut(error):
                raise TransportError(cut(error), where=where) from error
            raise no_http(_address(url), str(error), where) from error
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise TransportError(cut(error), where=where) from error
        except (httpx.InvalidURL, httpx.CookieConflict) as error:
            # Not that of the request, which was parsed before: httpx reads a redirect's also where it follows none.
            raise ProtocolError(f"an answer with a link that is none: {error}", where=where) from error
        except RuntimeError as error:
            # httpx's only word for a client that another task closed meanwhile.
            if self._closed:
                raise ClientClosedError("this client was closed meanwhile", where=where) from error
            raise


# ---- bodies --------------------------------------------------------------------------------------------------------


class _Chunks:
    """A body as httpx reads it: one chunk of the server's at a time."""

    # A cancelled read ends the generators of httpx.
    resumable = False

    def __init__(self, response: httpx.Response) -> None:
        # The limit of each read goes, not that of the request.
        response.request.extensions.get("timeout", {})["read"] = None
        # Raw bytes: a stream has no content coding.
        self._chunks: AsyncGenerator[bytes, None] = response.aiter_raw()  # type: ignore[assignment]

    async def read(self, limit: float) -> bytes | None:
        with anyio.fail_after(limit):
            try:
                return await self._chunks.__anext__()
            except StopAsyncIteration:
                return None
            except httpx.HTTPError as error:
                raise ConnectionError(str(error) or type(error).__name__) from error

    async def unwind(self) -> None:
        # httpx stacks generators that do not close one another. A read from the closed connection unwinds them
        # all; left alone, each would wait for the garbage collector, which trio complains of.
        with contextlib.suppress(httpx.HTTPError, httpx.StreamError, StopAsyncIteration):
            while True:
                await self._chunks.__anext__()


def _body_of(response: httpx.Response) -> Body:
    # Loaded when a stream is there: httpcore loads every event loop that it finds.
    from tidewire.http.fast_body_reader import fast_body_of  # noqa: PLC0415

    return fast_body_of(response.stream, response.headers, response.extensions) or _Chunks(response)


async def _whole(method: str, response: httpx.Response, max_state_bytes: int) -> Response:
    where = Where(method, str(response.url), status_code=response.status_code)
    most = max(LEAST_BODY_BYTES, max_state_bytes)
    try:
        unpacking = BoundedDecompressor(response.headers.get("content-encoding", ""), most)
        async for chunk in response.aiter_raw():
            unpacking.feed(chunk)
            if unpacking.too_long:
                advice = "If it is right to be so long, allow more with max_state_bytes=…."
                raise ProtocolError(f"an answer of more than {most} bytes", where=where, advice=advice)
        body = unpacking.end()
    except DecompressionError as error:
        raise TransportError(str(error), where=where) from error
    return Response(method, str(response.url), response.status_code, response.headers, body)


# ---- URLs ----------------------------------------------------------------------------------------------------------


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port of a URL.

    Raises:
        ValueError: It is none.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is no URL: {error}") from None
    if "%20" in parsed.host:
        raise ValueError(f"{url!r} is no URL: there is space in its host")
    port = {"http": 80, "https": 443}.get(parsed.scheme) if parsed.port is None else parsed.port
    return parsed.scheme, parsed.host, port


def joined(base: str, reference: str) -> str:
    """A URI reference, resolved against a URL.

    Raises:
        ValueError: It is none.
    """
    try:
        return str(httpx.URL(base).join(reference))
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None


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


# ---- words ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _in_all(seconds: float, method: str, url: str) -> Iterator[None]:
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise SilenceTimeoutError(f"no whole answer within {seconds:g} s", where=Where(method, url))


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return overlaid({"User-Agent": _USER_AGENT, "Accept-Encoding": CODING}, headers)


def _of_stream(headers: Mapping[str, str]) -> dict[str, str]:
    return _headers(headers) | {"Accept-Encoding": "identity"}


_LAST: Final = {"Connection": "close"}
"""A stream is the last thing on its connection: a server may hang up at its end, and the next request must not run into
that. Not said with a submit: a server that refuses a long body would hang up on it, and the refusal be lost."""


def _address(url: str) -> str:
    _, host, port = origin(url)
    return f"{host}:{port}"


def _is_cut(error: httpx.RemoteProtocolError) -> bool:
    # httpcore's words for an end of file before the status line and within a body; all else is h11's refusal of
    # what it read.
    text = str(error)
    return text.startswith(("Server disconnected", "peer closed connection"))
