"""Links and redirects in the responses of a server: which of them a client follows, and what it advises about the others."""

import logging
from typing import Any, Final
from urllib.parse import urlsplit

from tidewire.errors import ProtocolError, RequestError, TidewireError, Where
from tidewire.following.request_policy import MAX_REDIRECTS
from tidewire.http.links_and_origins import has_host, is_under, resolve, same_origin, without_credentials
from tidewire.http.response import Response

_log = logging.getLogger("tidewire")

_PREFIX: Final = "A proxy seems to remove a path prefix: set root_path on the server to the prefix, or keep the prefix in the proxy."


class ServerLinks:
    """Links and redirects of one server. The client follows those that lead to the origin of the server's base URL, because it
    sends its credentials with each request.
    """

    def __init__(self, base: str) -> None:
        """Create the rules for a server.

        Args:
            base: Base URL of the server, without credentials.
        """
        self._base = base
        self._root = base.removesuffix(urlsplit(base).path)
        """The base URL without its path."""
        self._warned = False
        """Whether the client has logged the warning about a link outside the base path."""

    # ---- links -------------------------------------------------------------------------------------------------

    def same_origin(self, base: str, reference: str, otherwise: str) -> str:
        """Resolve a link in a response, if the link leads to the server's origin.

        Args:
            base: URL of the response.
            reference: The link, which is an absolute or relative URI reference.
            otherwise: URL to return if the link points to another origin.
        """
        # Most links lead to the URL that the client would use without them. Do not parse them.
        if self._root + reference == otherwise:
            return otherwise
        url = resolve(base, reference)
        if same_origin(url, self._base):
            self.check(url)
            return url
        _log.warning("ignored a link to another origin: %s", url)
        return otherwise

    def check(self, url: str) -> None:
        """Log a warning if a link leads outside the base path. The client logs it once."""
        if not is_under(url, self._base) and not self._warned:
            self._warned = True
            _log.warning(
                "the server sent the link %s, which is outside the base path %s. %s", url, self._base, _PREFIX
            )

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

    def redirected(self, response: Any) -> str:
        """Return the absolute URL of a redirect's target.

        Raises:
            ProtocolError: The response does not name a target, or the target is on another origin.
        """
        target = _redirect_target(response)
        if not same_origin(target, self._base) or "location" not in response.headers:
            where = Where("GET", response.url, status_code=response.status)
            advice = (
                f"The client sends credentials to one origin only. {self._new_base(response.url, target)}"
            )
            raise ProtocolError(
                f"the server redirects to {target!r} on another origin", where=where, advice=advice
            )
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


def _redirect_target(response: Any) -> str:
    location = response.headers.get("location", "")
    target = resolve(response.url, location)
    if not has_host(target):
        what = f"the response contains an invalid link: {location[:200]!r} names no host"
        raise ProtocolError(what, where=response.where())
    return target
