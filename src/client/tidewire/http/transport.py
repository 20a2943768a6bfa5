"""`Transport`, which makes single HTTP requests and opens event streams, with a pool of httpx connections.

This module converts exceptions of httpx to the client's errors. httpx takes proxies and certificates from
the environment variables `HTTPS_PROXY`, `NO_PROXY` and `SSL_CERT_FILE`.
"""

import ssl
import sys
import warnings
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NoReturn

import anyio
import httpx
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
    PROXY_ADVICE,
    UNREACHABLE,
    environment_proxy,
    goes_through_a_proxy,
    not_http,
    sniff,
    speaks_tls,
    text_of,
    unreachable,
    unusable_environment,
)
from tidewire.http.httpx_fixes import TOO_MANY_INFORMATIONAL, Pool
from tidewire.http.owning_loop import OwningLoop
from tidewire.http.response import CLOSE_TIMEOUT, Body, Connection, Response, broken_connection
from tidewire.http.send_request import OpenResponse, Timeouts, as_httpx, send
from tidewire.options import ANSWER_TIMEOUT, CONNECT_TIMEOUT, overlaid
from tidewire.protocol.document.state_size import MAX_STATE_BYTES
from tidewire.protocol.status_table import is_event_stream

UNCLOSED: Final = "a tidewire client was not closed: use it in a `with` or `async with` block, or close it"
WHOLE_ANSWER_TIMEOUT: Final = 300.0
"""Timeout in seconds for reading a whole response that is not a stream, even if bytes keep arriving. A longer
`answer_timeout` replaces it."""
LEAST_BODY_BYTES: Final = 16 * 2**20
"""Smallest value of the limit for the size of a response body, in bytes. The limit is `max_state_bytes` if that is
larger. [TW-FRM-078]"""
KEPT_ALIVE: Final = 100
"""Maximum number of idle connections in the pool. The number of active connections is not limited by the client,
because servers limit the number of streams."""
STREAMS_PER_POOL: Final = 32
"""Maximum number of event streams in one connection pool. httpcore looks at all connections of a pool when a request begins or
ends, so that a request would otherwise cost more, the more streams are open."""
KEPT_ALIVE_FOR_STREAMS: Final = 8
"""Maximum number of idle connections in each pool after the first one."""

_USER_AGENT = "tidewire-python"


class _StreamPool:
    """A connection pool, and the number of event streams in it, including those that are being opened."""

    __slots__ = ("client", "streams")

    def __init__(self, client: Pool) -> None:
        self.client = client
        self.streams = 0


async def _closing_pools(pools: list[_StreamPool]) -> AsyncGenerator[None]:
    """Close connection pools when this generator is closed. When an event loop ends, asyncio and trio close all
    generators that were started on it.
    """
    try:
        yield
    finally:
        async with anyio.create_task_group() as tasks:
            for pool in pools:
                tasks.start_soon(pool.client.aclose)


def _close_collected(loop: OwningLoop, closing: AsyncGenerator[None]) -> None:
    """Close the pools of a transport that was garbage-collected, and warn.

    This is the callback of a `weakref.finalize` and not a `__del__`. Its arguments keep the connections alive until it
    has run. With a `__del__`, the garbage collector would finalize the idle connections together with the transport,
    and asyncio would emit two more warnings for each of them.
    """
    if not loop.forked:
        loop.start_soon(closing.aclose)
        warnings.warn(UNCLOSED, ResourceWarning, stacklevel=3, source=loop)


