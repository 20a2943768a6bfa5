"""Compile JSON Schemas in a process of its own, and generate random texts that match them (`SchemaProcess`).

A schema that ends the process, or fills its memory, then does not harm the tests. The process has a limit of its address
space.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple, Self

ADDRESS_SPACE = 6 << 30
"""Limit of the address space of the process, in bytes. torch maps about half of it."""


class Walk(NamedTuple):
    """Outcome of one schema."""

    refusal: str = ""
    """Message of the `InputError`, or an empty string."""
    error: str = ""
    """Reason why the text could not be continued, or an empty string."""
    steps: int = 0
    compile_seconds: float = 0.0
    """CPU time for the checks and for compiling."""
    mask_seconds: float = 0.0
    """CPU time for all masks."""
    largest_mask_seconds: float = 0.0
    grown_bytes: int = 0
    """Growth of the memory of the process since the schema before."""


class SchemaProcess:
    """A process that compiles schemas with the bundled model's tokenizer.

    Args:
        steps: Maximum number of tokens to generate for a schema.
        limit_bytes: Limit of the address space.
    """

    def __init__(self, steps: int = 30, limit_bytes: int = ADDRESS_SPACE) -> None:
        command = [sys.executable, "-m", "support.schema_process", str(steps), str(limit_bytes)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
        )

    def walk(self, schema: dict[str, Any], seed: int = 0) -> Walk:
        """Compile a schema, and generate a text.

        Raises:
            RuntimeError: The process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([schema, seed]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process ended with exit code {self._process.wait()}")
        return Walk(*json.loads(answer))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _walk(grammars: Any, checkpoint: Any, schema: dict[str, Any], seed: int, steps: int) -> Walk:
    import torch

    from tidewire_server.generation.engine_interface import InputError

    before, begun = _rss(), time.thread_time()
    try:
        grammar = grammars.compile(schema)
    except InputError as error:
        return Walk(str(error), compile_seconds=time.thread_time() - begun, grown_bytes=_rss() - before)
    compiled = time.thread_time() - begun
    rng, step, total, largest, token = random.Random(seed), 0, 0.0, 0.0, -1
    while step < steps and grammar.error is None and token not in checkpoint.end_ids:
        step += 1
        logits = torch.zeros(checkpoint.vocab_size)
        begun = time.thread_time()
        grammar.mask(logits)
        seconds = time.thread_time() - begun
        allowed = torch.nonzero(logits == 0).flatten().tolist()
        if grammar.error is None:
            token = rng.choice([each for each in allowed if each not in checkpoint.end_ids] or allowed)
            begun = time.thread_time()
            grammar.advance(token)
            seconds += time.thread_time() - begun
        total, largest = total + seconds, max(largest, seconds)
    return Walk("", grammar.error or "", step, compiled, total, largest, _rss() - before)


def _work(steps: int) -> None:
    import torch

    from tidewire_server.default_model import default_model
    from tidewire_server.generation.torch_engine.models.load_checkpoint import load
    from tidewire_server.generation.torch_engine.sampling.structured_output import Grammars

    torch.set_num_threads(1)
    c = load(default_model(), device="cpu")
    grammars = Grammars(c.vocabulary, c.vocab_size, c.end_ids, c.tokenizer.backend_tokenizer)
    for line in sys.stdin:
        schema, seed = json.loads(line)
        print(json.dumps(_walk(grammars, c, schema, seed, steps)), flush=True)


if __name__ == "__main__":
    import threading

    from tidewire_server.generation.torch_engine.request_reader import COMPILE_STACK_BYTES

    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
    # A quarter of the stack must suffice.
    threading.stack_size(COMPILE_STACK_BYTES // 4)
    thread = threading.Thread(target=_work, args=(int(sys.argv[1]),))
    thread.start()
    thread.join()
