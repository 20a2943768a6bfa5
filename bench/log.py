"""Cost of the log: appends in blocks of 100 events and in blocks of one event, replay, and recovery after a kill.

Each implementation of the store is measured through the interface that the server uses, `Log.append` and
`LogReader.read`. For comparison, the same run measures plain SQLite, once with one row and one commit per event, and
once with one row and one commit per block of 100 events. Plain SQLite has no store thread, no fencing and no saved
states. Results are CPU time of all threads and wall time, per event. "20 logs" means twenty concurrent writers that
share commits, as in a busy server.

Concurrent jobs: 1, 16, 64 and 256 writers append blocks of one event for some seconds, and each of them waits for its commit
before its next block. The results are blocks per second over all jobs, and the time that one append takes. PostgreSQL runs on
the same machine with its default settings, so each commit waits for the disk. Compare it with `SQLite, log_fsync`. Without
PostgreSQL, the script prints the reason and measures the other stores.

Kill: the script kills a server process while a reader follows a job, and starts the server again. The result is the
time from the kill to the first event of the new attempt. Most of this time is the start of a Python process, which is
also measured separately.

Targets for blocks of 100 events: at most 0.1 µs per event in memory, and at most 0.5 µs per event in SQLite with 20
logs.
"""

import argparse
import asyncio
import contextlib
import math
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import uvloop
from local_postgres import LocalPostgres, local_postgres
from measured import save

from tidewire.protocol.cursor import Cursor
from tidewire_server.job_log.snapshot_events import first_block
from tidewire_server.store.jobs_interface import NewJob
from tidewire_server.store.log_interface import Block, Log, StateAt
from tidewire_server.store.memory.memory_store import MemoryStore
from tidewire_server.store.records import JobRecord, QueueLimits, Retention
from tidewire_server.store.sqlite.sqlite_store import SqliteStore
from tidewire_server.store.store_interface import Store

BLOCK = 100
LOGS = 20
CONCURRENT = (1, 16, 64, 256)
"""Numbers of jobs that append at the same time."""
START_LIMIT = 60.0
NO_LIMITS = QueueLimits(math.inf, math.inf, math.inf)
RETENTION = Retention(600, 3600, 86_400, 86_400, 20_000, 1 << 40, 100_000, 1 << 30)
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(RETENTION),
    "SQLite": lambda folder: SqliteStore(folder / "log.db", RETENTION),
    "SQLite, log_fsync": lambda folder: SqliteStore(folder / "log.db", RETENTION, fsync=True),
}


def postgres_store(postgres: LocalPostgres, _: Path) -> Store:
    """Open a store in a new database."""
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    return PostgresStore(postgres.new_database(), RETENTION)


SERVER = """
import asyncio, sys
from tidewire_server import Server, Stream
server = Server(log="sqlite:///" + sys.argv[1], retry=0.01, max_attempts=1000)

@server.endpoint
async def talk(stream: Stream[str]) -> None:
    while True:
        stream.append("word ")
        await asyncio.sleep(0.005)

server.run(port=int(sys.argv[2]))
"""


class Costs(NamedTuple):
    """Costs per event, in microseconds."""

    append: float
    """CPU time of all threads for appending."""
    replay: float
    """CPU time of all threads for reading."""
    append_wall: float
    """Wall time for appending."""


