"""Functions for URLs, which resolve links in responses, compare origins, and separate the credentials from a server's
URL.

Origins are compared with httpx's URL parser. With another parser, a crafted link could pass the comparison and still
make httpx send credentials to another host.
"""

from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from urllib.parse import quote, unquote, urlsplit

import httpx

from tidewire.errors import ProtocolError, Where
from tidewire.protocol.resources import API_ROOT


@lru_cache(maxsize=64)
def parse(url: str) -> httpx.URL:
    """Parse a URL. Most requests of a client, and the links in their responses, have the same few URLs.

    Raises:
        httpx.InvalidURL: The URL is not valid.
    """
    return httpx.URL(url)


def origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL. If the URL has no port, the port is the default port of the scheme.

    Raises:
        ValueError: The URL is not valid.
    """
    try:
        parsed = parse(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{url!r} is not a valid URL: {error}") from None
    if "%20" in parsed.host:
        raise ValueError(f"{url!r} is not a valid URL: its host contains a space")
    port = {"http": 80, "https": 443}.get(parsed.scheme) if parsed.port is None else parsed.port
    return parsed.scheme, parsed.host, port


def without_credentials(address: str) -> str:
    """Remove the user and password from a URL, so that the URL can appear in a message."""
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def same_origin(first: str, second: str) -> bool:
    """Whether two URLs have the same scheme, host and port.

    Raises:
        ValueError: One of the URLs is not valid.
    """
    return origin(first) == origin(second)


def resolve(base: str, reference: str) -> str:
    """Resolve a URI reference against the URL of the response that contains it.

    Raises:
        ProtocolError: The reference is not valid.
    """
    try:
        return str(parse(base).join(reference))
    except httpx.InvalidURL as error:
        raise ProtocolError(
            f"the response contains the invalid link {reference[:200]!r}: {error}", where=Where(url=base)
        ) from None


def has_host(url: str) -> bool:
    """Whether an absolute URL names a host, unlike `javascript:1`."""
    return bool(origin(url)[1])


def path_segment(name: str, what: str) -> str:
    """Encode a name as one segment of a URL's path. Slashes and all other separators are percent-encoded.

    Args:
        name: The name, which may come from a server.
        what: Kind of the name, for the error message.

    Raises:
        ValueError: The name is empty, `.` or `..`. Percent-encoding does not help for `.` and `..`, because URL parsers
            resolve `%2e%2e` like `..` and the URL would lead to another path.
    """
    if name in {"", ".", ".."}:
        raise ValueError(f"{what} must not be {name!r}")
    return quote(name, safe="")


def is_under(url: str, base: str) -> bool:
    """Whether the path of a URL starts with the path of a base URL of the same origin."""
    return unquote(urlsplit(url).path).startswith(f"{unquote(urlsplit(base).path).rstrip('/')}/")


def last_segment(url: str) -> str:
    """Return the last segment of a URL's path, percent-decoded. In a link to a job, this segment is the job's id."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


def _with_scheme(url: str) -> str:
    """Return the URL with the scheme http if only the scheme is missing, and otherwise an example of a URL."""
    # The part before an "@", or a query, may contain a secret, and the result is part of an error message.
    if url.isprintable() and not any(part in url for part in ("//", ":/", "@", "?", "#")):
        with suppress(ValueError):
            _, host, port = origin(f"http://{url}")
            if host and 0 < (port or 0) < 2**16:
                return f"http://{url}"
    return "http://127.0.0.1:8000"


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Split a server's URL into the base URL without credentials and the Authorization header with the credentials.

    Raises:
        ValueError: The URL is not a valid server URL.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    base = f"{scheme}://{host}{slash}{path}" if at else url
    try:
        parts = origin(base)
    except ValueError:
        parts = "", "", None
    if parts[0] not in {"http", "https"} or not parts[1] or not 0 < (parts[2] or 0) < 2**16:
        raise ValueError(
            f"{without_credentials(url)!r} is not a valid server URL: write it like {_with_scheme(base)}"
        )
    base = base.partition("?")[0].partition("#")[0].rstrip("/").removesuffix(API_ROOT)
    if not at:
        return base, {}
    name, _, password = user.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}"
    return base, {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
