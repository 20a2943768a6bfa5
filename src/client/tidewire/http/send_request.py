"""Sends one request through a connection pool, and returns the response when its headers have arrived.

httpx's client creates the pool, because it reads the proxies and certificates of the environment. Each request then goes
to the pool of httpcore directly: httpx's objects for requests, responses, headers and cookies took a fifth of the CPU
time of a short job (`bench/client.py`), and the client uses only their content.

The pool of httpcore is a private member of httpx's transport. If it is not there, for example because of a later version
of httpx, or because the transport is that of a fake server in the same process, the request goes through httpx's public
interface. `as_httpx` makes the exceptions of both ways equal.
"""

from collections.abc import AsyncIterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import httpx

from tidewire.http.httpx_fixes import BOUNDED, OnePiece, Pool, TlsCleanup
from tidewire.http.single_write import MAX_BODY, SINGLE_WRITE, install_single_write

Timeouts = dict[str, float | None]
"""Time limits in seconds, as httpx and httpcore name them: `connect`, `read`, `write` and `pool`. None: no limit."""


class OpenResponse:
    """A response whose body was not read.

    Attributes:
        url: URL of the request.
        status: HTTP status.
        headers: Headers, with names in lower case. Several values of one name are joined with a comma.
        extensions: Extensions of httpcore, such as the network stream.
        core_stream: The body as an object of httpcore. None if httpcore was not called directly.
    """

    __slots__ = ("_response", "_timeouts", "core_stream", "extensions", "headers", "status", "url")

    def __init__(self, url: str, response: Any, timeouts: Timeouts, *, is_core: bool) -> None:
        self.url: str = url
        self.extensions: Mapping[str, Any] = response.extensions
        self.core_stream: Any = response.stream if is_core else None
        self.status: int = response.status if is_core else response.status_code
        self.headers: dict[str, str] = _lower_case(response.headers if is_core else response.headers.raw)
        self._response = response
        self._timeouts = timeouts

    def allow_silence(self) -> None:
        """Remove the time limit between two chunks of the body, because the caller has its own limit."""
        self._timeouts["read"] = None

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the chunks of the body as they arrived, without decompressing them."""
        stream: AsyncIterator[bytes]
        stream = aiter(self._response.aiter_raw() if self.core_stream is None else self.core_stream)
        return stream

    async def aclose(self) -> None:
        """Close the response. The connection is reused if the body was read to its end."""
        await self._response.aclose()


class _Target(NamedTuple):
    url: str
    parsed: httpx.URL
    core_url: Any
    host: bytes


@lru_cache(maxsize=64)
def _target(url: str) -> _Target:
    import httpcore  # noqa: PLC0415 - it imports every installed event loop library

    install_single_write()
    parsed = httpx.URL(url)
    core_url = httpcore.URL(
        scheme=parsed.raw_scheme, host=parsed.raw_host, port=parsed.port, target=parsed.raw_path
    )
    return _Target(str(parsed), parsed, core_url, parsed.netloc)


async def send(
    pool: Pool, method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeouts: Timeouts
) -> OpenResponse:
    """Send a request and wait for the headers of the response. The caller must close the response.

    Args:
        pool: The connection pool.
        method: HTTP method.
        url: Absolute URL.
        headers: Headers in addition to `Host`, `Connection` and `Content-Length`. `Connection` may be replaced.
        body: Request body. None: the request has no body.
        timeouts: Time limits. This dict must not be shared with another request.

    Raises:
        Exception: The request failed. `as_httpx` converts the exception.
        httpx.InvalidURL: The URL is not valid.
        RuntimeError: The pool was closed.
    """
    target = _target(url)
    core = pool.core_pool(target.parsed)
    if core is None:
        request = pool.build_request(
            method, target.parsed, headers=dict(headers), content=body, extensions={"timeout": timeouts}
        )
        return OpenResponse(target.url, await pool.send(request, stream=True), timeouts, is_core=False)
    import httpcore  # noqa: PLC0415 - see `_target`

    lines = [(b"Host", target.host), *((name.encode(), value.encode()) for name, value in headers.items())]
    if "Connection" not in headers:
        lines.append((b"Connection", b"keep-alive"))
    if body is not None or method == "POST":
        lines.append((b"Content-Length", b"%d" % len(body or b"")))
    extensions: dict[str, Any] = {"timeout": timeouts, BOUNDED: True}
    if pool.cleans_up_tls:
        extensions["trace"] = TlsCleanup()
    stream = OnePiece(body or b"")
    if body is None or len(body) <= MAX_BODY:
        extensions[SINGLE_WRITE] = stream
    core_request = httpcore.Request(
        method, target.core_url, headers=lines, content=stream, extensions=extensions
    )
    return OpenResponse(target.url, await core.handle_async_request(core_request), timeouts, is_core=True)


def as_httpx(error: Exception) -> Exception:
    """Return the exception of httpx for an exception of httpcore. Other exceptions are returned as they are."""
    if not type(error).__module__.startswith("httpcore"):
        return error
    kind: Any = getattr(httpx, type(error).__name__, httpx.TransportError)
    made: Exception = kind(str(error))
    made.__cause__ = error
    return made


def _lower_case(lines: list[tuple[bytes, bytes]]) -> dict[str, str]:
    try:
        headers = {name.decode("ascii").lower(): value.decode("ascii") for name, value in lines}
        if len(headers) == len(lines):
            return headers
    except UnicodeDecodeError:
        pass
    headers = {}
    for line in lines:
        name, value = map(_text, line)
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
