"""Time of the text engine's steps on a GPU: decoding and prompts, for 1 to 64 requests with 0 to 64 most probable tokens.

The models are Llama models with random weights in bfloat16. They are created on the device, so nothing is downloaded.
They have the shapes of Pythia 160 M and of Llama 3.1 8B. Before the measurement, the script compares the
log-probabilities of the engine with float64 and with transformers, for the prompts and for the generated tokens. The 8
B shape is checked with 2 of its 32 layers, because its weights do not fit into the memory in float64.

The settings alternate within each round, and the shares are medians of the ratios within a round. The floor is the time that the device takes to read
the weights of a step once.

Then 64 requests run concurrently, first in the engine with the 5 most probable tokens at each position, then in
continuous batching of transformers, which returns no most probable tokens.

    python bench/engine_gpu.py                         on a GPU, about three minutes
    python bench/engine_gpu.py --device cpu --tiny     tests the script in seconds; the numbers are meaningless
"""

import argparse
import asyncio
import copy
import dataclasses
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from measured import save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, vocabulary_of_tokenizer
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of
from tidewire_server.generation.torch_engine.step_runner import Runner, RunningSequence
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan, StepScheduler

RESULTS = Path(__file__).parent / "results/engine_gpu.json"
DTYPE = torch.bfloat16
STEP_TOKENS = 2048
GREEDY = {"temperature": 0.0}
SHARES = {"160 M": {5: 5, 20: 8, 64: 15}, "8 B": {5: 2, 20: 2, 64: 2}}
"""Targets: maximum additional time of a decoding step with n most probable tokens, in percent, with 64 requests."""
THROUGHPUT = 2.0
"""Target: tokens per second of the engine, divided by those of continuous batching of transformers."""
FLOOR_SHARE = 75
"""Target: minimum share of the floor in a decoding step of the 8 B shape with 1 request, in percent."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sizes of a run."""

    shapes: dict[str, dict[str, int]]
    checked_layers: int = 2
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    tops: tuple[int, ...] = (0, 5, 20, 50, 64)
    length: int = 256
    prompt: int = 128
    steps: int = 32
    rounds: int = 3
    generated: int = 128
    """Number of tokens that each request generates when the throughput is measured."""
    copied: int = 1 << 30


def shape(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, vocabulary: int) -> dict[str, int]:
    return {
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
    }


FULL = Plan({"160 M": shape(768, 2048, 12, 12, 12, 50_304), "8 B": shape(4096, 14_336, 32, 32, 8, 128_256)})
TINY = Plan(
    {"tiny": shape(64, 96, 2, 4, 2, 500)},
    batches=(1, 4),
    tops=(0, 5),
    length=40,
    prompt=16,
    steps=4,
    rounds=2,
    generated=8,
    copied=1 << 20,
)


def random_module(sizes: dict[str, int], device: torch.device) -> LlamaForCausalLM:
    config = LlamaConfig(**sizes, max_position_embeddings=1024, tie_word_embeddings=False)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with device:
            module = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    module.get_output_embeddings().weight.data.mul_(3)  # distributions that are not almost uniform
    return module.eval().requires_grad_(requires_grad=False)


def checkpoint_of(module: LlamaForCausalLM, device: torch.device) -> Checkpoint:
    """Return a checkpoint without a tokenizer. The module cannot be used afterwards."""
    config = module.config
    read = sum(weight.nbytes for weight in module.parameters()) - module.get_input_embeddings().weight.nbytes
    return Checkpoint(
        name="random",
        architecture=config.model_type,
        model=LlamaModel(module),
        tokenizer=cast("Any", None),
        vocabulary=cast("Any", None),
        device=device,
        dtype=DTYPE,
        context=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        end_ids=frozenset(),
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
        weight_bytes=read,
    )


def runner_of(checkpoint: Checkpoint, slots: int) -> Runner:
    c = checkpoint
    cache = KVCache(c.layers, slots, c.kv_heads, c.context, c.head_size, c.dtype, c.device)
    return Runner(c, cache)


