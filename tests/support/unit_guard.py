"""Guard of the unit tests: connections and threads are refused, with a message that says where such a test belongs.

It replaces `socket.socket.connect`, `connect_ex` and `bind`, and `threading.Thread.start`, and so covers what is built
on them: httpx, asyncio with its default executor, anyio, trio, `socketserver`. On purpose it leaves alone:

- Socket pairs. An event loop, of asyncio or of trio, wakes itself through one, and on the systems that the tests run
  on `socket.socketpair()` neither connects nor binds. So `asyncio.run` and `trio.run` work in a unit test.
- Child processes. A test may look at what a fresh interpreter imports.

Trio starts a thread only for `trio.to_thread`, which is refused like any other. uvloop opens sockets in C and is not
covered; no unit test runs on it.
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
    """Make the guarded calls raise. Gives the list of those that were refused."""
    refused: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in GUARDED:
            patch.setattr(owner, name, _refusal(owner, name, refused))
        yield refused


def fail_if_any(refused: list[str]) -> None:
    """Fail a test that tried a guarded call, also if the code under test handled the error. Clears the list."""
    calls = ", ".join(refused)
    refused.clear()
    if calls:
        pytest.fail(f"{RULE}; this one tried {calls}: move it to tests/integration")
