"""Start of a server whose log file contains waiting jobs: time until the port is open, and memory at that time.

A first server accepts the jobs for the text engine, each with a JSON Schema of about `--schema-bytes`, and is killed.
Its engine is a substitute that checks nothing and generates nothing, so that the jobs are submitted quickly. Then
`tidewire serve` starts with the log file. `--against TREE` also measures a second checkout with a copy of the file.

    python bench/restart.py --jobs 1000 --rounds 3
    python bench/restart.py --jobs 100 --against ../old
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2
from measured import save

HERE = Path(__file__).resolve().parent.parent

ACCEPTING = """
import asyncio
import sys
from tidewire_server import Server
from tidewire_server.generation.engine_interface import CORE_MEMBERS, EngineCapabilities
from tidewire_server.generation.generate_endpoint import add_engine


class Substitute:
    caps = EngineCapabilities(
        model="substitute", context=1024, max_top=20, concurrency=1, vocabulary=None,
        members=frozenset({"json_schema", "logprobs", "top_logprobs"}),
    )

    async def check(self, request):
        pass

    async def generate(self, request):
        await asyncio.sleep(3600)
        yield

    async def close(self):
        pass


log, jobs, port_file = sys.argv[1:]
server = Server(log=log, max_queue_size=int(jobs) or 1)
add_engine(server, Substitute())
server.run(port=0, port_file=port_file, started=lambda url: None)
"""


def schema(size: int) -> dict[str, Any]:
    """Return a JSON Schema of about this size in bytes, which takes long to compile."""
    patterns: dict[str, Any] = {}
    while len(json.dumps({"type": "object", "patternProperties": patterns})) < size:
        patterns[f"^[a-z]{{{len(patterns) + 1}}}$"] = {"type": "integer"}
    return {"type": "object", "patternProperties": patterns}


def environment(tree: Path) -> dict[str, str]:
    source = tree / "src"
    path = os.pathsep.join(str(source / name) for name in ("reference_server", "client"))
    return {**os.environ, "PYTHONPATH": path}


def start(tree: Path, folder: Path, *command: str) -> tuple["subprocess.Popen[bytes]", float]:
    """Start a server, and return it with the number of seconds until its port was open."""
    port_file = folder / "port"
    port_file.unlink(missing_ok=True)
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        env=environment(tree),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not port_file.exists():
        if process.poll() is not None:
            raise RuntimeError("the server did not start")
        time.sleep(0.01)
    return process, time.perf_counter() - began


def kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def fill(folder: Path, jobs: int, schema_bytes: int) -> None:
    """Write a log file with waiting jobs."""
    log = f"sqlite:///{folder / 'jobs.db'}"
    process, _ = start(HERE, folder, "-c", ACCEPTING, log, str(jobs), str(folder / "port"))
    try:
        body = {"input": {"prompt": "[", "max_tokens": 1, "json_schema": schema(schema_bytes)}}
        url = f"http://127.0.0.1:{int((folder / 'port').read_text())}/v1/endpoints/generate/jobs"
        with httpx2.Client() as http:
            for _ in range(jobs):
                http.post(url, json=body).raise_for_status()
    finally:
        kill(process)


def measure(tree: Path, filled: Path) -> dict[str, float]:
    """Start a server on a copy of a log file. Return the seconds until its port was open, and its memory in MiB."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in filled.glob("jobs.db*"):
            shutil.copy(file, folder)
        options = (
            "--log",
            f"sqlite:///{folder / 'jobs.db'}",
            "--port",
            "0",
            "--port-file",
            str(folder / "port"),
        )
        process, seconds = start(
            tree, folder, "-m", "tidewire_server", *options, "--device", "cpu", "--slots", "1"
        )
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        finally:
            kill(process)
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return {"seconds": seconds, "mib": int(resident.split()[1]) / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--schema-bytes", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--against", type=Path, help="second checkout of the repository, measured alternately"
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/restart.json")
    options = parser.parse_args()
    trees = {"this": HERE} | ({"against": options.against.resolve()} if options.against else {})
    results: dict[str, dict[str, float]] = {}
    for jobs in (0, options.jobs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            fill(folder, jobs, options.schema_bytes)
            runs = {
                tree: [measure(path, folder) for _ in range(options.rounds)] for tree, path in trees.items()
            }
        for tree, found in runs.items():
            medians = {key: statistics.median(each[key] for each in found) for key in found[0]}
            results[f"{tree}, {jobs} waiting jobs"] = medians
            print(
                f"{tree:<8} {jobs:5} waiting jobs   {medians['seconds']:7.2f} s   {medians['mib']:6.0f} MiB",
                flush=True,
            )
    save(options.json, {"schema_bytes": options.schema_bytes, "results": results}, "tidewire", "pydantic")


if __name__ == "__main__":
    main()