class Transport:
    """Makes requests with connection pools, and converts httpx's exceptions to the client's errors.

    The first pool is for all requests, and for as many event streams as one pool may have. More streams get more pools.

    Attributes:
        loop: The event loop that the pool belongs to.
        open: Streamed responses that are not closed.
        unread: Number of open event streams that the server sent in response to submitted jobs, and from which nothing
            was read yet.
    """

    def __init__(
        self, *, verify: bool | ssl.SSLContext = True, proxy: str | None = None, uds: str | None = None
    ) -> None:
        self.loop: OwningLoop = OwningLoop()
        self.open: set[Connection] = set()
        self.unread: int = 0
        self._verify = verify
        self._context: ssl.SSLContext | None = None
        self._proxy = proxy
        self._uds = uds
        self._client: Pool | None = None
        """Client of the first pool; None until the first request."""
        self._pools: list[_StreamPool] = []
        self._closing: AsyncGenerator[None] | None = None
        """Generator that closes the pools; None before the first request and after `aclose`."""
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._make_pool: Callable[..., Pool] = Pool
        """Creates a pool with the settings of the first one."""
        self._pool_lock: anyio.Lock | None = None
        """Lock that a task holds while it creates the pool. The lock is created on first use, because it belongs to an
        event loop."""
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
        """Make one request and read the whole response.

        Args:
            method: HTTP method.
            url: Absolute URL.
            headers: Request headers in addition to User-Agent and Accept-Encoding, which this method sets.
            body: Request body.
            connect_timeout: Time limit for opening the connection, in seconds.
            answer_timeout: Maximum time in seconds that may pass without a byte of the response.
            whole_timeout: Time limit for the whole request, including opening the connection, in seconds.
            max_state_bytes: Maximum size of the response body in bytes. A value below `LEAST_BODY_BYTES` counts as
                `LEAST_BODY_BYTES`.

        Raises:
            TransportError: The connection failed or broke. `sent` says whether the request may have arrived.
            NotATidewireServerError: The server does not speak HTTP.
            ProtocolError: The response body is larger than allowed.
        """
        client = await self._ready(url)
        timeouts = _timeouts(connect_timeout, answer_timeout)
        try:
            with anyio.move_on_after(whole_timeout):
                response = await send(client, method, url, _headers(headers), body, timeouts)
                try:
                    return await _read_response(method, response, max_state_bytes)
                finally:
                    await response.aclose()
        except Exception as error:  # noqa: BLE001 - `_raise` raises all exceptions again
            self._raise(error, method, url, connect_timeout)
        raise _no_whole_response(whole_timeout, method, url)

    async def open_stream(
        self,
        url: str,
        *,
        headers: Mapping[str, str],
        connect_timeout: float = CONNECT_TIMEOUT,
        answer_timeout: float,
    ) -> Connection:
        """Request an event stream with GET, and return when the headers of the response have arrived.

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
        await self._ready(url)
        timeouts: Timeouts = {"connect": connect_timeout, "read": None, "write": answer_timeout, "pool": None}
        limit = max(connect_timeout, answer_timeout)
        pool = self._pool_for_stream()
        connection: Connection | None = None
        try:
            with anyio.move_on_after(limit):
                response = await send(
                    pool.client, "GET", url, _stream_headers(headers) | _CLOSE_AFTERWARDS, None, timeouts
                )
                connection = self._connection("GET", response, pool)
                return connection
        except Exception as error:  # noqa: BLE001 - `_raise` raises all exceptions again
            self._raise(error, "GET", url, connect_timeout)
        finally:
            if connection is None:
                await self._release(pool)
        raise SilenceTimeoutError(f"no response within {limit:g} s", where=Where("GET", url))

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
        """Send a POST request that submits a job and asks for an event stream as the response. If the response is of
        another type, it is read completely.

        The arguments and errors are the same as for `request`.
        """
        await self._ready(url)
        timeouts = _timeouts(connect_timeout, answer_timeout)
        pool = self._pool_for_stream()
        connection: Connection | None = None
        try:
            with anyio.move_on_after(whole_timeout):
                response = await send(pool.client, "POST", url, _stream_headers(headers), body, timeouts)
                if response.status == HTTPStatus.OK and is_event_stream(response.headers.get("content-type")):
                    connection = self._connection("POST", response, pool)
                    return connection
                try:
                    return await _read_response("POST", response, max_state_bytes)
                finally:
                    await response.aclose()
        except Exception as error:  # noqa: BLE001 - `_raise` raises all exceptions again
            self._raise(error, "POST", url, connect_timeout)
        finally:
            if connection is None:
                await self._release(pool)
        raise _no_whole_response(whole_timeout, "POST", url)

    def _connection(self, method: str, response: OpenResponse, pool: _StreamPool) -> Connection:
        async def close() -> None:
            try:
                await response.aclose()
            except Exception as error:
                if not isinstance(as_httpx(error), httpx.HTTPError):
                    raise
            finally:
                await self._release(pool)

        return Connection(
            (method, response.url, response.status, response.headers),
            _body_of(response),
            network=response.extensions.get("network_stream"),
            owner=self,
            close=close,
        )

    async def sniff(self, url: str) -> bytes:
        """Return the first bytes that a server sends over a connection without TLS, in any protocol.

        Returns empty bytes if the server sends nothing, or if the client would use TLS or a proxy.
        """
        return await sniff(*_host_and_port(url), self._uds) if self._can_probe(url) else b""

    async def speaks_tls(self, url: str) -> bool:
        """Whether the server at a URL with the scheme `http` accepts TLS. False if the client would use a proxy or a Unix
        domain socket.
        """
        return self._uds is None and self._can_probe(url) and await speaks_tls(*_host_and_port(url))

    def _can_probe(self, url: str) -> bool:
        scheme, host, port = origin(url)
        if scheme != "http" or port is None or self._proxy is not None or url in _MOUNTED:
            return False
        return self._uds is not None or not goes_through_a_proxy(host, port)

    async def aclose(self) -> None:
        """Close all connections. Further requests raise ClientClosedError.

        Raises:
            EventLoopError: The connections belong to another event loop.
        """
        if self._client is not None and not self._closed:
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
                for connection in [one for one in self.open if not one.being_read]:
                    tasks.start_soon(connection.aclose)
        finally:
            # Another task may call this method at the same time, and a generator can be closed only once at a time.
            closing, self._closing = self._closing, None
            if closing is not None:
                await closing.aclose()

    async def _ready(self, url: str) -> Pool:
        self._check_open()
        self.loop.check()
        if self._client is None:
            self._pool_lock = self._pool_lock or anyio.Lock()
            async with self._pool_lock:
                # Check again, because another task may have closed the transport or created the pool during the wait.
                self._check_open()
                if self._client is None:
                    client = await self._pool(url)
                    self._pools.append(_StreamPool(client))
                    self._closing = _closing_pools(self._pools)
                    await anext(self._closing)
                    # The arguments must not refer to this object, because it would then never be garbage-collected.
                    self._finalizer = weakref.finalize(self, _close_collected, self.loop, self._closing)
                    self._finalizer.atexit = False
                    self._client = client
        return self._client

    def _pool_for_stream(self) -> _StreamPool:
        """Return the first pool that has room for one more event stream, and count the stream. If there is none, create
        a pool. The caller must call `_release` when the stream ends, or when it could not be opened.
        """
        pool = next((each for each in self._pools if each.streams < STREAMS_PER_POOL), None)
        if pool is None:
            pool = _StreamPool(self._make_pool(kept_alive=KEPT_ALIVE_FOR_STREAMS))
            self._pools.append(pool)
        pool.streams += 1
        return pool

    async def _release(self, pool: _StreamPool) -> None:
        pool.streams -= 1
        # Keep one pool with room, so that the next stream needs no new pool.
        spare = any(each.streams < STREAMS_PER_POOL for each in self._pools if each is not pool)
        if pool.streams or pool is self._pools[0] or self._closed or not spare:
            return
        self._pools.remove(pool)
        with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
            await pool.client.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError("the client was closed")

    async def _pool(self, url: str) -> Pool:
        # All requests go to one origin. If the URL starts with http://, do not load the certificates, because loading
        # them takes a tenth of the time that all imports take. A TLS context without certificates is safe, because it
        # rejects every server.
        scheme, host, port = origin(url)
        secure = scheme == "https"
        proxied = self._uds is None and (self._proxy is not None or goes_through_a_proxy(host, port or 0))
        verify = (
            self._verify if secure or self._verify is not True else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        make = self._make_pool = partial(
            self._new_pool,
            verify=verify,
            follow_redirects=False,
            mounts=_MOUNTED,
            # If there is a proxy, install the workaround for TLS even if the URL starts with http://, because the
            # connection to the proxy may use TLS.
            cleans_up_tls=secure or proxied,
        )
        try:
            if not secure and "httpcore" in sys.modules:
                return make()
            # Create the first pool on a thread, because this imports httpcore and loads certificates, which would block
            # the event loop for a tenth of a second. httpcore imports every installed event loop library. Do not use
            # anyio's default limiter, because all threads of that limiter may be waiting for this request.
            client = await to_thread.run_sync(make, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
        except (OSError, ValueError, ImportError, httpx.InvalidURL) as error:
            # The constructor has checked the caller's arguments, so the error is in the environment variables.
            raise unusable_environment(error) from None
        self._check_open()
        return client

    def _new_pool(
        self, *, verify: bool | ssl.SSLContext, kept_alive: int = KEPT_ALIVE, **members: Any
    ) -> Pool:
        if not isinstance(verify, ssl.SSLContext):
            # All pools share one context, because creating it loads the certificates.
            if self._context is None:
                self._context = httpx.create_ssl_context(verify=verify)
            verify = self._context
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept_alive)
        if self._uds is None:
            return Pool(verify=verify, limits=limits, proxy=self._proxy, **members)
        # If a transport is passed, httpx does not use the proxies in the environment variables.
        transport = httpx.AsyncHTTPTransport(verify=verify, limits=limits, uds=self._uds)
        return Pool(transport=transport, **members)

    def _proxy_for(self, url: str) -> str | None:
        """Return the URL of the proxy for a request, without credentials. None if there is no proxy."""
        if self._uds is not None:
            return None
        scheme, host, port = origin(url)
        proxy = self._proxy or environment_proxy(scheme, host, port or 0)
        return None if proxy is None else without_credentials(proxy)

    def address(self, url: str) -> str:
        """Return the address of the server for error messages."""
        _, host, port = origin(url)
        return f"{host}:{port}" if self._uds is None else self._uds

    def _raise(self, raised: Exception, method: str, url: str, connect_timeout: float) -> NoReturn:
        """Raise the client's error for an exception of a request.

        The error has no cause, because its message contains the text of the exception. The chained exceptions of httpx
        and httpcore would only make a traceback longer.
        """
        where = Where(method, url)
        try:
            raise as_httpx(raised)
        except httpx.ConnectTimeout:
            proxy = self._proxy_for(url)
            to = self.address(url) if proxy is None else f"the proxy {proxy}"
            what = f"no connection to {to} within {connect_timeout:g} s"
            advice = UNREACHABLE if proxy is None else PROXY_ADVICE
            raise ConnectTimeoutError(what, where=where, advice=advice) from None
        except (httpx.ConnectError, httpx.ProxyError) as error:
            proxy, by_proxy = self._proxy_for(url), isinstance(error, httpx.ProxyError)
            raise unreachable(
                self.address(url), url, error, where, proxy=proxy, by_proxy=by_proxy, uds=self._uds
            ) from None
        except httpx.ReadTimeout:
            proxy = self._proxy_for(url)
            through = "" if proxy is None else f" through the proxy {proxy}"
            raise SilenceTimeoutError(f"no response in time{through}", where=where) from None
        except httpx.RemoteProtocolError as error:
            if str(error) == TOO_MANY_INFORMATIONAL:
                raise ProtocolError(f"the server sent {error}", where=where) from None
            if _is_cut(error):
                raise TransportError(broken_connection(error), where=where) from None
            raise not_http(self.address(url), str(error), where) from None
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise TransportError(broken_connection(error), where=where) from None
        except httpx.InvalidURL as error:
            # The client's own URL was parsed before. The invalid URL is a link of the server that is too long for
            # httpx, or the Location header of a response through httpx's client, which parses this header even if it
            # does not follow redirects.
            raise ProtocolError(f"the response contains an invalid link: {error}", where=where) from None
        except RuntimeError:
            # `send` raises a plain RuntimeError if another task closes the pool before or during the request.
            if self._closed:
                raise ClientClosedError("the client was closed during the request", where=where) from None
            raise


# ---- bodies --------------------------------------------------------------------------------------------------------


class _Chunks:
    """A streamed response body that is read one chunk at a time, because `fast_body_of` does not know its layers."""

    # A cancelled read closes the generators of httpx and httpcore, so the body cannot be read again.
    resumable = False

    def __init__(self, response: OpenResponse) -> None:
        # Each call of `read` has its own time limit.
        response.allow_silence()
        # Event streams have no content coding.
        self._chunks = response.chunks()

    async def read(self, limit: float) -> bytes | None:
        with anyio.fail_after(limit):
            try:
                return await anext(self._chunks, None)
            except Exception as error:
                if not isinstance(as_httpx(error), httpx.HTTPError):
                    raise
                raise ConnectionError(text_of(error)) from None

    async def unwind(self) -> None:
        # httpx and httpcore use nested generators, and closing the outer generator does not close the inner generators.
        # Reading from the closed connection ends all of them. Otherwise they would stay open until they are
        # garbage-collected, and trio would emit a warning.
        try:
            while await anext(self._chunks, None) is not None:
                pass
        except Exception as error:
            if not isinstance(as_httpx(error), httpx.HTTPError | httpx.StreamError):
                raise


def _body_of(response: OpenResponse) -> Body:
    # Import httpcore only when a stream needs it, because it imports every installed event loop library.
    from tidewire.http.fast_body_reader import fast_body_of  # noqa: PLC0415

    return fast_body_of(response.core_stream, response.headers, response.extensions) or _Chunks(response)


async def _read_response(method: str, response: OpenResponse, max_state_bytes: int) -> Response:
    where = Where(method, response.url, status_code=response.status)
    limit = max(LEAST_BODY_BYTES, max_state_bytes)
    try:
        decompressor = BoundedDecompressor(response.headers.get("content-encoding", ""), limit)
        async for chunk in response.chunks():
            decompressor.feed(chunk)
            if decompressor.too_large:
                advice = "If this size is expected, raise the limit with max_state_bytes=…."
                raise ProtocolError(f"the response has more than {limit} bytes", where=where, advice=advice)
        body = decompressor.end()
    except DecompressionError as error:
        raise TransportError(str(error), where=where) from None
    return Response(method, response.url, response.status, response.headers, body)


# ---- URLs ----------------------------------------------------------------------------------------------------------


def origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL. If the URL has no port, the port is the default port of the scheme.

    Raises:
        ValueError: The URL is not valid.
    """
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not a valid URL: {error}") from None
    if "%20" in parsed.host:
        raise ValueError(f"{url!r} is not a valid URL: its host contains a space")
    port = {"http": 80, "https": 443}.get(parsed.scheme) if parsed.port is None else parsed.port
    return parsed.scheme, parsed.host, port


