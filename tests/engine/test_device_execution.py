"""Execution of steps as on a GPU: early launches, static shapes, and no waits. The tokens must not depend on any of it."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from support.model_checkpoints import (
    Output,
    collect,
    crafted_checkpoint,
    generate,
    generate_one,
    random_llama,
)
from support.simulated_device import DEVICE, SimulatedDevice, move
from tidewire_server.generation.engine import Delta, EngineError
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine, step_runner
from tidewire_server.generation.torch_engine.beam_search import BeamSearch
from tidewire_server.generation.torch_engine.device_execution import Execution, length_bucket, row_bucket
from tidewire_server.generation.torch_engine.models import packed_linear
from tidewire_server.generation.torch_engine.models.attention import AttentionKind, Step
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.torch_engine.running_request import OutputText
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of
from tidewire_server.generation.torch_engine.step_runner import Runner, RunningSequence
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan, StepScheduler

Start = Callable[..., TorchEngine]
EARLY = Execution(early_launch=True)
GPU = Execution(early_launch=True, buckets=True)
BASE = "def f(x):\n    return x\n# the same beginning\n"

REQUESTS = [
    Generate(prompt=BASE, max_tokens=9, temperature=0.0, top_logprobs=5, prompt_logprobs=1),
    Generate(prompt=BASE + "a", max_tokens=6, seed=1, top_p=0.9, top_k=40, top_logprobs=2, ranks=True),
    Generate(prompt="x" * 40, max_tokens=7, seed=2, typical_p=0.8, logprobs_mode="processed", logprobs=True),
    Generate(prompt="b", max_tokens=40, seed=3, stop=["pV", "V"], logprobs=True),
    Generate(prompt="class", max_tokens=8, temperature=0.0, frequency_penalty=0.8, repetition_penalty=1.3),
    Generate(prompt=BASE + "b", max_tokens=1, seed=4, logit_bias={"7": 4.0}, min_p=0.05, ties="count"),
    Generate(prompt="import re", max_tokens=40, seed=5, stop=["\x1d\x1f"], token_text=True, logprobs=True),
    Generate(prompt=BASE + "c", max_tokens=10, num_beams=2, top_logprobs=2, prompt_logprobs=1),
]


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the launches of steps and the reads of their results."""
    events: list[str] = []
    launch, result = step_runner.Runner.launch, step_runner.LaunchedStep.result

    def launching(self: Runner, step: StepPlan[Any]) -> Any:
        events.append("launch")
        return launch(self, step)

    def reading(self: Any) -> Any:
        events.append("read")
        return result(self)

    monkeypatch.setattr(step_runner.Runner, "launch", launching)
    monkeypatch.setattr(step_runner.LaunchedStep, "result", reading)
    return events


def assert_equal(one: Output, other: Output) -> None:
    """Assert equal columns; log-probabilities may differ by rounding, because kernels depend on the shapes."""
    assert vars(one).keys() == vars(other).keys()
    for name, column in vars(one).items():
        if "logprobs" not in name:
            assert getattr(other, name) == column, name
        for row, other_row in zip(column, getattr(other, name), strict=True) if "logprobs" in name else ():
            assert other_row == (None if row is None else pytest.approx(row, abs=1.01e-4))


def test_output_does_not_depend_on_the_execution(start: Start, random_checkpoint: Checkpoint):
    settings = {"slots": 3, "step_tokens": 48}
    plain = generate(start(random_checkpoint, **settings), *REQUESTS)
    assert [one.finish_reason for one in plain].count("stop") == 2
    for execution in (EARLY, GPU):
        engine = start(random_checkpoint, **settings, execution=execution)
        for one, other in zip(plain, generate(engine, *REQUESTS), strict=True):
            assert_equal(one, other)
        stats = asyncio.run(engine.stats())
        assert (stats.running, stats.generated_tokens) == (0, sum(len(one.text) for one in plain))


def test_step_is_launched_before_the_tokens_of_the_last_one_are_read(
    start: Start, random_checkpoint: Checkpoint, order: list[str]
):
    generate_one(start(random_checkpoint), max_tokens=4, seed=1)
    assert order == ["launch", "read"] * 4
    order.clear()
    generate_one(start(random_checkpoint, execution=EARLY), max_tokens=4, seed=1)
    assert order == ["launch", "launch", "read", "launch", "read", "launch", "read", "read"]


