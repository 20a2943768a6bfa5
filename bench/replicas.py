"""Several servers on one PostgreSQL database: latency of tokens and cancels, resume at another server, and throughput.

All servers are processes of `tidewire serve` and `tidewire worker` on this machine, and PostgreSQL has its default settings.

- **Tokens**: the functions run at one server. Each job has two readers, one there and one at another server. The latency of an
  event is the time from its arrival at the first reader, which gets it once it is committed, to its arrival at the second one.
- **Cancel**: the time from the request for a cancel at another server until the function is cancelled.
- The same two without notifications, which the script takes away by a privilege of the database. Polls replace them.
- **Resume**: a job runs at a worker, and a server without functions is killed with SIGKILL while it serves a reader. The reader
  continues at another server, after an event from before the kill. The time from the kill to the next event is compared with the
  time that the same read takes while no server is killed.
- **Restart**: three servers stop as planned (SIGTERM) and start again, one after the other, while jobs that continue are read. Each
  reader does what a client does: after `goaway` it waits for `retry_ms`, and goes on at the next server. The result is the longest
  time that a reader waited between two events.
- **Batches**: 50 callers, each of which submits one job after the other, to an endpoint whose batches have up to 16 inputs and
  wait for 0.1 s, with one worker and with two. The result is the mean size of the batches in which the jobs ran.
- **Throughput**: jobs whose function computes for some ten milliseconds per token, one job at a time at each server, through
  one server and through two. The same computation in one and in two plain processes shows what the machine allows. PostgreSQL
  and the readers need the same cores.

Targets: at another server, tokens with a p99 of at most 50 ms (1.5 s without notifications) and a cancel within 100 ms (1.5 s);
resume with a median of at most 50 ms; no reader waits longer than 2 s during planned restarts; two servers at least 1.7 times as fast as one.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import uvloop
from jobs import HERE
from local_postgres import LocalPostgres, local_postgres
from measured import save
from postgres_load import TALK

from tidewire.protocol.sse import Decoder, Event

BATCH = 16
APP = f"""
import asyncio, hashlib, os, time
from collections.abc import AsyncIterator
from pathlib import Path
from tidewire_server import Append, Context, Server, Stream

server = Server(default_concurrency_limit=None)
block = bytes(int(os.environ["BLOCK"]))

{TALK}
@server.endpoint
async def hold(stream: Stream[str], cancelled: str) -> None:
    stream.append("started")
    try:
        await asyncio.Event().wait()
    finally:
        Path(cancelled).write_text(str(time.monotonic()))

@server.endpoint(on_restart="continue")
async def talk_on(n: int, rate: float, ctx: Context) -> AsyncIterator[Append[str]]:
    for number in range(len((ctx.previous or "").split()), n):
        yield Append(f" t{{number:04}}")
        await asyncio.sleep(1 / rate)

@server.endpoint(batch=True, max_batch_size={BATCH}, batch_timeout=0.1, concurrency_limit=1, max_queue_size=None)
def double(x: list[int]) -> list[int]:
    time.sleep(0.1)
    return [2 * each for each in x]

@server.endpoint(concurrency_limit=1, max_queue_size=None)
def compute(n: int, stream: Stream[str]) -> None:
    for number in range(n):
        hashlib.sha256(block)  # It releases the lock of the interpreter, as computations on arrays do.
        stream.append(f" t{{number:04}}")
"""

HTTP = httpx2.Client(timeout=60)
START_LIMIT = 60.0
STREAMS = 16
RATE = 20.0
"""Tokens per second of each stream. The store commits every 50 ms, so hardly any events are merged."""
BLOCK = 16_000_000
"""Number of bytes that the function hashes for each token, which takes 30 to 60 ms."""
PLAIN = """
import hashlib, os, time
block = bytes(int(os.environ["BLOCK"]))
end, tokens = time.monotonic() + 4, 0
while time.monotonic() < end:
    hashlib.sha256(block)
    tokens += 1