def sequence(c: Checkpoint, prompt: list[int], **state: Any) -> RunningSequence:
    members = state.pop("members")
    parameters = parameters_of(Generate(**members), prompt, size=c.vocab_size, device=c.device, max_top=64)
    return RunningSequence(prompt=prompt, parameters=parameters, **state)


def prompt_of(c: Checkpoint, row: int, length: int) -> list[int]:
    return [(31 * row + 7 * at) % c.vocab_size for at in range(length)]


# --- check


def check(sizes: dict[str, int], device: torch.device) -> dict[str, float]:
    """Return the largest errors of log-probabilities, of tidewire and of transformers, compared with float64, in nats.

    Raises:
        SystemExit: The error of tidewire is larger than the precision of the data type explains.
    """
    module = random_module(sizes, device)
    exact, peer = copy.deepcopy(module).double(), copy.deepcopy(module)
    checkpoint = checkpoint_of(module, device)
    runner = runner_of(checkpoint, 4)
    scheduler: StepScheduler[RunningSequence] = StepScheduler(4, 48)
    members = GREEDY | {"logprobs": True, "prompt_logprobs": 0, "logprob_decimals": 9}
    sequences = [sequence(checkpoint, prompt_of(checkpoint, n, n), members=members) for n in (5, 70, 33)]
    found: dict[int, list[float | None]] = {id(one): [] for one in sequences}
    texts = {id(one): list(one.prompt) for one in sequences}
    for one in sequences:
        scheduler.add(one)
    while min(len(texts[id(one)]) - len(one.prompt) for one in sequences) < 6:
        step = scheduler.schedule()
        result = runner.run(step)
        scheduler.completed(step, [one.token for one in result.sampled])
        for one, values in result.prompts:
            found[id(one)].extend(json.loads(row["prompt_logprobs"]) for row in values or [])
        for one, sampled in zip(step.sampled, result.sampled, strict=True):
            texts[id(one)].append(sampled.token)
            found[id(one)].append(json.loads(sampled.values["logprobs"]))
    errors = {"tidewire": 0.0, "transformers": 0.0}
    with torch.inference_mode():
        for one in sequences:
            ids = torch.tensor([texts[id(one)]], device=device)
            chosen = ids[0, 1:, None]
            right = exact(ids).logits[0, :-1].double().log_softmax(-1).gather(-1, chosen)
            other = peer(ids).logits[0, :-1].double().log_softmax(-1).gather(-1, chosen)
            ours = torch.tensor(found[id(one)][1:], dtype=torch.float64, device=device)[:, None]
            errors["tidewire"] = max(errors["tidewire"], (ours - right).abs().max().item())
            errors["transformers"] = max(errors["transformers"], (other - right).abs().max().item())
    print(
        f"  largest error of a log-probability: {errors['tidewire']:.4f} nats, transformers {errors['transformers']:.4f}"
    )
    if not errors["tidewire"] <= 2 * errors["transformers"] + 0.001:
        raise SystemExit("the engine's log-probabilities are wrong")
    return errors


