"""Endless jobs do not grow the memory of log, server and client, measured with `tracemalloc`."""

import asyncio
import gc
import re
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tidewire import Client

WARM = 300
"""Number of events after which all one-time allocations have been made."""

EVENTS = 1200
GROWTH = 36_000
"""Allowed growth of a process in bytes over `EVENTS` events, less than half of the bytes logged in that time."""


def serve(port_file: str) -> None:
    from tidewire_server import Server, Stream

    tracemalloc.start()
    server = Server(
        default_concurrency_limit=4, max_log_bytes=32_768, cancel_timeout=0.2, shutdown_timeout=0.1
    )

    @server.endpoint
    async def clock() -> AsyncIterator[dict[str, object]]:
        """Yield values of constant size forever."""
        ticks = 0
        while True:
            yield {"ticks": ticks, "shown": f"{ticks:0100}", "last": [ticks - 1, ticks]}
            ticks += 1
            await asyncio.sleep(0)

    @server.endpoint(capabilities={"rollback": True}, initial={"text": "", "rows": [], "turn": 0})
    def wheel(stream: Stream[dict[str, object]]) -> None:
        """Append to a stream and truncate it until the job is cancelled."""
        turn = 0
        while not stream.cancelled:
            turn += 1
            stream.append(f"turn {turn} é" * 10, at="/text")
            stream.append([{"turn": turn}, turn], at="/rows")
            stream.set("/turn", turn)
            stream.truncate(5, at="/text")
            if turn % 10 == 0:
                stream.set("/text", "")
                stream.truncate(20, at="/rows")

    @server.endpoint
    async def memory() -> int:
        """Bytes that `tracemalloc` counts as allocated in the server process."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    server.run(port=0, port_file=port_file)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port_file = tmp_path_factory.mktemp("endless") / "port"
    with subprocess.Popen(
        [sys.executable, __file__, str(port_file)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()  # The server prints its URL once it serves.
            assert "http://" in line, line
            yield f"http://127.0.0.1:{port_file.read_text().strip()}"
        finally:
            process.terminate()
            process.communicate(timeout=20)


def logged(url: str) -> int:
    found = re.search(r"^tidewire_bytes_logged_total (\S+)$", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def memory_in_use(url: str) -> tuple[int, int, int]:
    """Bytes logged so far, bytes allocated in the server, and bytes allocated in this process."""
    with Client(url) as client:
        there = client.run("memory")
    assert isinstance(there, int)
    gc.collect()
    return logged(url), there, tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("endpoint", ["clock", "wheel"])
def test_an_endless_job_does_not_grow_log_server_or_client(url: str, endpoint: str) -> None:
    # Warm up: each kind of call allocates some memory once.
    memory_in_use(url)
    tracemalloc.start()
    try:
        with Client(url) as client:
            job = client.submit(endpoint)
            before = None
            for update in job:
                if before is None and update.seq >= WARM:
                    before = memory_in_use(url)
                elif update.seq >= WARM + EVENTS:
                    break
            after = memory_in_use(url)
            value = update.value
            job.cancel()
    finally:
        tracemalloc.stop()
    assert before is not None
    assert isinstance(value, dict)
    assert after[0] - before[0] > 2 * GROWTH
    assert after[1] - before[1] < GROWTH, "the server grew"
    assert after[2] - before[2] < GROWTH, "the client grew"


if __name__ == "__main__":
    serve(str(Path(sys.argv[1])))
