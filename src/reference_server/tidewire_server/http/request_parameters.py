"""What the parameters of a request say: in its query, its headers, and the body of a cancel."""

from typing import Any, Final

from starlette.requests import Request

from tidewire.protocol.cursor import BEGINNING, Cursor, CursorError
from tidewire_server.errors import refuse
from tidewire_server.http.requests_and_responses import header_lines

MAX_KEY: Final = 255
"""Characters of an Idempotency-Key."""


def cursor_of(asked: str | None) -> Cursor | None:
    """The cursor that a reader sent, None where it sent none.

    Raises:
        ProblemError: It is no cursor.
    """
    if asked is None:
        return None
    if asked == str(BEGINNING):
        return BEGINNING
    try:
        return Cursor.parse(asked)
    except CursorError as error:
        raise refuse("bad_cursor", str(error)) from None


def text(request: Request, name: str, default: str = "") -> str:
    """A parameter of the query, which may stand there once. Empty is as good as absent.

    Raises:
        ProblemError: It stands there twice.
    """
    given = request.query_params.getlist(name)
    if len(given) > 1:
        raise refuse("bad_parameter", f"{name} stands {len(given)} times in the URL")
    return (given[0] if given else "") or default


def has_token(request: Request) -> bool:
    """Whether the URL of a stream has a token. An empty one is as good as absent."""
    return any(request.query_params.getlist("token"))


def choice(request: Request, name: str, default: str, other: str) -> str:
    """A parameter of the query that is one of two words.

    Raises:
        ProblemError: It is neither.
    """
    given = text(request, name, default)
    if given not in {default, other}:
        raise refuse("bad_parameter", f"{name} is {default!r} or {other!r}, not {given[:40]!r}")
    return given


def integer(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A parameter of the query that is a whole number. Its digits are counted before they become one.

    Raises:
        ProblemError: It is none, or out of bounds.
    """
    given = text(request, name)
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and least <= int(given) <= most):
        raise refuse("bad_parameter", f"{name} is a whole number from {least} to {most}, not {given[:40]!r}")
    return int(given)


def idempotency_key(request: Request) -> str | None:
    """The key of a submit, None where it has none.

    Raises:
        ProblemError: It is no key.
    """
    keys = header_lines(request, b"idempotency-key")
    if not keys:
        return None
    key = ", ".join(keys)
    if not 1 <= len(key) <= MAX_KEY or not all("!" <= character <= "~" for character in key):
        raise refuse("bad_parameter", f"an Idempotency-Key has 1 to {MAX_KEY} visible ASCII characters")
    return key


def items_to_cancel(body: dict[str, Any], count: int) -> list[int] | None:
    """The items that a cancel names, each once; None for all.

    Args:
        body: The body of the cancel.
        count: How many items the job has.

    Raises:
        ProblemError: It names one that the job does not have.
    """
    if "items" not in body:
        return None
    items = body["items"]
    if type(items) is not list:
        raise refuse("invalid_input", "/items: an array of indices", pointer="/items")
    for place, index in enumerate(items):
        if type(index) is not int or not 0 <= index < count:
            detail = f"/items/{place}: the job has items 0 to {count - 1}"
            raise refuse("invalid_input", detail, pointer=f"/items/{place}")
    return list(dict.fromkeys(items))
