"""CPU time per token of the torch engine on one thread, compared with two peers in the same process and run.

The peers are continuous batching of transformers (`ContinuousBatchingManager`) and llama.cpp (its server, called
through xllamacpp without HTTP). All three run the same weights in float32: the default model, and a Llama model of 100
million random parameters, which is built from a seed. llama.cpp reads them from a GGUF file that this script writes.
Without the packages xllamacpp and gguf, llama.cpp is left out.

1, 8 or 64 requests arrive at the same time. Each has a prompt of about 16 tokens and generates 32 tokens greedily. The
time is the CPU time of the process, from the arrival of the requests to the last token, divided by the number of
generated tokens, so that it includes the prompts. The engines alternate within each round, and each number is the
median of the rounds. The ratios are medians of the ratios within one round. The script fails if the engines return
different tokens.

The script also profiles the engine and reports the CPU time of each group of torch operators. For the calls of an
operator with equal shapes, this is the median time of a call times the number of calls. The time outside of operators
is Python.

    python bench/engine_cpu.py            about four minutes; use an idle machine
    python bench/engine_cpu.py --quick    default model only: half a minute
"""

import argparse
import asyncio
import contextlib
import gc
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from measured import installed, save
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from tidewire_server.default_model import default_model
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine import TorchEngine

RESULTS = Path(__file__).parent / "results/engine_cpu.json"
TOKENS = 32
REQUESTS = (1, 8, 64)
SLOTS = max(REQUESTS)
OURS, BATCHING, LLAMA_CPP = "tidewire", "transformers, continuous batching", "llama.cpp"
TARGETS = {
    ("default", BATCHING): (1.3, 1.5, 2.0),
    ("default", LLAMA_CPP): (0.25, 0.6, 1.3),
    ("100 M", BATCHING): (1.3, 1.5, 2.0),
    ("100 M", LLAMA_CPP): (0.8, 1.5, 2.5),
}
"""Minimum of the peer's time divided by ours, for each number of requests."""

MODELS = {"default": "default, 2.8 M", "100 M": "Llama, 100 M"}
ROUNDS = {1: 9, 8: 5, 64: 3}
"""Number of rounds for each number of requests."""

