"""Cost of sampling and of the most probable tokens, as a share of an engine step of 64 rows.

A step decodes one token of 64 requests on one CPU thread. The models are the default model (vocabulary 2,048) and a
random Llama model of 100 million parameters (vocabulary 32,000). The settings alternate within each round, so that a
change of the machine's load affects all of them. The share is the additional CPU time compared with the same step at
temperature 0.

    python bench/engine_sampling.py --rounds 15
"""

import argparse
import dataclasses
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from measured import save
from transformers import LlamaConfig, LlamaForCausalLM

from tidewire_server.default_model import default_model
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.llama_model import LlamaModel
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint, load
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import parameters_of
from tidewire_server.generation.torch_engine.step_runner import Runner, RunningSequence
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan

RESULTS = Path(__file__).parent / "results" / "engine_sampling.json"
ROWS, LENGTH = 64, 32
GREEDY: dict[str, Any] = {"temperature": 0.0}
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 1": {},
    "temperature 0.7": {"temperature": 0.7},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 50": {"top_k": 50},
    "top-k 50, top-p 0.9": {"top_k": 50, "top_p": 0.9},
    "min-p 0.05": {"min_p": 0.05},
    "typical-p 0.9": {"typical_p": 0.9},
    "repetition penalty 1.1": {"repetition_penalty": 1.1} | GREEDY,
    "top-n 5": {"top_logprobs": 5} | GREEDY,
    "top-n 20": {"top_logprobs": 20} | GREEDY,
    "top-n 64": {"top_logprobs": 64} | GREEDY,
    "top-n 5, processed": {"top_logprobs": 5, "logprobs_mode": "processed", "temperature": 0.7},
}
BARS = {"temperature 1": 10, "top-p 0.9": 20, "top-k 50": 20, "top-n 5": 10}


def llama(checkpoint: Checkpoint) -> Checkpoint:
    """Return a random model of 100 million parameters.

    It keeps the tokenizer of `checkpoint`, which the measurement does not use.
    """
    config = LlamaConfig(
        vocab_size=32_000,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    module = LlamaForCausalLM(config)
    with torch.no_grad():
        module.get_output_embeddings().weight.mul_(5)  # logits with a standard deviation of about 3
    return dataclasses.replace(
        checkpoint,
        model=LlamaModel(module.eval().requires_grad_(requires_grad=False)),
        vocab_size=config.vocab_size,
        layers=config.num_hidden_layers,
        kv_heads=config.num_key_value_heads,
        head_size=config.head_dim,
    )


def plan(checkpoint: Checkpoint, members: dict[str, Any]) -> StepPlan[RunningSequence]:
    """Return a step that decodes one token of each request."""
    sequences = []
    for slot in range(ROWS):
        request = Generate(seed=slot, **members)
        prompt = [(slot * 31 + at * 7) % 2000 for at in range(LENGTH)]
        parameters = parameters_of(
            request, prompt, size=checkpoint.vocab_size, device=checkpoint.device, max_top=64
        )
        sequences.append(
            RunningSequence(
                prompt=prompt, slot=slot, read=LENGTH, generated=1, last=slot, parameters=parameters
            )
        )
    return StepPlan(sequences, [])


def measure(checkpoint: Checkpoint, rounds: int) -> dict[str, Any]:
    c = checkpoint
    cache = KVCache(c.layers, ROWS, c.kv_heads, 256, c.head_size, c.dtype, c.device)
    runner = Runner(c, cache)
    plans = {name: plan(c, members) for name, members in ({"greedy": GREEDY} | SETTINGS).items()}
    taken: dict[str, list[float]] = {name: [] for name in plans}
    for turn in range(rounds + 1):
        for name, step in plans.items():
            began = time.thread_time()
            runner.run(step)
            if turn:  # the first round is the warm-up
                taken[name].append(1e3 * (time.thread_time() - began))
    greedy = statistics.median(taken["greedy"])
    # Compare each step with the greedy step of the same round.
    shares = {
        name: 100 * statistics.median(x / g - 1 for x, g in zip(taken[name], taken["greedy"], strict=True))
        for name in SETTINGS
    }
    print(f"vocabulary {c.vocab_size}: a step takes {greedy:.1f} ms")
    for name, share in shares.items():
        bar = f" (target {BARS[name]} %)" if name in BARS else ""
        print(f"  {name}: {share:+.1f} %{bar}")
    return {"vocabulary": c.vocab_size, "step_ms": greedy, "shares": shares}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    checkpoint = load(default_model(), device="cpu")
    models = [checkpoint, llama(checkpoint)]
    results = [measure(one, arguments.rounds) for one in models]
    save(
        RESULTS,
        {"models": results, "bars": BARS, "load": os.getloadavg()[0]},
        "tidewire",
        "torch",
        "transformers",
        "numpy",
    )


if __name__ == "__main__":
    main()
