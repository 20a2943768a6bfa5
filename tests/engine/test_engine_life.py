"""Life cycle of an engine: slots, queue, cancellation, failures and closing."""

import asyncio
import dataclasses
import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch

from support.model_checkpoints import CONTEXT, Output, collect, crafted_checkpoint, generate, generate_one
from tidewire_server.generation.engine_interface import (
    Delta,
    EngineClosedError,
    EngineError,
    EngineFullError,
    Stats,
)
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import LoadError, TorchEngine
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

Start = Callable[..., TorchEngine]


async def until(engine: TorchEngine, condition: Callable[[Stats], bool]) -> Stats:
    """Wait up to 10 s for a condition on the engine's counters."""
    async with asyncio.timeout(10):
        while True:
            stats = await engine.stats()
            if condition(stats):
                return stats
            await asyncio.sleep(0.001)


class Gate:
    """A model that blocks at one chosen forward pass, and fails at another.

    The engine's thread runs ahead of the test's event loop, so a test blocks the model at the point that it examines.
    """

    def __init__(
        self, model: Any, *, is_open: bool, holds_at: int | None, fails_at: int | None, error: BaseException
    ) -> None:
        self._model = model
        self._open = threading.Event()
        self._holds_at = 1 if not is_open else holds_at
        self._fails_at, self._error = fails_at, error
        self._passes = 0

    def __call__(self, **inputs: Any) -> Any:
        self._passes += 1
        if self._passes == self._holds_at and not self._open.wait(10):
            raise TimeoutError("the test did not open the gate")
        if self._passes == self._fails_at:
            raise self._error
        return self._model(**inputs)

    def open(self) -> None:
        self._open.set()


def gated(
    checkpoint: Checkpoint,
    *,
    is_open: bool = True,
    holds_at: int | None = None,
    fails_at: int | None = None,
    error: BaseException | None = None,
) -> tuple[Checkpoint, Gate]:
    error = error or MemoryError("secret details")
    gate = Gate(checkpoint.model, is_open=is_open, holds_at=holds_at, fails_at=fails_at, error=error)
    return dataclasses.replace(checkpoint, model=gate), gate


async def test_closing_the_iterator_frees_the_slot(start: Start, random_checkpoint: Checkpoint):
    checkpoint, gate = gated(random_checkpoint, holds_at=10)
    engine = start(checkpoint, slots=1)
    async with aclosing(engine.generate(Generate(max_tokens=100, seed=1))) as deltas:
        await anext(deltas)
        assert (await engine.stats()).running == 1
    gate.open()
    stats = await until(engine, lambda s: s.running == 0)
    assert stats.generated_tokens < 100
    assert len((await collect(engine, Generate(max_tokens=5, seed=1))).text) == 5


async def test_cancelling_a_task_frees_its_slot_and_does_not_affect_others(
    start: Start, random_checkpoint: Checkpoint
):
    checkpoint, gate = gated(random_checkpoint, is_open=False)
    engine = start(checkpoint, slots=2)
    kept = asyncio.create_task(collect(engine, Generate(max_tokens=20, seed=2)))
    dropped = asyncio.create_task(collect(engine, Generate(max_tokens=100, seed=3)))
    await until(engine, lambda s: s.started == 2)
    dropped.cancel()
    with pytest.raises(asyncio.CancelledError):
        await dropped
    gate.open()
    assert len((await kept).text) == 20
    assert (await until(engine, lambda s: s.running == 0)).generated_tokens < 40


async def test_request_cancelled_in_the_queue_never_runs(start: Start, random_checkpoint: Checkpoint):
    checkpoint, gate = gated(random_checkpoint, is_open=False)
    engine = start(checkpoint, slots=1)
    first = asyncio.create_task(collect(engine, Generate(prompt="ab", max_tokens=3)))
    await until(engine, lambda s: s.running == 1)
    second = asyncio.create_task(collect(engine, Generate(prompt="x" * 50, max_tokens=3)))
    await until(engine, lambda s: s.waiting == 1)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.open()
    await first
    await until(engine, lambda s: s.waiting == 0)
    assert (await engine.stats()).prompt_tokens == 2


