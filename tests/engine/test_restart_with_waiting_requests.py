"""Restart with waiting generations: their inputs are checked when they run, and their texts are those of a new server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from support.reference_server import QUICK, Peer
from tidewire_server import Server
from tidewire_server.generation.engine_interface import Delta
from tidewire_server.generation.generate_endpoint import add_engine
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

REQUESTS: dict[str, dict[str, Any]] = {
    "samples": {"prompt": "def f", "max_tokens": 6, "seed": 5, "n": 3},
    "beams": {"prompt": "ab", "max_tokens": 6, "num_beams": 2, "echo": True, "top_logprobs": 2},
}


class Counting:
    """Engine that counts the checks of requests, and generates nothing if `generates` is false."""

    def __init__(self, engine: TorchEngine, *, generates: bool) -> None:
        self.engine, self.generates = engine, generates
        self.caps, self.close = engine.caps, engine.close
        self.checks = 0

    async def check(self, request: Generate) -> None:
        self.checks += 1
        await self.engine.check(request)

    async def generate(self, request: Generate) -> AsyncIterator[Delta]:
        if not self.generates:
            await asyncio.Event().wait()
        async for delta in self.engine.generate(request):
            yield delta


def texts(peer: Peer, jobs: list[str]) -> list[Any]:
    """Return text, token ids and finish reason of each item.

    Log-probabilities may differ in the last decimal, because the requests share other batches than before.
    """
    kept = ("text", "token_ids", "finish_reason")
    items = [peer.ended(job)["state"]["items"] for job in jobs]
    return [[[item["value"].get(name) for name in kept] for item in each] for each in items]


def test_waiting_generations_are_checked_when_they_run_and_have_the_same_texts(
    start: Callable[..., TorchEngine], random_checkpoint: Checkpoint, tmp_path: Path
):
    def serve(log: str, *, generates: bool) -> tuple[Server, Counting]:
        server, engine = Server(**QUICK, log=log), Counting(start(random_checkpoint), generates=generates)
        add_engine(server, engine, on_restart="rerun")
        return server, engine

    fresh, _ = serve("memory", generates=True)
    with fresh.running() as url, Peer(url) as peer:
        expected = texts(peer, [peer.start("generate", each) for each in REQUESTS.values()])
    log = f"sqlite:///{tmp_path / 'jobs.db'}"
    waiting, accepting = serve(log, generates=False)
    with waiting.running() as url, Peer(url) as peer:
        jobs = [peer.start("generate", each) for each in REQUESTS.values()]
    assert accepting.checks == len(REQUESTS)
    restarted, engine = serve(log, generates=True)
    with restarted.running() as url, Peer(url) as peer:
        assert texts(peer, jobs) == expected
    assert engine.checks == len(REQUESTS)
