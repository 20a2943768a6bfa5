"""Request batching: how much of the ideal throughput is left, with gradio beside us in the same run.

The workload: CALLS calls, 50 at once, to a function that takes 20 ms (`time.sleep`) whatever the number of its inputs;
batch sizes 1, 4 and 20. The ideal is what the function alone could do, one call after the other. Size 1 is a function
without batch=True, so that "batching never slower than none" is a row of the same table.

One process serves, another asks, over plain sockets: a submit with its event stream, to the end. For gradio: a join of
the queue and the session's stream, to `process_completed`. Every answer is compared with what it must be.

The last row is what an endpoint without batch=True pays for those that have it: the server's CPU for a call of a
function that does nothing, on a server of its own and beside a batched endpoint, in turns; the median of the pairs.

`--full` adds two tables of ours: MANY calls at the largest size, with the rate and the server's memory after each tenth
(it keeps few jobs that have ended, so that what grows is a leak); and the three sizes with an image of 1 MB, as base64,
in each input.

Bars: at least 90 % of the ideal at each size; an endpoint without batch=True pays at most 2 %; with --full the rate of the last tenth is that of the second, and so is
the memory.
"""

import argparse
import asyncio
import contextlib
import importlib.metadata
import importlib.util
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

from measured import save

SIZES = (1, 4, 20)
AT_ONCE = 50
MANY = 100_000
IMAGE = "/9j/" + "A" * 1_333_332
"""A megabyte in base64."""
CALL = 0.02
BAR = 0.9
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

ALONE = """
import sys
from tidewire_server import Server

server = Server(default_concurrency_limit=None)

@server.endpoint
async def double(n: int) -> int:
    return 2 * n

server.run(port=0, port_file=sys.argv[1])
"""

BESIDE = ALONE.replace(
    "server.run",
    """
@server.endpoint(batch=True, max_batch_size=20, batch_timeout=0.005)
def batched(n: list[int]) -> list[int]:
    return n

server.run""",
)

FEW_KEPT = OURS.replace("Server()", "Server(max_retained_jobs=1000, max_tombstones=1000)")

