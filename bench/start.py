"""CPU time of a new interpreter up to its first response, compared with httpx for the same request.

Each run starts a new interpreter, which prints its CPU time (`time.process_time`: all threads, from the start of the
process) as soon as it has the response. The script also records the CPU time that the operating system reports for the
whole process, including its exit. The modules are compiled before the measurement, into a temporary folder. The server
runs in a separate process. The rows are:

    python                      an interpreter that does nothing
    httpx                       import httpx; httpx.Client().get(URL)
    httpx.AsyncClient, pydantic a request without loading certificates; a pydantic model of one member validates the
                                response. This is the minimum cost of a client on asyncio, httpx and pydantic
    Client                      from tidewire import Client; Client(URL).discover()
    AsyncClient                 the same with AsyncClient and `await`
    tidewire --version          the command line

Three of these programs also run without trio and click. If trio and click are installed, httpx imports its command
line, with click and rich, and httpcore imports trio. A development environment has these packages, but most users do
not.

The script also measures how long an AsyncClient blocks the event loop: in its first calls (constructor, `discover`,
`run`), in the first call to a server with TLS, and during the import if the loop already runs. A task that wakes up in
each iteration of the loop records the longest time between two wake-ups, as wall time and as CPU time of the process
(all threads). The CPU time does not include the time in which other processes run.

    python bench/start.py             21 runs of each program, interleaved
    python bench/start.py --runs 5    faster
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
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

FLOOR = """
import asyncio, ssl
import httpx, pydantic

class Discovery(pydantic.BaseModel):
    protocol: str

async def main():
    async with httpx.AsyncClient(verify=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)) as client:
        Discovery.model_validate_json((await client.get({url!r} + "/v1")).content)

asyncio.run(main())
"""

PROGRAMS = {
    "python": "",
    "httpx": "import httpx; httpx.Client().get({url!r} + '/v1').json()",
    "httpx.AsyncClient, pydantic": FLOOR,
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

WITHOUT = "import sys; sys.modules.update(click=None, trio=None)\n"
ALONE = ("httpx", "httpx.AsyncClient, pydantic", "Client")
PROGRAMS |= {f"{name}, without trio and click": WITHOUT + PROGRAMS[name] for name in ALONE}

SAY_CPU = "\nimport time; print(time.process_time())"

LOOP_HELD = """
import asyncio, time
{before}

longest = [0.0, 0.0]

async def watch():
    last = [time.perf_counter(), time.process_time()]
    while True:
        await asyncio.sleep(0)
        now = [time.perf_counter(), time.process_time()]
        longest[:] = [max(most, here - there) for most, here, there in zip(longest, now, last)]
        last = now

async def use():
    {work}

async def main():
    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    await use()
    await asyncio.sleep(0)
    watching.cancel()
    print(*longest)

asyncio.run(main())
"""

IMPORT = "from tidewire import AsyncClient"

HOLDS = {
    "the first calls": (
        IMPORT,
        """
    async with AsyncClient({url!r}) as client:
        await client.discover()
        assert await client.run("double", n=2) == 4""",
    ),
    "the first call with TLS": (
        f"{IMPORT}\nfrom tidewire.errors import TransportError",
        # The server does not support TLS. The client loads its certificates before it detects that.
        """
    try:
        async with AsyncClient({url!r}.replace("http:", "https:")) as client:
            await client.discover()
    except TransportError:
        pass""",
    ),
    "the import, while the loop runs": ("", IMPORT),
}


def in_fresh_process(code: str, environment: Mapping[str, str]) -> tuple[list[float], float]:
    """Run a program in a new interpreter.

    Returns the numbers in the last line of its output, and the CPU time (user and system) of the process in seconds.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    with process.stdout as output:
        text = output.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"a run failed with exit code {process.returncode}")
    numbers = [float(one) for one in text.splitlines()[-1].split()]
    return numbers, usage.ru_utime + usage.ru_stime


def measure(url: str, runs: int, environment: Mapping[str, str]) -> dict[str, Any]:
    programs = {name: code.format(url=url) + SAY_CPU for name, code in PROGRAMS.items()}
    holds = {
        name: LOOP_HELD.format(before=before, work=work.format(url=url))
        for name, (before, work) in HOLDS.items()
    }
    for code in (programs | holds).values():  # compiles the modules
        in_fresh_process(code, environment)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    held: dict[str, list[list[float]]] = {name: [] for name in holds}
    for turn in range(runs):
        for name, code in programs.items():
            (first,), whole = in_fresh_process(code, environment)
            found[name].append((first, whole))
        for name, code in holds.items():
            held[name].append(in_fresh_process(code, environment)[0])
        print(f"run {turn + 1} of {runs}", flush=True)
    rows = {}
    for name, one in found.items():
        firsts, wholes = zip(*one, strict=True)
        rows[name] = {
            "median": statistics.median(firsts),
            "min": min(firsts),
            "max": max(firsts),
            "whole_process": statistics.median(wholes),
        }
    return {
        "runs": runs,
        "cpu_seconds": rows,
        "loop_held_seconds": {
            name: dict(zip(("wall", "cpu"), map(statistics.median, zip(*one, strict=True)), strict=True))
            for name, one in held.items()
        },
    }


def base_of(name: str) -> str:
    """Return the name of the row with which a row is compared."""
    return "httpx, without trio and click" if "without" in name else "httpx"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=21, metavar="N", help="number of runs of each program (default: 21)"
    )
    parser.add_argument(
        "--json", type=Path, default=Path(__file__).parent / "results/start.json", metavar="FILE"
    )
    options = parser.parse_args()
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as compiled:
        environment["PYTHONPYCACHEPREFIX"] = compiled
        with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                found = measure(server.stdout.readline().strip(), options.runs, environment)
            finally:
                server.terminate()
    print()
    for name, row in found["cpu_seconds"].items():
        base = found["cpu_seconds"][base_of(name)]
        print(
            f"{name:51} {row['median']:.3f} s of CPU   {row['median'] / base['median']:5.2f} × httpx   "
            f"({row['min']:.3f} … {row['max']:.3f}; the whole process {row['whole_process']:.3f}, "
            f"{row['whole_process'] / base['whole_process']:.2f} ×)"
        )
    for name, seconds in found["loop_held_seconds"].items():
        print(
            f"event loop blocked by {name}: longest time {seconds['cpu'] * 1000:.0f} ms of CPU, "
            f"{seconds['wall'] * 1000:.0f} ms of wall time (medians)"
        )
    save(options.json, found, "httpx", "pydantic", "anyio", "typer")


if __name__ == "__main__":
    main()
