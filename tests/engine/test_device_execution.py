"""Execution of steps on a device: one wait in each step, and no memory allocated after the first change of a tensor."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from support.model_checkpoints import random_llama
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import step_runner
from tidewire_server.generation.torch_engine.beam_search import BeamSearch
from tidewire_server.generation.torch_engine.decode_graphs import DecodeGraphs, padded_length, padded_slots
from tidewire_server.generation.torch_engine.detokenizer import OutputText
from tidewire_server.generation.torch_engine.device_execution import to_host
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of
from tidewire_server.generation.torch_engine.step_runner import Runner, RunningSequence
from tidewire_server.generation.torch_engine.step_scheduler import StepScheduler

STEPS = 5
MEMBERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "top_logprobs": 5, "prompt_logprobs": 2},
    {"seed": 1, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "typical_p": 0.9, "ranks": True, "top_logprobs": 1}
    | {"logprobs_mode": "processed", "ties": "count"},
    {"seed": 2, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {"5": 2.0}},
    {"temperature": 0.0, "logprobs_mode": "processed", "logprob_token_ids": [1, 2]},
]
SEARCHES = [{"num_beams": 3, "top_logprobs": 2, "ranks": True, "prompt_logprobs": 1}, MEMBERS[1]]


def steps_on(device: torch.device, checkpoint: Checkpoint, *members: dict[str, Any]) -> list[Any]:
    """Run steps with one request for each dict of input members. Return the tokens, and the progress of beam searches."""
    c = dataclasses.replace(checkpoint, device=device)
    runner = Runner(c, KVCache(c.layers, 4, c.kv_heads, 96, c.head_size, c.dtype, device))
    scheduler: StepScheduler[RunningSequence] = StepScheduler(4, 48)
    for i, one in enumerate(members):
        request = Generate(**one)
        prompt = [(7 * at + i) % 256 + 1 for at in range(3 + 12 * i)]
        parameters = parameters_of(request, prompt, size=c.vocab_size, device=device, max_top=20)
        search = None
        if request.num_beams > 1:
            text = OutputText(request, c.vocabulary, c.end_ids)
            search = BeamSearch(3, end_tokens=1, length_penalty=1.0, text=text)
        sequence = RunningSequence(
            prompt=prompt, parameters=parameters, beams=request.num_beams, search=search
        )
        scheduler.add(sequence)
    results = []
    for _ in range(STEPS):
        step = scheduler.schedule()
        sampled = runner.run(step).sampled
        scheduler.completed(step, [one.token for one in sampled])
        results.extend((one.token, getattr(one, "progress", None)) for one in sampled)
    return [
        (token, progress and [(one.id, one.values) for one in progress.added]) for token, progress in results
    ]


def counted(method: Any, calls: list[Any]) -> Any:
    """Return a method that also adds each call to a list."""

    def call(self: Any) -> Any:
        calls.append(self)
        return method(self)

    return call


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


@pytest.mark.parametrize("members", [MEMBERS, SEARCHES], ids=["samples", "searches"])
def test_step_allocates_no_memory_after_its_first_change(
    random_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, members: list[dict[str, Any]]
):
    """If the memory were exhausted after a change, the step would be repeated with the changed state."""
    run = Runner.run

    def running(self: Runner, step: Any) -> Any:
        with Allocations(self._last) as allocations:
            result = run(self, step)
        assert allocations.is_changed is bool(step.sampled)
        assert allocations.names == []
        return result

    monkeypatch.setattr(Runner, "run", running)
    steps_on(torch.device("cpu"), random_checkpoint, *members)


@pytest.mark.parametrize("members", [MEMBERS, SEARCHES], ids=["samples", "searches"])
def test_results_of_a_step_are_one_copy(
    random_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, members: list[dict[str, Any]]
):
    copies = []

    def counting(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
        copies.append(len(tensors))
        return to_host(tensors)

    monkeypatch.setattr(step_runner, "to_host", counting)
    steps_on(torch.device("cpu"), random_checkpoint, *members)
    assert len(copies) == STEPS
    assert min(copies) > 2


# ---- CUDA graphs -----------------------------------------------------------------------------------------------


def test_padded_shapes_hold_the_step_and_are_few():
    for most in (1, 5, 64):
        assert all(slots <= padded_slots(slots, most) <= most for slots in range(1, most + 1))
    assert {padded_slots(slots, 40) for slots in range(1, 41)} == {1, 2, 4, 8, 16, 32, 40}
    for most in (1, 300, 8192):
        lengths = {length: padded_length(length, most) for length in range(1, most + 1)}
        assert all(length <= padded <= max(length + 255, 1.25 * length) for length, padded in lengths.items())
        assert max(lengths.values()) == most
    assert len(set(lengths.values())) == 16


@pytest.mark.gpu
def test_graphs_decode_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    checkpoint = load(random_llama(tmp_path), device="cuda:0", dtype="float32")
    replays: list[Any] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", counted(torch.cuda.CUDAGraph.replay, replays))
    with_graphs = [steps_on(checkpoint.device, checkpoint, *members) for members in (MEMBERS, SEARCHES)]
    assert len(replays) > 2
    monkeypatch.setattr(step_runner, "LlamaModel", type(None))
    replays.clear()
    without = [steps_on(checkpoint.device, checkpoint, *members) for members in (MEMBERS, SEARCHES)]
    assert replays == []
    assert with_graphs == without


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_decoding_continues_if_no_graph_can_be_captured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    folder = random_llama(tmp_path)
    checkpoint = load(folder, device="cuda:0", dtype="float32")

    def forward(self: DecodeGraphs, slots: int, length: int) -> torch.Tensor:
        return self._tokens.tolist()  # type: ignore[return-value] # a capture must not wait for the device

    monkeypatch.setattr(DecodeGraphs, "_forward", forward)
    expected = steps_on(torch.device("cpu"), load(folder, device="cpu"), *MEMBERS)
    assert steps_on(checkpoint.device, checkpoint, *MEMBERS) == expected
    assert [one.message[:42] for one in caplog.records] == ["decoding continues without CUDA graphs, be"]


@pytest.mark.gpu
@pytest.mark.filterwarnings(
    "ignore:Synchronization debug mode is a prototype", "ignore:Warning. Profiler clears events"
)
def test_step_on_a_gpu_waits_for_nothing_but_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    folder = random_llama(tmp_path)
    device = torch.device("cuda", 0)
    checkpoint = load(folder, device="cuda:0", dtype="float32")
    captures = []
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "capture_end", counted(torch.cuda.CUDAGraph.capture_end, captures)
    )
    expected = steps_on(torch.device("cpu"), load(folder, device="cpu"), *MEMBERS)
    steps_on(device, checkpoint, *MEMBERS)  # loads the kernels
    captures.clear()
    # A step that waits for the device raises an error. The reads wait for an event, which is allowed.
    torch.cuda.set_sync_debug_mode("error")
    try:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            assert steps_on(device, checkpoint, *MEMBERS) == expected
    finally:
        torch.cuda.set_sync_debug_mode("default")
    names = Counter(event.name for event in profiler.events())
    assert sum(count for name, count in names.items() if "Memcpy DtoH" in name) == STEPS
    assert captures
    # One is the profiler's own, when it stops. A capture, which happens once for each shape, begins with one.
    assert names["cudaDeviceSynchronize"] <= 1 + len(captures)
    assert names["cudaStreamSynchronize"] == 0