async def test_more_requests_than_slots_all_finish(start: Start, random_checkpoint: Checkpoint):
    engine = start(random_checkpoint, slots=3)
    deltas = await asyncio.gather(
        *(collect(engine, Generate(max_tokens=1 + i % 9, seed=i)) for i in range(40))
    )
    assert [len(d.text) for d in deltas] == [1 + i % 9 for i in range(40)]
    stats = await engine.stats()
    assert (stats.started, stats.running, stats.waiting) == (40, 0, 0)
    assert stats.generated_tokens == sum(1 + i % 9 for i in range(40))


async def test_several_requests_share_a_step(start: Start, random_checkpoint: Checkpoint):
    checkpoint, gate = gated(random_checkpoint, is_open=False)
    engine = start(checkpoint, slots=8)
    jobs = [asyncio.create_task(collect(engine, Generate(max_tokens=10, seed=i))) for i in range(8)]
    await until(engine, lambda s: s.started == 8)
    gate.open()
    await asyncio.gather(*jobs)
    assert (await engine.stats()).steps <= 11


async def test_full_queue_refuses_a_request_with_its_limit(start: Start, random_checkpoint: Checkpoint):
    checkpoint, gate = gated(random_checkpoint, is_open=False)
    engine = start(checkpoint, slots=2, max_waiting=3)
    jobs = [asyncio.create_task(collect(engine, Generate(max_tokens=2))) for _ in range(5)]
    await until(engine, lambda s: s.started == 5)
    with pytest.raises(EngineFullError, match="5 requests"):
        await collect(engine, Generate(max_tokens=2))
    gate.open()
    assert [len(d.text) for d in await asyncio.gather(*jobs)] == [2] * 5
    assert len((await collect(engine, Generate(max_tokens=2))).text) == 2


async def test_failing_step_fails_its_requests_and_the_engine_continues(
    start: Start, random_checkpoint: Checkpoint
):
    checkpoint, _ = gated(random_checkpoint, fails_at=6)
    engine = start(checkpoint, slots=2)
    received = Delta()

    async def read_until_it_breaks() -> None:
        async for delta in engine.generate(Generate(max_tokens=50, seed=1)):
            received.extend(delta)

    with pytest.raises(
        EngineError, match=r"memory does not suffice for the next token of this request \(MemoryError\)"
    ) as failure:
        await read_until_it_breaks()
    assert len(received.rows) >= 3
    assert "secret" not in str(failure.value)
    assert (await engine.stats()).running == 0
    assert len((await collect(engine, Generate(max_tokens=5))).text) == 5


async def assert_failed(
    engine: TorchEngine, jobs: list[asyncio.Task[Output]], error: str = "RuntimeError"
) -> None:
    """Assert that all requests have ended with an error, that new ones are refused, and that the engine can be closed."""
    async with asyncio.timeout(10):
        failures = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(failure) for failure in failures] == [EngineClosedError] * len(jobs)
        assert {str(failure) for failure in failures} == {
            f"the engine failed ({error}); see the server's log, and restart the server"
        }
        with pytest.raises(EngineClosedError, match=rf"the engine failed \({error}\)"):
            await collect(engine, Generate(max_tokens=2))
        await engine.close()
    assert (await engine.stats()).running == 0


class PanicException(BaseException):
    """What a library in Rust raises where its code panics: no subclass of `Exception`."""


async def test_panic_of_a_library_ends_the_engine_and_all_of_its_requests(
    start: Start, random_checkpoint: Checkpoint
):
    checkpoint, gate = gated(random_checkpoint, is_open=False, fails_at=2, error=PanicException())
    engine = start(checkpoint, slots=1)
    requests = [asyncio.create_task(collect(engine, Generate(max_tokens=9))) for _ in range(2)]
    await until(engine, lambda s: s.started == 2)
    gate.open()
    await assert_failed(engine, requests, "PanicException")


