"""Bytes per token that it costs to continue a text after a restart of the server.

So that a text can continue, each of its events has the ids of its tokens. The script generates the same texts with the
default model on two servers whose log is a SQLite file, one with `on_restart="rerun"` and one with `"continue"`. Each
server runs in a separate process with one torch thread, and raw readers read all streams.

    python bench/engine_restart.py --rounds 3
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from engine_load import Load, run, serving
from measured import save

RESULTS = Path(__file__).parent / "results" / "engine_restart.json"
STREAMS, TOKENS = 16, 256
MODES = ("rerun", "continue")
TOPS = (0, 5)

SERVER = """
import sys
from tidewire_server import Server
from tidewire_server.generation import add_generate

port_file, log, on_restart = sys.argv[1:]
server = Server(log=f"sqlite:///{log}")
add_generate(server, device="cpu", threads=1, on_restart=on_restart)
server.run(port=0, port_file=port_file, started=lambda url: None)
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[tuple[int, str], list[Load]] = {(top, mode): [] for top in TOPS for mode in MODES}
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(SERVER, Path(folder, "rerun.db"), "rerun") as rerun,
        serving(SERVER, Path(folder, "continue.db"), "continue") as continued,
    ):
        servers = {"rerun": rerun, "continue": continued}
        for process, port in servers.values():
            run(process, port, STREAMS, 16)
        for _ in range(arguments.rounds):
            for (top, mode), loads in found.items():
                loads.append(run(*servers[mode], STREAMS, TOKENS, top_logprobs=top))
    rows = []
    for (top, mode), loads in found.items():
        row = {
            "top": top,
            "on_restart": mode,
            "bytes_per_token": statistics.median(one.bytes / one.tokens for one in loads),
        }
        rows.append(row)
        print(f"top_logprobs {top}, {mode}: {row['bytes_per_token']:.0f} bytes per token")
    save(
        RESULTS,
        {"rows": rows, "rounds": arguments.rounds, "load": os.getloadavg()[0]},
        "tidewire",
        "torch",
        "transformers",
    )


if __name__ == "__main__":
    main()
