"""Throughput of request batching as a share of the ideal throughput, compared with gradio in the same run.

Workload: `--calls` calls, 50 of them concurrent, to a function that takes 20 ms (`time.sleep`) for any number of
inputs. The batch sizes are 1, 4 and 20. The ideal throughput is that of back-to-back calls of the function without
overhead. At size 1, the function has no batch=True; this row checks that batching is never slower than no batching.

The server and the load generator are separate processes connected by plain sockets. A call submits a job and reads its
event stream to the end. With gradio, a call joins the queue and reads the stream of the session until
`process_completed`. Every response is verified.

The last row is the overhead that a batched endpoint adds to an endpoint without batch=True in the same server. The
script measures the server's CPU time per call of a function that does nothing, with and without the batched endpoint,
and reports the median over pairs of runs.

`--full` adds two tables for tidewire. The first makes 100,000 calls at the largest size and reports the rate and the
server's memory after each tenth. This server retains only a few ended jobs, so growing memory indicates a leak. The
second repeats the three sizes with an image of 1 MB, as base64, in each input.

Targets: at least 90 % of the ideal throughput at each size; at most 2 % overhead for an endpoint without batch=True; with
--full, the same rate and memory in the last tenth as in the second.
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

from measured import installed, save

SIZES = (1, 4, 20)
CONCURRENT_CALLS = 50
FULL_CALLS = 100_000
IMAGE = "/9j/" + "A" * 1_333_332
"""One megabyte of binary data, encoded as base64."""
CALL_SECONDS = 0.02
TARGET = 0.9
START_LIMIT = 120.0

OURS = """
import sys, time
from tidewire_server import Server

server = Server()
if {size} == 1:
    @server.endpoint
    def double(n: int) -> int:
        time.sleep({call})
        return 2 * n
else:
    @server.endpoint(batch=True, max_batch_size={size}, batch_timeout=0.005)
    def double(n: list[int]) -> list[int]:
        time.sleep({call})
        return [2 * each for each in n]

server.run(port=0, port_file=sys.argv[1])
"""

PLAIN_SERVER = """
import sys
from tidewire_server import Server

server = Server(default_concurrency_limit=None)

@server.endpoint
async def double(n: int) -> int:
    return 2 * n

server.run(port=0, port_file=sys.argv[1])
"""

MIXED_SERVER = PLAIN_SERVER.replace(
    "server.run",
    """
@server.endpoint(batch=True, max_batch_size=20, batch_timeout=0.005)
def batched(n: list[int]) -> list[int]:
    return n

server.run""",
)

FEW_RETAINED_JOBS = OURS.replace("Server()", "Server(max_retained_jobs=1000, max_tombstones=1000)")

IMAGES = FEW_RETAINED_JOBS.replace("n: int)", "n: int, image: str)").replace(
    "n: list[int])", "n: list[int], image: list[str])"
)

GRADIO = """
import pathlib, sys, time
import gradio

def double(n):
    time.sleep({call})
    return 2 * n if {size} == 1 else [[2 * each for each in n]]

with gradio.Blocks(analytics_enabled=False) as app:
    number, answer = gradio.Number(precision=0), gradio.Number(precision=0)
    gradio.Button().click(
        double, number, answer, api_name="double", batch={size} > 1, max_batch_size={size}, concurrency_limit=1
    )