print(tokens)
"""
CALLERS = 50
TARGETS = {
    "token_p99_ms": 50,
    "cancel_ms": 100,
    "polled_ms": 1500,
    "resume_p50_ms": 50,
    "restart_ms": 2000,
    "speed_up": 1.7,
}


class Process:
    """Process of `tidewire serve` or `tidewire worker`."""

    def __init__(self, folder: Path, name: str, url: str, *arguments: str) -> None:
        self._folder = folder
        self._name = name
        command = "worker" if name.startswith("worker") else "serve"
        self._port_file = folder / f"{name}.port"
        self._port_file.unlink(missing_ok=True)
        path = os.pathsep.join(str(HERE / "src" / part) for part in ("reference_server", "client"))
        ports = () if command == "worker" else ("--port", "0", "--port-file", str(self._port_file))
        with (folder / f"{name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tidewire", command, str(folder / "app.py"), "--log", url),
                    *ports,
                    *arguments,
                ],
                env=os.environ | {"PYTHONPATH": path, "BLOCK": str(BLOCK)},
                stdout=log,
                stderr=log,
            )

    def wait_for_start(self) -> int:
        """Wait until the server listens, and return its port."""
        give_up = time.monotonic() + START_LIMIT
        while not (self._port_file.exists() and self._port_file.read_text()):
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self._folder / f"{self._name}.log").read_text())
            time.sleep(0.02)
        return int(self._port_file.read_text())

    def stop(self) -> None:
        """End the process as planned, and wait until it has ended."""
        self._process.terminate()
        if self._process.wait():
            raise RuntimeError((self._folder / f"{self._name}.log").read_text())

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running(folder: Path, url: str, **roles: tuple[str, ...]) -> Iterator[dict[str, Process]]:
    """Run processes during a `with` block. A caller may replace one that it has killed."""
    found = {name: Process(folder, name, url, *arguments) for name, arguments in roles.items()}
    try:
        yield found
    finally:
        for process in found.values():
            process.kill()


def post(port: int, path: str, body: Any = None) -> httpx2.Response:
    """Send a request that must succeed. The only client is created at the import, because this takes long."""
    return HTTP.post(f"http://127.0.0.1:{port}{path}", json=body).raise_for_status()


def submit(port: int, endpoint: str, **given: Any) -> str:
    """Submit a job, and return its id."""
    answer = post(port, f"/v1/endpoints/{endpoint}/jobs", {"input": given})
    return str(answer.json()["id"])


async def events(port: int, job: str, after: str = "") -> AsyncIterator[tuple[Event, float]]:
    """Read the stream of a job until its end or a cut. Yield each logged event, and `goaway`, with its time of arrival."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    cursor = f"Last-Event-ID: {after}\r\n" if after else ""
    writer.write(
        f"GET /v1/jobs/{job}/events HTTP/1.0\r\nHost: 127.0.0.1\r\n{cursor}Accept: text/event-stream\r\n\r\n".encode()
    )
    try:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                if not line.strip():
                    break
            decoder = Decoder()
            while data := await reader.read(65536):
                now = time.monotonic()
                for event in decoder.feed(data):
                    if event.id is not None or event.type == "goaway":
                        yield event, now
                    if event.type == "done":
                        return
    finally:
        writer.close()


async def arrivals(port: int, job: str) -> dict[str, float]:
    """Read a whole stream, and return the time of arrival of each diff."""
    return {str(event.id): at async for event, at in events(port, job) if event.type in {None, "message"}}


async def token_latencies(owner: int, other: int, seconds: float) -> list[float]:
    """Latencies of tokens at another server, in milliseconds."""
    jobs = [submit(owner, "talk", n=int(seconds * RATE), rate=RATE) for _ in range(STREAMS)]
    here = asyncio.gather(*(arrivals(owner, job) for job in jobs))
    there = await asyncio.gather(*(arrivals(other, job) for job in jobs))
    found = [
        1000 * (theirs[cursor] - at)
        for ours, theirs in zip(await here, there, strict=True)
        for cursor, at in ours.items()
        if cursor in theirs
    ]
    if len(found) < STREAMS * seconds * RATE / 4:
        raise RuntimeError(f"only {len(found)} events arrived at both readers")
    return found


async def until_started(port: int, job: str) -> None:
    """Read the stream of a job until its function has written."""
    async for event, _ in events(port, job):
        if "started" in event.data:
            break


def cancel_latency(folder: Path, owner: int, other: int) -> float:
    """Time from a request at another server until the function is cancelled, in milliseconds."""
    path = folder / "cancelled"
    path.unlink(missing_ok=True)
    job = submit(owner, "hold", cancelled=str(path))
    uvloop.run(until_started(owner, job))
    began = time.monotonic()
    post(other, f"/v1/jobs/{job}/cancel")
    while not (path.exists() and path.read_text()):
        time.sleep(0.001)
    return 1000 * (float(path.read_text()) - began)


def without_notifications(postgres: LocalPostgres, url: str) -> str:
    """Return the URL of the same database for a role that may not send notifications."""
    database = url.partition("@/")[2].partition("?")[0]
    postgres.execute("CREATE ROLE plain LOGIN")
    postgres.execute(f"GRANT CREATE ON DATABASE {database} TO plain")
    postgres.execute("REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC", url)
    return f"postgresql://plain@{url.partition('@')[2]}"