# --- measurement


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def free(device: torch.device) -> None:
    """Release the memory of deleted tensors on the device, so that the next engine can use it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def timed(device: torch.device, run: Callable[[], None]) -> float:
    """Return the time in milliseconds from the start of a call until the device has finished."""
    wait(device)
    began = time.perf_counter()
    run()
    wait(device)
    return 1e3 * (time.perf_counter() - began)


def decoding(c: Checkpoint, runner: Runner, batch: int, members: dict[str, Any], plan: Plan) -> float:
    """Return the time of one decoding step, in milliseconds."""
    sequences = [
        sequence(
            c, prompt_of(c, slot, plan.length), members=members, slot=slot, read=plan.length, generated=1
        )
        for slot in range(batch)
    ]
    step = StepPlan(sequences, [])

    def run() -> None:
        for at in range(plan.steps):
            for one in sequences:
                one.generated = at + 1
            runner.run(step)

    return timed(c.device, run) / plan.steps


def reading(c: Checkpoint, runner: Runner, batch: int, members: dict[str, Any], plan: Plan) -> float:
    """Return the time to the first tokens of prompts that arrive at the same time, in milliseconds."""
    scheduler: StepScheduler[RunningSequence] = StepScheduler(batch, STEP_TOKENS)
    for row in range(batch):
        scheduler.add(sequence(c, prompt_of(c, row, plan.prompt), members=members))

    def run() -> None:
        while step := scheduler.schedule():
            result = runner.run(step)
            scheduler.completed(step, [one.token for one in result.sampled])
            for one in step.sampled:
                scheduler.finish(one)

    return timed(c.device, run)


def measure(name: str, c: Checkpoint, plan: Plan) -> list[dict[str, Any]]:
    runner = runner_of(c, max(plan.batches))
    settings = {f"n = {n}": GREEDY | {"top_logprobs": n} for n in plan.tops}
    settings["typical-p 0.9"] = {"typical_p": 0.9, "seed": 1}
    rows = []
    for kind, time_of in (("decode", decoding), ("prefill", reading)):
        for batch in plan.batches:
            taken: dict[str, list[float]] = {one: [] for one in settings}
            for turn in range(plan.rounds + 1):
                for one, members in settings.items():
                    spent = time_of(c, runner, batch, members, plan)
                    if turn:  # the first round is the warm-up
                        taken[one].append(spent)
            row = {
                "model": name,
                "kind": kind,
                "batch": batch,
                "ms": {one: statistics.median(times) for one, times in taken.items()},
                "shares": {
                    one: 100
                    * statistics.median(x / y - 1 for x, y in zip(times, taken["n = 0"], strict=True))
                    for one, times in taken.items()
                },
            }
            rows.append(row)
            cells = "  ".join(f"{one} {row['shares'][one]:+.1f} %" for one in settings if one != "n = 0")
            print(f"  {kind}, {batch:2} requests: {row['ms']['n = 0']:.3f} ms  {cells}", flush=True)
    return rows


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each byte. The model's other tokens have no text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def prompts_of(plan: Plan) -> list[str]:
    return [f"{row:04}" * (plan.prompt // 4) for row in range(max(plan.batches))]


def ours_per_second(c: Checkpoint, plan: Plan) -> float:
    """Return the tokens per second of the engine, with the 5 most probable tokens at each position."""
    tokenizer = byte_tokenizer()
    vocabulary = vocabulary_of_tokenizer(tokenizer, c.vocab_size)
    whole = dataclasses.replace(c, tokenizer=tokenizer, vocabulary=vocabulary)
    engine = TorchEngine(whole, slots=max(plan.batches), max_cache_bytes=1 << 36)

    async def one(prompt: str) -> int:
        request = Generate(prompt=prompt, max_tokens=plan.generated, top_logprobs=5, **GREEDY)
        return sum([len(delta.rows) async for delta in engine.generate(request)])

    async def together() -> list[int]:
        return await asyncio.gather(*map(one, prompts_of(plan)))

    best = 0.0
    with asyncio.Runner() as loop:
        for _ in range(plan.rounds):
            began = time.perf_counter()
            tokens = sum(loop.run(together()))
            best = max(best, tokens / (time.perf_counter() - began))
        loop.run(engine.close())
    return best


def peer_per_second(module: LlamaForCausalLM, plan: Plan) -> float:
    """Return the tokens per second of continuous batching of transformers, without most probable tokens."""
    module.set_attn_implementation("sdpa")
    tokenizer = byte_tokenizer()
    prompts = [tokenizer(text)["input_ids"] for text in prompts_of(plan)]
    config = GenerationConfig(max_new_tokens=plan.generated, do_sample=False, eos_token_id=-1, pad_token_id=0)
    # Without limits, the manager allocates all memory of the device, which is not acceptable for a test on a CPU.
    limits = {} if module.device.type == "cuda" else {"num_blocks": 64, "max_batch_tokens": 256}
    manager = module.init_continuous_batching(config, ContinuousBatchingConfig(**limits))
    manager.start()
    best = 0.0
    for _ in range(plan.rounds):
        began = time.perf_counter()
        manager.add_requests(prompts, max_new_tokens=plan.generated)
        tokens = finished = 0
        while finished < len(prompts):
            result = manager.get_result(timeout=60)
            if result is None:
                raise SystemExit("continuous batching of transformers returned nothing for a minute")
            if result.is_finished():
                finished += 1
                tokens += len(result.generated_tokens)
        best = max(best, tokens / (time.perf_counter() - began))
    manager.stop(block=True)
    manager.destroy()
    return best


def bandwidth(device: torch.device, size: int) -> float:
    """Return the bytes per second that the device reads and writes in total while it copies its memory."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = [timed(device, lambda: cast("None", target.copy_(source))) for _ in range(5)]
    return 2 * size / min(times) * 1e3