def test_token_sampled_after_the_end_of_a_text_is_discarded(start: Start, tmp_path: Path, order: list[str]):
    tokens = list("abcdefghijklmno")
    follow = {"a": {"b": 9.0}, "b": {"c": 9.0}, "c": {"<|end|>": 9.0}}
    engine = start(crafted_checkpoint(tmp_path, tokens, follow), execution=EARLY, slots=1)
    greedy = Generate(prompt="a", max_tokens=9, temperature=0.0, logprobs=True)
    for _ in range(2):
        found = generate(engine, greedy)[0]
        assert (found.text, found.finish_reason) == (["b", "c", ""], "stop")
    asyncio.run(engine.close())
    assert order.count("launch") == order.count("read") == 8
    assert asyncio.run(engine.stats()).generated_tokens == 6


def test_structured_output_waits_for_each_token(start: Start, tmp_path: Path, order: list[str]):
    """The mask of the next step depends on the last token, so no step is launched early while such a request runs."""
    tokens = ['"', "a", "b", "1", "2", "t", "r", "u", "e"]
    folder = crafted_checkpoint(tmp_path, tokens, {"t": {"r": 1.0}})
    request = Generate(prompt="a", max_tokens=9, temperature=0.0, json_schema={"enum": [True]})
    found = generate(start(folder, execution=GPU), request)[0]
    assert "".join(found.text) == "true"
    assert order[:4] == ["launch", "read"] * 2
    assert "launch launch" not in " ".join(order)


@pytest.mark.parametrize("beams", [1, 2])
def test_slots_of_a_cancelled_text_serve_the_next_one(
    start: Start, random_checkpoint: Checkpoint, beams: int
):
    requests = [Generate(prompt=BASE, max_tokens=6, seed=i, logprobs=True) for i in range(3)]
    expected = generate(start(random_checkpoint, slots=beams), *requests)
    engine = start(random_checkpoint, slots=beams, execution=GPU)

    async def cancel_between() -> list[Output]:
        found = []
        for request in requests:
            cancelled = Generate(prompt=BASE, max_tokens=60, num_beams=beams)
            async with aclosing(engine.generate(cancelled)) as deltas:
                await anext(deltas)
            found.append(await collect(engine, request))
        return found

    for one, other in zip(expected, asyncio.run(cancel_between()), strict=True):
        assert_equal(one, other)


def test_beam_search_waits_for_each_step(start: Start, random_checkpoint: Checkpoint, order: list[str]):
    """The host chooses the hypotheses, which are the next step's input, so no step is launched early during a search."""
    request = Generate(prompt=BASE, max_tokens=5, num_beams=3, logprobs=True)
    found = generate(start(random_checkpoint, execution=GPU), request)[0]
    assert len(found.token_ids) == 5
    assert order == ["launch", "read"] * 5


class FailingModel:
    """A model that fails at some forward passes, as if the memory were exhausted."""

    def __init__(self, model: Any, *passes: int) -> None:
        self._model = model
        self._left = passes
        self._count = 0

    def __call__(self, **inputs: Any) -> Any:
        self._count += 1
        if self._count in self._left:
            raise MemoryError
        return self._model(**inputs)


def test_early_launch_that_fails_loses_no_token(start: Start, random_checkpoint: Checkpoint):
    requests = [
        Generate(prompt=BASE, max_tokens=12, seed=i, frequency_penalty=0.5, logprobs=True) for i in range(2)
    ]
    expected = generate(start(random_checkpoint), *requests)
    failing = dataclasses.replace(random_checkpoint, model=FailingModel(random_checkpoint.model, 4, 9))
    assert generate(start(failing, execution=EARLY), *requests) == expected
    only = dataclasses.replace(random_checkpoint, model=FailingModel(random_checkpoint.model, 4))
    engine = start(only, execution=EARLY)

    received = Delta()

    async def read_until_it_fails() -> None:
        async for delta in engine.generate(requests[0]):
            received.extend(delta)

    with pytest.raises(EngineError, match="memory does not suffice for the next token"):
        asyncio.run(read_until_it_fails())
    assert len(received.rows) == 3
    assert generate(engine, requests[0])[0] == expected[0]


def test_early_launch_after_invalid_logits_does_not_spoil_the_slot(start: Start, tmp_path: Path):
    folder = crafted_checkpoint(tmp_path, list("abcdefghijklmno"), {"a": {"b": 1e39}, "c": {"d": 5.0}})
    engine = start(folder, slots=1, execution=GPU)
    for _ in range(2):
        with pytest.raises(EngineError, match="invalid"):
            generate_one(engine, prompt="ca", max_tokens=5)
        assert generate_one(engine, prompt="c", max_tokens=1, temperature=0.0).text == ["d"]


