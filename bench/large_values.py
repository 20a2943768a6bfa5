"""Latency of a caller's appends while another caller writes 300 MB, in each store.

One process runs a job of an endpoint whose function writes large values: it replaces its value by another text of 1 MB, or of
8 MB, again and again. The texts are random, as those of encoded images are, so that no database can compress them. Meanwhile,
the script appends a small event to the log of another job every 10 ms, through the interface that the server uses,
`Log.append`. The latency is the time from the moment at which an append is due until its commit.
It therefore includes the time for which the event loop is blocked. Appends that became due during an earlier append are
written as one block, as the server's own writer does it. The same appends without the large job are the comparison.

Target: p99 of at most 100 ms with the large job. PostgreSQL runs a checkpoint each time that about 600 MB were written with its
default settings, and commits then wait once for the disk, here for 0.2 s. Each measurement therefore begins with a checkpoint.

Without PostgreSQL, the script prints the reason and measures the other stores.
"""

import argparse
import asyncio
import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop
from local_postgres import local_postgres
from measured import save

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.sse import encode
from tidewire_server import Server, Stream
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.settings import Settings
from tidewire_server.store.log_interface import Block, Log, StateAt
from tidewire_server.store.open_store import open_store

TOTAL = 300_000_000
VALUES = (1_000_000, 8_000_000)
INTERVAL = 0.01
TARGET_MS = 100.0
QUIET_APPENDS = 300


class Appender:
    """Appends a small event at fixed times, and records the latencies in milliseconds."""

    def __init__(self, log: Log, view: StateAt) -> None:
        self._log = log
        self._state = view
        self.latencies: list[float] = []

    async def append_until(self, ended: asyncio.Event, most: float = math.inf) -> None:
        """Append until an event is set, or until there are `most` latencies."""
        due = [time.perf_counter() + INTERVAL]
        while not ended.is_set() and len(self.latencies) < most:
            await asyncio.sleep(due[0] - time.perf_counter())
            while due[-1] + INTERVAL <= time.perf_counter():
                due.append(due[-1] + INTERVAL)
            head = self._log.extent().head
            cursors = [Cursor(head.epoch, head.seq + number) for number in range(1, len(due) + 1)]
            frames = [encode(orjson.dumps([]).decode(), id=str(cursor)) for cursor in cursors]
            state = StateAt(cursors[-1], self._state.columns, self._state.mark)
            await self._log.append(head, Block(frames, state))
            now = time.perf_counter()
            self.latencies += [1000 * (now - at) for at in due]
            due = [due[-1] + INTERVAL]


async def measure(url: str, total: int, size: int) -> dict[str, float]:
    """Measure one store."""
    server = Server()
    texts = [random.Random(number).randbytes(size // 2).hex() for number in range(4)]

    @server.endpoint(concurrency_limit=None)
    async def large(stream: Stream[str]) -> None:
        for number in range(total // size):
            stream.set("", texts[number % len(texts)])
            await asyncio.sleep(0.001)

    started = asyncio.Event()

    @server.endpoint(concurrency_limit=None)
    async def small() -> None:
        started.set()
        await asyncio.Event().wait()

    settings = Settings(log=url, default_concurrency_limit=None)
    store = open_store(settings)
    service = JobService(server.endpoints, settings, Metrics(), store)
    await service.start()
    await service.resume()
    idle = await service.submit("another", service.endpoints["small"], b'{"input":{}}', None)
    await started.wait()
    await asyncio.sleep(0.2)  # Until its start is committed. From now on, only this script writes its log.
    log: Any = store.jobs.log_in_use(idle.record.id)
    state = await log.state()
    quiet = Appender(log, state)
    await quiet.append_until(asyncio.Event(), QUIET_APPENDS)
    busy, ended = Appender(log, state), asyncio.Event()
    appending = asyncio.ensure_future(busy.append_until(ended))
    began = time.perf_counter()
    submitted = await service.submit("one", service.endpoints["large"], b'{"input":{}}', None)
    while True:
        record = await service.find("one", submitted.record.id)
        if record.done is not None:  # type: ignore[union-attr]
            break
        await asyncio.sleep(0.1)
    took = time.perf_counter() - began
    ended.set()
    await appending
    assert record.status == "succeeded", record  # type: ignore[union-attr]
    await service.close()
    return {
        "large_mb_per_s": total / 1e6 / took,
        "quiet_p50_ms": statistics.median(quiet.latencies),
        "quiet_p99_ms": _p99(quiet.latencies),
        "busy_appends": len(busy.latencies),
        "busy_p50_ms": statistics.median(busy.latencies),
        "busy_p99_ms": _p99(busy.latencies),
        "busy_max_ms": max(busy.latencies),
    }


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, math.ceil(0.99 * len(values)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", type=int, default=TOTAL)
    parser.add_argument("--only", help="measure only this store")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/large_values.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, local_postgres() as postgres:
        for name in ("memory", "SQLite", "PostgreSQL"):
            if options.only not in {None, name} or (name == "PostgreSQL" and postgres is None):
                continue
            for size in VALUES:
                url = "memory" if name == "memory" else f"sqlite:///{folder}/{size}.db"
                if name == "PostgreSQL":
                    postgres.execute("CHECKPOINT")  # type: ignore[union-attr]
                    url = postgres.new_database()  # type: ignore[union-attr]
                found = uvloop.run(measure(url, options.bytes, size))
                rows.append({"log": name, "value_bytes": size, **found})
                print(
                    f"{name:10} values of {size / 1e6:.0f} MB: p50 {found['busy_p50_ms']:6.1f} ms, p99 {found['busy_p99_ms']:6.1f} "
                    f"ms, max {found['busy_max_ms']:6.1f} ms while {found['large_mb_per_s']:.0f} MB/s are written; alone: p99 "
                    f"{found['quiet_p99_ms']:.1f} ms",
                    flush=True,
                )
    save(options.json, {"target_ms": TARGET_MS, "rows": rows})


if __name__ == "__main__":
    main()
