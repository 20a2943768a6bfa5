"""Listening sockets: create a Unix domain socket and remove its file, and refuse an address that exposes the server."""

import contextlib
import errno
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidewire_server.http.host_check import is_loopback
from tidewire_server.settings import Settings
from tidewire_server.user_paths import user_path

MODE: Final = 0o600
"""Permissions of the socket file. Only the server's user, and root, can connect."""

_PROBE_TIMEOUT: Final = 1.0

_log = logging.getLogger(__name__)


def bind_unix(path: str | os.PathLike[str], backlog: int) -> socket.socket:
    """Create a listening Unix domain socket. If the path is the socket file of a server that has died, replace this
    file.

    Raises:
        OSError: The address cannot be bound, for example because another server uses it. `strerror` contains the path, the
            reason and a hint.
    """
    name = str(user_path(path))
    if not hasattr(socket, "AF_UNIX"):
        raise OSError(errno.EAFNOSUPPORT, f"cannot bind to {name}: this system has no Unix domain sockets")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(name)
        listener.bind(name)
        # Set the permissions before `listen`, because clients can connect from then on.
        Path(name).chmod(MODE)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        why = error.strerror or error
        raise OSError(error.errno, f"cannot bind to {name}: {why}") from None
    return listener


def is_unix(listener: socket.socket) -> bool:
    """Return whether a socket is a Unix domain socket."""
    return listener.family == getattr(socket, "AF_UNIX", None)


def is_local(listener: socket.socket) -> bool:
    """Return whether only programs on this machine can connect to a listening socket."""
    return is_unix(listener) or is_loopback(listener.getsockname()[0])


@contextlib.contextmanager
def removed_at_exit(listener: socket.socket) -> Iterator[str | None]:
    """Remove the file of a Unix domain socket at the end of a `with` block, unless another server has replaced the file.

    Yields:
        Path of the file, or None if the socket is not a Unix domain socket.
    """
    path = str(listener.getsockname()) if is_unix(listener) else None
    file = None if path is None else _identity(path)
    try:
        yield path
    finally:
        if path is not None and file is not None and _identity(path) == file:
            Path(path).unlink(missing_ok=True)


def _identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file, or None if there is no file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """Remove the socket file of a server that does not run any more.

    Raises:
        OSError: The file is not a socket, or a server is listening on the socket.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "the file exists and is not a socket; remove it, or use another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_TIMEOUT)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
        except FileNotFoundError:
            return
        except OSError:
            pass  # For example, the backlog is full, or the permissions are missing. A server may be listening.
    raise OSError(errno.EADDRINUSE, "another server is listening there; stop it, or use another path")


class ExposedServerError(Exception):
    """The settings do not permit serving on an address that other machines can reach."""


def check_exposure(listener: socket.socket, settings: Settings) -> None:
    """Check that the settings permit serving on the address of a listening socket, and log a warning for settings that
    may be a mistake.

    A server without tokens may listen only on a loopback address or a Unix domain socket, unless `allow_anonymous` is set.
    A server with `debug` may listen only there, too. Other machines cannot connect to these addresses, and other users of
    this machine cannot connect to a Unix domain socket.

    The check uses the address of the listening socket, because a host name such as `localhost` or an empty host can
    resolve to any address.

    Raises:
        ExposedServerError: Other machines can reach the address, although the server has no tokens or `debug` is on.
    """
    exposed = not is_local(listener)
    if exposed and not settings.tokens:
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


def _where(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
