"""Refuse to serve on an address that other machines can reach, unless the settings permit it (`check_exposure`)."""

import logging
import socket

from tidewire_server.http.host_check import is_loopback
from tidewire_server.serving.listener import is_unix
from tidewire_server.settings import Settings

_log = logging.getLogger(__name__)


class ExposedServerError(Exception):
    """The settings do not permit serving on an address that other machines can reach."""


def check_exposure(listener: socket.socket, settings: Settings, *, authenticates: bool) -> None:
    """Check that the settings permit serving on the address of a listening socket, and log a warning for settings that
    may be a mistake.

    A server without tokens may listen only on a loopback address or a Unix domain socket, unless `allow_anonymous` is set.
    A server with `debug` may also listen only there, even if it has tokens. Other machines cannot connect to these addresses,
    and other users of this machine cannot connect to a Unix domain socket.

    The check uses the address of the listening socket, because a host name such as `localhost` or an empty host can
    resolve to any address.

    Args:
        listener: The listening socket.
        settings: The server's settings.
        authenticates: Whether callers need a token, or the server has a function that identifies them.

    Raises:
        ExposedServerError: Other machines can reach the address, although the server has no tokens or `debug` is on.
    """
    exposed = not is_local(listener)
    if exposed and not authenticates:
        where = _where(listener)
        if not settings.allow_anonymous:
            raise ExposedServerError(
                f"refusing to serve on {where} without tokens, because everyone who can reach this address would have "
                "access; set tokens (--token-file or TIDEWIRE_TOKENS), or allow_anonymous (--allow-anonymous)"
            )
        _log.warning("serving on %s without tokens: everyone who can reach this address has access", where)
    if settings.debug:
        if exposed:
            raise ExposedServerError(
                f"refusing to serve on {_where(listener)} with debug, because callers would receive the tracebacks of "
                "your functions; turn off debug (--debug or TIDEWIRE_DEBUG), or serve on 127.0.0.1"
            )
        _log.warning("debug is on: callers receive the tracebacks of failed functions")


def is_local(listener: socket.socket) -> bool:
    """Return whether only programs on this machine can connect to a listening socket."""
    return is_unix(listener) or is_loopback(listener.getsockname()[0])


def _where(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
