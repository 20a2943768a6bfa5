"""App of the tests with several servers, for `tidewire serve`.

Its functions note in a journal what happens to their calls, and wait at gates that the tests open. A gate is open if its file
exists. The journal and the gates are in the folder `REPLICA_FILES`.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tidewire_server import Append, Context, Server, Stream

FILES = Path(os.environ["REPLICA_FILES"])
NAME = os.environ["REPLICA_NAME"]

server = Server()


def note(what: str, name: str) -> None:
    with (FILES / "journal").open("a") as journal:
        journal.write(f"{what} {name} {NAME}\n")


def is_open(gate: str) -> bool:
    return (FILES / f"{gate}.go").exists()


async def hold_at(name: str, stream: Stream[str]) -> None:
    """Write the name, and wait at the gate of this name."""
    note("start", name)
    stream.append(name)
    try:
        while not is_open(name):
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        note("cancelled", name)
        raise
    stream.append("!")


@server.endpoint(concurrency_limit=1)
async def hold(name: str, stream: Stream[str]) -> None:
    await hold_at(name, stream)


@server.endpoint(concurrency_limit=1)
async def hold_too(name: str, stream: Stream[str]) -> None:
    """Like `hold`, with other slots."""
    await hold_at(name, stream)


@server.endpoint(concurrency_limit=1, max_queue_size=2)
async def hold_few(name: str, stream: Stream[str]) -> None:
    """Like `hold`, with a short queue."""
    await hold_at(name, stream)


@server.endpoint(concurrency_limit=1, on_restart="fail")
async def hold_once(name: str, stream: Stream[str]) -> None:
    """Like `hold`, but it must not run twice."""
    await hold_at(name, stream)


@server.endpoint(concurrency_limit=1)
def hold_thread(name: str, ctx: Context) -> str:
    """Like `hold`, in a thread that notices a cancellation."""
    note("start", name)
    while not is_open(name):
        if ctx.cancelled:
            note("cancelled", name)
            return name
        time.sleep(0.005)
    return f"{name}!"


@server.endpoint(concurrency_limit=1)
def hold_deaf(name: str) -> str:
    """Like `hold_thread`, but it ignores a cancellation."""
    note("start", name)
    while not is_open(name):
        time.sleep(0.005)
    return f"{name}!"


@server.endpoint(concurrency_limit=None)
async def letters(n: int, pause: float, stream: Stream[str], name: str = "letters", gate: str = "") -> None:
    """Write `n` numbered words. Wait at the gate in the middle, if there is one."""
    note("start", name)
    for number in range(n):
        while gate and number == n // 2 and not is_open(gate):
            await asyncio.sleep(0.005)
        stream.append(f"{number} ")
        await asyncio.sleep(pause)
    note("end", name)


@server.endpoint(concurrency_limit=None, on_restart="continue")
async def count(
    n: int, pause: float, ctx: Context, name: str = "count", gate: str = ""
) -> AsyncIterator[Append[list[int]]]:
    """Count on from the logged value. Wait at the gate in the middle, if there is one."""
    note("start", name)
    for number in range(len(ctx.previous or ()), n):
        while gate and number == n // 2 and not is_open(gate):
            await asyncio.sleep(0.005)
        yield Append([number])
        await asyncio.sleep(pause)


@server.endpoint(
    batch=True, max_batch_size=4, batch_timeout=0.02, concurrency_limit=1, key=lambda given: given.kind
)
def together(name: list[str], kind: list[str]) -> Iterator[dict[int, Append[str]]]:
    """Like `hold`, for a batch of calls of one kind. The gate has the name of the kind."""
    for each in name:
        note("start", each)
    yield {row: Append(each) for row, each in enumerate(name)}
    while not is_open(kind[0]):
        time.sleep(0.005)
    yield {row: Append("!") for row in range(len(name))}
