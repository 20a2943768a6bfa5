"""Port for a server that starts later, or that is killed and started again."""

import contextlib
import secrets
import socket


def free_port() -> int:
    """Return a port of 127.0.0.1 that no socket uses.

    The port is below the range from which the kernel takes the ports of outgoing connections. A connection of another
    test therefore cannot take it before the server binds it.
    """
    while True:
        port = 12_000 + secrets.randbelow(20_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
