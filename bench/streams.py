"""Latency and cost of token streams, compared with sse-starlette, FastAPI and gradio in the same run.

steady      100 streams, then 600 and 1,000, of 50 tokens per second each. One process serves, and one process reads all
            streams through raw sockets. Measured: the delay of each token after its due time at the reader, and the server's
            CPU time. Targets: with 100 streams, 99 % of the tokens within 20 ms, at less than half a core; with 600 streams,
            a 99th percentile of at most 1/5 of sse-starlette's; no token lost. On a fast machine, 600 streams saturate
            no server, and 1,000 are near the limit.
isolated    300 streams of 50 tokens per second, so that each token is an event of its own. Measured: the server's CPU time
            per event, including its share of the end of the stream, as the median of five rounds in which the servers
            alternate. `raw ASGI` shows the cost of the function and of one system call per event: it sends prepared bytes
            and keeps no state, so no server on uvicorn can be faster. `sends` is the number of received pieces per event.
            Target: at most 0.8 × sse-starlette.
first       the time from a submit to the first event on the wire, for one job after another. Target: 3 ms.
history     the workload of Gradio's pull request 7102, with the complete server and client of each project. The client
            runs in a separate process. Measured: wall time, CPU time of the server and peak memory of the client, for
            N = 2,000 and with --full also for N = 20,000. Targets at N = 20,000: at most 1/60 of gradio's time, and a
            memory growth of the client of at most 3 × the size of the document.

    python bench/streams.py [steady] [isolated] [first] [history] [--full] [--seconds S]
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ticking
from measured import installed, save
from uvloop import run  # fast event loop, so that the reader is not the bottleneck
from wire import GRADIO, GROW, OURS, serving

RATE = 50
ROUNDS = 5
ISOLATED_STREAMS = 300
PARTS = ("steady", "isolated", "first", "history")


def cpu(process: int) -> float:
    """CPU time of a process in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- raw socket readers


class Reader(asyncio.Protocol):
    """Reader that records the delay of each token. A token is its due time in seconds, followed by a comma."""

    TOKEN = re.compile(rb"(\d+\.\d{4}),")

    def __init__(self, request: bytes, ends: "asyncio.Future[None]") -> None:
        self.request = request
        self.ends = ends
        self.delays: list[float] = []
        self.pieces = 0
        self.rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self.request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self.pieces += 1
        data = self.rest + data
        end = 0
        for found in self.TOKEN.finditer(data):
            self.delays.append(now - float(found[1]))
            end = found.end()
        self.rest = data[max(end, len(data) - 32) :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ends.done():
            self.ends.set_result(None)


async def read_all(port: int, ask: Any, streams: int, n: int, rate: float, process: int) -> dict[str, Any]:
    """Open streams one after another and read them to the end. The CPU time excludes the opening of the streams."""
    loop = asyncio.get_running_loop()
    readers = []
    spread = streams / 500  # seconds in which all streams are opened
    before = cpu(process)
    began = time.monotonic()
    for number in range(streams):
        # All streams start sending after the last one was opened. Their starts are spread evenly over one token interval.
        phase = began + spread + 0.3 + (number / streams) / rate - time.monotonic()
        reader = Reader(ask(port, n, rate, max(0.0, phase)), loop.create_future())
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)
        readers.append(reader)
        await asyncio.sleep(max(0.0, began + spread * (number + 1) / streams - time.monotonic()))
    opened, opened_at = cpu(process), time.monotonic()
    await asyncio.gather(*(reader.ends for reader in readers))
    delays = sorted(delay for reader in readers for delay in reader.delays)
    return {
        "late": delays,
        "lost": streams * n - len(delays),
        "pieces": sum(reader.pieces for reader in readers),
        "opening": opened - before,
        "cpu": cpu(process) - opened,
        "seconds": time.monotonic() - opened_at,
    }


