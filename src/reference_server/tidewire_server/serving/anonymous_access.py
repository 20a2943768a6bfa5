"""Refusal to serve without tokens on an address that other machines can reach."""

import logging
import socket

from tidewire_server.http.host_check import is_loopback
from tidewire_server.serving.unix_socket import is_unix
from tidewire_server.settings import Settings

_log = logging.getLogger(__name__)


class AnonymousAccessError(Exception):
    """The server has no tokens, and other machines can reach its address."""


def check_anonymous_access(listener: socket.socket, settings: Settings) -> None:
    """Check that a server without tokens listens only on a loopback address, unless `allow_anonymous` is set.
    Other machines, and other users of this machine, cannot connect to a Unix domain socket.

    The check uses the address of the listening socket, because a host name such as `localhost` or an empty host can
    resolve to any address.

    Raises:
        AnonymousAccessError: Other machines can reach the address, and nothing restricts their access.
    """
    if is_unix(listener):
        return
    host, port = listener.getsockname()[:2]
    if settings.tokens or is_loopback(host):
        return
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if not settings.allow_anonymous:
        raise AnonymousAccessError(
            f"refusing to serve on {where} without tokens, because everyone who can reach this address would have "
            "access; set tokens (--token-file or TIDEWIRE_TOKENS), or allow_anonymous (--allow-anonymous)"
        )
    _log.warning("serving on %s without tokens: everyone who can reach this address has access", where)
