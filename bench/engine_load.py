"""Load for measurements of the text engine: a server in a separate process, and raw readers of concurrent generations.

The readers count bytes and search only for the end of the response, so that they take less CPU time than the server.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from jobs import cpu_seconds

_HEAD = (
    "POST /v1/endpoints/generate/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n"
    "Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
)
_END = b"\r\n0\r\n\r\n"


class Load(NamedTuple):
    """Cost of several concurrent generations."""

    tokens: int
    seconds: float
    """Wall time from the first request to the last byte."""
    cpu_seconds: float
    """CPU time of the server."""
    bytes: int
    """Bytes that the server sent, including HTTP headers and framing."""


@contextmanager
def serving(source: str, *arguments: object) -> Iterator[tuple[int, int]]:
    """Run a server program in a separate process. Yield its process id and its port.

    The first argument of the program is the file to which it writes its port.
    """
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        command = [sys.executable, "-c", source, port_file, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            while not (port_file.exists() and port_file.read_text().strip()):
                if process.poll() is not None:
                    raise SystemExit(f"the server exited with code {process.returncode}")
                time.sleep(0.05)
            yield process.pid, int(port_file.read_text())
        finally:
            process.terminate()
            process.wait()


def run(process: int, port: int, streams: int, tokens: int, **members: Any) -> Load:
    """Run concurrent generations, and read all bytes of their streams.

    Args:
        process: Process id of the server.
        port: Port of the server.
        streams: Number of generations.
        tokens: Number of tokens of each generation.
        members: Further members of the input.
    """
    return asyncio.run(_run(process, port, streams, tokens, members))


async def _run(process: int, port: int, streams: int, tokens: int, members: dict[str, Any]) -> Load:
    connections = [await asyncio.open_connection("127.0.0.1", port, limit=1 << 24) for _ in range(streams)]
    wall, cpu = time.perf_counter(), cpu_seconds(process)
    for number, (_, writer) in enumerate(connections):
        body = json.dumps({"input": {"max_tokens": tokens, "seed": number, **members}})
        writer.write(_HEAD.format(length=len(body), body=body).encode())
    bodies = await asyncio.gather(*(_read(reader) for reader, _ in connections))
    wall, cpu = time.perf_counter() - wall, cpu_seconds(process) - cpu
    for _, writer in connections:
        writer.close()
    return Load(streams * tokens, wall, cpu, sum(bodies))


async def _read(reader: asyncio.StreamReader) -> int:
    """Read a response up to its end and return its size in bytes."""
    count, tail = 0, b""
    while not tail.endswith(_END):
        data = await reader.read(1 << 20)
        if not data or (not count and not data.startswith(b"HTTP/1.1 20")):
            raise SystemExit(f"unexpected response: {(tail + data)[:500]!r}")
        count += len(data)
        tail = (tail + data)[-4096:]
    if b'"status":"succeeded"' not in tail:
        raise SystemExit(f"a generation failed: {tail[-500:]!r}")
    return count
