"""The same endpoints on a `FakeServer` and on the reference server, for tests that apply to both.

A new fake server is created for each test. The reference server is shared, so its tests must not depend on the number of jobs.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from support.reference_server import QUICK
from tidewire.testing import FakeServer

SERVERS = ("fake", "reference")
GROWN = ({"t": "a"}, {"t": "ab"}, {"t": "c"})
"""Values that the endpoint `grow` yields. The member `t` is its column."""
REPLIES = (
    {"text": "", "tokens": []},
    {"text": "Hel", "tokens": [1]},
    {"text": "Hello", "tokens": [1, 2]},
    {"text": "Hello", "tokens": [1, 2], "reason": "stop"},
)
"""Values that the endpoint `reply` yields. The member `text` is its only column."""


@contextmanager
def served(kind: str) -> Iterator[str]:
    """Serve the endpoints on one of `SERVERS`, and yield the URL."""
    with _fake() if kind == "fake" else _reference() as url:
        yield url


@contextmanager
def _fake() -> Iterator[str]:
    with FakeServer() as server:
        server.endpoint("talk").streams(["Hel", "lo"])
        server.endpoint("grow").yields(GROWN, columns=["/t"])
        server.endpoint("upper").calls(lambda value: value["text"].upper())
        server.endpoint("breaks").streams(["Hel"]).fails("deadline_exceeded", "too slow")
        odd = server.endpoint("odd")
        odd.returns(1)
        odd.fails("item_refused", "too odd")
        server.endpoint("works").returns(1).progresses(5, 10, "step")
        server.endpoint("reply").yields(REPLIES, columns=["/text"])
        server.endpoint("nothing").yields([])
        server.endpoint("double").calls(lambda value: 2 * value["x"])
        server.endpoint("one", batch=None).calls(lambda value: [value["x"], value["tone"]])
        server.endpoint("many").calls(lambda value: [value["x"], value["tone"]])
        flaky = server.endpoint("flaky")
        for x in range(4):
            flaky.returns(x)
        flaky.fails("item_refused", "out of luck")
        flaky.returns(5)
        yield server.url


@contextmanager
def _reference() -> Iterator[str]:
    from tidewire_server import Context, ItemError, Server, Stream

    server = Server(**QUICK, default_concurrency_limit=None)

    @server.endpoint
    async def talk(stream: Stream[str]) -> None:
        for piece in ("Hel", "lo"):
            stream.append(piece)
            await asyncio.sleep(0)

    @server.endpoint(columns=["/t"], initial=None, capabilities={"rollback": True})
    async def grow() -> AsyncIterator[dict[str, Any]]:
        for value in GROWN:
            yield value

    @server.endpoint
    async def upper(text: str) -> str:
        return text.upper()

    @server.endpoint
    async def breaks(stream: Stream[str]) -> None:
        stream.append("Hel")
        raise ItemError("too slow", code="deadline_exceeded")

    @server.endpoint
    async def odd(n: int = 0) -> int:
        if n % 2:
            raise ItemError("too odd", code="item_refused")
        return 1

    @server.endpoint
    async def works(ctx: Context) -> int:
        ctx.progress(5, 10, unit="step")
        await asyncio.sleep(0.05)
        return 1

    @server.endpoint(columns=["/text"], initial=None)
    async def reply() -> AsyncIterator[dict[str, Any]]:
        for value in REPLIES:
            yield value

    @server.endpoint
    async def nothing() -> None:
        pass

    @server.endpoint
    async def double(x: int | float) -> int | float:
        return 2 * x

    @server.endpoint
    async def one(x: int, tone: str) -> list[Any]:
        return [x, tone]

    @server.endpoint
    async def many(x: int, tone: str) -> list[Any]:
        return [x, tone]

    @server.endpoint
    async def flaky(x: int) -> int:
        if x == 4:
            raise ItemError("out of luck", code="item_refused")
        return x

    with server.running() as url:
        yield url
