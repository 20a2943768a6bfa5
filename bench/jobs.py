"""Throughput, latency and memory of a server with many short jobs over real sockets.

The server runs in a separate process. This process opens `--connections` keep-alive connections and sends one job after
another over each of them. A job is one request: the client submits it with an `Idempotency-Key` and reads its event
stream up to `done`. The store retains `--retained` ended jobs. Once it is full, the server's memory should no longer
grow.

`--against TREE` also measures a second checkout of the repository. The script alternates between the two, `--rounds`
times, so that a change of the machine's load affects both. The server's CPU time per job is less sensitive to this load
than the throughput.

    python bench/jobs.py --connections 100 --log memory sqlite --against ../old --rounds 5

PostgreSQL runs on the same machine with its default settings, so each commit waits for the disk. Its CPU time is not part of
the server's. Without PostgreSQL, the script prints the reason and measures the other stores.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop
from local_postgres import LocalPostgres, local_postgres
from measured import save

HERE = Path(__file__).resolve().parent.parent

SERVER = """
import sys
from tidewire_server import Server

log, retained, port_file = sys.argv[1:]
server = Server(
    log=log, max_retained_jobs=int(retained), max_tombstones=int(retained), default_concurrency_limit=None
)

@server.endpoint
async def double(n: int) -> int:
    return 2 * n

server.run(port=0, port_file=port_file, started=lambda url: None)
"""

LOGS = ("memory", "sqlite", "postgres")

_HEAD = (
    "POST /v1/endpoints/double/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
    "Content-Type: application/json\r\nIdempotency-Key: {run}-{number}\r\nContent-Length: {length}\r\n\r\n{body}"
)
_START = b"HTTP/1.1 200 "
_END = b"\r\n0\r\n\r\n"
_SUCCEEDED = b'"status":"succeeded"'
_RESULTS = 10
"""Number of lines that a run prints."""


class Load:
    """Jobs of a measurement, which are distributed over all connections, and the latency of each job.

    Before the measurement, each connection sends one job, because the server accepts connections one by one.
    """

    def __init__(self, jobs: int, server: int) -> None:
        self.jobs = jobs
        self.connections: list[Connection] = []
        self.numbers: Iterator[int] = iter(range(jobs))
        self.latencies: list[float] = []
        self.rows: list[dict[str, float]] = []
        self.seconds = self.cpu = self.own_cpu = 0.0
        """Wall time, CPU time of the server and CPU time of this process, in seconds.

        Until the last job has ended, these attributes contain the readings of the clocks at the start.
        """
        self.finished = asyncio.get_running_loop().create_future()
        self._server = server
        self._warm = 0
        self._step_began = 0.0

    def warmed_up(self) -> None:
        """Count a connection as ready. Start the measurement when all connections are ready."""
        self._warm += 1
        if self._warm == len(self.connections):
            self._step_began = self.seconds = time.perf_counter()
            self.cpu, self.own_cpu = cpu_seconds(self._server), time.process_time()
            for connection in self.connections:
                connection.send_next()

    def ended(self, seconds: float) -> None:
        """Record the latency of an ended job."""
        self.latencies.append(seconds)
        count = len(self.latencies)
        if count % (self.jobs // _RESULTS) == 0:
            now = time.perf_counter()
            rate = self.jobs // _RESULTS / (now - self._step_began)
            self._step_began = now
            self.rows.append({"jobs": count, "per_second": rate, "rss_kib": rss_kib(self._server)})
        if count == self.jobs:
            self.seconds = time.perf_counter() - self.seconds
            self.cpu = cpu_seconds(self._server) - self.cpu
            self.own_cpu = time.process_time() - self.own_cpu
            self.finished.set_result(None)


class Connection(asyncio.Protocol):
    """Keep-alive connection that sends one job after another.

    It searches a response only for its end, so that this process takes less CPU time than the server.
    """

    def __init__(self, load: Load) -> None:
        self._load = load
        self._received = b""
        self._sent_at = 0.0
        self._warm = False
        self._transport: Any = None
        load.connections.append(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send_next(self) -> None:
        """Send the next job, or close the connection if no job is left."""
        number = next(self._load.numbers, None)
        if number is None:
            self._transport.close()
        else:
            self.send(number)

    def send(self, number: int) -> None:
        """Send a job. The number must differ from the numbers of all other jobs."""
        body = json.dumps({"input": {"n": number}})
        head = _HEAD.format(run=os.getpid(), number=number, length=len(body), body=body)
        self._received, self._sent_at = b"", time.perf_counter()
        self._transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._received.endswith(_END):
            if not self._received.startswith(_START[: len(self._received)]):
                self._fail(f"unexpected response: {self._received[:500]!r}")
            return
        if not self._received.startswith(_START) or _SUCCEEDED not in self._received:
            self._fail(f"the job did not succeed: {self._received[:2000]!r}")
            return
        if not self._warm:
            self._warm = True
            self._load.warmed_up()
            return
        self._load.ended(time.perf_counter() - self._sent_at)
        self.send_next()

    def connection_lost(self, exc: Exception | None) -> None:
        if next(self._load.numbers, None) is not None:
            self._fail(f"the server closed a connection: {exc}")

    def _fail(self, reason: str) -> None:
        if not self._load.finished.done():
            self._load.finished.set_exception(RuntimeError(reason))


def rss_kib(pid: int) -> int:
    """Resident memory of a process in KiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() // 1024


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used so far, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def send_jobs(jobs: int, connections: int, server: int, port: int) -> Load:
    load = Load(jobs, server)
    loop = asyncio.get_running_loop()
    for _ in range(connections):
        await loop.create_connection(lambda: Connection(load), "127.0.0.1", port)
    for number, connection in enumerate(load.connections):
        connection.send(jobs + number)
    await load.finished
    return load


