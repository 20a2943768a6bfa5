"""Reference server in its own process, with sample endpoints for tests of clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from support.server_process import running

if TYPE_CHECKING:
    from tidewire_server import Server

WORDS = ("stream", "of", "results", "né", "😀", "from", "a", "GPU", "server", "that", "nothing", "can", "cut")
SLOW = 0.005
"""Pause in seconds between pieces, in endpoints that stream slowly."""


def sentence(words: int) -> str:
    """Return the text that the endpoint `talk` produces."""
    return " ".join(WORDS[at % len(WORDS)] for at in range(words))


class Point(BaseModel):
    x: float
    label: str = ""


def served(**settings: Any) -> AbstractContextManager[str]:
    """Run the server in its own process. The block of the context manager gets its URL."""
    return running("support.sample_server:sample_server", **settings)


def sample_server(**settings: Any) -> "Server":
    """Return a server with the sample endpoints."""
    from tidewire_server import ItemError, Server, Stream

    server = Server(**settings)
    starts = {"count": 0}
    runs: dict[int, int] = {}

    @server.endpoint
    async def count(n: int = 5) -> AsyncIterator[int]:
        for number in range(n):
            yield number

    @server.endpoint(concurrency_limit=None)
    async def talk(words: int = 12, slow: bool = False, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        starts["count"] += 1
        text = sentence(words)
        for at in range(0, len(text), 5):
            stream.append(text[at : at + 5])
            await asyncio.sleep(SLOW if slow else 0)

    @server.endpoint(concurrency_limit=None, capabilities={"rollback": True})
    async def hesitate(words: int = 6, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        for at in range(words):
            stream.append("wrong ")
            await asyncio.sleep(SLOW)
            stream.truncate(6)
            stream.append(WORDS[at % len(WORDS)] + " ")
            await asyncio.sleep(SLOW)

    @server.endpoint(concurrency_limit=None)
    async def point(x: float, fail: bool = False) -> Point:
        if fail:
            raise ItemError("no such point")
        return Point(x=x, label=f"at {x:g}")

    @server.endpoint(concurrency_limit=None)
    async def forever(stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        while True:
            stream.append("on and ")
            stream.progress(1, 10, unit="step")
            await asyncio.sleep(SLOW)

    @server.endpoint(concurrency_limit=None)
    async def pause(seconds: float, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        stream.append("before ")
        await asyncio.sleep(seconds)
        stream.append("after")

    @server.endpoint(concurrency_limit=None)
    async def grow(steps: int = 8) -> AsyncIterator[dict[str, Any]]:
        value: dict[str, Any] = {"text": "", "rows": [], "best": None}
        for at in range(steps):
            value["text"] += WORDS[at % len(WORDS)]
            value["rows"].append([at, at / 2])
            value["best"] = at if at % 3 == 0 else value["best"]
            yield value
            await asyncio.sleep(SLOW)

    @server.endpoint(concurrency_limit=None)
    async def double(x: int) -> int:
        runs[x] = runs.get(x, 0) + 1
        return 2 * x

    @server.endpoint(concurrency_limit=None)
    async def most_runs_of_an_input() -> list[int]:
        return [len(runs), max(runs.values(), default=0)]

    @server.endpoint(concurrency_limit=None)
    async def starts_so_far() -> int:
        return starts["count"]

    return server


def sample_server_with_script(**settings: Any) -> "Server":
    """Return the same server with the endpoint `tidewire.script`, for the conformance suite."""
    from tidewire_server.script_endpoint import add_script

    server = sample_server(**settings)
    add_script(server)
    return server