def blocks(events: int, size: int) -> tuple[Block, list[Block]]:
    """Generate the blocks of one log before the measurement."""
    state = {"status": "queued", "items": [{"status": "queued", "value": ""}], "usage": {}, "notes": []}
    first, document, _ = first_block(state, ["/items/0/value"])
    generated, seq = [], 1
    for _ in range(events // size):
        frames = []
        for _ in range(size):
            seq += 1
            text = f" {seq}"
            document.apply(text)
            frames.append(b'id:1-%d\ndata:"%b"\n\n' % (seq, text.encode()))
        generated.append(Block(frames, StateAt(Cursor(1, seq), document.columns, document.mark())))
    return first, generated


async def open_log(store: Store, job: str, first: Block) -> Log:
    """Add a job, and become the writer of its log."""
    opened: list[Log] = []
    record = JobRecord(job, "e", "p", batch=False, created_at=time.time())
    await store.jobs.add(NewJob(record, b"{}", first, None, [], None, NO_LIMITS), opened.append)
    if not opened:  # In a store that several servers share, a new job has no writer yet.
        await store.jobs.claim(job)
        interrupted = await store.jobs.reopen(job)
        assert interrupted is not None
        opened.append(interrupted.log)
    return opened[0]


async def append_concurrently(make: Callable[[Path], Store], jobs: int, seconds: float) -> dict[str, float]:
    """Measure blocks of one event that many jobs append at the same time, for some seconds."""
    latencies: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        store = make(Path(folder))
        if store.replicas is not None:
            await store.replicas.beat()  # A server that is alone sends no notifications.
        state = {"status": "queued", "items": [{"status": "queued", "value": ""}], "usage": {}, "notes": []}
        opened = [
            await open_log(store, f"j{number}", first_block(state, ["/items/0/value"])[0])
            for number in range(jobs)
        ]

        async def write(log: Log) -> None:
            _, document, _ = first_block(state, ["/items/0/value"])
            seq = 1
            while (began := time.perf_counter()) < end:
                text = f" {seq % 1000:03}"
                document.apply(text)
                frames = [b'id:1-%d\ndata:"%b"\n\n' % (seq + 1, text.encode())]
                at = StateAt(Cursor(1, seq + 1), document.columns, document.mark())
                await log.append(Cursor(1, seq), Block(frames, at))
                latencies.append(time.perf_counter() - began)
                seq += 1

        start = time.perf_counter()
        end = start + seconds
        await asyncio.gather(*(write(log) for log in opened))
        took = time.perf_counter() - start
        await store.close()
    percentiles = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
    return {
        "blocks_per_second": len(latencies) / took,
        "p50_ms": 1000 * percentiles[49],
        "p99_ms": 1000 * percentiles[98],
    }


async def append_and_replay(make: Callable[[Path], Store], events: int, size: int, logs: int) -> Costs:
    """Measure appends to a store and a replay of all its logs."""
    with tempfile.TemporaryDirectory() as folder:
        store = make(Path(folder))
        works = [blocks(events // logs, size) for _ in range(logs)]
        opened = [await open_log(store, f"j{number}", first) for number, (first, _) in enumerate(works)]

        async def write(number: int) -> None:
            log, at = opened[number], Cursor(1, 1)
            for block in works[number][1]:
                await log.append(at, block)
                at = block.state.cursor

        wall, began = time.perf_counter(), time.process_time()
        await asyncio.gather(*(write(number) for number in range(logs)))
        durations, wall = time.process_time() - began, time.perf_counter() - wall
        began = time.process_time()
        for log in opened:
            at = Cursor(1, 0)
            while (chunk := await log.read(at, 64 * 1024)) is not None and chunk.frames:
                at = chunk.last
            assert at == log.extent().head
        replayed = time.process_time() - began
        await store.close()
    return Costs(1e6 * durations / events, 1e6 * replayed / events, 1e6 * wall / events)


def appended(make: Callable[[Path], Store], events: int, size: int, logs: int) -> Costs:
    return uvloop.run(append_and_replay(make, events, size, logs))


def plain_sqlite(events: int, size: int) -> Costs:
    """Measure plain SQLite with one table, and one row and one commit per block."""
    _, generated = blocks(events, size)
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(Path(folder) / "plain.db", isolation_level=None)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("CREATE TABLE log (job INTEGER, seq INTEGER, frames BLOB, PRIMARY KEY (job, seq))")
        wall, began = time.perf_counter(), time.process_time()
        for block in generated:
            db.execute("INSERT INTO log VALUES (1, ?, ?)", (block.last.seq, b"".join(block.frames)))
        durations, wall = time.process_time() - began, time.perf_counter() - wall
        began = time.process_time()
        assert sum(len(row[0]) > 0 for row in db.execute("SELECT frames FROM log ORDER BY seq")) == len(
            generated
        )
        replayed = time.process_time() - began
        db.close()
    return Costs(1e6 * durations / events, 1e6 * replayed / events, 1e6 * wall / events)


def measured(run: Callable[[], Costs], repetitions: int) -> dict[str, float]:
    found = [run() for _ in range(repetitions)]
    return {name: statistics.median(getattr(each, name) for each in found) for name in Costs._fields}


def kills(count: int) -> dict[str, float]:
    """Measure the median time in milliseconds from a kill to the first event of the new attempt."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "server.py")
        script.write_text(SERVER)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, str(script), f"{folder}/log.db", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        http = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}", limits=httpx2.Limits(max_keepalive_connections=0)
        )
        give_up = time.monotonic() + START_LIMIT
        while True:
            try:
                job = http.post("/v1/endpoints/talk/jobs", json={"input": {}}).json()["id"]
                break
            except httpx2.TransportError:
                assert time.monotonic() < give_up, f"the server did not start within {START_LIMIT:g} s"
                time.sleep(0.01)
        durations, starts = [], []

        def read_until(condition: Callable[[str], bool]) -> None:
            while True:
                try:
                    with http.stream("GET", f"/v1/jobs/{job}/events") as response:
                        for line in response.iter_lines():
                            if condition(line):
                                return
                except httpx2.TransportError:
                    time.sleep(0.002)

        for _ in range(count):
            read_until(lambda line: line.startswith('data:"'))
            os.kill(process.pid, signal.SIGKILL)
            began = time.perf_counter()
            process.wait()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            read_until(lambda line: line.startswith('data:"'))
            durations.append(time.perf_counter() - began)
        process.kill()
        process.wait()
        for _ in range(count):
            began = time.perf_counter()
            subprocess.run(
                [sys.executable, "-c", "import tidewire_server, tidewire_server.serving"], check=True
            )
            starts.append(time.perf_counter() - began)
        http.close()
    return {
        "kills": count,
        "resumed_ms": 1000 * statistics.median(durations),
        "process_start_ms": 1000 * statistics.median(starts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="duration of each measurement of concurrent jobs"
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/log.json")
    options = parser.parse_args()
    rows = []

    def row(name: str, block: int, logs: int, run: Callable[[], Costs]) -> None:
        found = measured(run, options.repetitions)
        rows.append({"log": name, "block": block, "logs": logs, **found})
        print(
            f"{name:32} blocks of {block:3}, {logs:2} logs: append {found['append']:8.3f}, replay {found['replay']:7.3f}"
        )

    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(local_postgres())
        stores, versions = dict(STORES), {"sqlite": sqlite3.sqlite_version}
        if postgres is not None:
            stores["PostgreSQL"] = partial(postgres_store, postgres)
            versions["PostgreSQL"] = postgres.version()
        for name, make in stores.items():
            for size, logs in ((BLOCK, 1), (BLOCK, LOGS), (1, 1), (1, LOGS)):
                events = options.events if size > 1 else options.events // 50
                if name == "PostgreSQL" and logs == 1:
                    events //= 4  # A single job waits for the disk after each block.
                row(name, size, logs, partial(appended, make, events, size, logs))
        concurrent: list[dict[str, Any]] = []
        for name, make in stores.items():
            for jobs in CONCURRENT:
                found = uvloop.run(append_concurrently(make, jobs, options.seconds))
                concurrent.append({"log": name, "jobs": jobs, **found})
                print(
                    f"{name:32} {jobs:3} jobs: {found['blocks_per_second']:8.0f} blocks/s, median {found['p50_ms']:7.2f} ms, "
                    f"p99 {found['p99_ms']:7.2f} ms",
                    flush=True,
                )
    for size in (BLOCK, 1):
        events = options.events if size > 1 else options.events // 10
        row("plain SQLite", size, 1, partial(plain_sqlite, events, size))
    killed = kills(options.kills)
    print(killed)
    result = {
        "repetitions": options.repetitions,
        "rows": rows,
        "seconds": options.seconds,
        "concurrent": concurrent,
        "kill": killed,
    }
    save(options.json, result, "psycopg", also=versions)


if __name__ == "__main__":
    main()
