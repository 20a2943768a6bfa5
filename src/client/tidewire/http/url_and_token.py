"""The server's URL and the bearer token of a client, from its arguments and from the environment variables
`TIDEWIRE_URL` and `TIDEWIRE_TOKEN`.

Error messages never contain a token.
"""

import os
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from tidewire.http.links_and_origins import same_origin, split_credentials

URL_VARIABLE: Final = "TIDEWIRE_URL"
TOKEN_VARIABLE: Final = "TIDEWIRE_TOKEN"  # noqa: S105 - the name of a variable

COLON_ADVICE: Final = (
    "The token contains a colon. If it is a line `name:token` of the server's token file, pass only the part after the "
    "first colon."
)
"""Advice for a token that the server has rejected and that may contain the name of the caller."""


class UrlAndToken(NamedTuple):
    """The server of a client, and the credentials that are known before its first request.

    Attributes:
        base: Base URL of the server, without credentials.
        credentials: The `Authorization` header with the token, or with the user and password in the URL. It may be
            empty.
        is_token_withheld: Whether `TIDEWIRE_TOKEN` is set but not used, because `TIDEWIRE_URL` has another origin.
    """

    base: str
    credentials: Mapping[str, str]
    is_token_withheld: bool = False


def read_url_and_token(url: Any, token: Any, *, auth: Any, headers: Mapping[str, str] | None) -> UrlAndToken:
    """Determine the server and the credentials of a client.

    `TIDEWIRE_URL` is read only if no URL was passed. `TIDEWIRE_TOKEN` is used only if no other credentials were passed.
    If both variables are set, the token is used only for the origin of `TIDEWIRE_URL`.

    Raises:
        TypeError: An argument is not a string.
        ValueError: There is no URL, the URL or the token is not valid, or other credentials were passed with the token.
    """
    if url is None:
        url = url_of_environment()
        if url is None:
            raise ValueError(
                f"no server URL: pass one, such as 'http://127.0.0.1:8000', or set the environment variable {URL_VARIABLE}"
            )
        base, credentials = _split_variable(url)
    elif isinstance(url, str):
        base, credentials = split_credentials(url)
    else:
        raise TypeError(f"url must be a string such as 'http://127.0.0.1:8000', not {url!r}")
    others = [
        name
        for name, is_passed in (
            ("auth", auth is not None),
            ("headers['Authorization']", "authorization" in {name.lower() for name in headers or ()}),
            ("a user in the URL", bool(credentials)),
        )
        if is_passed
    ]
    if token is not None:
        if others:
            raise ValueError(f"token and {others[0]} are mutually exclusive: pass only one of them")
        return UrlAndToken(base, bearer("token", token))
    token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token or others:
        return UrlAndToken(base, credentials)
    variable = url_of_environment()
    if variable is not None and not same_origin(_split_variable(variable)[0], base):
        return UrlAndToken(base, {}, is_token_withheld=True)
    return UrlAndToken(base, bearer(TOKEN_VARIABLE, token))


def url_of_environment() -> str | None:
    """Return the URL in `TIDEWIRE_URL` without whitespace around it, or None if the variable is empty or not set."""
    return os.environ.get(URL_VARIABLE, "").strip() or None


def _split_variable(url: str) -> tuple[str, dict[str, str]]:
    try:
        return split_credentials(url)
    except ValueError as error:
        raise ValueError(f"{URL_VARIABLE}: {error}") from None


def may_contain_name(headers: Mapping[str, str]) -> bool:
    """Whether request headers contain a bearer token with a colon, as the lines of a server's token file do."""
    values = (value for name, value in headers.items() if name.lower() == "authorization")
    return any(value.lower().startswith("bearer ") and ":" in value for value in values)


def bearer(origin: str, token: Any) -> dict[str, str]:
    """Return the `Authorization` header with a token. Errors name the origin of the token.

    Raises:
        TypeError: The token is not a string.
        ValueError: The token is empty, or has characters that a header must not contain.
    """
    if not isinstance(token, str):
        raise TypeError(f"{origin} must be a string, not {type(token).__name__}")
    if not token:
        raise ValueError(f"{origin} is empty; pass a token, or omit the argument")
    if not all("!" <= character <= "~" for character in token):
        raise ValueError(
            f"{origin} must consist of visible ASCII characters without spaces; leave out the word 'Bearer'"
        )
    return {"Authorization": f"Bearer {token}"}
