"""Time and size of short runs over a slow link: diffs must not be slower than whole values.

Gradio's pull request 7102 raises this question. A function adds a short piece to the last message of a chat history, N
times at a fixed rate. A client reads the chat through a link with 30 Mbit/s and a round trip time of 40 ms. The script
measures the median time from the first byte of the submit to the last byte of the stream, and the number of bytes in
the stream.

Rows: tidewire with diffs, tidewire with whole states (`?diffs=0&min_interval_ms=0`), and gradio if it is installed. A
run submits with one request and reads with another, on separate connections.

Target: diffs take at most 1.02 times as long as whole states, and are smaller from N = 200 on. The rate determines most
of the time, so an advantage of diffs becomes visible first in the number of bytes.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.from_thread import start_blocking_portal
from measured import installed, save
from wire import applied, fn_index, request, serving

RATES = (20, 100, 200)
SIZES = (20, 200)
HISTORY_MESSAGES = 100
"""Number of messages before the growing one; each has 60 characters."""

BITS_PER_SECOND = 30e6
ROUND_TRIP = 0.040
PACKET_BYTES = 1460
"""Number of bytes that the link transmits at once, the payload of a packet."""

GROW = f'''
import time

def grow(n: int, rate: int):
    """Grow the last message of a chat `rate` times per second."""
    history = [{{"role": "user", "content": "a message of a history " * 3}} for _ in range({HISTORY_MESSAGES})]
    history.append({{"role": "assistant", "content": ""}})
    start = time.monotonic()
    for i in range(int(n)):
        time.sleep(max(0.0, start + i / rate - time.monotonic()))
        history[-1]["content"] += " " + str(i)
        yield history
'''

OURS = f"""
import sys
from collections.abc import Iterator
from tidewire_server import Server
{GROW}
grow.__annotations__["return"] = Iterator[list[dict[str, str]]]
server = Server()
server.endpoint(columns=("/{HISTORY_MESSAGES}/content",))(grow)
server.run(port=0, port_file=sys.argv[1])
"""

GRADIO = f"""
import pathlib, sys
import gradio
{GROW}
with gradio.Blocks() as app:
    number, rate, chat = gradio.Number(), gradio.Number(), gradio.Chatbot()
    gradio.Button().click(grow, [number, rate], chat, api_name="grow")
app.queue().launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
pathlib.Path(sys.argv[1]).write_text(str(app.server_port))
app.block_thread()
"""


async def carry(source: SocketStream, target: SocketStream) -> None:
    """Forward one direction of a connection with the delay and rate of the link."""
    sender, receiver = anyio.create_memory_object_stream[tuple[float, bytes]](math.inf)

    async def deliver() -> None:
        free = 0.0
        async for arrival, piece in receiver:
            free = max(free, arrival) + len(piece) * 8 / BITS_PER_SECOND
            await anyio.sleep_until(free)
            await target.send(piece)
        await target.send_eof()

    with contextlib.suppress(anyio.BrokenResourceError):
        async with anyio.create_task_group() as tasks, sender:
            tasks.start_soon(deliver)
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    piece = await source.receive(PACKET_BYTES)
                    await sender.send((anyio.current_time() + ROUND_TRIP / 2, piece))


@contextlib.asynccontextmanager
async def slow_link(port: int) -> AsyncIterator[int]:
    """Run a TCP proxy to a local port with the delay and rate of the link. Yields the proxy's port."""

    async def serve(client: SocketStream) -> None:
        async with (
            client,
            await anyio.connect_tcp("127.0.0.1", port) as server,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(carry, client, server)
            await carry(server, client)
            tasks.cancel_scope.cancel()

    async with (
        await anyio.create_tcp_listener(local_host="127.0.0.1") as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, serve)
        yield listener.extra(SocketAttribute.local_port)
        tasks.cancel_scope.cancel()


def ours(query: str) -> Callable[[int, int, int], tuple[int, str]]:
    def measure(port: int, n: int, rate: int) -> tuple[int, str]:
        body = {"input": {"n": n, "rate": rate}}
        job = json.loads(request(port, "POST", "/v1/endpoints/grow/jobs", body)[0])
        path = f"/v1/jobs/{job['id']}/events{query}"
        stream, _ = request(port, "GET", path, accept="text/event-stream")
        return len(stream), applied(stream, b"", f"/{HISTORY_MESSAGES}/content").text

    return measure


def gradio(port: int, n: int, rate: int) -> tuple[int, str]:
    session = uuid.uuid4().hex
    join = {"data": [n, rate], "fn_index": 0, "session_hash": session}
    request(port, "POST", "/gradio_api/queue/join", join)
    stream, _ = request(
        port, "GET", f"/gradio_api/queue/data?session_hash={session}", accept="text/event-stream"
    )
    last = json.loads(stream[stream.rindex(b'data: {"msg":"process_completed"') + 6 :].split(b"\n\n")[0])
    found = last["output"]["data"][0][-1]["content"]
    return len(stream), found if isinstance(found, str) else found[0]["text"]


SERVERS = {
    "tidewire, diffs": (OURS, ours("")),
    "tidewire, whole states": (OURS, ours("?diffs=0&min_interval_ms=0")),
    "gradio": (GRADIO, gradio),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "short_runs.json")
    arguments = parser.parse_args()

    rows = []
    for name, (source, measure) in SERVERS.items():
        if name == "gradio" and not installed("gradio"):
            print("gradio is not installed, so it is not measured")
            continue
        with (
            serving(source) as (port, _),
            start_blocking_portal() as portal,
            portal.wrap_async_context_manager(slow_link(port)) as link,
        ):
            if name == "gradio" and fn_index(port, "grow") != 0:
                sys.exit(
                    "gradio assigned an unexpected index to the function; adapt `fn_index` in this script"
                )
            measure(port, 2, 100)
            for n in SIZES:
                for rate in RATES:
                    seconds, size = [], 0
                    for _ in range(arguments.repetitions):
                        start = time.perf_counter()
                        size, text = measure(link, n, rate)
                        seconds.append(time.perf_counter() - start)
                        if text.split() != [str(i) for i in range(n)]:
                            sys.exit(f"{name}, N = {n}: the result is wrong, so the measurement is invalid")
                    median_seconds = statistics.median(seconds)
                    rows.append(
                        {"server": name, "n": n, "rate": rate, "seconds": median_seconds, "bytes": size}
                    )
                    print(
                        f"{name:24} N {n:4} at {rate:4}/s  {median_seconds:8.3f} s  {size:9,} B", flush=True
                    )
    result = {
        "repetitions": arguments.repetitions,
        "rows": rows,
    }
    save(arguments.json, result, "tidewire", "uvicorn", "gradio")


if __name__ == "__main__":
    main()
