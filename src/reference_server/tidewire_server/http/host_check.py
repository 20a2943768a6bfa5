"""Protection against DNS rebinding: middleware that checks the headers `Host` and `Origin`.

A web page can change the address of its own host name to 127.0.0.1. A browser then treats a server on the user's
machine as part of the page's site, and CORS does not apply. The request still contains the page's host name.
"""

import functools
import ipaddress
import re
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from tidewire_server.errors import ProblemError, unread_request
from tidewire_server.settings import Settings

_MAX_SHOWN: Final = 100
_HOST: Final = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")


class HostCheck:
    """Middleware that rejects requests with a foreign `Host` or `Origin` by raising a `ProblemError`.

    If the server has no tokens, the middleware checks requests that arrive on a loopback address. A server with tokens needs no
    check, because web pages do not know a token. A function `principal` does not turn off the check, because it may accept
    credentials that a browser adds to every request. With the setting `allowed_hosts`, the middleware checks all requests, or
    none if the setting contains `*`.

    Starlette's `TrustedHostMiddleware` does not support IPv6 addresses, and sends a response that is not a problem.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = {"localhost", *map(_normalized, settings.allowed_hosts)}
        self._origins = frozenset(settings.cors_origins)
        self._check_all = bool(settings.allowed_hosts) and "*" not in settings.allowed_hosts
        self._check_loopback = not settings.tokens and "*" not in settings.allowed_hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        if self._check_all or (self._check_loopback and server is not None and is_loopback(server[0])):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        # Accept an HTTP/1.0 request without Host, because browsers do not use HTTP/1.0. `TidewireApp` requires Host in HTTP/1.1.
        hosts: list[str] = []
        origins: list[str] = []
        for line, value in scope["headers"]:
            if line == b"host":
                hosts.append(value.decode("latin-1").strip(" \t"))
            elif line == b"origin":
                origins.append(value.decode("latin-1").strip(" \t"))
        for host in hosts:
            name, is_address = _read_host(host)
            if not is_address and name not in self._hosts:
                raise ProblemError(
                    unread_request(
                        "request.foreign_host",
                        f"Host {host[:_MAX_SHOWN]!r} is not localhost, is not an IP address, and is not listed "
                        "in the setting allowed_hosts (--allowed-host)",
                    )
                )
        if not origins:
            return
        own = {
            f"{scheme}://{host.lower()}" for host in hosts for scheme in ("http", "https")
        }  # a proxy may add TLS
        for origin in origins:
            if origin not in own and not self._origins & {origin, "*"}:
                raise ProblemError(
                    unread_request(
                        "request.foreign_origin",
                        f"Origin {origin[:_MAX_SHOWN]!r} is not the origin of this server, and is not listed in "
                        "the setting cors_origins (--cors-origin)",
                    )
                )


@functools.lru_cache(maxsize=64)
def is_loopback(address: str) -> bool:
    """Return whether only programs on this machine can connect to an IP address. Return false for other texts."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


# Cache the results, because clients send the same few hosts repeatedly. `max_head_bytes` limits the size of a cached value.
@functools.lru_cache(maxsize=64)
def _read_host(host: str) -> tuple[str, bool]:
    """Return the name or address in a Host header, and whether it is an IP address. The result is in lowercase, and has
    no port, brackets or trailing dot.

    The name is an empty string if the header is malformed.
    """
    found = _HOST.fullmatch(host)
    name = _normalized(found[1] or found[2] or "") if found else ""
    return name, _is_address(name)


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
