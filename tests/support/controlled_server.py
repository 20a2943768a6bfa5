"""Reference server in its own process, with functions that wait at gates or misbehave on request.

`held(…)` runs the server. Its endpoint `came` lists the calls that have reached a gate, and `open_gate` opens gates.
"""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from support.server_process import running

if TYPE_CHECKING:
    from tidewire_server import Server


def held(**settings: Any) -> AbstractContextManager[str]:
    """Run the server in its own process. The block of the context manager gets its URL."""
    return running("support.controlled_server:controlled_server", queue_interval=0.0, **settings)


class Gates:
    """Named gates. `enter` records the call and blocks until the gate is opened."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self._open: dict[str, threading.Event] = {}

    def gate(self, name: str) -> threading.Event:
        return self._open.setdefault(name, threading.Event())

    def enter(self, name: str) -> str:
        self.came.append(name)
        assert self.gate(name).wait(30)
        return name


class UnknownError(BaseException):
    """An exception derived directly from `BaseException`, and different from all built-in exceptions."""


def controlled_server(**settings: Any) -> "Server":
    from tidewire_server import Append, Context, ItemError, Last, Server

    server, gates = Server(**settings), Gates()

    @server.endpoint(concurrency_limit=None)
    async def came() -> list[str]:
        return list(gates.came)

    @server.endpoint(concurrency_limit=None)
    async def open_gate(names: list[str]) -> None:
        for name in names:
            gates.gate(name).set()

    for letter in "ABC":
        server.endpoint(name=letter)(gates.enter)

    for letter, limit in (("X", {}), ("Y", {"concurrency_limit": 2}), ("Z", {})):
        server.endpoint(name=letter, concurrency_group="gpu", **limit)(gates.enter)

    @server.endpoint(batch=True, max_batch_size=3)
    def tabs(names: list[str]) -> list[str]:
        gates.enter("+".join(names))
        return names

    def misbehave(how: str) -> Any:
        match how:
            case "raise":
                raise LookupError("secret")
            case "refuse":
                raise ItemError("no", code="https://example.com/no", retryable=True)
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "cancel":
                raise asyncio.CancelledError
            case "close":
                raise GeneratorExit
            case "unknown":
                raise UnknownError
            case "type":
                return 7
            case "nan":
                return float("nan")
            case "surrogate":
                return "\ud800"
            case "object":
                return object()
            case "large":
                return "x" * 10_000_000
            case "fork and exit" | "fork and return" | "fork and raise":
                child = os.fork()
                if child == 0:
                    if how == "fork and exit":
                        os._exit(0)
                    return "child" if how == "fork and return" else sys.exit(3)
                os.waitpid(child, 0)
                return "parent"
        return "fine"

    @server.endpoint(concurrency_limit=8)
    def plain(how: str) -> str:
        return misbehave(how)

    @server.endpoint(concurrency_limit=8)
    async def on_loop(how: str) -> str:
        return misbehave(how)

    @server.endpoint
    def yields(how: str) -> Iterator[str]:
        yield "begun"
        yield misbehave(how)

    @server.endpoint(batch=True)
    async def in_step(how: list[str]) -> AsyncIterator[dict[int, str]]:
        yield {row: "begun" for row, _ in enumerate(how)}
        yield {row: misbehave(each) for row, each in enumerate(how)}

    @server.endpoint(batch=True)
    def alone(how: list[str]) -> list[str]:
        return [misbehave(each) for each in how]

    @server.endpoint(batch=True, bisect=True)
    def parted(how: list[str]) -> list[str]:
        return [misbehave(each) for each in how]

    @server.endpoint(batch=True)
    async def in_slots(how: list[str]) -> list[str]:
        found = []
        await asyncio.sleep(0.02 * how.count("wait"))
        for each in how:
            try:
                found.append(misbehave(each))
            except BaseException as error:
                found.append(error)
        return found

    @server.endpoint(batch=True)
    def by_row(how: list[str]) -> Iterator[dict[int, str | Append[str] | Last | Exception]]:
        for row, each in enumerate(how):
            try:
                value = misbehave(each)
            except BaseException as error:
                value = error
            yield {row: value if isinstance(value, BaseException) else Last(value)}

    @server.endpoint(batch=True)
    async def grow(words: list[str]) -> AsyncIterator[dict[int, str]]:
        for n in range(max(map(len, words)) + 1):
            yield {row: word[:n] for row, word in enumerate(words)}
            await asyncio.sleep(0)

    @server.endpoint(batch=True, max_batch_size=4)
    def endless(words: list[str]) -> Generator[dict[int, Append[str]], dict[int, str], None]:
        slots = dict(enumerate(words))
        gate = threading.Event()
        while True:
            slots |= yield {row: Append(word) for row, word in slots.items()}
            gate.wait(0.002)

    @server.endpoint(concurrency_limit=8)
    def hang() -> None:
        threading.Event().wait(60)

    @server.endpoint(batch=True, concurrency_limit=8)
    def hang_together(n: list[int]) -> list[int]:
        threading.Event().wait(60)
        return n

    @server.endpoint(batch=True, concurrency_limit=8)
    async def swallow(n: list[int], ctx: Context) -> list[int]:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                gates.came.append("swallowed")

    return server
