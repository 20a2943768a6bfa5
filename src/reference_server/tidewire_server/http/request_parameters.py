"""Parse and validate parameters in the query string and the headers of requests, and in the body of cancel requests."""

import re
from typing import Any, Final

from starlette.requests import Request

from tidewire.protocol.cursor import BEGINNING, Cursor, CursorError
from tidewire_server.errors import refuse
from tidewire_server.http.request_reading import header_lines

MAX_KEY: Final = 255
_VISIBLE: Final = re.compile(r"[!-~]*")
"""Matches visible ASCII characters, which an Idempotency-Key may contain. `MAX_KEY` is its maximum length in characters."""


def parse_cursor(sent: str | None) -> Cursor | None:
    """Parse the cursor that a reader sent. Return None if the reader sent no cursor.

    Raises:
        ProblemError: The text is not a cursor.
    """
    if sent is None:
        return None
    if sent == str(BEGINNING):
        return BEGINNING
    try:
        return Cursor.parse(sent)
    except CursorError as error:
        raise refuse("bad_cursor", str(error)) from None


def text(request: Request, name: str, default: str = "") -> str:
    """Return a query parameter, or `default` if it is absent or empty.

    Raises:
        ProblemError: The parameter occurs more than once.
    """
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise refuse(
            "bad_parameter", f"the query parameter {name} occurs {len(values)} times in the URL; send it once"
        )
    return (values[0] if values else "") or default


def has_token(request: Request) -> bool:
    """Return whether the URL contains a stream token. An empty `token` parameter is treated as absent."""
    return any(request.query_params.getlist("token"))


def choice(request: Request, name: str, default: str, other: str) -> str:
    """Return a query parameter whose value must be `default` or `other`. If the parameter is absent, return `default`.

    Raises:
        ProblemError: The parameter has another value.
    """
    value = text(request, name, default)
    if value not in {default, other}:
        raise refuse(
            "bad_parameter",
            f"the query parameter {name} must be {default!r} or {other!r}, not {value[:40]!r}",
        )
    return value


def integer(request: Request, name: str, default: int, minimum: int, maximum: int) -> int:
    """Return a query parameter as an integer, or `default` if it is absent or empty.

    The length is checked before the conversion, because converting a very long number would be slow.

    Raises:
        ProblemError: The parameter is not an integer from `minimum` to `maximum`.
    """
    value = text(request, name)
    if not value:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= 12 and minimum <= int(value) <= maximum):
        raise refuse(
            "bad_parameter",
            f"the query parameter {name} must be an integer from {minimum} to {maximum}, not {value[:40]!r}",
        )
    return int(value)


def idempotency_key(request: Request) -> str | None:
    """Return the `Idempotency-Key` header of a request to submit a job, or None if the header is absent.

    Raises:
        ProblemError: The key is empty, is too long, or contains a character that is not visible ASCII.
    """
    keys = header_lines(request, b"idempotency-key")
    if not keys:
        return None
    key = ", ".join(keys)
    if not 1 <= len(key) <= MAX_KEY or _VISIBLE.fullmatch(key) is None:
        raise refuse("bad_parameter", f"an Idempotency-Key must be 1 to {MAX_KEY} visible ASCII characters")
    return key


def items_to_cancel(body: dict[str, Any], count: int) -> list[int] | None:
    """Return the indices of the items to cancel, without duplicates, or None if all items are to be cancelled.

    Args:
        body: Body of the cancel request.
        count: Number of items in the job.

    Raises:
        ProblemError: `items` is not an array, or an index is out of range.
    """
    if "items" not in body:
        return None
    items = body["items"]
    if type(items) is not list:
        raise refuse("invalid_input", "/items: must be an array of item indices", pointer="/items")
    for position, index in enumerate(items):
        if type(index) is not int or not 0 <= index < count:
            detail = f"/items/{position}: must be the index of an item, from 0 to {count - 1}"
            raise refuse("invalid_input", detail, pointer=f"/items/{position}")
    return list(dict.fromkeys(items))