def _host_and_port(url: str) -> tuple[str, int]:
    _, host, port = origin(url)
    return host, port or 0


def join_url(base: str, reference: str) -> str:
    """Resolve a relative or absolute URI reference against a base URL.

    Raises:
        ValueError: The reference is not valid.
    """
    try:
        return str(httpx.URL(base).join(reference))
    except httpx.InvalidURL as error:
        raise ValueError(str(error)) from None


def without_credentials(address: str) -> str:
    """Remove the user and password from a URL, so that the URL can appear in a message."""
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def mount(url: str, transport: httpx.AsyncBaseTransport) -> None:
    """Route the requests to an origin to an in-process transport. This applies to all clients that have not sent a
    request yet.

    Raises:
        ValueError: The origin is already mounted.
    """
    if url in _MOUNTED:
        raise ValueError(f"{url} is already mounted in this process")
    _MOUNTED[url] = transport


def is_mounted(url: str) -> bool:
    """Whether the requests to the origin of a URL go to an in-process transport."""
    return any(origin(url) == origin(each) for each in _MOUNTED)


def unmount(url: str) -> None:
    """Undo `mount`."""
    del _MOUNTED[url]


_MOUNTED: Final[dict[str, httpx.AsyncBaseTransport]] = {}
"""Maps origins to in-process transports. Only `tidewire.testing` uses this mapping, for its fake server."""


# ---- helpers -------------------------------------------------------------------------------------------------------


def _no_whole_response(seconds: float, method: str, url: str) -> SilenceTimeoutError:
    return SilenceTimeoutError(f"no complete response within {seconds:g} s", where=Where(method, url))


def _timeouts(connect_timeout: float, answer_timeout: float) -> Timeouts:
    return {"connect": connect_timeout, "read": answer_timeout, "write": answer_timeout, "pool": None}


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


def _is_cut(error: httpx.RemoteProtocolError) -> bool:
    # These are the messages of httpcore for a connection that was closed before the status line or within the body. All
    # other messages come from h11 and concern bytes that are not valid HTTP.
    text = str(error)
    return text.startswith(("Server disconnected", "peer closed connection"))
