"""Port for a server that starts later, or that is killed and started again."""

import contextlib
import fcntl
import os
import secrets
import socket
import tempfile
from pathlib import Path

_claims = os.open(
    Path(tempfile.gettempdir()) / f"tidewire-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600
)
"""File in which each process holds a lock of the byte with the number of each of its ports. Otherwise the server of another
process could take the port of a server that was killed before this one starts again."""
_own: set[int] = set()
"""Ports of this process, whose locks do not exclude itself."""


def free_port() -> int:
    """Return a port of 127.0.0.1 that no socket uses, and that no other call returns until this process ends.

    The port is below the range from which the kernel takes the ports of outgoing connections. A connection of another
    test therefore cannot take it before the server binds it.
    """
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            if port not in _own:
                fcntl.lockf(_claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
                _own.add(port)
                return port
