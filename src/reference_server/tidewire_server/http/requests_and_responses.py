"""Requests and answers, beneath the routes: bodies, Accept, problems, CORS, and which methods a resource takes."""

import asyncio
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import orjson
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidewire.protocol import problems
from tidewire.protocol.messages import to_text
from tidewire.protocol.problems import Problem, problem
from tidewire.protocol.resources import API_ROOT
from tidewire_server.errors import ProblemError, late, refuse
from tidewire_server.http.uvicorn.uvicorn_internals import UvicornConnection
from tidewire_server.store.interfaces import StoreError

Handler = Callable[[Request], Awaitable[ASGIApp]]

ALLOW_HEADERS: Final = "Authorization, Content-Type, Idempotency-Key, Last-Event-ID"
EXPOSE_HEADERS: Final = "Location, Content-Location, Retry-After, Idempotency-Replayed"
PREFLIGHT_MAX_AGE: Final = "600"

_log = logging.getLogger(__name__)


def answer(
    body: BaseModel | Mapping[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A JSON answer. Nothing is cached unless its headers say otherwise."""
    content = to_text(body).encode() if isinstance(body, BaseModel) else orjson.dumps(body)
    return Response(content, status, {"cache-control": "no-store"} | (headers or {}), "application/json")


def problem_answer(found: Problem, headers: Mapping[str, str] | None = None) -> Response:
    """A problem as an answer, with Retry-After (whole seconds) where it names a wait."""
    wait = (
        {} if found.retry_after_ms is None else {"retry-after": str(math.ceil(found.retry_after_ms / 1000))}
    )
    return Response(
        orjson.dumps(problems.to_json(found)),
        found.status,
        {"cache-control": "no-store"} | wait | dict(headers or {}),
        problems.MEDIA_TYPE,
    )


def header_lines(request: Request, name: bytes) -> list[str]:
    """The values of a header by its name in lower case, one for each line of this name.

    As ASGI has it: to look for one that is absent in Starlette's mapping is to raise and to catch.
    """
    return [str(value, "latin-1") for key, value in request.scope["headers"] if key == name]


def header(request: Request, name: bytes) -> str:
    """The first line of a header by its name in lower case, empty where there is none."""
    lines = header_lines(request, name)
    return lines[0] if lines else ""


def root_of(request: Request) -> str:
    """The path under which readers reach the protocol, a proxy's prefix included."""
    prefix: str = request.scope.get("root_path", "")
    return prefix.rstrip("/") + API_ROOT


def names(request: Request, media_type: str) -> bool:
    """Whether Accept names a media type, not by a wildcard, with a weight above 0."""
    return media_type in _ranges(request)[0]


def accepts(request: Request, media_type: str) -> None:
    """Refuse a request that does not want what there is.

    Raises:
        ProblemError: Its Accept names neither the media type nor a range that covers it.
    """
    ranges, refused = _ranges(request)
    covering = {media_type, f"{media_type.partition('/')[0]}/*", "*/*"}
    # The most specific range that covers a type decides.
    if media_type in refused or ((ranges or refused) and not covering & set(ranges)):
        raise refuse("not_acceptable", f"here is {media_type}, not {', '.join(ranges)[:200]}")


def _ranges(request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The media ranges of Accept: those with a weight above 0, and those with none."""
    return _read_ranges(",".join(header_lines(request, b"accept")))


# A client sends the same all the time, and what it sends is bounded (`max_head_bytes`).
@lru_cache(maxsize=64)
def _read_ranges(accepted: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ranges: list[str] = []
    refused: list[str] = []
    for part in accepted.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name:
            never = any(parameter.replace(" ", "") in _NEVER for parameter in parameters)
            (refused if never else ranges).append(name)
    return tuple(ranges), tuple(refused)


_NEVER = frozenset({"q=0", "q=0.", "q=0.0", "q=0.00", "q=0.000"})

_MAX_DIGITS = 15
"""Of a Content-Length; what is longer is too large without being read as a number."""


async def read_body(request: Request, *, max_bytes: int, within: float, optional: bool = False) -> bytes:
    """Read a request's body, which must be JSON by its headers.

    Args:
        request: The request.
        max_bytes: The largest body that is taken.
        within: Seconds in which it must arrive.
        optional: An empty body needs no Content-Type.

    Raises:
        ProblemError: It is too large, too slow, or in a media type or coding that is not taken.
        ClientDisconnect: It was cut short; nobody waits for an answer.
    """
    declared = header(request, b"content-length")
    if declared.isdigit() and (len(declared) > _MAX_DIGITS or int(declared) > max_bytes):
        raise _too_large(max_bytes)
    coding = header(request, b"content-encoding").strip().lower()
    if coding not in {"identity", ""}:
        raise refuse(
            "unsupported_media_type", f"content coding {coding[:40]!r} is not taken: send the body as it is"
        )
    body, more = bytearray(), True
    connection: UvicornConnection = request.scope["tidewire.http.response"]
    until = asyncio.get_running_loop().time() + within
    while more:
        try:
            # Nearly every body is here with its head, and then a clock for it would only be set and stopped.
            message = await (
                request.receive() if connection.has_body() else _received(request.receive, until)
            )
        except TimeoutError:
            came = f"{len(body)} bytes of {declared or 'a body that does not say its length'}"
            raise ProblemError(late(f"{came} had come after {within:g} s (body_timeout)")) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    if body or not optional:
        _check_media_type(header(request, b"content-type"))
    return bytes(body)


async def _received(receive: Receive, until: float) -> Message:
    """The next part of a body.

    Raises:
        TimeoutError: It is not there by this time of the event loop.
    """
    try:
        async with asyncio.timeout_at(until):
            return await receive()
    except TimeoutError:
        # A function that keeps the event loop is no fault of the sender's: what has come by now is taken.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with asyncio.timeout(0):
            return await receive()


def _too_large(max_bytes: int) -> ProblemError:
    return refuse("body_too_large", f"a body has at most {max_bytes} bytes (max_body_bytes)", limit=max_bytes)


def _check_media_type(content_type: str) -> None:
    if content_type == "application/json":
        return
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        said = f"not {media_type[:80]!r}" if media_type else "but the request names no Content-Type"
        raise refuse("unsupported_media_type", f"a body is application/json, {said}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in {"utf-8", "utf8"}:
            raise refuse("unsupported_media_type", f"JSON is UTF-8, not {value[:40]}")


class Resource:
    """An ASGI application for one URL: a handler for each method, and a problem for whatever goes wrong."""

    def __init__(
        self,
        handlers: Mapping[str, Handler] | None,
        *,
        admit: Callable[[Request], None],
        failed: Callable[[Scope, Problem], None],
    ) -> None:
        """Bind methods to handlers.

        Args:
            handlers: By method; HEAD goes where GET goes. None: there is nothing at this URL.
            admit: Called first; raises `ProblemError` where the caller is not let in.
            failed: Told of every problem that was answered.
        """
        self._handlers = dict(handlers or {})
        if "GET" in self._handlers:
            self._handlers["HEAD"] = self._handlers["GET"]
        self._allow = ", ".join([*self._handlers, "OPTIONS"])
        self._admit = admit
        self._failed = failed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        request = Request(scope, receive, send)
        try:
            response = await self._respond(request)
            # Only until it has started can an answer still become a problem. A stream sees to that by itself: its hot
            # path is not wrapped.
            await response(scope, receive, watched if isinstance(response, Response) else send)
        except ClientDisconnect:
            return
        except ProblemError as error:
            await self._fail(scope, error.problem, error.headers, receive, send)
        except Exception:
            if started:
                raise  # the ASGI server logs it, and drops the connection
            await self._fail(scope, failure(request), {}, receive, send)

    async def _respond(self, request: Request) -> ASGIApp:
        if not self._handlers:
            what = f"there is nothing at {request.url.path[:200]!r}; all begins at {root_of(request)}"
            raise refuse("not_found", what)
        if request.method == "OPTIONS":
            return Response(status_code=204, headers={"allow": self._allow, "cache-control": "no-store"})
        handler = self._handlers.get(request.method)
        if handler is None:
            detail = f"{request.method[:20]} is not taken here, but {self._allow}"
            raise refuse("method_not_allowed", detail, headers={"allow": self._allow})
        self._admit(request)
        return await handler(request)

    async def _fail(
        self, scope: Scope, found: Problem, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        self._failed(scope, found)
        await problem_answer(found, headers)(scope, receive, send)


def failure(request: Request) -> Problem:
    """Log the exception that is being handled; gives what its request is answered with."""
    error = sys.exc_info()[1]
    if isinstance(error, StoreError):
        _log.error("%s", error)
        return problem("unavailable", "the log of this server cannot be read or written at the moment")
    # The path alone: what follows it may hold a token.
    _log.exception("%s %r failed", request.method, request.url.path)
    return problem("internal", "the server's log says why")


def with_privacy(send: Send, scope: Scope) -> Send:
    """Keep a URL that holds a token out of the `Referer` of whatever comes after it."""
    if b"token=" not in scope["query_string"]:
        return send

    async def send_privately(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], (b"referrer-policy", b"no-referrer")]}
        await send(message)

    return send_privately


def with_cors(send: Send, scope: Scope, origins: Iterable[str]) -> Send:
    """Let pages of some origins read the answer, errors included. `*` lets any page in, without credentials."""
    allowed = set(origins)
    if not allowed:
        return send
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if origin is None:
        return send
    granted = origin if origin in allowed else "*" if "*" in allowed else None

    async def send_with_cors(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer_headers = MutableHeaders(raw=list(message["headers"]))
            answer_headers.add_vary_header("Origin")
            if granted is not None:
                answer_headers["access-control-allow-origin"] = granted
                answer_headers["access-control-expose-headers"] = EXPOSE_HEADERS
                if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
                    answer_headers["access-control-allow-methods"] = answer_headers.get(
                        "allow", "GET, POST, DELETE"
                    )
                    answer_headers["access-control-allow-headers"] = ALLOW_HEADERS
                    answer_headers["access-control-max-age"] = PREFLIGHT_MAX_AGE
            message = {**message, "headers": answer_headers.raw}
        await send(message)

    return send_with_cors
