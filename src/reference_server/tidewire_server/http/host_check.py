"""Protection against DNS rebinding: checks of the headers `Host` and `Origin`.

A web page can change the address of its own host name to 127.0.0.1. A browser then treats a server on the user's
machine as part of the page's site, and CORS does not apply. The request still contains the page's host name.
"""

import functools
import ipaddress

from starlette.types import ASGIApp, Receive, Scope, Send

from tidewire_server.errors import ProblemError, foreign_host, foreign_origin, refuse
from tidewire_server.settings import Settings

_MAX_SHOWN = 100


class HostCheck:
    """Middleware that rejects requests with a foreign `Host` or `Origin` by raising a `ProblemError`.

    It checks requests that arrive on a loopback address, if the server has no tokens. With tokens, a web page cannot
    send a request that the server accepts. With the setting `allowed_hosts`, it checks all requests.

    Starlette's `TrustedHostMiddleware` does not support IPv6 addresses, and sends a response that is not a problem.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._hosts = {"localhost", *map(_normalized, settings.allowed_hosts)}
        self._origins = frozenset(settings.cors_origins)
        self._check_all = bool(settings.allowed_hosts)
        self._check_loopback = not settings.tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        if self._check_all or (self._check_loopback and server is not None and is_loopback(server[0])):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if not hosts and scope["http_version"] == "1.0":  # No browser uses HTTP/1.0.
            return
        if len(hosts) != 1:
            raise refuse(
                "bad_parameter", f"a request must have one Host header, but this one has {len(hosts)}"
            )
        name = _name_in(hosts[0])
        if name not in self._hosts and not _is_address(name):
            raise ProblemError(
                foreign_host(
                    f"Host {hosts[0][:_MAX_SHOWN]!r} is neither localhost, an IP address, nor in the setting "
                    "allowed_hosts (--allowed-host)"
                )
            )
        for origin in (value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"):
            if not self._origins & {origin, "*"} and origin.partition("://")[2] != hosts[0].lower():
                raise ProblemError(
                    foreign_origin(
                        f"Origin {origin[:_MAX_SHOWN]!r} is neither the origin of this server, nor in the setting "
                        "cors_origins (--cors-origin)"
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


def _name_in(host: str) -> str:
    """Return the name or address in a Host header, in lowercase, without port, brackets and trailing dot."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return _normalized(name)


def _normalized(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
