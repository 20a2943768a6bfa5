"""CPU time of a client and a server that exchange arrays of numbers, compared with `json.loads` of the same bytes.

A client process sends `--items` inputs through `Client.map`, and the function returns an array of `--numbers` floats
for each input, as a model that computes embeddings does. The numbers are normalized vectors of 32-bit floats, so each
takes about 20 bytes as JSON. The server and the client run in separate processes. Before and after each call of `map`,
the client process parses the JSON text of all arrays with `json.loads` and, if it is installed, with orjson, so that a
change of the machine's load affects both. Each run starts a new client process, and the server stays the same.

The function exists in these variants:

    one call per batch           a function with `batch=True`, which returns a list of lists
    numpy, one call per batch    the same function, which returns a numpy array
    one call per input           a plain function that gets one input and returns a list

Results are seconds of CPU time, medians over the runs. The values that the client receives are compared with the
expected values. Target: at most 5 × `json.loads` for the client and for the server.
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jobs import cpu_seconds
from measured import save

ITEMS = 5_000
NUMBERS = 384
WARM_UP = 64
"""Number of inputs that the client sends before the measurement."""

VARIANTS = {"embed_batch": "one call per batch", "embed": "one call per input"} | (
    {"embed_numpy": "numpy, one call per batch"} if find_spec("numpy") else {}
)


def vectors(items: int, numbers: int) -> list[list[float]]:
    """Return the same normalized random vectors in each process."""
    draw = random.Random(384)
    made = []
    for _ in range(items):
        vector = [draw.gauss() for _ in range(numbers)]
        length = math.hypot(*vector)
        made.append(array("f", [x / length for x in vector]).tolist())
    return made


def serve(items: int, numbers: int, port_file: str) -> None:
    from tidewire_server import Server

    server = Server()
    known = vectors(items, numbers)

    @server.endpoint
    def embed(n: int) -> list[float]:
        return known[n]

    @server.endpoint(batch=True, max_batch_size=64)
    def embed_batch(n: list[int]) -> list[list[float]]:
        return [known[each] for each in n]

    if "embed_numpy" in VARIANTS:
        import numpy as np

        rows = np.array(known, dtype=np.float32)

        @server.endpoint(batch=True, max_batch_size=64)
        def embed_numpy(n: list[int]) -> list[list[float]]:
            return rows[n]

    server.run(port=0, port_file=port_file, started=lambda _: None)


def read(items: int, numbers: int, url: str, server: int) -> dict[str, float]:
    """Run all variants once in this process, and return the CPU times of this process and of the server."""
    from tidewire import Client

    expected = vectors(items, numbers)
    text = json.dumps(expected, separators=(",", ":"))
    parsers: dict[str, Callable[[str], object]] = {"json.loads": json.loads}
    if find_spec("orjson"):
        import orjson

        parsers["orjson.loads"] = orjson.loads
    parsing: dict[str, list[float]] = {name: [] for name in parsers}

    def parse() -> None:
        for name, loads in parsers.items():
            for _ in range(3):
                began = time.process_time()
                loads(text)
                parsing[name].append(time.process_time() - began)

    found = {"bytes": float(len(text))}
    inputs = [{"n": n} for n in range(items)]
    with Client(url) as client:
        parse()
        for endpoint in VARIANTS:
            list(client.map(endpoint, inputs[:WARM_UP]))
            of_server, of_client = cpu_seconds(server), time.process_time()
            values = list(client.map(endpoint, inputs))
            found[f"{endpoint} client"] = time.process_time() - of_client
            found[f"{endpoint} server"] = cpu_seconds(server) - of_server
            if values != expected:
                sys.exit(f"{endpoint}: the values are wrong, so the measurement is invalid")
            del values
            parse()
    return found | {name: statistics.median(durations) for name, durations in parsing.items()}


def measure(items: int, numbers: int, runs: int) -> dict[str, float]:
    """Return the median of each measurement."""
    sizes = [str(items), str(numbers)]
    found: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        process = subprocess.Popen([sys.executable, __file__, "serve", *sizes, str(port_file)])
        try:
            while not port_file.exists():
                if process.poll() is not None:
                    raise RuntimeError("the server did not start")
                time.sleep(0.02)
            url = f"http://127.0.0.1:{port_file.read_text().strip()}"
            for _ in range(runs):
                command = [sys.executable, __file__, "read", *sizes, url, str(process.pid)]
                output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                found.append(json.loads(output))
                print("  ".join(f"{name} {value:.2f}" for name, value in found[-1].items()), flush=True)
        finally:
            process.terminate()
            process.wait(30)
    return {name: statistics.median(run[name] for run in found) for name in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=ITEMS)
    parser.add_argument("--numbers", type=int, default=NUMBERS)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "arrays.json")
    options = parser.parse_args()
    found = measure(options.items, options.numbers, options.runs)
    floor = found["json.loads"]
    rows: dict[str, Any] = {}
    print(f"\n{'':28}{'client, s':>12}{'× json.loads':>14}{'server, s':>12}{'× json.loads':>14}")
    for endpoint, name in VARIANTS.items():
        rows[name] = {side: found[f"{endpoint} {side}"] for side in ("client", "server")}
        print(
            f"{name:28}"
            + "".join(f"{seconds:12.2f}{seconds / floor:14.2f}" for seconds in rows[name].values())
        )
    parsers = {name: found[name] for name in ("json.loads", "orjson.loads") if name in found}
    print("  ".join(f"{name} {seconds:.2f} s" for name, seconds in parsers.items()))
    report = {
        "items": options.items,
        "numbers": options.numbers,
        "runs": options.runs,
        "bytes": int(found["bytes"]),
        "parsers": parsers,
        "seconds": rows,
    }
    save(options.out, report, "tidewire", "pydantic", "orjson", "numpy", "httpx2", "uvicorn")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", items, numbers, port_file]:
            serve(int(items), int(numbers), port_file)
        case ["read", items, numbers, url, server]:
            print(json.dumps(read(int(items), int(numbers), url, int(server))))
        case _:
            main()
