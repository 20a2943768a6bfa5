"""What the first call of a fresh process costs, beside httpx doing the same request.

Each run is a new interpreter. Its CPU time is the operating system's, for the whole process: imports, TLS context, the
request, and the end. The server is a process of its own. The rows:

    python              an interpreter that does nothing
    httpx               import httpx; httpx.Client().get(URL)
    Client              from tidewire import Client; Client(URL).discover()
    AsyncClient         the same, awaited
    tidewire --version  the command line

The longest time for which the first call of an AsyncClient holds the event loop is measured by a task that wakes all
the time while the call runs.

    python bench/start.py             21 runs of each, interleaved
    python bench/start.py --runs 5    quicker
"""

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from measured import save

SERVER = """
from tidewire_server import Server

server = Server()

@server.endpoint
def double(n: int) -> int:
    return 2 * n

server.run(port=0, started=lambda url: print(url, flush=True))
"""

PROGRAMS = {
    "python": "pass",
    "httpx": "import httpx; httpx.Client().get({url!r} + '/v1').json()",
    "Client": "from tidewire import Client; Client({url!r}).discover()",
    "AsyncClient": """
import asyncio
from tidewire import AsyncClient

async def main():
    async with AsyncClient({url!r}) as client:
        await client.discover()

asyncio.run(main())
""",
    "tidewire --version": """
import sys
from tidewire.__main__ import main

sys.argv = ["tidewire", "--version"]
main()
""",
}

LOOP_HELD = """
import asyncio, time

longest = 0.0

async def watch():
    global longest
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now

async def main():
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    from tidewire import AsyncClient
    async with AsyncClient({url!r}) as client:
        await client.discover()
    watching.cancel()
    print(longest)

asyncio.run(main())
"""


def cpu_seconds(code: str) -> float:
    """User and system time of one interpreter that runs this."""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a run ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def loop_held(url: str) -> float:
    """Seconds for which the first call of an AsyncClient holds the event loop, imports included."""
    code = LOOP_HELD.format(url=url)
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def measure(url: str, runs: int) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    held: list[float] = []
    for turn in range(runs):
        for name, code in PROGRAMS.items():
            found[name].append(cpu_seconds(code.format(url=url)))
        held.append(loop_held(url))
        print(f"run {turn + 1} of {runs}", flush=True)
    rows = {
        name: {"median": statistics.median(one), "min": min(one), "max": max(one)}
        for name, one in found.items()
    }
    return {"runs": runs, "cpu_seconds": rows, "loop_held_seconds": statistics.median(held)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=21, metavar="N", help="runs of each program (default: 21)"
    )
    parser.add_argument(
        "--json", type=Path, default=Path(__file__).parent / "results/start.json", metavar="FILE"
    )
    options = parser.parse_args()
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            for code in PROGRAMS.values():  # compiles the modules
                cpu_seconds(code.format(url=url))
            found = measure(url, options.runs)
        finally:
            server.terminate()
    base = found["cpu_seconds"]["httpx"]["median"]
    print()
    for name, row in found["cpu_seconds"].items():
        print(
            f"{name:20} {row['median']:.3f} s of CPU   {row['median'] / base:5.2f} × httpx   ({row['min']:.3f} … {row['max']:.3f})"
        )
    print(
        f"{'event loop held':20} {found['loop_held_seconds'] * 1000:.0f} ms at most in the first call of an AsyncClient, median"
    )
    save(options.json, found, "httpx", "pydantic", "anyio", "typer")


if __name__ == "__main__":
    main()