IMAGES = FEW_KEPT.replace("n: int)", "n: int, image: str)").replace(
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
    """Run a server's source in a process of its own; yields its port and its process id."""
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
                        sys.exit(f"the server did not start:\n{log.read_text()}")
                    time.sleep(0.05)
                yield int(port_file.read_text()), process.pid
            finally:
                process.kill()


class Connection:
    """One kept-alive connection: a request, and the body of its answer as it comes."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)

    def close(self) -> None:
        self._writer.close()

    async def ask(self, method: str, path: str, body: object = None, accept: str = "*/*") -> bytes:
        """The whole body of the answer."""
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


async def ask_us(connection: Connection, n: int) -> None:
    path = "/v1/endpoints/double/jobs"
    stream = await connection.ask("POST", path, {"input": {"n": n}}, "text/event-stream")
    assert f'"/items/0/value",{2 * n}'.encode() in stream, stream
    assert b'"status":"succeeded"' in stream, stream


async def ask_with_image(connection: Connection, n: int) -> None:
    path, body = "/v1/endpoints/double/jobs", {"input": {"n": n, "image": IMAGE}}
    stream = await connection.ask("POST", path, body, "text/event-stream")
    assert f'"/items/0/value",{2 * n}'.encode() in stream, stream
    assert b'"status":"succeeded"' in stream, stream


async def ask_gradio(connection: Connection, n: int) -> None:
    session = f"s{n}"
    body = {"data": [n], "fn_index": 0, "session_hash": session}
    await connection.ask("POST", "/gradio_api/queue/join", body)
    stream = await connection.ask("GET", f"/gradio_api/queue/data?session_hash={session}")
    assert f'"data":[{2 * n}]'.encode() in stream.replace(b" ", b""), stream


async def load(ask, port: int, calls: int) -> tuple[float, list[float]]:
    """Seconds for all calls, and of each."""
    numbers, times = iter(range(calls)), []

    async def caller() -> None:
        connection = Connection(port)
        await connection.open()
        for n in numbers:
            began = time.perf_counter()
            await ask(connection, n)
            times.append(time.perf_counter() - began)
        connection.close()

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return time.perf_counter() - began, times


def cpu_of(process: int) -> float:
    """Seconds of processor time of another process, where the system tells."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return float("nan")


def memory_of(process: int) -> int:
    """KiB that another process holds, where the system tells; else 0."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize() // 1024
    return 0


def measure_many(calls: int) -> list[dict]:
    """Rate and memory after each tenth of many calls at the largest size."""
    rows, size = [], max(SIZES)
    with serving(FEW_KEPT.format(size=size, call=CALL)) as (port, process):
        asyncio.run(load(ask_us, port, 2 * AT_ONCE))  # warm
        for tenth in range(1, 11):
            before = cpu_of(process)
            seconds, _ = asyncio.run(load(ask_us, port, calls // 10))
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
    """The sizes again, with a megabyte in each input."""
    rows = []
    for size in SIZES:
        runs = [measure("tidewire", IMAGES, ask_with_image, size, calls) for _ in range(repeat)]
        rows.append(row := sorted(runs, key=lambda run: run["share"])[len(runs) // 2])
        print(
            f"1 MB each, size {size:2}: {row['share']:6.1%} of the ideal, {row['rate']:6.0f} calls/s, "
            f"{row['server_cpu_ms']:.2f} ms of server CPU",
            flush=True,
        )
    return rows


def measure(name: str, source: str, ask, size: int, calls: int) -> dict:
    with serving(source.format(size=size, call=CALL)) as (port, process):
        asyncio.run(load(ask, port, min(calls, 2 * AT_ONCE)))  # warm
        before, own = cpu_of(process), resource.getrusage(resource.RUSAGE_SELF).ru_utime
        seconds, times = asyncio.run(load(ask, port, calls))
        used = cpu_of(process) - before
        ours = resource.getrusage(resource.RUSAGE_SELF).ru_utime - own
    ideal = calls / size * CALL
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
    """What a plain endpoint pays for a batched one beside it, as a part of its own CPU."""
    alone, beside = [], []
    for _ in range(repeat):
        for source, found in ((ALONE, alone), (BESIDE, beside)):
            found.append(measure("tidewire", source, ask_us, 1, calls)["server_cpu_ms"])
    share = statistics.median(with_it / without for with_it, without in zip(beside, alone, strict=True)) - 1
    row = {"alone_ms": statistics.median(alone), "beside_ms": statistics.median(beside), "pays": share}
    print(
        f"without batch: {row['alone_ms']:.3f} ms of server CPU a call, {row['beside_ms']:.3f} beside a batched endpoint: "
        f"it pays {share:.1%}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--sizes", type=int, nargs="+", help="these batch sizes of ours alone; writes no file"
    )
    parser.add_argument("--full", action="store_true", help="also many calls, and inputs of 1 MB")
    parser.add_argument("--many", type=int, default=MANY, help="calls of the first table of --full")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/batching.json")
    options = parser.parse_args()
    peers = [("tidewire", OURS, ask_us)]
    if not options.sizes and importlib.util.find_spec("gradio"):
        peers.append(("gradio", GRADIO, ask_gradio))
    rows = []
    for size in options.sizes or SIZES:
        calls = options.calls if size > 1 else options.calls // 4
        for name, source, ask in peers:
            runs = [measure(name, source, ask, size, calls) for _ in range(options.repeat)]
            row = sorted(runs, key=lambda run: run["share"])[len(runs) // 2]
            rows.append(row)
            print(
                f"{name:9} size {size:2}: {row['share']:6.1%} of the ideal, {row['rate']:6.0f} calls/s, "
                f"p50 {row['p50_ms']:.0f} ms, p99 {row['p99_ms']:.0f} ms, {row['server_cpu_ms']:.2f} ms of server CPU",
                flush=True,
            )
    below = [row for row in rows if row["server"] == "tidewire" and row["share"] < BAR]
    verdict = f"below the bar of {BAR:.0%}: {[row['size'] for row in below]}" if below else 0
    if options.sizes:
        sys.exit(verdict)
    full = {"plain": measure_plain(4 * options.calls, options.repeat)}
    if options.full:
        full["many"] = measure_many(options.many)
        full["images"] = measure_images(max(2 * AT_ONCE, options.calls // 10), options.repeat)
    result = {
        "rows": rows,
        **full,
        "bar": BAR,
        "repetitions": options.repeat,
        "at_once": AT_ONCE,
    }
    save(options.out, result, "gradio", "uvicorn", "starlette", "pydantic")
    sys.exit(verdict)


if __name__ == "__main__":
    main()
