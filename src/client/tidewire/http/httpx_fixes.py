"""Workarounds for bugs in httpx and httpcore. Remove a workaround when a release has fixed the bug in the column
`upstream`.

`Pool` also stores no cookies, and gives access to the pool of httpcore.

| workaround | bug | upstream |
|---|---|---|
| `OnePiece` | a request body is an async generator that a broken connection leaves open; trio warns about it | encode/httpx#3597, encode/httpx#3686 |
| `TlsCleanup` | a TCP connection leaks when its TLS handshake is cancelled: httpcore closes it only after an error | encode/httpcore#443 |
| `bound_informational` | a request never ends if the server sends informational responses (1xx) without end: httpcore and h11 read them in a loop | not reported |
| `use_free_locks`, `replace_state_lock` | a lock of httpcore's connections runs the event loop once when it is acquired, even if it is free, which happens three times per request | not reported |
| `repair`, `clean_up_tls` | httpx request hooks that install `OnePiece` and `TlsCleanup` | |

Three modules use private members of httpx and httpcore: this module, `single_write` and `fast_body_reader`.
`tests/integration/test_private_upstream_members.py` checks each of these members.
"""

from collections.abc import AsyncIterator, Mapping
from functools import wraps
from typing import Any, Final

import anyio
import h11
import httpx

from tidewire.http.response import CLOSE_TIMEOUT

MAX_INFORMATIONAL: Final = 100
"""Maximum number of informational responses, such as `100 Continue`, that may precede the response to a request."""
TOO_MANY_INFORMATIONAL: Final = f"more than {MAX_INFORMATIONAL} informational responses (status 1xx)"
"""Message of the httpx.RemoteProtocolError that is raised if a server sends more informational responses."""
BOUNDED: Final = "tidewire.bounded"
"""Extension of the requests to which `bound_informational` applies."""


class OnePiece(httpx.AsyncByteStream):
    """Request body that is not a generator. httpx uses a generator, which stays open if the connection breaks, and trio
    then emits a warning.
    """

    def __init__(self, body: bytes) -> None:
        self.whole = body
        self._left: bytes | None = body or None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return OnePiece(self.whole)

    async def __anext__(self) -> bytes:
        if self._left is None:
            raise StopAsyncIteration
        body, self._left = self._left, None
        return body


class _NoCookies(httpx.Cookies):
    """Cookie jar that stores no cookies. The clients that `with_options` returns share one pool. A stored cookie would
    let callers with different credentials share one session of a gateway.
    """

    def extract_cookies(self, response: httpx.Response) -> None:
        """Do nothing."""


class Pool(httpx.AsyncClient):
    """httpx's client with the workarounds of this module.

    Args:
        cleans_up_tls: Whether connections may use TLS, so that the workaround for its handshake is needed.
        members: Arguments of `httpx.AsyncClient`.
    """

    def __init__(self, *, cleans_up_tls: bool, **members: Any) -> None:
        super().__init__(
            event_hooks={"request": [repair, clean_up_tls] if cleans_up_tls else [repair]}, **members
        )
        bound_informational()
        self.cleans_up_tls = cleans_up_tls
        self._own_cookies = _NoCookies()
        self._core_pools: dict[tuple[str, str, int | None], Any] = {}
        """Maps origins to the pools of httpcore."""

    @property  # type: ignore[misc] # httpx's setter would replace the jar by a plain `httpx.Cookies`
    def cookies(self) -> httpx.Cookies:
        return self._own_cookies

    def core_pool(self, url: httpx.URL) -> Any:
        """Return the pool of httpcore for requests to a URL. None if httpx's transport has none.

        Raises:
            RuntimeError: The pool was closed.
        """
        if self.is_closed:
            raise RuntimeError("the connection pool was closed")
        origin = url.scheme, url.host, url.port
        if origin not in self._core_pools:
            import httpcore  # noqa: PLC0415 - it imports every installed event loop library

            core = getattr(self._transport_for_url(url), "_pool", None)
            self._core_pools[origin] = core if isinstance(core, httpcore.AsyncConnectionPool) else None
            # One pool serves several origins.
            if isinstance(core, httpcore.AsyncConnectionPool) and "create_connection" not in vars(core):
                use_free_locks(core)
        return self._core_pools[origin]


class TlsCleanup:
    """Trace callback of httpcore that closes the TCP connection of a request when the TLS handshake fails."""

    def __init__(self) -> None:
        self._tcp_stream: Any = None

    async def __call__(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            self._tcp_stream = info["return_value"]
        elif event.endswith(".start_tls.failed") and self._tcp_stream is not None:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await self._tcp_stream.aclose()


def bound_informational() -> None:
    """Make httpcore count the informational responses to this client's requests. Requests of other clients in the process
    are not affected.

    The objects that read responses are created deep inside httpcore's connection pools, so this function replaces a
    method of their class.
    """
    import httpcore  # noqa: PLC0415 - it imports every installed event loop library

    connection_class: Any = httpcore.AsyncHTTP11Connection
    receive = connection_class._receive_response_headers
    if receive.__module__ == __name__:
        return

    @wraps(receive, assigned=())
    async def _receive_response_headers(self: Any, request: Any) -> Any:
        if BOUNDED not in request.extensions:
            return await receive(self, request)
        http, count = self._h11_state, 0
        next_event = http.next_event

        def counted() -> Any:
            nonlocal count
            event = next_event()
            count += type(event) is h11.InformationalResponse
            if count > MAX_INFORMATIONAL:
                raise httpcore.RemoteProtocolError(TOO_MANY_INFORMATIONAL)
            return event

        http.next_event = counted
        try:
            return await receive(self, request)
        finally:
            del http.next_event

    connection_class._receive_response_headers = _receive_response_headers


def use_free_locks(pool: Any) -> None:
    """Give all connections that a pool of httpcore creates from now on a lock that does not yield to the event loop while
    it is free. Without this and `replace_state_lock`, a short job takes 7 % more CPU time (`bench/client.py`).
    """
    import httpcore  # noqa: PLC0415 - it imports every installed event loop library

    create = pool.create_connection

    def create_connection(origin: Any) -> Any:
        connection = create(origin)
        if isinstance(connection, httpcore.AsyncHTTPConnection):
            connection._request_lock = anyio.Lock(fast_acquire=True)  # type: ignore[assignment]
        return connection

    pool.create_connection = create_connection


def replace_state_lock(connection: Any) -> None:
    """Give an HTTP/1.1 connection of httpcore such a lock, too. No task may hold the old lock."""
    if not isinstance(connection._state_lock, anyio.Lock):
        connection._state_lock = anyio.Lock(fast_acquire=True)


async def repair(request: httpx.Request) -> None:
    request.stream = OnePiece(request.content)
    request.extensions[BOUNDED] = True


async def clean_up_tls(request: httpx.Request) -> None:
    request.extensions["trace"] = TlsCleanup()