def lateness(found: dict[str, Any], within: float) -> dict[str, Any]:
    delays = found.pop("late")
    share = sum(one <= within for one in delays) / max(1, len(delays))
    return found | {
        "within": share,
        "p50_ms": delays[len(delays) // 2] * 1000 if delays else None,
        "p99_ms": delays[int(len(delays) * 0.99)] * 1000 if delays else None,
        "core": found["cpu"] / found["seconds"],
    }


# --- measurements


async def gradio_all(port: int, streams: int, n: int, process: int) -> dict[str, Any]:
    """Measure streams through gradio's queue: each stream joins the queue and reads the events of its session."""
    import uuid

    from wire import request

    config = json.loads((await asyncio.to_thread(request, port, "GET", "/config"))[0])
    index = next(one["id"] for one in config["dependencies"] if one["api_name"] == "tick")
    loop, readers, before = asyncio.get_running_loop(), [], cpu(process)
    began = time.monotonic()
    for number in range(streams):
        session = uuid.uuid4().hex
        reader = Reader(
            ticking.get(port, f"/gradio_api/queue/data?session_hash={session}"), loop.create_future()
        )
        phase = max(0.0, began + streams / 100 + 0.5 + (number / streams) / RATE - time.monotonic())
        join = {"data": [n, RATE, phase], "fn_index": index, "session_hash": session}
        await asyncio.to_thread(request, port, "POST", "/gradio_api/queue/join", join)
        await loop.create_connection(lambda reader=reader: reader, "127.0.0.1", port)
        readers.append(reader)
    opened, opened_at = cpu(process), time.monotonic()
    await asyncio.gather(*(reader.ends for reader in readers))
    delays: list[float] = []
    for reader in readers:
        # The first and last messages repeat the whole value. Count each token only once.
        delays += reader.delays[:n]
    return {
        "late": sorted(delays),
        "lost": streams * n - len(delays),
        "opening": opened - before,
        "cpu": cpu(process) - opened,
        "seconds": time.monotonic() - opened_at,
    }


def steady(seconds: float, gradio: bool) -> list[dict[str, Any]]:
    rows = []
    for streams, within in ((100, 0.020), (600, 0.025), (1_000, 0.025)):
        n = int(RATE * seconds)
        asked = ticking.servers(gradio and streams == 100)
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
        for turn in range(ROUNDS):
            for name, (source, ask) in asked.items():
                if ask is None and turn:  # gradio is slow, so it runs only once
                    continue
                with serving(source) as (port, process):
                    if ask is None:
                        one = run(gradio_all(port, streams, n, process))
                    else:
                        one = run(read_all(port, ask, streams, n, RATE, process))
                found[name].append(lateness(one, within))
        for name, turns in found.items():
            middle = sorted(turns, key=lambda each: each["p99_ms"])[len(turns) // 2]
            row = {"server": name, "streams": streams, "within_ms": within * 1000} | middle
            row |= {
                "lost": sum(each["lost"] for each in turns),
                "all_p99_ms": [each["p99_ms"] for each in turns],
            }
            rows.append(row)
            print(
                f"{name:14} {streams:5} x {RATE}/s: {row['within']:7.2%} within {row['within_ms']:.0f} ms, "
                f"p50 {row['p50_ms']:.1f}, p99 {row['p99_ms']:.1f} ms, {row['core']:.0%} of a core, "
                f"lost {row['lost']}; p99 of all rounds {[round(each, 1) for each in row['all_p99_ms']]}"
            )
    return rows


def isolated(seconds: float) -> list[dict[str, Any]]:
    n = int(RATE * seconds)
    events = ISOLATED_STREAMS * n
    asked = ticking.servers() | {"raw ASGI": (ticking.RAW, ticking.ask_starlette)}
    if installed("fastapi"):
        asked["fastapi.sse"] = (ticking.FASTAPI, ticking.ask_starlette)
    each: dict[str, list[float]] = {name: [] for name in asked}
    pieces: dict[str, int] = {}
    for _ in range(ROUNDS):
        for name, (source, ask) in asked.items():
            with serving(source) as (port, process):
                found = run(read_all(port, ask, ISOLATED_STREAMS, n, RATE, process))
            if found["lost"]:
                sys.exit(f"{name}: {found['lost']} tokens were lost, so the measurement is invalid")
            each[name].append(found["cpu"] / events)
            pieces[name] = found["pieces"]
    rows = []
    for name, durations in each.items():
        row = {
            "server": name,
            "streams": ISOLATED_STREAMS,
            "us": statistics.median(durations) * 1e6,
            "all_us": [each * 1e6 for each in durations],
            "sends": pieces[name] / events,
        }
        rows.append(row)
        print(f"{name:14} {row['us']:6.1f} us per event, {row['sends']:.2f} sends per event")
    return rows


def first(count: int = 150) -> list[dict[str, Any]]:
    """Measure the milliseconds from the first byte of a submit to the first event with an id, on a new connection."""
    import socket

    durations = []
    with serving(ticking.OURS.replace("{window}", "0.005")) as (port, _):
        for _ in range(count):
            request = ticking.post(port, "/v1/endpoints/hello/jobs", {"input": {}}, "text/event-stream")
            began = time.perf_counter()
            with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                connection.sendall(request)
                received = b""
                while b"id:1-1\n" not in received:
                    received += connection.recv(65536)
                durations.append((time.perf_counter() - began) * 1000)
                while connection.recv(65536):
                    pass
    durations = sorted(durations[count // 3 :])
    row = {
        "server": "tidewire",
        "p50_ms": statistics.median(durations),
        "p99_ms": durations[int(len(durations) * 0.99)],
    }
    print(f"first event: p50 {row['p50_ms']:.2f}, p99 {row['p99_ms']:.2f} ms")
    return [row]


OUR_CLIENT = """
import json, resource, sys, time
from tidewire import Client
port, n = int(sys.argv[1]), int(sys.argv[2])
with Client(f"http://127.0.0.1:{port}") as client:
    sum(1 for _ in client.submit("grow", n=1))
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    job = client.submit("grow", n=n)
    updates = sum(1 for _ in job)
    value = job.result()
    seconds = time.perf_counter() - began
text = value[1]["content"]
"""

GRADIO_CLIENT = """
import json, resource, sys, time
from gradio_client import Client
port, n = int(sys.argv[1]), int(sys.argv[2])
client = Client(f"http://127.0.0.1:{port}", verbose=False)
sum(1 for _ in client.submit(1, api_name="/grow"))
idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
job = client.submit(n, api_name="/grow")
updates = 0
for value in job:
    updates += 1
seconds = time.perf_counter() - began
content = value[1]["content"]
text = content if isinstance(content, str) else content[0]["text"]
"""

REPORT = """
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
right = text.strip() == "".join(f" {i}" for i in range(n)).strip()
print(json.dumps({"seconds": seconds, "updates": updates, "idle_kib": idle, "peak_kib": peak, "right": right}))
"""


def history(full: bool) -> list[dict[str, Any]]:
    rows = []
    sides = {"tidewire": (OURS.format(grow=GROW, window=0.005), OUR_CLIENT)}
    if installed("gradio"):
        sides["gradio"] = (GRADIO.format(grow=GROW), GRADIO_CLIENT)
    for n in (2_000, 20_000) if full else (2_000,):
        for name, (source, client) in sides.items():
            with serving(source) as (port, process):
                before = cpu(process)
                command = [sys.executable, "-c", client + REPORT, str(port), str(n)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                durations = cpu(process) - before
            if done.returncode or not (row := json.loads(done.stdout.splitlines()[-1]))["right"]:
                sys.exit(f"{name}: {done.stdout[-500:]}{done.stderr[-2000:]}")
            row = {"server": name, "n": n, "server_cpu": durations} | row
            rows.append(row)
            print(
                f"{name:10} N = {n:6}: {row['seconds']:6.2f} s, server CPU {durations:5.2f} s, {row['updates']} updates, "
                f"client memory {row['idle_kib'] / 1024:.0f} MiB idle, {(row['peak_kib'] - row['idle_kib']) / 1024:.1f} MiB growth"
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument(
        "--full", action="store_true", help="also measure N = 20,000 in history, and gradio in steady"
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="duration of each steady measurement (%(default)s)"
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "streams.json")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    asked = options.parts or PARTS

    found: dict[str, Any] = json.loads(options.json.read_text()) if options.json.exists() else {}
    if "steady" in asked:
        found["steady"] = steady(options.seconds, options.full)
    if "isolated" in asked:
        found["isolated"] = isolated(options.seconds)
    if "first" in asked:
        found["first"] = first()
    if "history" in asked:
        found["history"] = history(options.full)
    save(options.json, found, "tidewire", "uvicorn", "sse-starlette", "fastapi", "gradio")


if __name__ == "__main__":
    main()