def test_shapes_of_decoding_steps_come_from_a_small_set(start: Start, random_checkpoint: Checkpoint):
    shapes = set()

    class Recording:
        def __call__(self, **inputs: Any) -> torch.Tensor:
            logits: torch.Tensor = random_checkpoint.model(**inputs)
            shapes.add((len(inputs["tokens"]), len(inputs["wanted"]), len(logits)))
            return logits

    recorded = dataclasses.replace(random_checkpoint, model=Recording())
    engine = start(recorded, execution=GPU)
    generate(engine, *(Generate(prompt="x" * 40, max_tokens=i, seed=i) for i in range(1, 10)))
    decoding = {shape for shape in shapes if shape[0] <= 16}
    assert (16, 16, 16) in decoding
    assert decoding <= {(rows,) * 3 for rows in (1, 2, 4, 8, 16)}


def test_attention_with_a_window_has_static_shapes(monkeypatch: pytest.MonkeyPatch):
    cache = KVCache(1, 2, 2, 128, 8, torch.float32, torch.device("cpu"))
    cache.write(0, torch.arange(2 * 129), torch.randn(2 * 129, 4, 8))
    query, key_value = torch.randn(2, 3, 2, 8), torch.randn(2, 4, 8)
    shapes = []
    attend = functional.scaled_dot_product_attention

    def recording(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, **options: Any) -> Any:
        shapes.append((keys.shape, options["attn_mask"].shape))
        return attend(query, keys, values, **options)

    for kind in (AttentionKind(window=16), AttentionKind()):
        for positions in ([100, 90], [120, None], [70, 70]):
            exact = Step(cache, positions, []).attend(0, query, key_value, kind)
            with monkeypatch.context() as patch:
                patch.setattr(functional, "scaled_dot_product_attention", recording)
                static = Step(cache, positions, [], 128).attend(0, query, key_value, kind)
            torch.testing.assert_close(static[:1], exact[:1])
    assert set(shapes) == {((2, 2, 128, 8), (2, 1, 1, 128))}


@pytest.mark.parametrize(
    ("rows", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (17, 24), (60, 63), (63, 63)]
)
def test_buckets_of_rows(rows: int, bucket: int):
    assert row_bucket(rows, limit=63) == bucket


def test_buckets_of_positions_are_few_and_hardly_longer_than_needed():
    buckets = {n: length_bucket(n, limit=8192) for n in range(1, 8193)}
    assert all(n <= bucket <= max(n + 63, 1.25 * n) for n, bucket in buckets.items())
    assert len(set(buckets.values())) == 24
    assert length_bucket(1000, limit=1000) == 1000


STEPS = 5
MEMBERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "top_logprobs": 5, "prompt_logprobs": 2},
    {"seed": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "typical_p": 0.9, "ranks": True, "top_logprobs": 1}
    | {"logprobs_mode": "processed", "ties": "count"},
    {"seed": 2, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {"5": 2.0}},
    {"temperature": 0.0, "logprobs_mode": "processed", "logprob_token_ids": [1, 2]},
]
SEARCH: dict[str, Any] = {"num_beams": 3, "top_logprobs": 2, "ranks": True, "prompt_logprobs": 1}


def steps_on(device: torch.device, checkpoint: Checkpoint, count: Callable[[], None]) -> list[Any]:
    """Run steps with all kinds of requests, and call `count` after each. Each is launched before the last one is read."""
    c = dataclasses.replace(checkpoint, device=device)
    runner = Runner(c, KVCache(c.layers, 4, c.kv_heads, 96, c.head_size, c.dtype, device), buckets=True)
    scheduler: StepScheduler[RunningSequence] = StepScheduler(4, 48)
    for i, members in enumerate(MEMBERS):
        prompt = [(7 * at + i) % 256 + 1 for at in range(3 + 12 * i)]
        parameters = parameters_of(Generate(**members), prompt, size=c.vocab_size, device=device, max_top=20)
        scheduler.add(RunningSequence(prompt=prompt, **parameters))
    results = []
    flight = None
    for _ in range(STEPS):
        step = scheduler.schedule()
        launched = runner.launch(step)
        scheduler.launched(step)
        if flight is not None:
            results.append(flight[1].result())
            scheduler.completed(flight[0], [one.token for one in results[-1].sampled])
        flight = (step, launched)
        count()
    return [[one.token for one in result.sampled] for result in results]