def judge(
    rows: list[dict[str, Any]], floors: dict[str, float], throughputs: dict[str, dict[str, float]]
) -> list[dict[str, Any]]:
    """Compare the results with the targets."""
    verdicts = []
    for name, one in throughputs.items():
        percent = 100 * one["tidewire"] / one["transformers"]
        target = 100 * THROUGHPUT
        verdicts.append(
            {"what": f"{name}, tokens/s", "percent": percent, "target": target, "met": percent >= target}
        )
    for row in rows:
        if row["kind"] != "decode":
            continue
        name = row["model"]
        if row["batch"] == 64:
            for n, target in SHARES[name].items():
                share = row["shares"][f"n = {n}"]
                verdicts.append(
                    {"what": f"{name}, n = {n}", "percent": share, "target": target, "met": share <= target}
                )
        if (name, row["batch"]) == ("8 B", 1):
            share = 100 * floors[name] / row["ms"]["n = 0"]
            met = share >= FLOOR_SHARE
            verdicts.append({"what": "8 B, floor", "percent": share, "target": FLOOR_SHARE, "met": met})
    for one in verdicts:
        print(
            f"{one['what']}: {one['percent']:.1f} % (target {one['target']} %) {'met' if one['met'] else 'MISSED'}"
        )
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="torch device (default: cuda)")
    parser.add_argument(
        "--tiny", action="store_true", help="use a tiny model and few steps, to test the script"
    )
    parser.add_argument(
        "--output", type=Path, help=f"JSON file; the default is {RESULTS.name}, or none with --tiny"
    )
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit(
            "torch finds no GPU, so nothing was measured; to try the script without one, add --device cpu --tiny"
        )
    if device.type == "cpu":
        torch.set_num_threads(1)
    plan = TINY if arguments.tiny else FULL
    speed = bandwidth(device, plan.copied)
    label = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    print(f"{label}: copies {speed / 1e12:.2f} TB/s")
    rows: list[dict[str, Any]] = []
    errors: dict[str, dict[str, float]] = {}
    floors: dict[str, float] = {}
    throughputs: dict[str, dict[str, float]] = {}
    for name, sizes in plan.shapes.items():
        print(f"{name}:")
        layers = sizes["num_hidden_layers"] if name == "160 M" else plan.checked_layers
        errors[name] = check(sizes | {"num_hidden_layers": layers}, device)
        free(device)
        checkpoint = checkpoint_of(random_module(sizes, device), device)
        floors[name] = 1e3 * checkpoint.weight_bytes / speed
        print(f"  floor of a step: {floors[name]:.3f} ms")
        rows.extend(measure(name, checkpoint, plan))
        free(device)
        ours = ours_per_second(checkpoint, plan)
        del checkpoint
        free(device)
        throughputs[name] = {
            "tidewire": ours,
            "transformers": peer_per_second(random_module(sizes, device), plan),
        }
        free(device)
        print(f"  {ours:,.0f} tokens/s, transformers {throughputs[name]['transformers']:,.0f}")
    verdicts = [] if arguments.tiny else judge(rows, floors, throughputs)
    output = arguments.output or (None if arguments.tiny else RESULTS)
    if output is not None:
        results = {
            "device": label,
            "bandwidth": speed,
            "errors": errors,
            "floors_ms": floors,
            "throughputs": throughputs,
            "rows": rows,
            "verdicts": verdicts,
        }
        save(output, results, "tidewire", "torch", "transformers")


if __name__ == "__main__":
    main()
