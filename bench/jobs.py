"""Throughput and memory of one server with many short jobs.

Jobs pass through the whole server except its sockets, 100 at the same time, from one caller. The store retains
`max_retained_jobs` ended jobs. Once it is full, the memory should no longer grow. A line is printed for each tenth of the
jobs.

`python bench/jobs.py --log sqlite:////tmp/jobs.db` measures with a log in a file.
"""

import argparse
import asyncio
import json
import resource
import time
from pathlib import Path

import uvloop
from measured import save

from tidewire_server import Server
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.principals import ANONYMOUS
from tidewire_server.store.open_store import open_store

CONCURRENT_JOBS = 100


def rss_kib() -> int:
    """Resident memory of this process in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


async def run(jobs: int, retained: int, log: str) -> list[dict[str, float]]:
    server = Server(
        log=log, max_retained_jobs=retained, max_tombstones=retained, default_concurrency_limit=None
    )

    @server.endpoint
    async def double(n: int) -> int:
        return 2 * n

    service = JobService(server.endpoints, server.settings, Metrics(), open_store(server.settings))
    await service.start()
    rows, began, step = [], time.perf_counter(), jobs // 10
    numbers = iter(range(jobs))

    async def submit_jobs() -> None:
        nonlocal began
        for number in numbers:
            body = json.dumps({"input": {"n": number}}).encode()
            record = (
                await service.submit(ANONYMOUS, server.endpoints["double"], body, f"key{number}")
            ).record
            await service.outcome(record)
            if (number + 1) % step == 0:
                now = time.perf_counter()
                rows.append({"jobs": number + 1, "per_second": step / (now - began), "rss_kib": rss_kib()})
                began = now
                print(
                    "{jobs:>8} jobs, {per_second:8.0f} jobs/s, {rss_kib:>8} KiB".format(**rows[-1]),
                    flush=True,
                )

    await asyncio.gather(*(submit_jobs() for _ in range(CONCURRENT_JOBS)))
    await service.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--retained", type=int, default=1000)
    parser.add_argument("--log", default="memory")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/jobs.json")
    options = parser.parse_args()
    rows = uvloop.run(run(options.jobs, options.retained, options.log))
    body = {
        "log": options.log.partition(":")[0],
        "retained": options.retained,
        "rows": rows,
    }
    save(options.json, body, "tidewire", "uvicorn")


if __name__ == "__main__":
    main()
