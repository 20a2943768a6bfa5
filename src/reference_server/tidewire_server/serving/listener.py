"""Listening sockets for a host and port, or for the path of a Unix domain socket."""

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidewire_server.user_paths import user_path

MODE: Final = 0o600
"""Permissions of the socket file. Only the server's user, and root, can connect."""

_BACKLOG: Final = 2048
_PROBE_TIMEOUT: Final = 1.0


def bind(
    host: str, port: int, free: str = "port=0", *, uds: str | os.PathLike[str] | None = None
) -> socket.socket:
    """Create a listening socket.

    Args:
        host: Address to bind to.
        port: Port to bind to, or 0 for any free port.
        free: Text with which a user requests a free port, such as `port=0` or `--port 0`. The error message suggests
            this text.
        uds: Path of a Unix domain socket to bind to instead of `host` and `port`.

    Raises:
        OSError: The address cannot be bound. `strerror` contains the address, the reason and a hint.
    """
    if uds is not None:
        return _bind_unix(uds)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        number = error.errno if isinstance(error, OSError) else None
        why = (isinstance(error, OSError) and error.strerror) or error
        hint = {
            errno.EADDRINUSE: f"; use {free} for any free port",
            errno.EACCES: "; ports below 1024 need privileges, so use a higher port",
            errno.EADDRNOTAVAIL: "; no interface of this machine has that address; use 0.0.0.0 for all interfaces",
        }.get(number or 0, "")
        raise OSError(number, f"cannot bind to {host}:{port}: {why}{hint}") from None
    except BaseException:
        listener.close()
        raise
    return listener


def _bind_unix(path: str | os.PathLike[str]) -> socket.socket:
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
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        why = error.strerror or error
        raise OSError(error.errno, f"cannot bind to {name}: {why}") from None
    return listener


def url_of(listener: socket.socket, root_path: str = "") -> str:
    """Return the URL with which programs on this machine can connect to a listening socket. For a Unix domain socket, they also
    need the path of the socket.
    """
    if is_unix(listener):
        return f"http://localhost{root_path}"
    host, port = listener.getsockname()[:2]
    # A socket can be bound to a wildcard address, but clients cannot connect to a wildcard address.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}{root_path}" if ":" in host else f"http://{host}:{port}{root_path}"


def is_unix(listener: socket.socket) -> bool:
    """Return whether a socket is a Unix domain socket."""
    return listener.family == getattr(socket, "AF_UNIX", None)


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
