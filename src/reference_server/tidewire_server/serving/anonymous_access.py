"""Refusal to serve without tokens, or with `debug`, on an address that other machines can reach."""

import logging
import socket

from tidewire_server.http.host_check import is_loopback
from tidewire_server.serving.unix_socket import is_unix
from tidewire_server.settings import Settings

_log = logging.getLogger(__name__)


class ExposedServerError(Exception):
    """The settings do not permit serving on an address that other machines can reach."""


class AnonymousAccessError(ExposedServerError):
    """The server has no tokens, and other machines can reach its address."""


class ExposedDebugError(ExposedServerError):
    """The setting `debug` is on, and other machines can reach the server's address."""


def check_debug(listener: socket.socket, settings: Settings) -> None:
    """Check that a server with the setting `debug` listens only on a loopback address or a Unix domain socket, and log
    a warning.

    Raises:
        ExposedDebugError: Other machines can reach the address.
    """
    if not settings.debug:
        return
    if not is_unix(listener) and not is_loopback(listener.getsockname()[0]):
        raise ExposedDebugError(
            f"refusing to serve on {_where(listener)} with debug, because callers would receive the tracebacks of your "
            "functions; turn off debug (--debug or TIDEWIRE_DEBUG), or serve on 127.0.0.1"
        )
    _log.warning("debug is on: callers receive the tracebacks of failed functions")


def check_anonymous_access(listener: socket.socket, settings: Settings) -> None:
    """Check that a server without tokens listens only on a loopback address, unless `allow_anonymous` is set.
    A Unix domain socket is also allowed, because other machines, and other users of this machine, cannot connect to it.

    The check uses the address of the listening socket, because a host name such as `localhost` or an empty host can
    resolve to any address.

    Raises:
        AnonymousAccessError: Other machines can reach the address, and nothing restricts their access.
    """
    if is_unix(listener):
        return
    if settings.tokens or is_loopback(listener.getsockname()[0]):
        return
    where = _where(listener)
    if not settings.allow_anonymous:
        raise AnonymousAccessError(
            f"refusing to serve on {where} without tokens, because everyone who can reach this address would have "
            "access; set tokens (--token-file or TIDEWIRE_TOKENS), or allow_anonymous (--allow-anonymous)"
        )
    _log.warning("serving on %s without tokens: everyone who can reach this address has access", where)


def _where(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
