"""Guard of the unit tests: refuses connections and threads, and names the folder in which such a test belongs.

The guard replaces `socket.socket.connect`, `connect_ex` and `bind`, and `threading.Thread.start`. It therefore covers
httpx2, asyncio with its default executor, anyio, trio and `socketserver`. It deliberately does not cover:

- Socket pairs. The event loops of asyncio and trio wake themselves through a socket pair, and on the supported systems
  `socket.socketpair()` neither connects nor binds. So `asyncio.run` and `trio.run` work in a unit test.
- Child processes. A test may check the imports of a new interpreter.

Trio starts threads only for `trio.to_thread`, which is refused. uvloop opens sockets in C and is not covered; unit
tests do not use it.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

GUARDED = (
    (socket.socket, "connect"),
    (socket.socket, "connect_ex"),
    (socket.socket, "bind"),
    (threading.Thread, "start"),
)
RULE = "unit tests open no connections and start no threads"


class NotInUnitTestsError(Exception):
    """A unit test opened a connection or started a thread."""


def _refusal(owner: type, name: str, refused: list[str]) -> Any:
    def refuse(self: object, *args: object, **_: object) -> NoReturn:
        refused.append(f"{owner.__name__}.{name}{args or ''}")
        raise NotInUnitTestsError(f"{refused[-1]}: {RULE}; move this test to tests/integration")

    return refuse


@contextlib.contextmanager
def no_connections_and_no_threads() -> Iterator[list[str]]:
    """Make the guarded calls raise, and yield the list of refused calls."""
    refused: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in GUARDED:
            patch.setattr(owner, name, _refusal(owner, name, refused))
        yield refused


def fail_if_any(refused: list[str]) -> None:
    """Fail a test that made a guarded call, even if the tested code handled the error. Clears the list."""
    calls = ", ".join(refused)
    refused.clear()
    if calls:
        pytest.fail(f"{RULE}; this one tried {calls}: move it to tests/integration")