async def test_request_whose_slot_cannot_be_cleared_gets_its_error_and_ends_the_engine(
    start: Start, random_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    checkpoint, gate = gated(random_checkpoint, is_open=False, fails_at=2)
    engine = start(checkpoint, slots=1)

    def fail(slot: int) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(engine._cache, "clear", fail)
    first = asyncio.create_task(collect(engine, Generate(max_tokens=9)))
    await until(engine, lambda s: s.running == 1)
    waiting = [asyncio.create_task(collect(engine, Generate(max_tokens=9))) for _ in range(2)]
    await until(engine, lambda s: s.started == 3)
    gate.open()
    with pytest.raises(EngineError, match="memory does not suffice for the next token"):
        async with asyncio.timeout(10):
            await first
    await assert_failed(engine, waiting)


async def test_exception_outside_of_a_step_ends_the_engine_and_all_of_its_requests(
    start: Start, random_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
):
    checkpoint, gate = gated(random_checkpoint, is_open=False)
    engine = start(checkpoint, slots=2)

    def fail(*_: object) -> None:
        raise RuntimeError("the device is lost")

    monkeypatch.setattr(engine._scheduler, "completed", fail)
    jobs = [asyncio.create_task(collect(engine, Generate(max_tokens=9))) for _ in range(4)]
    await until(engine, lambda s: s.started == 4)
    gate.open()
    await assert_failed(engine, jobs)


async def test_logits_without_probabilities_fail_only_their_own_request(start: Start, tmp_path: Path):
    folder = crafted_checkpoint(
        tmp_path, list("abcdefghijklmno"), {"a": {"b": 1e39}, "c": {"d": 5.0}}
    )  # overflows
    engine = start(folder)
    bad, good = await asyncio.gather(
        collect(engine, Generate(prompt="a", max_tokens=2, top_logprobs=2)),
        collect(engine, Generate(prompt="c", max_tokens=2, temperature=0.0, top_logprobs=2)),
        return_exceptions=True,
    )
    assert isinstance(bad, EngineError)
    assert "logits for the next token are invalid" in str(bad)
    assert isinstance(good, Output)
    assert good.text[0] == "d"


async def test_close_fails_running_and_waiting_requests(start: Start, random_checkpoint: Checkpoint):
    checkpoint, gate = gated(random_checkpoint, is_open=False)
    engine = start(checkpoint, slots=1)
    jobs = [asyncio.create_task(collect(engine, Generate(max_tokens=100))) for _ in range(3)]
    await until(engine, lambda s: s.started == 3)
    closing = asyncio.create_task(engine.close())
    gate.open()
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(r) for r in results] == [EngineClosedError] * 3
    await closing
    await engine.close()
    with pytest.raises(EngineClosedError):
        await collect(engine, Generate())


def test_unused_engine_is_garbage_collected_without_close(random_checkpoint: Checkpoint):
    engine = TorchEngine(random_checkpoint)
    reference = weakref.ref(engine)
    del engine
    gc.collect()
    assert reference() is None


async def test_engine_closed_before_its_first_request_refuses_requests(
    start: Start, random_checkpoint: Checkpoint
):
    engine = start(random_checkpoint)
    await engine.close()
    with pytest.raises(EngineClosedError):
        await collect(engine, Generate())


async def test_deltas_for_a_slow_reader_are_merged(start: Start, random_checkpoint: Checkpoint):
    engine = start(random_checkpoint)
    blocks = []
    async for delta in engine.generate(Generate(max_tokens=60, seed=1, top_logprobs=2)):
        blocks.append(delta)
        await until(engine, lambda s: s.running == 0)
    assert sum(len(b.rows) for b in blocks) == 60
    assert len(blocks) <= 2


def test_engine_keeps_running_after_the_event_loop_of_a_reader_was_closed(
    start: Start, random_checkpoint: Checkpoint
):
    engine = start(random_checkpoint, slots=1)
    loop = asyncio.new_event_loop()
    deltas = engine.generate(Generate(max_tokens=100))
    loop.run_until_complete(anext(deltas))
    loop.close()
    assert len(generate_one(engine, max_tokens=4).text) == 4
    asyncio.run(deltas.aclose())


def test_context_is_shortened_to_fit_the_cache_limit(
    start: Start, random_checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
):
    per_position = 4 * 2 * 2 * 2 * 8 * torch.float32.itemsize  # slots, k and v, layers, heads, size
    engine = start(random_checkpoint, slots=4, max_cache_bytes=per_position * 65)
    assert engine.caps.context == 64 < CONTEXT
    assert "limited to 64 instead of 128 tokens" in caplog.text
    last = Generate(prompt="x" * 60, max_tokens=4)
    assert [len(d.text) for d in generate(engine, *[last] * 4)] == [4] * 4
    with pytest.raises(LoadError, match="raise max_cache_bytes, or use fewer slots"):
        start(random_checkpoint, slots=4, max_cache_bytes=per_position * 16)