app.queue().launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
pathlib.Path(sys.argv[1]).write_text(str(app.server_port))
app.block_thread()
"""


@contextlib.contextmanager
def serving(source: str) -> Iterator[tuple[int, int]]:
    """Run the source code of a server in a separate process. Yields its port and process id."""
    with tempfile.TemporaryDirectory() as folder:
        script, port_file, log = Path(folder, "server.py"), Path(folder, "port"), Path(folder, "log")
        script.write_text(source)
        environment = os.environ | {"GRADIO_ANALYTICS_ENABLED": "False"}
        with (
            log.open("w") as output,
            subprocess.Popen(
                [sys.executable, script, port_file], stdout=output, stderr=output, env=environment
            ) as process,
        ):
            try:
                deadline = time.monotonic() + START_LIMIT
                while not (port_file.exists() and port_file.read_text().strip()):
                    if process.poll() is not None or time.monotonic() > deadline:
                        sys.exit(
                            f"the server did not start within {START_LIMIT:g} s; its output:\n{log.read_text()}"
                        )
                    time.sleep(0.05)
                yield int(port_file.read_text()), process.pid
            finally:
                process.kill()


class Connection:
    """HTTP/1.1 keep-alive connection with minimal overhead."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        self._writer.close()

    async def request(self, method: str, path: str, body: object = None, accept: str = "*/*") -> bytes:
        """Send a request and return the body of the response."""
        content = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: {accept}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
        )
        self._writer.write(head.encode() + content)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        assert b" 20" in answer[:13], answer
        if b"chunked" not in answer.lower():
            length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            return await self._reader.readexactly(length)
        chunks = []
        while size := int(await self._reader.readline(), 16):
            chunks.append((await self._reader.readexactly(size + 2))[:-2])
        await self._reader.readexactly(2)
        return b"".join(chunks)


async def call_tidewire(connection: Connection, n: int) -> None:
    path = "/v1/endpoints/double/jobs"
    stream = await connection.request("POST", path, {"input": {"n": n}}, "text/event-stream")
    assert f'"/items/0/value",{2 * n}'.encode() in stream, stream
    assert b'"status":"succeeded"' in stream, stream


async def call_with_image(connection: Connection, n: int) -> None:
    path, body = "/v1/endpoints/double/jobs", {"input": {"n": n, "image": IMAGE}}
    stream = await connection.request("POST", path, body, "text/event-stream")
    assert f'"/items/0/value",{2 * n}'.encode() in stream, stream
    assert b'"status":"succeeded"' in stream, stream


async def call_gradio(connection: Connection, n: int) -> None:
    session = f"s{n}"
    body = {"data": [n], "fn_index": 0, "session_hash": session}
    await connection.request("POST", "/gradio_api/queue/join", body)
    stream = await connection.request("GET", f"/gradio_api/queue/data?session_hash={session}")
    assert f'"data":[{2 * n}]'.encode() in stream.replace(b" ", b""), stream


async def load(call, port: int, calls: int) -> tuple[float, list[float]]:
    """Make calls concurrently. Returns the total time and the time of each call, in seconds."""
    numbers, times = iter(range(calls)), []

    async def caller() -> None:
        connection = Connection(port)
        await connection.open()
        for n in numbers:
            began = time.perf_counter()
            await call(connection, n)
            times.append(time.perf_counter() - began)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CONCURRENT_CALLS)))
    return time.perf_counter() - began, times


def cpu_of(process: int) -> float:
    """CPU time of another process in seconds; NaN without /proc."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return float("nan")


def memory_of(process: int) -> int:
    """Resident memory of another process in KiB; 0 without /proc."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    return 0


