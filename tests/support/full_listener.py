"""Listener that does not accept further connections."""

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """Yield the port of a listener whose accept queue is full, so that connection attempts get no answer."""
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        yield port
