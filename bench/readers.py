"""Cost of streams without activity: memory of 50 stalled readers, and CPU time of 1,000 idle streams.

Stalled: clients with a small receive window open a stream of 1 kB events, a hundred per second, and read only the
header of the response. When the memory no longer grows, the script measures two numbers per stream: the growth of the
server process, and the data in kernel buffers, which is the data that a client can still read after the server process
was killed. The same run measures sse-starlette if it is installed. Target: at most 150 kB per stream, including kernel
memory.

Idle: streams of one job that sends no events, with a ping every `heartbeat` seconds. The script measures the server's
CPU time as a share of one core.
"""

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from measured import installed, save

TARGET = 150_000
SETTLE = 6.0
IDLE_SECONDS = 10.0
START_LIMIT = 60.0

OURS = """
import asyncio, sys
from tidewire_server import Server, Stream
server = Server(default_concurrency_limit=None, heartbeat=float(sys.argv[2]), max_streams_per_principal=5000)

@server.endpoint
async def flow(stream: Stream[list[str]], events: int = 10**9) -> None:
    stream.set("", [])
    for number in range(events):
        stream.set("/0", f"{number:1000}")
        await asyncio.sleep(0.01)

@server.endpoint
async def quiet() -> None:
    await asyncio.Event().wait()

server.run(port=0, port_file=sys.argv[1])
"""

PEER = """
import asyncio, pathlib, socket, sys
import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.routing import Route

async def flow(request):
    async def events():
        for number in range(10**9):
            yield {"data": f"{number:1000}"}
            await asyncio.sleep(0.01)
    return EventSourceResponse(events())

listener = socket.create_server(("127.0.0.1", 0))
pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
app = Starlette(routes=[Route("/flow", flow)])
asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="warning")).serve(sockets=[listener]))
"""


@contextlib.contextmanager
def serving(source: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run the source code of a server in a separate process. Yields the process and its port."""
    with tempfile.TemporaryDirectory() as folder:
        script, port_file = Path(folder, "server.py"), Path(folder, "port")
        script.write_text(source)
        command = [sys.executable, str(script), str(port_file), *arguments]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                deadline = time.monotonic() + START_LIMIT
                while not (port_file.exists() and port_file.read_text().strip()):
                    if process.poll() is not None or time.monotonic() > deadline:
                        sys.exit(f"the server did not start within {START_LIMIT:g} s")
                    time.sleep(0.05)
                yield process, int(port_file.read_text())
            finally:
                process.kill()


def submit(port: int, endpoint: str) -> str:
    """Submit a job and return the path of its stream."""
    body = b'{"input": {}}'
    head = (
        f"POST /v1/endpoints/{endpoint}/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head.encode() + body)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    job = json.loads(answer.partition(b"\r\n\r\n")[2])["id"]
    return f"/v1/jobs/{job}/events"


def open_stream(port: int, path: str) -> socket.socket:
    """Request a stream and read only the header of the response."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stream.connect(("127.0.0.1", port))
    stream.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += stream.recv(1)
    return stream


def rss(process: subprocess.Popen[bytes]) -> int:
    """Resident memory of a process, in bytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def cpu(process: subprocess.Popen[bytes]) -> float:
    """CPU time of a process in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def left_in_kernel(stream: socket.socket) -> int:
    """Number of bytes in kernel buffers, which can still be read after the server was killed."""
    count = 0
    stream.settimeout(5)
    with contextlib.suppress(OSError):
        while chunk := stream.recv(1 << 16):
            count += len(chunk)
    stream.close()
    return count


def stalled(source: str, path: str | None, count: int) -> dict[str, float]:
    """Measure the memory per stalled reader, in bytes."""
    with serving(source, "15") as (process, port):
        path = path or submit(port, "flow")
        warm = [open_stream(port, path) for _ in range(5)]
        time.sleep(1)
        for stream in warm:
            stream.close()
        time.sleep(1)
        before = rss(process)
        streams = [open_stream(port, path) for _ in range(count)]
        time.sleep(SETTLE)
        grown = rss(process) - before
        process.kill()
        process.wait()
        kernel = statistics.median([left_in_kernel(stream) for stream in streams])
    return {"process": grown / count, "kernel": kernel, "together": grown / count + kernel}


def idle(count: int, heartbeat: float) -> float:
    """Measure the CPU time of idle streams, as a share of one core."""
    with serving(OURS, str(heartbeat)) as (process, port):
        path = submit(port, "quiet")
        streams = [open_stream(port, path) for _ in range(count)]
        time.sleep(1)
        before, begun = cpu(process), time.monotonic()
        time.sleep(IDLE_SECONDS)
        share = (cpu(process) - before) / (time.monotonic() - begun)
        for stream in streams:
            stream.close()
    return share


def main() -> None:
    """Measure stalled readers and idle streams, print the results and save them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stalled", type=int, default=50)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "readers.json")
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4096)), hard))
    rows = []
    servers = [("tidewire", OURS, None)]
    if installed("sse_starlette"):
        servers.append(("sse-starlette", PEER, "/flow"))
    print(f"{arguments.stalled} stalled readers, bytes per reader")
    for name, source, path in servers:
        row = {"server": name} | stalled(source, path, arguments.stalled)
        rows.append(row)
        print(
            f"  {name:14} process {row['process']:9,.0f}  kernel {row['kernel']:9,.0f}  "
            f"together {row['together']:9,.0f}" + (f"  (target {TARGET:,})" if path is None else "")
        )
    print(f"{arguments.idle} idle streams, share of one core")
    shares = {str(heartbeat): idle(arguments.idle, heartbeat) for heartbeat in (15.0, 1.0)}
    for heartbeat, share in shares.items():
        print(f"  a ping every {heartbeat} s: {share:.1%}")
    result = {
        "stalled": arguments.stalled,
        "rows": rows,
        "idle": arguments.idle,
        "idle_share": shares,
    }
    save(arguments.json, result, "uvicorn", "sse-starlette")


if __name__ == "__main__":
    main()
