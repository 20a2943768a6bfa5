"""`Transport`, which makes single HTTP requests and opens event streams, with a pool of httpx2 connections.

Requests use httpx2's public interface. httpx2 takes proxies and certificates from the environment variables
`HTTPS_PROXY`, `NO_PROXY` and `SSL_CERT_FILE`. Only `FastBody`, which reads the bodies of streams, uses private members of
httpx2 and httpcore2.
"""

import ssl
import sys
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final

import anyio
import httpx2
from anyio import to_thread

from tidewire.errors import ClientClosedError, ProtocolError, SilenceTimeoutError, TransportError, Where
from tidewire.following.http_status_actions import is_event_stream
from tidewire.http.body_decompression import CODING, BoundedDecompressor, DecompressionError
from tidewire.http.connection_arguments import check_proxy
from tidewire.http.connection_diagnosis import (
    environment_proxy,
    sniff,
    speaks_tls,
    unusable_environment,
)
from tidewire.http.httpx2_fixes import TlsCleanup
from tidewire.http.links_and_origins import origin, parse, same_origin
from tidewire.http.owning_loop import OwningLoop
from tidewire.http.request_errors import Route, request_error
from tidewire.http.response import CLOSE_TIMEOUT, Body, Connection, Response
from tidewire.options import Options, overlaid

UNCLOSED: Final = "a tidewire client was not closed: use it in a `with` or `async with` block, or close it"
LEAST_BODY_BYTES: Final = 16 * 2**20
"""Smallest value of the limit for the size of a response body, in bytes. The limit is `max_state_bytes` if that is
larger. [TW-FRM-078]"""
REQUESTS_AT_ONCE: Final = 64
"""Maximum number of requests that wait for response headers, and maximum number of idle connections in the pool. The
client delays further requests, because httpcore2 looks at all connections of a pool when a request begins or ends. With
thousands of requests at once, this takes most of the CPU time. The client does not limit the number of open streams,
because servers limit it.
"""

_USER_AGENT = "tidewire-python"


class FakeServers:
    """Registry of the fake servers in this process. A `FakeServer` is in it while its `with` block runs.

    There is one registry for all clients, because a test does not change the program under test. The program creates its
    clients itself and knows only a URL, so the fake server cannot be an argument of a client (docs/how-to/testing.md).
    """

    def __init__(self) -> None:
        self._transports: dict[str, httpx2.AsyncBaseTransport] = {}

    def mount(self, url: str, transport: httpx2.AsyncBaseTransport) -> None:
        """Connect all clients whose URL has the origin of `url` to this transport, from their first request on.

        Raises:
            ValueError: Another fake server has this URL.
        """
        if url in self._transports:
            raise ValueError(
                f"{url} is already mounted in this process; pass another URL to the second fake server"
            )
        self._transports[url] = transport

    def unmount(self, url: str) -> None:
        """Connect later clients to the real server. Clients that have made a request keep the transport."""
        del self._transports[url]

    def find(self, url: str) -> httpx2.AsyncBaseTransport | None:
        """Return the transport of the fake server that has the origin of a URL."""
        # A test may mount another server in another thread meanwhile.
        for base, transport in tuple(self._transports.items()):
            if same_origin(base, url):
                return transport
        return None


FAKE_SERVERS: Final = FakeServers()


async def _closing(pool: httpx2.AsyncClient) -> AsyncGenerator[None]:
    """Close a connection pool when this generator is closed. When an event loop ends, asyncio and trio close all
    generators that were started on it.
    """
    try:
        yield
    finally:
        await pool.aclose()


def _close_collected(loop: OwningLoop, closing: AsyncGenerator[None]) -> None:
    """Close the pool of a transport that was garbage-collected, and warn.

    This is the callback of a `weakref.finalize` and not a `__del__`. Its arguments keep the connections alive until it
    has run. With a `__del__`, the garbage collector would finalize the idle connections together with the transport,
    and asyncio would emit two more warnings for each of them.
    """
    if not loop.forked:
        loop.start_soon(closing.aclose)
        warnings.warn(UNCLOSED, ResourceWarning, stacklevel=3, source=loop)


