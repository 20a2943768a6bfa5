"""`ServerLinks`, which decides which links and redirects of a server the client follows, and functions for URLs, which
compare origins and separate the credentials from a server's URL.

Origins are compared with httpx2's URL parser. With another parser, a crafted link could pass the comparison and still
make httpx2 send credentials to another host.
"""

import logging
from base64 import b64encode
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import httpx2

from tidewire.errors import ProtocolError, RequestError, TidewireError, Where
from tidewire.following.request_policy import MAX_REDIRECTS
from tidewire.http.response import Response
from tidewire.protocol.resources import API_ROOT

_log = logging.getLogger("tidewire")

_PREFIX: Final = "A proxy seems to remove a path prefix: set root_path on the server to the prefix, or keep the prefix in the proxy."


@lru_cache(maxsize=64)
def parse(url: str) -> httpx2.URL:
    """Parse a URL. The results are cached, because a client uses the same few URLs in most requests.

    Raises:
        httpx2.InvalidURL: The URL is not valid.
    """
    return httpx2.URL(url)


def origin(url: str) -> tuple[str, str, int | None]:
    """Return the scheme, host and port of a URL. If the URL has no port, the port is the default port of the scheme.

    Raises:
        ValueError: The URL is not valid.
    """
    try:
        parsed = parse(url)
    except httpx2.InvalidURL as error:
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
    except httpx2.InvalidURL as error:
        raise ProtocolError(
            f"the response contains the invalid link {reference[:200]!r}: {error}", where=Where(url=base)
        ) from None


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
    # The result is shown in an error message. Do not show a URL with "@" or a query, which may contain a secret.
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


class ServerLinks:
    """Links and redirects of one server. The client follows those that lead to the origin of the server's base URL, because it
    sends its credentials with each request.
    """

    def __init__(self, base: str) -> None:
        """Follow only links and redirects to the origin of one server.

        Args:
            base: Base URL of the server, without credentials.
        """
        self._base = base
        self._warned = False
        """Whether the client has logged the warning about a link outside the base path."""

    # ---- links -------------------------------------------------------------------------------------------------

    def same_origin(self, base: str, reference: str, otherwise: str) -> str:
        """Resolve a link in a response. If it leads to another origin, log a warning and return `otherwise`. If it
        leads outside the base path, log a warning, but only once.

        Args:
            base: URL of the response.
            reference: The link, which is an absolute or relative URI reference.
            otherwise: URL to return if the link points to another origin.
        """
        url = resolve(base, reference)
        if not same_origin(url, self._base):
            _log.warning("ignored a link to another origin: %s", url)
            return otherwise
        if not is_under(url, self._base) and not self._warned:
            self._warned = True
            _log.warning(
                "the server sent the link %s, which is outside the base path %s. %s", url, self._base, _PREFIX
            )
        return url

    def advice(self, url: str | None) -> str | None:
        """Return the advice for a request that failed because a link led outside the base path. None if the URL is not
        outside the base path.
        """
        if url is None or is_under(url, self._base):
            return None
        return (
            f"The server's Location or link pointed to {url}, outside the base path {self._base}. {_PREFIX}"
        )

    # ---- redirects ---------------------------------------------------------------------------------------------

    def redirected(self, response: Response) -> str:
        """Return the absolute URL of a redirect's target.

        Raises:
            ProtocolError: The response does not name a target, or the target is on another origin.
        """
        target = _redirect_target(response)
        if not same_origin(target, self._base) or "location" not in response.headers:
            what = f"the server redirects to {target!r} on another origin"
            advice = (
                f"The client sends credentials to one origin only. {self._new_base(response.url, target)}"
            )
            raise ProtocolError(what, where=response.where(), advice=advice)
        return target

    def redirect_refused(self, response: Response) -> TidewireError:
        """Create the error for a redirect that the client does not follow.

        The client follows redirects of GET requests only, and only a limited number. [TW-CLI-044]
        """
        where = response.where()
        if "location" not in response.headers:
            what = f"the server redirects with {response.status}, but does not say where to"
            return RequestError(what, where=where)
        target = without_credentials(_redirect_target(response))
        if response.method == "GET":
            return ProtocolError(f"the server sent more than {MAX_REDIRECTS} redirects", where=where)
        what = f"the server redirects this {response.method} request to {target}"
        advice = f"The client follows redirects of GET requests only. {self._new_base(response.url, target)}"
        return RequestError(what, where=where, advice=advice)

    def _new_base(self, url: str, target: str) -> str:
        """Return the advice to use the base URL to which a redirect leads. If the redirect leads to the same URL,
        or only adds or removes a slash at the end, return the advice to correct the server.
        """
        if target.rstrip("/") == url.rstrip("/"):
            return (
                "Another URL for the client does not help, because the server, or a proxy before it, redirects its own paths. "
                "Correct the routing there; for example, it must not add or remove a slash at the end of a path."
            )
        path = url.removeprefix(self._base)
        new = target.removesuffix(path) if path and target.endswith(path) else None
        return (
            "Create a client with the new URL." if new is None else f"Create the client with the URL {new!r}."
        )


def _redirect_target(response: Response) -> str:
    location = response.headers.get("location", "")
    target = resolve(response.url, location)
    if not origin(target)[1]:
        what = f"the response contains an invalid link: {location[:200]!r} names no host"
        raise ProtocolError(what, where=response.where())
    return target
