"""Load that a server puts on its PostgreSQL database: rows, bytes, commits and CPU time for each token and each short job.

A real server in its own process writes to a real PostgreSQL that has its default settings. Streams produce tokens at a fixed
rate, and one reader follows each stream. The store merges the tokens of 50 ms into one row. Rows and bytes hardly depend on the
machine. Commits do, because a slower machine commits more jobs together, and so do CPU times, which the script states for
PostgreSQL and for the server separately. Bytes on disk include the first pages of empty tables, so short runs show more.

A commit is a transaction that has written something, so it has a transaction id. WAL bytes include the images of whole pages
that PostgreSQL writes once after each checkpoint. Bytes on disk include all tables and indexes of the schema.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import uvloop
from jobs import HERE, cpu_seconds, send_jobs
from local_postgres import LocalPostgres, local_postgres
from measured import save

TALK = """
@server.endpoint
async def talk(n: int, rate: float, stream: Stream[str]) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    for number in range(n):
        await asyncio.sleep(began + number / rate - loop.time())
        stream.append(f" t{number:04}")
"""
"""Endpoint that writes tokens at a fixed rate, as the text of a program."""

SERVER = f"""
import asyncio, sys
from tidewire_server import Server, Stream

log, port_file = sys.argv[1:]
server = Server(log=log, default_concurrency_limit=None)

{TALK}
@server.endpoint
async def double(n: int) -> int:
    return 2 * n

server.run(port=0, port_file=port_file, started=lambda url: None)
"""

STREAMS = ((1, 50.0), (16, 50.0), (64, 50.0), (64, 10.0))
"""Numbers of concurrent streams, and their tokens per second."""

IDLE_SECONDS = 5.0

_REQUEST = (
    "POST /v1/endpoints/talk/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\nConnection: close\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
)


class Reading(NamedTuple):
    """Counters at one time. The difference of two readings is the load between them."""

    commits: int
    wal: int
    blocks: int
    disk: int
    postgres_cpu: float
    server_cpu: float
    seconds: float

    def since(self, earlier: "Reading") -> "Reading":
        return Reading(*(now - before for now, before in zip(self, earlier, strict=True)))


_COUNTERS = """
    SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
        (pg_current_wal_insert_lsn() - '0/0')::bigint,
        (SELECT count(*) FROM tidewire.block),
        (SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class
          WHERE relnamespace = 'tidewire'::regnamespace AND relkind = 'r')
"""


class Measured:
    """A server with its database."""

    def __init__(self, postgres: LocalPostgres, url: str, pid: int, port: int) -> None:
        self.postgres = postgres
        self.url = url
        self.pid = pid
        self.port = port

    def read(self) -> Reading:
        """Read all counters."""
        found = self.postgres.execute(_COUNTERS, self.url)[0]
        return Reading(*found, self.postgres.cpu_seconds(), cpu_seconds(self.pid), time.monotonic())


@contextlib.contextmanager
def serving(postgres: LocalPostgres) -> Iterator[Measured]:
    """Run a server on a new database during a `with` block."""
    url = postgres.new_database()
    path = os.pathsep.join(str(HERE / "src" / name) for name in ("reference_server", "client"))
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, url, str(port_file)], env={**os.environ, "PYTHONPATH": path}
        )
        try:
            while not port_file.exists() or not port_file.read_text():
                if process.poll() is not None:
                    raise RuntimeError("the server did not start")
                time.sleep(0.02)
            yield Measured(postgres, url, process.pid, int(port_file.read_text()))
        finally:
            process.terminate()
            process.wait(30)


async def _read_streams(port: int, streams: int, rate: float, tokens: int) -> None:
    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps({"input": {"n": tokens, "rate": rate}})
        writer.write(_REQUEST.format(length=len(body), body=body).encode())
        last = b""
        while data := await reader.read(65536):
            last = (last + data)[-2000:]
        writer.close()
        if b'"status":"succeeded"' not in last:
            raise RuntimeError(f"the job did not succeed: {last!r}")

    await asyncio.gather(*(one() for _ in range(streams)))


def _per_unit(load: Reading, units: int) -> dict[str, float]:
    return {
        "commits": load.commits / units,
        "rows": load.blocks / units,
        "disk_bytes": load.disk / units,
        "wal_bytes": load.wal / units,
        "postgres_us": 1e6 * load.postgres_cpu / units,
        "server_us": 1e6 * load.server_cpu / units,
    }


def measure_streams(postgres: LocalPostgres, streams: int, rate: float, seconds: float) -> dict[str, Any]:
    """Measure the load of one token. It includes the start and the end of the jobs."""
    tokens = int(rate * seconds)
    with serving(postgres) as server:
        before = server.read()
        uvloop.run(_read_streams(server.port, streams, rate, tokens))
        load = server.read().since(before)
    return {"streams": streams, "rate": rate, **_per_unit(load, streams * tokens)}


def measure_jobs(postgres: LocalPostgres, jobs: int, connections: int) -> dict[str, Any]:
    """Measure the load of one short job with an idempotency key, which one reader follows to its end."""
    with serving(postgres) as server:
        before = server.read()
        uvloop.run(send_jobs(jobs, connections, server.pid, server.port))
        load = server.read().since(before)
    # `send_jobs` also sends one job over each connection before it starts to measure.
    return {"jobs": jobs, "connections": connections, **_per_unit(load, jobs + connections)}


def measure_idle(postgres: LocalPostgres) -> dict[str, float]:
    """Measure the load of one second of a server without jobs."""
    with serving(postgres) as server:
        before = server.read()
        time.sleep(IDLE_SECONDS)
        load = server.read().since(before)
    return {"commits": load.commits / load.seconds, "wal_bytes": load.wal / load.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the streams")
    parser.add_argument("--jobs", type=int, default=2000, help="number of short jobs")
    parser.add_argument(
        "--connections", type=int, default=64, help="connections over which short jobs are sent"
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/postgres_load.json")
    options = parser.parse_args()
    with local_postgres() as postgres:
        if postgres is None:
            return
        rows = []
        for streams, rate in STREAMS:
            rows.append(measure_streams(postgres, streams, rate, options.seconds))
            print(_line(f"{streams} streams, {rate:g} tokens/s each, per token", rows[-1]), flush=True)
        jobs = measure_jobs(postgres, options.jobs, options.connections)
        print(_line(f"short jobs over {options.connections} connections, per job", jobs), flush=True)
        idle = measure_idle(postgres)
        print(f"idle server, per second: {idle['commits']:.1f} commits, {idle['wal_bytes']:.0f} bytes of WAL")
        result = {"seconds": options.seconds, "streams": rows, "jobs": jobs, "idle": idle}
        save(options.json, result, "tidewire", "psycopg", also={"PostgreSQL": postgres.version()})


def _line(name: str, found: dict[str, Any]) -> str:
    return (
        f"{name:<46} {found['commits']:7.3f} commits {found['rows']:7.3f} rows {found['disk_bytes']:7.0f} bytes on disk "
        f"{found['wal_bytes']:7.0f} bytes of WAL   PostgreSQL {found['postgres_us']:6.0f} µs   server {found['server_us']:6.0f} µs"
    )


if __name__ == "__main__":
    main()
