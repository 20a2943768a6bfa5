"""Create the Unix domain socket of a server, and remove its file when the server has stopped."""

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

_PROBE_TIMEOUT: Final = 1.0


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