def measure_latencies(postgres: LocalPostgres, folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure tokens and cancels at another server, with notifications and without."""
    found = {}
    for name in ("notified", "polled"):
        url = postgres.new_database()
        if name == "polled":
            url = without_notifications(postgres, url)
        with running(folder, url, owner=(), other=("--no-functions",)) as processes:
            owner, other = (process.wait_for_start() for process in processes.values())
            tokens = uvloop.run(token_latencies(owner, other, seconds))
            cancels = [
                cancel_latency(folder, owner, other)
                for _ in range(rounds if name == "notified" else max(2, rounds // 5))
            ]
        found[name] = {
            "tokens": len(tokens),
            "token_p50_ms": statistics.median(tokens),
            "token_p99_ms": _p99(tokens),
            "cancels": len(cancels),
            "cancel_p50_ms": statistics.median(cancels),
            "cancel_max_ms": max(cancels),
        }
    return found


async def first_after(port: int, job: str, after: str) -> float:
    """Time at which the first event after a cursor arrives."""
    async for event, at in events(port, job, after):
        if event.type != "hello":
            return at
    raise RuntimeError("the stream ended before its next event")


async def resume_latency(process: Process, first: int, second: int, worker_job: str) -> tuple[float, float]:
    """Times of a read at the second server and of a resume there after the first one was killed, in milliseconds."""
    seen: list[str] = []
    killed = 0.0
    async for event, _ in events(first, worker_job):
        seen.append(str(event.id))
        if len(seen) == 10:
            began = time.monotonic()
            read = await first_after(second, worker_job, seen[5]) - began
            killed = time.monotonic()
            process.kill()
    return 1000 * read, 1000 * (await first_after(second, worker_job, seen[5]) - killed)


def measure_resume(postgres: LocalPostgres, folder: Path, rounds: int) -> dict[str, Any]:
    """Measure the resume of a reader whose server is killed."""
    url, front = postgres.new_database(), ("--no-functions",)
    reads, resumes = [], []
    with running(folder, url, first=front, second=front, worker=()) as processes:
        second = processes["second"].wait_for_start()
        for _ in range(rounds):
            first = processes["first"].wait_for_start()
            job = submit(second, "talk", n=1000, rate=RATE)
            read, resumed = uvloop.run(resume_latency(processes["first"], first, second, job))
            reads.append(read)
            resumes.append(resumed)
            post(second, f"/v1/jobs/{job}/cancel")
            processes["first"] = Process(folder, "first", url, *front)
    return {
        "kills": rounds,
        "read_p50_ms": statistics.median(reads),
        "resume_p50_ms": statistics.median(resumes),
        "resume_max_ms": max(resumes),
    }


async def longest_wait(ports: list[int], first: int, job: str) -> float:
    """Read a job to its end through planned restarts. Return the longest time between two events, in milliseconds."""
    at, cursor, longest, last = first, "", 0.0, time.monotonic()
    while True:
        wait = 0.02  # after a refused connection
        with contextlib.suppress(OSError):
            async for event, now in events(ports[at % len(ports)], job, cursor):
                if event.type == "goaway":
                    wait = json.loads(event.data)["retry_ms"] / 1000
                    continue
                longest, last, cursor = max(longest, now - last), now, str(event.id)
                if event.type == "done":
                    return 1000 * longest
        await asyncio.sleep(wait)
        at += 1


async def restart_waits(processes: dict[str, Process], start: Callable[[str], Process]) -> list[float]:
    """Restart each server, and return the longest wait of each reader."""
    ports = [process.wait_for_start() for process in processes.values()]
    jobs = [submit(ports[at % len(ports)], "talk_on", n=600, rate=RATE) for at in range(STREAMS)]
    readers = [asyncio.create_task(longest_wait(ports, at, job)) for at, job in enumerate(jobs)]
    for at, name in enumerate(processes):
        await asyncio.sleep(1)
        await asyncio.to_thread(processes[name].stop)
        processes[name] = start(name)
        ports[at] = await asyncio.to_thread(processes[name].wait_for_start)
    return await asyncio.gather(*readers)


def measure_restart(postgres: LocalPostgres, folder: Path) -> dict[str, Any]:
    """Measure how long readers wait while three servers restart one after the other."""
    url, given = postgres.new_database(), ("--shutdown-timeout", "1")
    with running(folder, url, first=given, second=given, third=given) as processes:
        waits = uvloop.run(restart_waits(processes, lambda name: Process(folder, name, url, *given)))
    return {"readers": len(waits), "p50_ms": statistics.median(waits), "max_ms": max(waits)}


async def batch_sizes(port: int, jobs: int) -> list[int]:
    """Run jobs from concurrent callers, and return the sizes of their batches."""

    async def call(http: httpx2.AsyncClient) -> list[int]:
        sizes = []
        for number in range(jobs):
            body = {"input": {"x": number}}
            job = (await http.post("/v1/endpoints/double/jobs", json=body)).raise_for_status().json()["id"]
            async for _ in events(port, job):
                pass
            found = (await http.get(f"/v1/jobs/{job}")).raise_for_status().json()
            sizes.append(found["state"]["items"][0]["batch"]["size"])
        return sizes

    async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        found = await asyncio.gather(*(call(http) for _ in range(CALLERS)))
    return [size for sizes in found for size in sizes]


def measure_batches(postgres: LocalPostgres, folder: Path, jobs: int) -> dict[str, float]:
    """Measure the mean size of batches with one worker and with two."""
    found = {}
    for name, workers in (("one", ("worker",)), ("two", ("worker", "worker_too"))):
        url = postgres.new_database()
        with running(folder, url, front=("--no-functions",), **dict.fromkeys(workers, ())) as processes:
            port = processes["front"].wait_for_start()
            for _ in workers:
                post(port, "/v1/endpoints/double/jobs", {"input": {"x": 0}})
            uvloop.run(batch_sizes(port, 2))
            found[name] = statistics.mean(uvloop.run(batch_sizes(port, jobs)))
    return found


async def _all(ports: list[int], jobs: list[str]) -> None:
    await asyncio.gather(*(arrivals(ports[at % len(ports)], job) for at, job in enumerate(jobs)))


def plain_speed_up() -> float:
    """Measure how many times as fast two plain processes compute as one."""
    tokens = []
    for processes in (1, 2):
        started = [
            subprocess.Popen(
                [sys.executable, "-c", PLAIN],
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"BLOCK": str(BLOCK)},
            )
            for _ in range(processes)
        ]
        tokens.append(sum(int(process.communicate()[0]) for process in started))
    return tokens[1] / tokens[0]


def measure_throughput(postgres: LocalPostgres, folder: Path, jobs: int, tokens: int) -> dict[str, Any]:
    """Measure tokens per second of functions that compute, through one server and through two."""
    found: dict[str, Any] = {}
    for name, roles in (("one", ("first",)), ("two", ("first", "second"))):
        url = postgres.new_database()
        with running(folder, url, **dict.fromkeys(roles, ())) as processes:
            ports = [process.wait_for_start() for process in processes.values()]
            uvloop.run(_all(ports, [submit(ports[0], "compute", n=1) for _ in ports]))
            began = time.monotonic()
            submitted = [submit(ports[at % len(ports)], "compute", n=tokens) for at in range(jobs)]
            uvloop.run(_all(ports, submitted))
            found[name] = jobs * tokens / (time.monotonic() - began)
    return {
        "tokens_per_second": found,
        "speed_up": found["two"] / found["one"],
        "plain_speed_up": plain_speed_up(),
    }


def _p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="number of cancels and of kills")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the streams")
    parser.add_argument("--tokens", type=int, default=100, help="tokens of each of 8 jobs that compute")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/replicas.json")
    options = parser.parse_args()
    with local_postgres() as postgres, tempfile.TemporaryDirectory() as name:
        if postgres is None:
            return
        folder = Path(name)
        (folder / "app.py").write_text(APP)
        latencies = measure_latencies(postgres, folder, options.rounds, options.seconds)
        for kind, row in latencies.items():
            print(
                f"{kind:9} tokens at another server: p50 {row['token_p50_ms']:.1f} ms, p99 {row['token_p99_ms']:.1f} ms; "
                f"cancel: p50 {row['cancel_p50_ms']:.1f} ms, max {row['cancel_max_ms']:.1f} ms",
                flush=True,
            )
        resume = measure_resume(postgres, folder, options.rounds)
        print(
            f"resume after a kill: p50 {resume['resume_p50_ms']:.1f} ms, max {resume['resume_max_ms']:.1f} ms; a read takes "
            f"{resume['read_p50_ms']:.1f} ms",
            flush=True,
        )
        restart = measure_restart(postgres, folder)
        print(
            f"planned restarts: the longest wait of {restart['readers']} readers is {restart['p50_ms']:.0f} ms in the median, "
            f"{restart['max_ms']:.0f} ms at most",
            flush=True,
        )
        batches = measure_batches(postgres, folder, options.rounds)
        print(
            f"mean size of a batch: {batches['one']:.1f} with one worker, {batches['two']:.1f} with two",
            flush=True,
        )
        throughput = measure_throughput(postgres, folder, 8, options.tokens)
        print(
            f"two servers compute {throughput['speed_up']:.2f} times as many tokens per second as one, and two plain processes "
            f"{throughput['plain_speed_up']:.2f} times as many"
        )
        result = {
            "targets": TARGETS,
            "latencies": latencies,
            "resume": resume,
            "restart": restart,
            "batches": batches,
            "throughput": throughput,
        }
        save(options.json, result, "tidewire", "psycopg", also={"PostgreSQL": postgres.version()})


if __name__ == "__main__":
    main()
