"""Read headers and bodies of requests, and negotiate the media type of the response."""

import asyncio
from collections.abc import Callable
from functools import lru_cache

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from tidewire.protocol.resources import API_ROOT
from tidewire_server.errors import ProblemError, refuse, unread_request


def header_lines(request: Request, name: bytes) -> list[str]:
    """Return the values of all header lines with this lowercase name.

    This function reads the ASGI list of headers, because Starlette's mapping is slow: for each absent header, it raises
    and catches an exception.
    """
    return [str(value, "latin-1") for key, value in request.scope["headers"] if key == name]


def header(request: Request, name: bytes) -> str:
    """Return the value of the first header line with this lowercase name, or an empty string."""
    for key, value in request.scope["headers"]:
        if key == name:
            return str(value, "latin-1")
    return ""


def root_of(request: Request) -> str:
    """Return the path of the API root, as it appears in the URLs that clients use. The path includes the path prefix of
    a proxy.
    """
    prefix: str = request.scope.get("root_path", "")
    return prefix.rstrip("/") + API_ROOT


def accept_names(request: Request, media_type: str) -> bool:
    """Return whether the `Accept` header contains the media type with a weight above 0. Wildcards do not count."""
    return media_type in _ranges(request)[0]


def require_acceptable(request: Request, media_type: str) -> None:
    """Check that the request accepts the media type of the response.

    Raises:
        ProblemError: The `Accept` header does not include the media type.
    """
    ranges, refused = _ranges(request)
    covering = {media_type, f"{media_type.partition('/')[0]}/*", "*/*"}
    # A media type that the header lists with weight 0 is not acceptable, even if a wildcard in the header includes it (RFC
    # 9110, section 12.5.1).
    if media_type in refused or ((ranges or refused) and not covering & set(ranges)):
        raise refuse(
            "not_acceptable",
            f"the response has the media type {media_type}, but Accept allows only: {', '.join(ranges)[:200]}",
        )


def _ranges(request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the media ranges in the `Accept` header as two tuples: the ranges with a weight above 0, and the other
    ranges.
    """
    return _read_ranges(",".join(header_lines(request, b"accept")))


# Cache the results, because clients send the same few values repeatedly. `max_head_bytes` limits the size of a cached value.
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
"""Maximum number of digits in a Content-Length. A longer value is rejected without converting it to a number."""


async def read_body(
    request: Request, count: Callable[[int], None], *, max_bytes: int, within: float, optional: bool = False
) -> bytes:
    """Read the body of a request. The request's Content-Type must be JSON.

    Args:
        request: The request.
        count: Function that counts the received bytes of all requests. It is not called if the whole body has arrived
            before the server processes the request, because such a body is small.
        max_bytes: Maximum size of the body.
        within: Number of seconds within which the whole body must arrive.
        optional: Whether an empty body without a Content-Type is allowed.

    Raises:
        ProblemError: The body is too large, arrives too slowly, or has an unsupported media type or content coding. The same
            error is raised if the bodies of all requests together are too large.
        ClientDisconnect: The connection closed before the body was complete.
    """
    first_lines: dict[bytes, bytes] = dict(reversed(request.scope["headers"]))
    declared = str(first_lines.get(b"content-length", b""), "latin-1")
    if declared.isdigit() and (len(declared) > _MAX_DIGITS or int(declared) > max_bytes):
        raise _too_large(max_bytes)
    coding = str(first_lines.get(b"content-encoding", b""), "latin-1").strip().lower()
    if coding not in {"identity", ""}:
        raise refuse(
            "unsupported_media_type",
            f"the content coding {coding[:40]!r} is not supported; send the body uncompressed",
        )
    body, more = bytearray(), True
    deadline = asyncio.get_running_loop().time() + within
    while more:
        try:
            message = await _received(request.receive, deadline)
        except TimeoutError:
            received = f"{len(body)} bytes of {declared or 'a body of unknown length'}"
            raise ProblemError(
                unread_request("request.late", f"received only {received} within {within:g} s (body_timeout)")
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        part = message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) + len(part) > max_bytes:
            raise _too_large(max_bytes)
        if more or body:
            count(len(part))
        body += part
    if body or not optional:
        _check_media_type(str(first_lines.get(b"content-type", b""), "latin-1"))
    return bytes(body)


async def _received(receive: Receive, deadline: float) -> Message:
    """Receive the next part of a body.

    Raises:
        TimeoutError: The part has not arrived by the deadline. The deadline is a time of the event loop's clock.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await receive()
    except TimeoutError:
        # Try once more. If the event loop was blocked, the part may have arrived in time without being read.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        async with asyncio.timeout(0):
            return await receive()


def _too_large(max_bytes: int) -> ProblemError:
    return refuse(
        "body_too_large",
        f"the request body is larger than the limit of {max_bytes} bytes; send less, for example several smaller jobs or "
        f"smaller files, or raise the setting max_body_bytes of the server (TIDEWIRE_MAX_BODY_BYTES)",
        limit=max_bytes,
    )


def _check_media_type(content_type: str) -> None:
    if content_type == "application/json":
        return
    media_type, *parameters = (part.strip().lower() for part in content_type.split(";"))
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        sent = f"not {media_type[:80]!r}" if media_type else "but the request has no Content-Type"
        raise refuse("unsupported_media_type", f"the Content-Type must be application/json, {sent}")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and value.strip(' "') not in {"utf-8", "utf8"}:
            raise refuse(
                "unsupported_media_type", f"the charset of a JSON body must be UTF-8, not {value[:40]}"
            )