def search_on(device: torch.device, checkpoint: Checkpoint, count: Callable[[], None]) -> list[Any]:
    """Run steps with a beam search and an ordinary request, and call `count` after each."""
    c = dataclasses.replace(checkpoint, device=device)
    runner = Runner(c, KVCache(c.layers, 4, c.kv_heads, 96, c.head_size, c.dtype, device), buckets=True)
    scheduler: StepScheduler[RunningSequence] = StepScheduler(4, 48)
    for members in (SEARCH, MEMBERS[1]):
        request, prompt = Generate(**members), [7, 8, 9]
        parameters = parameters_of(request, prompt, size=c.vocab_size, device=device, max_top=20)
        search = None
        if request.num_beams > 1:
            text = OutputText(request, c.vocabulary, c.end_ids)
            search = BeamSearch(3, end_tokens=1, length_penalty=1.0, text=text, scoring=parameters["scoring"])
        beams = request.num_beams
        scheduler.add(RunningSequence(prompt=prompt, **parameters, beams=beams, search=search))
    results = []
    for _ in range(STEPS):
        step = scheduler.schedule()
        launched = runner.launch(step)
        scheduler.launched(step)
        sampled = launched.result().sampled
        scheduler.completed(step, [one.token for one in sampled])
        results.append([(one.token, getattr(one, "progress", None)) for one in sampled])
        count()
    return [
        (token, progress and [(one.id, one.values) for one in progress.added])
        for step in results
        for token, progress in step
    ]


@pytest.mark.parametrize("steps_of", [steps_on, search_on])
def test_step_on_a_device_waits_for_nothing_but_one_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_of: Callable[..., list[Any]]
):
    """A GPU is simulated: each step copies its results once, from pinned memory to pinned memory, and reads no value."""
    monkeypatch.setattr(packed_linear, "can_pack", lambda _: False)
    checkpoint = load(random_llama(tmp_path), device="cpu")
    expected = steps_of(torch.device("cpu"), checkpoint, lambda: None)
    counts = []
    device = SimulatedDevice()

    def count() -> None:
        counts.append(dict(device.events))
        device.events.clear()

    with device, torch.inference_mode():
        move(checkpoint.model)
        device.events.clear()
        found = steps_of(DEVICE, checkpoint, count)
    assert found == expected
    assert [one["to_host"] for one in counts] == [1] * STEPS
    assert {event for one in counts for event in one} == {"to_host", "to_device"}


class Allocations(TorchDispatchMode):
    """Operators that allocate memory after the first change of a tensor. Use it as a context manager."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor
        self.is_changed = False
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returns = func._schema.returns
        if self.is_changed and ("lift" in str(func) or any(one.alias_info is None for one in returns)):
            self.names.append(str(func))
        found = func(*args, **kwargs or {})
        changes = returns and returns[0].alias_info is not None and returns[0].alias_info.is_write
        self.is_changed |= bool(changes) and args[0] is self._tensor
        return found


@pytest.mark.parametrize("steps_of", [steps_on, search_on])
def test_step_allocates_no_memory_after_its_first_change(
    random_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, steps_of: Callable[..., list[Any]]
):
    """If the memory were exhausted after a change, the step would be repeated with the changed state."""
    launch = Runner.launch

    def launching(self: Runner, step: StepPlan[Any]) -> Any:
        with Allocations(self._last) as allocations:
            launched = launch(self, step)
        assert allocations.is_changed is bool(step.sampled)
        assert allocations.names == []
        return launched

    monkeypatch.setattr(Runner, "launch", launching)
    steps_of(torch.device("cpu"), random_checkpoint, lambda: None)


@pytest.mark.gpu
def test_step_on_a_gpu_waits_for_nothing_but_one_copy(tmp_path: Path):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    folder = random_llama(tmp_path)
    device = torch.device("cuda", 0)
    checkpoint = load(folder, device="cuda:0", dtype="float32")
    expected = steps_on(torch.device("cpu"), load(folder, device="cpu"), lambda: None)
    steps_on(device, checkpoint, lambda: None)  # loads the kernels
    # A launch that waits for the device raises an error. The reads wait for an event, which is allowed.
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            assert steps_on(device, checkpoint, lambda: None) == expected
    finally:
        torch.cuda.set_sync_debug_mode("default")
    names = Counter(event.name for event in profiler.events())
    assert sum(count for name, count in names.items() if "Memcpy DtoH" in name) == STEPS
    assert names["cudaDeviceSynchronize"] <= 1  # the profiler's own, when it stops
    assert names["cudaStreamSynchronize"] == 0
