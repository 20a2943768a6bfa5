"""CPU time per token of everything except the model: constants take the place of the model, the sampler and top-n.

The server, its engine and its HTTP interface run in a process of their own, and raw readers read all streams. The engine
receives the same token with the same candidates in each step.

    python bench/engine_host.py --rounds 3
"""

import argparse
import statistics
from pathlib import Path

from engine_load import run, serving
from measured import save

RESULTS = Path(__file__).parent / "results" / "engine_host.json"

SERVER = """
import sys
from tidewire_server import Server
from tidewire_server.generation import add_generate
from tidewire_server.generation.torch_engine.step_runner import Runner, Sampled

port_file, slots, profile = sys.argv[1:]

def run(self, step):
    return [
        Sampled(300, -0.4402, 2, list(range(400, 400 + s.top)), [-0.2501 - 0.1 * n for n in range(s.top)])
        for s in step.sampled
    ]

Runner.run = run
server = Server()
add_generate(server, device="cpu", threads=1, slots=int(slots), max_top=64)
server.run(port=0, port_file=port_file, started=lambda url: None)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    arguments = parser.parse_args()
    rows = []
    for streams in (16, 64):
        with serving(SERVER, streams, 0) as (process, port):
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
    save(RESULTS, {"rows": rows, "rounds": arguments.rounds}, "tidewire", "torch", "uvicorn")


if __name__ == "__main__":
    main()
