"""Server of the chaos campaign: functions that return known values and record their runs, and the text engine.

Each function takes a `tag`. When it runs, it appends the id of the process and the tag to a journal file.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any, Literal

import torch

from support.sample_server import SLOW, WORDS, Point, sentence
from tidewire_server import ItemError, Server, Stream
from tidewire_server.default_model import default_model
from tidewire_server.endpoints.endpoint import OnRestart
from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import load

# Load the model before the fork, on one thread: a forked child cannot use threads that torch started in the parent.
torch.set_num_threads(1)
CHECKPOINT = load(default_model(), device="cpu")


def campaign_server(
    journal: str = os.devnull,
    queue_size: int = 8,
    pause: float = 0.0,
    on_restart: OnRestart | Literal["auto"] = "auto",
    **settings: Any,
) -> Server:
    server = Server(**settings)
    runs = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    add_engine(server, TorchEngine(CHECKPOINT), on_restart=on_restart)

    def record(tag: int) -> None:
        os.write(runs, b"%d %d\n" % (os.getpid(), tag))

    @server.endpoint(concurrency_limit=None)
    async def talk(tag: int, words: int, stream: Stream[str]) -> None:
        record(tag)
        text = sentence(words)
        for at in range(0, len(text), 5):
            stream.append(text[at : at + 5])
            await asyncio.sleep(SLOW)

    @server.endpoint(concurrency_limit=None, capabilities={"rollback": True})
    async def hesitate(tag: int, words: int, stream: Stream[str]) -> None:
        record(tag)
        for at in range(words):
            stream.append("wrong ")
            await asyncio.sleep(SLOW)
            stream.truncate(6)
            stream.append(WORDS[at % len(WORDS)] + " ")
            await asyncio.sleep(SLOW)

    @server.endpoint(concurrency_limit=None)
    async def grow(tag: int, steps: int) -> AsyncIterator[list[int]]:
        record(tag)
        value: list[int] = []
        for at in range(steps):
            value.append(at)
            yield value
            await asyncio.sleep(SLOW)

    @server.endpoint(concurrency_limit=4)
    def point(tag: int, fail: bool = False) -> Point:
        record(tag)
        if fail:
            raise ItemError("no such point")
        return Point(x=tag, label=f"at {tag}")

    @server.endpoint(concurrency_limit=None)
    async def crash(tag: int) -> None:
        record(tag)
        raise RuntimeError("a fault in the function")

    @server.endpoint(batch=True, max_batch_size=8, max_queue_size=queue_size)
    def double(tag: list[int]) -> list[int]:
        for each in tag:
            record(each)
        time.sleep(pause)  # makes the queue fill up
        return [2 * each for each in tag]

    @server.endpoint(concurrency_limit=None)
    async def forever(tag: int, stream: Stream[str]) -> None:
        record(tag)
        while True:
            stream.append("on and ")
            await asyncio.sleep(SLOW)

    return server
