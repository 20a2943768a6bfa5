"""Requests and responses below the routes: bodies, Accept, problems, and the privacy of URLs that hold a token."""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import orjson
from pydantic import BaseModel
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


def failure(request: Request, error: Exception) -> Problem:
    """Log an exception that is not a problem; returns the problem for its request."""
    if isinstance(error, StoreError):
        _log.error("%s", error)
        return problem("unavailable", "the log of this server cannot be read or written at the moment")
    # Log the path alone: the query may hold a token.
    _log.error("%s %r failed", request.method, request.url.path, exc_info=error)
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
