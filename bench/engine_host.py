"""CPU time per token outside the device. Constants replace the model, the sampler and the top-n selection.

The server, its engine and its HTTP interface run in a separate process, and raw readers read all streams. In each step,
the engine receives the same token with the same candidates.

    python bench/engine_host.py --rounds 3
"""

import argparse
import os
import statistics
from pathlib import Path

from engine_load import run, serving
from measured import save

RESULTS = Path(__file__).parent / "results" / "engine_host.json"

SERVER = """
import sys
import numpy as np
from tidewire_server import Server
from tidewire_server.generation import add_generate
from tidewire_server.generation.torch_engine.sampling.postprocess import Sampled
from tidewire_server.generation.torch_engine.sampling.score_columns import values_of
from tidewire_server.generation.torch_engine.step_runner import Runner, StepResult

port_file, slots = sys.argv[1:]

# For each request: log-probabilities of the chosen token and of 64 candidates, ids of the candidates, and ranks.
LOGPROBS = np.tile(-0.25137 - 0.1 * np.arange(65, dtype=np.float32), (64, 1))
IDS = np.tile(np.arange(400, 464, dtype=np.int32), (64, 1))
RANKS = np.ones(64, dtype=np.int32)

def result_of(step):
    scorings = [s.parameters.scoring for s in step.sampled if s.parameters.scoring is not None]
    if not scorings:
        return StepResult([Sampled(300, {})] * len(step.sampled), [])
    rows, n = len(scorings), max(s.top for s in scorings)
    values = values_of([LOGPROBS[:rows, :n + 1], IDS[:rows, :n], RANKS[:rows]], scorings)
    return StepResult([Sampled(300, one) for one in values], [])

Runner.run = lambda self, step: result_of(step)
server = Server()
add_generate(server, device="cpu", threads=1, slots=int(slots), max_top=64)
server.run(port=0, port_file=port_file, started=lambda url: None)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=400)
    arguments = parser.parse_args()
    rows = []
    for streams in (16, 64):
        with serving(SERVER, streams) as (process, port):
            run(process, port, streams, 16)
            for n in (0, 5, 20, 64):
                found = [
                    run(process, port, streams, arguments.tokens, top_logprobs=n)
                    for _ in range(arguments.rounds)
                ]
                micros = statistics.median(1e6 * one.cpu_seconds / one.tokens for one in found)
                size = found[-1].bytes / found[-1].tokens
                rows.append(
                    {"streams": streams, "top": n, "micros_per_token": micros, "bytes_per_token": size}
                )
                print(
                    f"{streams} streams, top_logprobs {n}: {micros:.1f} µs per token, {size:.0f} bytes per token"
                )
    save(
        RESULTS,
        {"rows": rows, "rounds": arguments.rounds, "load": os.getloadavg()[0]},
        "tidewire",
        "torch",
        "uvicorn",
    )


if __name__ == "__main__":
    main()