GROUPS = {
    "products": ("mkldnn::_linear_pointwise", "aten::mm", "aten::addmm"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::scaled_dot_product_attention"),
    "norms": tuple(
        f"aten::{name}"
        for name in ("rms_norm", "_fused_rms_norm", "pow", "mean", "sum", "div_", "rsqrt", "type_as")
    ),
    "activation, residual": ("aten::silu", "aten::mul_", "aten::add_"),
    "rotation": ("aten::roll", "aten::cat", "aten::mul", "aten::addcmul", "aten::narrow"),
    "cache writes": ("aten::index_copy_",),
    "views": tuple(
        f"aten::{name}"
        for name in (
            "as_strided",
            "view",
            "slice",
            "transpose",
            "select",
            "unbind",
            "expand",
            "permute",
            "reshape",
        )
    ),
}
"""Operators of each group of the profile. All others are `other operators`."""

Run = Callable[[int], list[list[int]]]
"""Generates TOKENS tokens for the first n prompts, and returns their ids."""


# --- models


def build_llama(folder: Path) -> Path:
    """Save a Llama model with 100 million random parameters: 12 layers of 768, vocabulary of 32,000."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [a + b for a in alphabet for b in alphabet][: 32_000 - len(alphabet)]
    vocabulary = {token: i for i, token in enumerate([*alphabet, *pairs])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def prompts_of(name: str) -> list[str]:
    text = "def f_{:03d}(value, count):\n" if name == "default" else "request {:08d}"
    return [text.format(i) for i in range(SLOTS)]


def write_gguf(path: Path, model: LlamaForCausalLM, tokens: list[str]) -> None:
    """Write a Llama model as a float32 GGUF file."""
    import gguf

    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from support.llama_gguf import begin_gguf, end_gguf

    writer = begin_gguf(path, model.config)
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(tokens))
    writer.add_token_merges(["a b"])
    end_gguf(writer, model.model, model.config)


# --- engines


@contextlib.contextmanager
def ours(folder: Path, prompts: list[str]) -> Iterator[Run]:
    engine = TorchEngine.load(folder, device="cpu", dtype="float32", threads=1, slots=SLOTS)

    async def one(prompt: str) -> list[int]:
        request = Generate(prompt=prompt, max_tokens=TOKENS, temperature=0.0, logprobs=True)
        column = request.columns.index("token_ids")
        return [int(row[column]) async for delta in engine.generate(request) for row in delta.rows]

    async def several(n: int) -> list[list[int]]:
        return await asyncio.gather(*(one(prompt) for prompt in prompts[:n]))

    with asyncio.Runner() as runner:
        yield lambda n: runner.run(several(n))
        runner.run(engine.close())


@contextlib.contextmanager
def continuous_batching(model: LlamaForCausalLM, prompts: list[list[int]]) -> Iterator[Run]:
    config = GenerationConfig(max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1, pad_token_id=0)
    manager = model.init_continuous_batching(config, ContinuousBatchingConfig())
    manager.start()

    def run(n: int) -> list[list[int]]:
        order = manager.add_requests(prompts[:n], max_new_tokens=TOKENS)
        done = {}
        while len(done) < n:
            result = manager.get_result(timeout=60)
            if result is not None and result.is_finished():
                done[result.request_id] = result.generated_tokens
        return [done[request] for request in order]

    yield run
    manager.stop(block=True)
    manager.destroy()


@contextlib.contextmanager
def llama_cpp(path: Path, prompts: list[list[int]]) -> Iterator[Run]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = SLOTS
    params.n_ctx = SLOTS * 1024  # the same context length per request as tidewire
    params.n_batch = params.n_ubatch = 2048
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cpuparams.poll = params.cpuparams_batch.poll = 0
    params.kv_unified = False
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.verbosity = -1
    server = xllamacpp.Server(params)

    def one(ids: list[int], into: list[int]) -> None:
        request = {
            "prompt": ids,
            "n_predict": TOKENS,
            "temperature": 0.0,
            "samplers": ["top_k"],
            "top_k": 1,
            "cache_prompt": False,
            "ignore_eos": True,
            "return_tokens": True,
            "verbose": True,  # otherwise the response has no token ids
        }
        into.extend(server.handle_completions(request)["__verbose"]["tokens"])

    def run(n: int) -> list[list[int]]:
        results: list[list[int]] = [[] for _ in range(n)]
        threads = [threading.Thread(target=one, args=pair) for pair in zip(prompts[:n], results, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    yield run


# --- measurement


def microseconds(run: Run, n: int) -> float:
    """Return the CPU time of the process per generated token."""
    begin = time.process_time()
    tokens = run(n)
    return (time.process_time() - begin) / sum(map(len, tokens)) * 1e6


def profiled(run: Run, n: int) -> dict[str, float]:
    """Return the CPU time of each group of operators per generated token, in microseconds."""
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, experimental_config=everywhere
    ) as profiler:
        tokens = run(n)
    calls = defaultdict(list)
    for event in profiler.events():
        calls[event.name, str(event.input_shapes)].append(event.self_cpu_time_total)
    group_of = {name: group for group, names in GROUPS.items() for name in names}
    groups: dict[str, float] = defaultdict(float)
    for (name, _), times in calls.items():
        groups[group_of.get(name, "other operators")] += statistics.median(times) * len(times)
    return {group: total / sum(map(len, tokens)) for group, total in groups.items()}


def measure(name: str, folder: Path, gguf_file: Path, *, with_llama_cpp: bool) -> Iterator[dict]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    vocabulary = tokenizer.get_vocab()
    texts = prompts_of(name)
    prompts = [tokenizer(text)["input_ids"] for text in texts]
    with contextlib.ExitStack() as engines:
        us = engines.enter_context(ours(folder, texts))
        peers = {BATCHING: engines.enter_context(continuous_batching(model, prompts))}
        if with_llama_cpp:
            write_gguf(gguf_file, model, sorted(vocabulary, key=vocabulary.__getitem__))
            peers[LLAMA_CPP] = engines.enter_context(llama_cpp(gguf_file, prompts))
        runs = {OURS: us, **peers}
        for n in REQUESTS:
            tokens = {engine: run(n) for engine, run in runs.items()}  # this also warms up
            if any(found != tokens[OURS] for found in tokens.values()):
                raise SystemExit(f"the engines returned different tokens for {n} requests of {name}")
            rounds = [
                {engine: microseconds(run, n) for engine, run in runs.items()} for _ in range(ROUNDS[n])
            ]
            row = {
                "model": name,
                "requests": n,
                "microseconds": {engine: statistics.median(one[engine] for one in rounds) for engine in runs},
                "ratios": {
                    peer: statistics.median(one[peer] / one[OURS] for one in rounds) for peer in peers
                },
                "targets": {peer: TARGETS[name, peer][REQUESTS.index(n)] for peer in peers},
                "profile": profiled(us, n),
            }
            show(row)
            yield row


def show(row: dict) -> None:
    times = ", ".join(f"{engine} {us:,.0f} µs" for engine, us in row["microseconds"].items())
    ratios = ", ".join(
        f"{row['ratios'][peer]:.2f} ({'met' if row['ratios'][peer] >= target else 'MISSED'}: {target})"
        for peer, target in row["targets"].items()
    )
    print(f"{MODELS[row['model']]}, {row['requests']} requests: {times}; ratios {ratios}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="measure the default model only")
    quick = parser.parse_args().quick
    with_llama_cpp = all([installed("xllamacpp"), installed("gguf")])
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        rows.extend(measure("default", default_model(), here / "default.gguf", with_llama_cpp=with_llama_cpp))
        if not quick:
            gc.collect()
            rows.extend(
                measure(
                    "100 M", build_llama(here / "llama"), here / "llama.gguf", with_llama_cpp=with_llama_cpp
                )
            )
    if quick:
        return
    save(RESULTS, {"rows": rows, "tokens": TOKENS}, "torch", "transformers", "xllamacpp", "gguf")


if __name__ == "__main__":
    main()