def log_url(log: str, folder: str, postgres: LocalPostgres | None) -> str:
    """Return the URL of a new, empty log."""
    if log == "sqlite":
        return f"sqlite:///{folder}/jobs.db"
    if log == "postgres":
        assert postgres is not None
        return postgres.new_database()
    return log


def run(
    tree: Path, log: str, jobs: int, connections: int, retained: int, postgres: LocalPostgres | None = None
) -> dict[str, Any]:
    """Measure one server.

    Args:
        tree: Checkout whose server runs.
        log: `memory`, `sqlite` or `postgres`.
        jobs: Number of jobs.
        connections: Number of connections.
        retained: Number of ended jobs that the store retains.
        postgres: Database server for the log `postgres`.
    """
    source = tree / "src"
    path = os.pathsep.join(str(source / name) for name in ("reference_server", "client"))
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, log_url(log, folder, postgres), str(retained), str(port_file)],
            env={**os.environ, "PYTHONPATH": path},
            cwd=folder,
        )
        try:
            while not port_file.exists():
                if process.poll() is not None:
                    raise RuntimeError("the server did not start")
                time.sleep(0.02)
            port = int(port_file.read_text())
            load = uvloop.run(send_jobs(jobs, connections, process.pid, port))
        finally:
            process.terminate()
            process.wait(30)
    percentiles = statistics.quantiles(load.latencies, n=100)
    return {
        "per_second": jobs / load.seconds,
        "p50_ms": 1000 * percentiles[49],
        "p99_ms": 1000 * percentiles[98],
        "cpu_us_per_job": 1e6 * load.cpu / jobs,
        "load_cpu_us_per_job": 1e6 * load.own_cpu / jobs,
        "rows": load.rows,
    }


def _line(name: str, found: dict[str, Any]) -> str:
    rows = found["rows"]
    return (
        f"{name:<16} {found['per_second']:7.0f} jobs/s   p50 {found['p50_ms']:6.1f} ms   p99 {found['p99_ms']:6.1f} ms"
        f"   server {found['cpu_us_per_job']:5.0f} µs/job   load {found['load_cpu_us_per_job']:4.0f} µs/job"
        f"   {rows[len(rows) // 2]['rss_kib']} -> {rows[-1]['rss_kib']} KiB"
    )


def _median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    middle = sorted(runs, key=lambda each: float(each["per_second"]))[len(runs) // 2]
    numbers = {name: statistics.median(each[name] for each in runs) for name in middle if name != "rows"}
    return {**numbers, "rows": middle["rows"]}


def measure(
    log: str, trees: dict[str, Path], options: argparse.Namespace, postgres: LocalPostgres | None
) -> dict[str, Any]:
    """Measure one kind of log with the server of each checkout, and print the results."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in trees}
    for _ in range(options.rounds):
        for name, tree in trees.items():
            runs[name].append(run(tree, log, options.jobs, options.connections, options.retained, postgres))
            print(_line(f"{log} {name}", runs[name][-1]), flush=True)
    results = {name: _median(each) for name, each in runs.items()}
    for name, found in results.items():
        print(_line(f"{log} {name} *", found))
    if options.against:
        this, against = results["this"], results["against"]
        print(
            f"{log}: {this['per_second'] / against['per_second']:.2f} x the jobs per second, "
            f"{this['cpu_us_per_job'] / against['cpu_us_per_job']:.2f} x the CPU time per job"
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=100)
    parser.add_argument("--retained", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--log", nargs="+", choices=LOGS, default=LOGS)
    parser.add_argument(
        "--against", type=Path, help="second checkout of the repository, measured alternately"
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results/jobs.json")
    options = parser.parse_args()
    trees = {"this": HERE} | ({"against": options.against.resolve()} if options.against else {})
    results: dict[str, dict[str, Any]] = {}
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(local_postgres()) if "postgres" in options.log else None
        for log in options.log:
            if log == "postgres" and postgres is None:
                continue
            results[log] = measure(log, trees, options, postgres)
        versions = {} if postgres is None else {"PostgreSQL": postgres.version()}
    body = {"retained": options.retained, "connections": options.connections, "results": results}
    save(options.json, body, "tidewire", "uvicorn", "psycopg", also=versions)


if __name__ == "__main__":
    main()
