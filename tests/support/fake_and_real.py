"""The same endpoints on a `FakeServer` and on the reference server, for tests that apply to both."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from support.reference_server import QUICK
from tidewire.testing import FakeServer

SERVERS = ("fake", "reference")
GROWN = ({"t": "a"}, {"t": "ab"}, {"t": "c"})
"""Values that the endpoint `grow` yields. The member `t` is its column."""


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

    with server.running() as url:
        yield url
