"""End-to-end cost of the most probable tokens: 64 streams of 128 tokens over HTTP, with the default model.

The server runs in a separate process with one torch thread, and raw readers read all streams. The script alternates
between the numbers of most probable tokens, so that a change of the machine's load affects all of them. The tax is the
additional time compared with the same generations without most probable tokens, as CPU time of the server and as wall
time.

    python bench/engine_http.py --rounds 5
"""

import argparse
import os
import statistics
from pathlib import Path

from engine_load import Load, run, serving
from measured import save

RESULTS = Path(__file__).parent / "results" / "engine_http.json"
STREAMS, TOKENS = 64, 128
BARS = {5: 10, 20: 15, 64: 25}

SERVER = """
import sys
from tidewire_server import Server
from tidewire_server.generation import add_generate

server = Server()
add_generate(server, device=sys.argv[2], threads=1, slots=64, max_top=64)
server.run(port=0, port_file=sys.argv[1], started=lambda url: None)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="torch device (default: cpu)")
    arguments = parser.parse_args()
    found: dict[int, list[Load]] = {n: [] for n in (0, *BARS)}
    with serving(SERVER, arguments.device) as (process, port):
        run(process, port, STREAMS, 16)
        for _ in range(arguments.rounds):
            for n, loads in found.items():
                loads.append(run(process, port, STREAMS, TOKENS, top_logprobs=n))
    rows = []
    for n, loads in found.items():
        pairs = list(zip(loads, found[0], strict=True))
        row = {
            "top": n,
            "tokens_per_second": statistics.median(one.tokens / one.seconds for one in loads),
            "cpu_micros_per_token": statistics.median(1e6 * one.cpu_seconds / one.tokens for one in loads),
            "cpu_tax": 100 * statistics.median(one.cpu_seconds / base.cpu_seconds - 1 for one, base in pairs),
            "time_tax": 100 * statistics.median(one.seconds / base.seconds - 1 for one, base in pairs),
            "bytes_per_token": loads[-1].bytes / loads[-1].tokens,
        }
        rows.append(row)
        bar = f" (target {BARS[n]} %)" if n in BARS else ""
        print(
            f"top_logprobs {n}: {row['tokens_per_second']:.0f} tokens/s, {row['cpu_micros_per_token']:.0f} µs of CPU and "
            f"{row['bytes_per_token']:.0f} bytes per token; tax {row['cpu_tax']:+.1f} % of CPU, "
            f"{row['time_tax']:+.1f} % of time{bar}"
        )
    save(
        RESULTS,
        {"rows": rows, "bars": BARS, "rounds": arguments.rounds, "load": os.getloadavg()[0]},
        "tidewire",
        "torch",
        "transformers",
    )


if __name__ == "__main__":
    main()