def measure_many(calls: int) -> list[dict]:
    """Make many calls at the largest batch size and report the rate and memory of each tenth."""
    rows, size = [], max(SIZES)
    with serving(FEW_RETAINED_JOBS.format(size=size, call=CALL_SECONDS)) as (port, process):
        asyncio.run(load(call_tidewire, port, 2 * CONCURRENT_CALLS))  # warm up
        for tenth in range(1, 11):
            before = cpu_of(process)
            seconds, _ = asyncio.run(load(call_tidewire, port, calls // 10))
            used = cpu_of(process) - before
            rows.append(
                {
                    "calls": tenth * (calls // 10),
                    "rate": calls / 10 / seconds,
                    "server_cpu_ms": 10_000 * used / calls,
                    "memory_kib": memory_of(process),
                }
            )
            print(
                "{calls:>8} calls, {rate:6.0f} calls/s, {server_cpu_ms:.2f} ms of server CPU, {memory_kib} KiB".format(
                    **rows[-1]
                ),
                flush=True,
            )
    return rows


def measure_images(calls: int, repeat: int) -> list[dict]:
    """Measure all batch sizes with an image of 1 MB in each input."""
    rows = []
    for size in SIZES:
        runs = [measure("tidewire", IMAGES, call_with_image, size, calls) for _ in range(repeat)]
        rows.append(row := sorted(runs, key=lambda run: run["share"])[len(runs) // 2])
        print(
            f"1 MB inputs, size {size:2}: {row['share']:6.1%} of the ideal, {row['rate']:6.0f} calls/s, "
            f"{row['server_cpu_ms']:.2f} ms of server CPU",
            flush=True,
        )
    return rows


def measure(name: str, source: str, call, size: int, calls: int) -> dict:
    with serving(source.format(size=size, call=CALL_SECONDS)) as (port, process):
        asyncio.run(load(call, port, min(calls, 2 * CONCURRENT_CALLS)))  # warm up
        before, own = cpu_of(process), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        seconds, times = asyncio.run(load(call, port, calls))
        used = cpu_of(process) - before
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_utime - own
    ideal = calls / size * CALL_SECONDS
    return {
        "server": name,
        "size": size,
        "calls": calls,
        "seconds": seconds,
        "ideal": ideal,
        "share": ideal / seconds,
        "rate": calls / seconds,
        "p50_ms": 1000 * statistics.median(times),
        "p99_ms": 1000 * statistics.quantiles(times, n=100)[98],
        "server_cpu_ms": 1000 * used / calls,
        "asker_cpu_ms": 1000 * ours / calls,
    }


def measure_plain(calls: int, repeat: int) -> dict:
    """Measure the CPU time that a batched endpoint adds to calls of a plain endpoint in the same server, as a share."""
    alone, beside = [], []
    for _ in range(repeat):
        for source, found in ((PLAIN_SERVER, alone), (MIXED_SERVER, beside)):
            found.append(measure("tidewire", source, call_tidewire, 1, calls)["server_cpu_ms"])
    share = statistics.median(with_it / without for with_it, without in zip(beside, alone, strict=True)) - 1
    row = {"alone_ms": statistics.median(alone), "beside_ms": statistics.median(beside), "pays": share}
    print(
        f"without batch: {row['alone_ms']:.3f} ms of server CPU per call, {row['beside_ms']:.3f} ms with a batched endpoint "
        f"in the same server: {share:.1%} overhead",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--sizes", type=int, nargs="+", help="measure only these batch sizes, without gradio; writes no file"
    )
    parser.add_argument("--full", action="store_true", help="also measure many calls, and inputs of 1 MB")
    parser.add_argument(
        "--many",
        type=int,
        default=FULL_CALLS,
        help="number of calls in the first table of --full (%(default)s)",
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/batching.json")
    options = parser.parse_args()
    peers = [("tidewire", OURS, call_tidewire)]
    if not options.sizes and installed("gradio"):
        peers.append(("gradio", GRADIO, call_gradio))
    rows = []
    for size in options.sizes or SIZES:
        calls = options.calls if size > 1 else options.calls // 4
        for name, source, call in peers:
            runs = [measure(name, source, call, size, calls) for _ in range(options.repeat)]
            row = sorted(runs, key=lambda run: run["share"])[len(runs) // 2]
            rows.append(row)
            print(
                f"{name:9} size {size:2}: {row['share']:6.1%} of the ideal, {row['rate']:6.0f} calls/s, "
                f"p50 {row['p50_ms']:.0f} ms, p99 {row['p99_ms']:.0f} ms, {row['server_cpu_ms']:.2f} ms of server CPU",
                flush=True,
            )
    below = [row for row in rows if row["server"] == "tidewire" and row["share"] < TARGET]
    verdict = (
        f"below the target of {TARGET:.0%} at the batch sizes {[row['size'] for row in below]}"
        if below
        else 0
    )
    if options.sizes:
        sys.exit(verdict)
    full = {"plain": measure_plain(4 * options.calls, options.repeat)}
    if options.full:
        full["many"] = measure_many(options.many)
        full["images"] = measure_images(max(2 * CONCURRENT_CALLS, options.calls // 10), options.repeat)
    result = {
        "rows": rows,
        **full,
        "bar": TARGET,
        "repetitions": options.repeat,
        "at_once": CONCURRENT_CALLS,
    }
    save(options.out, result, "gradio", "uvicorn", "starlette", "pydantic")
    sys.exit(verdict)


if __name__ == "__main__":
    main()