class Transport:
    """Makes requests with a connection pool, and converts httpx2's exceptions to the client's errors.

    Args:
        route: The proxy or the Unix domain socket to connect to.
        verify: Whether to verify the server's certificate, or the TLS context to use.

    Attributes:
        loop: The event loop that the pool belongs to.
        open: Streamed responses that are not closed.
        in_process: Whether the server is a fake server in this process. False before the first request.
    """

    def __init__(
        self,
        route: Route,
        *,
        verify: bool | ssl.SSLContext,
    ) -> None:
        self.loop: OwningLoop = OwningLoop()
        self.open: set[Connection] = set()
        self.in_process: bool = False
        self._verify = verify
        self._route = route
        self._pool: httpx2.AsyncClient | None = None
        """The connection pool; None until the first request."""
        self._cleans_up_tls = False
        """Whether connections may use TLS, so that the workaround for its handshake is needed."""
        self._closing: AsyncGenerator[None] | None = None
        """Generator that closes the pool; None before the first request and after `aclose`."""
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._pool_lock: anyio.Lock | None = None
        """Lock that a task holds while it creates the pool. The lock is created on first use, because it belongs to an
        event loop."""
        self._turns: anyio.Semaphore | None = None
        """Semaphore that each request holds until the headers of its response have arrived. It is created on first use,
        because it belongs to an event loop."""
        self._closed = False

    async def request(
        self,
        method: str,
        url: str,
        options: Options,
        *,
        headers: Mapping[str, str],
        body: bytes | None,
        stream: bool,
        whole_timeout: float,
    ) -> Response | Connection:
        """Make one request, when fewer than `REQUESTS_AT_ONCE` are in progress. Read the whole response, unless it is a
        requested event stream.

        Args:
            method: HTTP method.
            url: Absolute URL.
            options: Options of the call. `connect_timeout` and `answer_timeout` limit the request. `max_state_bytes`, but at
                least `LEAST_BODY_BYTES`, limits the size of the response body.
            headers: Request headers in addition to User-Agent and Accept-Encoding, which this method sets.
            body: Request body.
            stream: Whether to ask for an event stream as the response.
            whole_timeout: Time limit for the whole request, including opening the connection, in seconds. It begins when the
                request does.

        Raises:
            TransportError: The connection failed or broke. `sent` says whether the request may have arrived.
            NotATidewireServerError: The server does not speak HTTP.
            ProtocolError: The response body is larger than allowed.
        """
        try:
            async with self._turn():
                with anyio.move_on_after(whole_timeout):
                    response = await self._send(
                        method,
                        url,
                        _stream_headers(headers) if stream else _headers(headers),
                        body,
                        options.connect_timeout,
                        options.answer_timeout,
                    )
                    is_ok = response.status_code == HTTPStatus.OK
                    if stream and is_ok and is_event_stream(response.headers.get("content-type")):
                        return self._connection(response)
                    try:
                        return await _read_response(method, response, options.max_state_bytes)
                    finally:
                        await response.aclose()
        except Exception as error:  # noqa: BLE001 - converted and raised again
            raise self._error(error, method, url, options.connect_timeout) from None
        what = f"no complete response within {whole_timeout:g} s"
        raise SilenceTimeoutError(what, where=Where(method, url))

    async def open_stream(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        connect_timeout: float,
        answer_timeout: float,
    ) -> Connection:
        """Request an event stream with GET, when fewer than `REQUESTS_AT_ONCE` requests are in progress, and return when the
        headers of the response have arrived.

        Args:
            url: Absolute URL of the stream.
            headers: Request headers in addition to the headers that every request for a stream has.
            connect_timeout: Time limit for opening the connection, in seconds.
            answer_timeout: Time limit in seconds for the headers of the response to arrive, including opening the
                connection.

        Raises:
            TransportError: The connection failed or broke, or there was no response in time.
            NotATidewireServerError: The server does not speak HTTP.
        """
        limit = max(connect_timeout, answer_timeout)
        try:
            async with self._turn():
                with anyio.move_on_after(limit):
                    response = await self._send(
                        "GET", url, _stream_headers(headers) | _CLOSE_AFTERWARDS, None, connect_timeout, limit
                    )
                    return self._connection(response)
        except Exception as error:  # noqa: BLE001 - converted and raised again
            raise self._error(error, "GET", url, connect_timeout) from None
        raise SilenceTimeoutError(f"no response within {limit:g} s", where=Where("GET", url))

    def _turn(self) -> anyio.Semaphore:
        """Return the semaphore for a request."""
        self.loop.check()
        if self._turns is None:
            self._turns = anyio.Semaphore(REQUESTS_AT_ONCE, fast_acquire=True)
        return self._turns

    async def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes | None,
        connect_timeout: float,
        answer_timeout: float,
    ) -> httpx2.Response:
        """Send a request and wait for the headers of the response. The caller must close the response.

        Raises:
            httpx2.ReadTimeout: The headers did not arrive within `answer_timeout` after the request was sent.
        """
        pool = await self._ready(url)
        timeouts = {"connect": connect_timeout, "read": answer_timeout, "write": answer_timeout, "pool": None}
        request = pool.build_request(
            method, parse(url), headers=headers, content=body, extensions={"timeout": timeouts}
        )
        if self._cleans_up_tls:
            request.extensions["trace"] = TlsCleanup()
        # httpx2 limits only the time of each read, so a server could send informational responses (1xx) forever.
        with anyio.CancelScope() as scope:

            def begin_waiting() -> None:
                scope.deadline = anyio.current_time() + answer_timeout

            request.stream = _RequestBody(body, begin_waiting)
            return await pool.send(request, stream=True)
        raise httpx2.ReadTimeout("the headers did not arrive in time", request=request)

    @property
    def unread(self) -> int:
        """Number of open event streams that the server sent in response to submitted jobs, and from which nothing was
        read yet.
        """
        return sum(each.is_unread_submit for each in self.open)

    def _connection(self, response: httpx2.Response) -> Connection:
        async def close() -> None:
            with suppress(httpx2.HTTPError):
                await response.aclose()

        request = response.request
        return Connection(
            (request.method, str(request.url), response.status_code, dict(response.headers)),
            _body_of(response, self.loop),
            network=response.extensions.get("network_stream"),
            loop=self.loop,
            siblings=self.open,
            close=close,
        )

    async def sniff(self, url: str) -> bytes:
        """Return the first bytes that a server sends over a connection without TLS, in any protocol.

        Returns empty bytes if the server sends nothing, or if the client would use TLS or a proxy.
        """
        return await sniff(*_host_and_port(url), self._route.uds) if self._can_probe(url) else b""

    async def speaks_tls(self, url: str) -> bool:
        """Whether the server at a URL with the scheme `http` accepts TLS. False if the client would use a proxy or a Unix
        domain socket.
        """
        direct = self._route.uds is None and self._can_probe(url)
        return direct and await speaks_tls(*_host_and_port(url))

    def _can_probe(self, url: str) -> bool:
        scheme, host, port = origin(url)
        proxy, uds = self._route
        if scheme != "http" or port is None or proxy is not None or self.in_process:
            return False
        return uds is not None or environment_proxy(scheme, host, port) is None

    def address(self, url: str) -> str:
        """Return the address of the server for error messages."""
        return self._route.address(url)

    async def aclose(self) -> None:
        """Close all connections. Further requests raise ClientClosedError.

        Raises:
            EventLoopError: The connections belong to another event loop.
        """
        if self._pool is not None and not self._closed:
            self.loop.check()
        self._closed = True
        if self._finalizer is not None:
            self._finalizer.detach()
        # If a task is reading from a connection, leave that connection to the task. Closing the pool ends the
        # connection, and the task then cleans up.
        try:
            await self.loop.finish(CLOSE_TIMEOUT)
            # Close the connections concurrently, because closing each of them may take `CLOSE_TIMEOUT` seconds.
            async with anyio.create_task_group() as tasks:
                for connection in [one for one in self.open if not one.body.being_read]:
                    tasks.start_soon(connection.aclose)
        finally:
            # Another task may call this method at the same time, and a generator can be closed only once at a time.
            closing, self._closing = self._closing, None
            if closing is not None:
                await closing.aclose()

    # ---- the pool ----------------------------------------------------------------------------------------------

    async def _ready(self, url: str) -> httpx2.AsyncClient:
        """Return the pool, which is created for the first request."""
        self._check_open()
        self.loop.check()
        if self._pool is None:
            self._pool_lock = self._pool_lock or anyio.Lock()
            async with self._pool_lock:
                # Check again, because another task may have closed the transport or created the pool during the wait.
                self._check_open()
                if self._pool is None:
                    pool = await self._new_pool(url)
                    self._closing = _closing(pool)
                    await anext(self._closing)
                    # The arguments must not refer to this object, because it would then never be garbage-collected.
                    self._finalizer = weakref.finalize(self, _close_collected, self.loop, self._closing)
                    self._finalizer.atexit = False
                    self._pool = pool
        return self._pool

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client was closed")

    async def _new_pool(self, url: str) -> httpx2.AsyncClient:
        # All requests go to one origin. If the URL starts with http://, do not load the certificates, because loading
        # them takes a tenth of the time that all imports take. A TLS context without certificates is safe, because it
        # rejects every server.
        scheme, host, port = origin(url)
        secure = scheme == "https"
        proxy, uds = self._route
        verify = (
            self._verify if secure or self._verify is not True else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        used = environment_proxy(scheme, host, port or 0) if uds is None and proxy is None else proxy
        # If there is a proxy, install the workaround for TLS even if the URL starts with http://, because the
        # connection to the proxy may use TLS.
        self._cleans_up_tls = secure or used is not None
        fake = FAKE_SERVERS.find(url)
        self.in_process = fake is not None
        # asyncio reads into blocks of 256 KiB. Until a larger block was freed once, glibc returns each of them to the kernel, which
        # takes a quarter of the CPU time of a stream whose events arrive one by one (bench/client.py).
        bytes(2**20)

        def create() -> httpx2.AsyncClient:
            limits = httpx2.Limits(max_connections=None, max_keepalive_connections=REQUESTS_AT_ONCE)
            # Store no cookies. The clients that `with_options` returns share one pool. A stored cookie would let callers
            # with different credentials share one session of a gateway.
            cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))
            if uds is None and fake is None:
                return httpx2.AsyncClient(verify=verify, limits=limits, proxy=proxy, cookies=cookies)
            # If a transport is passed, httpx2 does not use the proxies in the environment variables.
            transport = fake or httpx2.AsyncHTTPTransport(verify=verify, limits=limits, uds=uds)
            return httpx2.AsyncClient(transport=transport, cookies=cookies)

        try:
            if used is not None and fake is None:
                # httpx2's error would contain a part of the password, or occur outside of this function.
                check_proxy(used if "://" in used else f"http://{used}")
            if not secure and "httpcore2" in sys.modules:
                return create()
            # Create the pool on a thread, because this imports httpcore2 and loads certificates, which would block the
            # event loop for a tenth of a second. httpcore2 imports every installed event loop library. Do not use
            # anyio's default limiter, because all threads of that limiter may be waiting for this request.
            pool = await to_thread.run_sync(create, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
            # The constructor has checked the caller's arguments, so the error is in the environment variables.
            raise unusable_environment(error) from None
        self._check_open()
        return pool

    def _error(self, error: Exception, method: str, url: str, connect_timeout: float) -> Exception:
        where = Where(method, url)
        # httpx2 raises a plain RuntimeError if another task closes the pool before or during the request.
        if type(error) is RuntimeError and self._closed:
            return ClientClosedError("the client was closed during the request", where=where)
        return request_error(error, where, url, self._route, connect_timeout)


# ---- bodies --------------------------------------------------------------------------------------------------------


_SENT_BYTES: Final = 64 * 2**10
"""Maximum size of the pieces in which a request body is sent."""


class _RequestBody(httpx2.AsyncByteStream):
    """Request body that calls a function when the whole request was sent."""

    def __init__(self, body: bytes | None, on_sent: Callable[[], None]) -> None:
        self._body = body
        self._on_sent = on_sent

    async def __aiter__(self) -> AsyncIterator[bytes]:
        # httpcore2 limits the time to send each piece. If the body were one piece, the client could never submit a body that
        # a slow network does not carry within `answer_timeout`.
        body = self._body or b""
        for start in range(0, len(body), _SENT_BYTES):
            yield body[start : start + _SENT_BYTES]
        self._on_sent()


class _Chunks(Body):
    """A streamed response body that httpx2 reads one chunk at a time. Used if `fast_body_of` returns None."""

    # A cancelled read closes the generators of httpx2 and httpcore2, so the body cannot be read again.
    resumable = False

    def __init__(self, where: Where, response: httpx2.Response) -> None:
        super().__init__(where)
        # Each call of `read` has its own time limit.
        response.request.extensions["timeout"]["read"] = None
        # Event streams have no content coding.
        self._chunks = response.aiter_raw()

    async def read(self) -> bytes | None:
        self.was_read = self.being_read = True
        started = anyio.current_time()
        try:
            with anyio.fail_after(max(0.0, self.limit - self._waited)):
                segment = await anext(self._chunks, None)
        except (httpx2.HTTPError, ssl.SSLError) as error:
            raise self._broken(error) from None
        except TimeoutError:
            raise self._timed_out() from None
        finally:
            self.being_read = False
            self._waited += anyio.current_time() - started
        if self._limits_silence:
            self._waited = 0.0
        return segment

    async def unwind(self) -> None:
        # httpx2 and httpcore2 use nested generators, and closing the outer generator does not close the inner generators.
        # Reading from the closed connection ends all of them. Otherwise they would stay open until they are
        # garbage-collected, and trio would emit a warning.
        with suppress(httpx2.HTTPError, httpx2.StreamError):
            while await anext(self._chunks, None) is not None:
                pass


def _body_of(response: httpx2.Response, loop: OwningLoop) -> Body:
    # Import httpcore2 only when a stream needs it, because it imports every installed event loop library.
    from tidewire.http.fast_body_reader import fast_body_of  # noqa: PLC0415

    where = Where(response.request.method, str(response.request.url))
    return fast_body_of(response, where, loop) or _Chunks(where, response)


async def _read_response(method: str, response: httpx2.Response, max_state_bytes: int) -> Response:
    url, headers = str(response.request.url), dict(response.headers)
    where = Where(method, url, status_code=response.status_code)
    limit = max(LEAST_BODY_BYTES, max_state_bytes)
    try:
        decompressor = BoundedDecompressor(headers.get("content-encoding", ""), limit)
        async for chunk in response.aiter_raw():
            decompressor.feed(chunk)
            if decompressor.too_large:
                advice = "If this size is expected, raise the limit with max_state_bytes=…."
                raise ProtocolError(f"the response has more than {limit} bytes", where=where, advice=advice)
        body = decompressor.end()
    except DecompressionError as error:
        raise TransportError(str(error), where=where) from None
    return Response(method, url, response.status_code, headers, body)


# ---- helpers -------------------------------------------------------------------------------------------------------


def _host_and_port(url: str) -> tuple[str, int]:
    _, host, port = origin(url)
    return host, port or 0


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    return overlaid({"User-Agent": _USER_AGENT, "Accept-Encoding": CODING}, headers)


def _stream_headers(headers: Mapping[str, str]) -> dict[str, str]:
    return _headers(headers) | _FOR_STREAMS


_FOR_STREAMS: Final = {
    "Accept": "text/event-stream",
    "Accept-Encoding": "identity",
    "Cache-Control": "no-store",
}


_CLOSE_AFTERWARDS: Final = {"Connection": "close"}
"""Header of GET requests for event streams. The client sends no other request on the connection, because the server may
close the connection after the stream.

A POST request that submits a job does not have this header. With the header, a server that refuses a long body would
close the connection while the client is still sending, and the client would lose the response."""
