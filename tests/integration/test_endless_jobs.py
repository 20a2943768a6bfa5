"""Endless jobs do not grow the memory of log, server and client, measured with `tracemalloc`."""

import asyncio
import gc
import re
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from signal import SIGTERM

import httpx2
import pytest

from proof.forked_process import Forked
from tidewire import Client

STOPS = {"clock": (600, 1800), "wheel": (200, 800)}
"""Ticks or turns at which the function of an endpoint waits until it is released, makes one change, and waits while memory is
measured. No other event is in flight then, and the client has no longer block of updates. At the first stop, all one-time
allocations have been made. Between the stops, at least 1,200 events are logged."""

GROWTH = 36_000
"""Allowed growth of a process in bytes between the stops, less than half of the bytes logged in that time."""


def serve(port_file: str) -> None:
    from tidewire_server import Server, Stream

    tracemalloc.start()
    server = Server(
        default_concurrency_limit=4, max_log_bytes=32_768, cancel_timeout=0.2, shutdown_timeout=0.1
    )

    released = threading.Semaphore(0)

    @server.endpoint
    async def clock() -> AsyncIterator[dict[str, object]]:
        """Yield values of constant size forever."""
        ticks = stops = 0
        while True:
            yield {"ticks": ticks, "shown": f"{ticks:0100}", "last": [ticks - 1, ticks], "stops": stops}
            if ticks in STOPS["clock"]:
                await asyncio.to_thread(released.acquire)
                stops += 1
                yield {"ticks": ticks, "shown": f"{ticks:0100}", "last": [ticks - 1, ticks], "stops": stops}
                await asyncio.to_thread(released.acquire)
            ticks += 1
            await asyncio.sleep(0)

    @server.endpoint(capabilities={"rollback": True}, initial={"text": "", "rows": [], "turn": 0, "stops": 0})
    def wheel(stream: Stream[dict[str, object]]) -> None:
        """Append to a stream and truncate it until the job is cancelled."""
        turn = 0
        while not stream.cancelled:
            turn += 1
            stream.append(f"turn {turn} é" * 10, at="/text")
            stream.append([{"turn": turn}, turn], at="/rows")
            stream.truncate(5, at="/text")
            if turn % 10 == 0:
                stream.set("/text", "")
                stream.truncate(20, at="/rows")
            stream.set("/turn", turn)
            if turn in STOPS["wheel"]:
                released.acquire()
                stream.set("/stops", STOPS["wheel"].index(turn) + 1)
                released.acquire()

    @server.endpoint
    async def go_on() -> None:
        """Let the function that has stopped continue."""
        released.release()

    @server.endpoint
    async def memory() -> int:
        """Bytes that `tracemalloc` counts as allocated in the server process."""
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    server.run(port=0, port_file=port_file)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port_file = tmp_path_factory.mktemp("endless") / "port"
    with Forked("test_endless_jobs", str(port_file), cwd=Path(__file__).parent) as process:
        line = process.stdout.readline()  # The server prints its URL once it serves.
        assert "http://" in line, line
        yield f"http://127.0.0.1:{port_file.read_text().strip()}"
        process.send_signal(SIGTERM)
        process.wait(20)


def logged(url: str) -> int:
    found = re.search(r"^tidewire_bytes_logged_total (\S+)$", httpx2.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def memory_in_use(url: str) -> tuple[int, int, int]:
    """Bytes logged so far, bytes allocated in the server, and bytes allocated in this process."""
    with Client(url) as client:
        there = client.run("memory")
    assert isinstance(there, int)
    gc.collect()
    return logged(url), there, tracemalloc.get_traced_memory()[0]


@pytest.mark.heavy
@pytest.mark.parametrize(("endpoint", "turn"), [("clock", "ticks"), ("wheel", "turn")])
def test_an_endless_job_does_not_grow_log_server_or_client(url: str, endpoint: str, turn: str) -> None:
    # Warm up: each kind of call allocates some memory once.
    memory_in_use(url)
    tracemalloc.start()
    points: list[tuple[int, int, int]] = []
    try:
        with Client(url) as client:
            job = client.submit(endpoint)
            released = 0
            for update in job:
                if update.value["stops"] > len(points):
                    points.append(memory_in_use(url))
                    if len(points) == 2:
                        break
                    client.run("go_on")
                elif released == len(points) and update.value[turn] == STOPS[endpoint][released]:
                    released += 1
                    client.run("go_on")
            client.run("go_on")
            job.cancel()
    finally:
        tracemalloc.stop()
    before, after = points
    assert after[0] - before[0] > 2 * GROWTH
    assert after[1] - before[1] < GROWTH, "the server grew"
    assert after[2] - before[2] < GROWTH, "the client grew"


if __name__ == "__main__":
    serve(str(Path(sys.argv[1])))
