"""Throughput of tokens from a function on a server to an application, with complete servers and clients.

The server and the client run in separate processes. The measured pairs are those that people use: tidewire;
sse-starlette with httpx-sse, where a pydantic model validates each event, which is how people usually write such an
application; and gradio with gradio_client. On the server, a source produces 2,000 or 20,000 tokens per stream, one by
one or in blocks of sixteen. The source yields to the event loop (`asyncio.sleep(0)`) before each token or block. The
server sends each token as a separate append, event or yield. The application receives each piece as it arrives, and has
the complete text at the end. If this text differs from the generated text, the measurement is invalid and the script
exits.

The results include the fixed cost of a job, which is the cost of its submit and its end. In a short stream, this is
most of the cost. The results also include the cost of the source. The script measures the source separately, too, on
the event loop that uvicorn chooses.

tidewire runs with its default settings. It sends at most one event per 5 ms, and merges all tokens of this period into
the event, so that its pieces are longer. `pieces` is the number of pieces per token that the application received. All
servers run during the whole measurement; a server is idle while another one is measured. Each measurement starts a new
client process. After a short stream for warm-up, the process measures the wall time and the CPU time of both processes.
The results are medians over rounds in which the pairs alternate. gradio takes most of the time, so it runs only in
`GRADIO_ROUNDS` of the rounds, and only if all concurrent streams together have at most `GRADIO_MOST` tokens.

Targets for streams of 20,000 tokens: at least 5 × the tokens per second of sse-starlette with httpx-sse and pydantic one by
one, and at least 12 × in blocks of sixteen.

    python bench/end_to_end.py [--tokens N ...] [--rounds R]
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measured import installed, save

TOKEN = " the"
LENGTHS = (2_000, 20_000)
"""Numbers of tokens per stream."""
ROUNDS = 5
GRADIO_ROUNDS = 3
GRADIO_MOST = 40_000
BLOCKS = (1, 16)
STREAMS = (1, 20)
ENOUGH = {"tidewire": 400_000, "sse-starlette": 20_000, "gradio": 2_000}
"""Minimum number of tokens in a measurement of each pair.

The client runs as many jobs as this requires, because the CPU clock is too coarse for fewer tokens.
"""

SOURCE = f'''
import asyncio, sys

async def tokens(n, block):
    """Yield tokens in blocks, as an engine does."""
    for start in range(0, n, block):
        await asyncio.sleep(0)
        yield [{TOKEN!r}] * min(block, n - start)
'''

SOURCE_ALONE = f"""{SOURCE}
import time
from uvicorn import Config

async def main(n, block):
    begun = time.process_time()
    async for some in tokens(n, block):
        for _ in some:
            pass
    print((time.process_time() - begun) / n * 1e6)

with asyncio.Runner(loop_factory=Config(None).get_loop_factory()) as runner:
    runner.run(main(*map(int, sys.argv[1:])))
"""

OURS = f"""{SOURCE}
from tidewire_server import Server, Stream

server = Server(default_concurrency_limit=None)

@server.endpoint
async def say(stream: Stream[str], n: int, block: int) -> None:
    async for some in tokens(n, block):
        for token in some:
            stream.append(token)

server.run(port=0, port_file=sys.argv[1])
"""

STARLETTE = f"""{SOURCE}
import pathlib, socket
import uvicorn
from pydantic import BaseModel
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.routing import Route

class Token(BaseModel):
    index: int
    text: str

async def say(request):
    options = await request.json()

    async def events():
        index = 0
        async for some in tokens(options["n"], options["block"]):
            for text in some:
                yield {{"id": str(index), "data": Token(index=index, text=text).model_dump_json()}}
                index += 1

    return EventSourceResponse(events())

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(2048)
pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
app = Starlette(routes=[Route("/say", say, methods=["POST"])])
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
"""

GRADIO = f"""{SOURCE}
import pathlib
import gradio

async def say(n, block):
    text = ""
    async for some in tokens(int(n), int(block)):
        for token in some:
            text += token
            yield text

with gradio.Blocks(analytics_enabled=False) as app:
    numbers = [gradio.Number(), gradio.Number()]
    gradio.Button().click(say, numbers, gradio.Textbox(), api_name="say", concurrency_limit=None)
app.queue(max_size=5000).launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
pathlib.Path(sys.argv[1]).write_text(str(app.server_port))
app.block_thread()
"""


# --- applications: each reads concurrent streams, and returns a list of the received pieces for each stream


async def by_tidewire(url: str, n: int, block: int, streams: int, jobs: int) -> list[list[str]]:
    from tidewire import AsyncClient

    async def one() -> list[str]:
        job = await client.submit("say", n=n, block=block)
        return [update.text async for update in job if update.text]

    async with AsyncClient(url) as client:
        return [
            pieces for _ in range(jobs) for pieces in await asyncio.gather(*(one() for _ in range(streams)))
        ]


async def by_httpx_sse(url: str, n: int, block: int, streams: int, jobs: int) -> list[list[str]]:
    import httpx
    import httpx_sse
    from pydantic import BaseModel

    class Token(BaseModel):
        index: int
        text: str

    async def one() -> list[str]:
        options = {"n": n, "block": block}
        async with httpx_sse.aconnect_sse(client, "POST", f"{url}/say", json=options) as source:
            # The pings of sse-starlette are events without data.
            return [
                Token.model_validate_json(event.data).text async for event in source.aiter_sse() if event.data
            ]

    async with httpx.AsyncClient(timeout=None) as client:
        return [
            pieces for _ in range(jobs) for pieces in await asyncio.gather(*(one() for _ in range(streams)))
        ]


def by_gradio_client(url: str, n: int, block: int, streams: int, jobs: int) -> list[list[str]]:
    from gradio_client import Client

    client = Client(url, verbose=False)

    def one(_: int) -> list[str]:
        pieces, before = [], 0
        for text in client.submit(n, block, api_name="/say"):
            if len(text) > before:
                pieces.append(text[before:])
                before = len(text)
        return pieces

    with ThreadPoolExecutor(streams) as pool:
        return [pieces for _ in range(jobs) for pieces in pool.map(one, range(streams))]


def read(side: str, port: int, process: int, n: int, block: int, streams: int) -> None:
    """Read several groups of `streams` concurrent jobs, one group after another, and print the measurements."""
    from streams import cpu

    def ask(n: int, streams: int, jobs: int) -> list[list[str]]:
        url = f"http://127.0.0.1:{port}"
        if side == "gradio":
            return by_gradio_client(url, n, block, streams, jobs)
        return asyncio.run(
            (by_tidewire if side == "tidewire" else by_httpx_sse)(url, n, block, streams, jobs)
        )

    ask(10, 1, 1)
    jobs = max(1, ENOUGH[side] // (n * streams))
    server, client, began = cpu(process), time.process_time(), time.perf_counter()
    received = ask(n, streams, jobs)
    seconds = time.perf_counter() - began
    client, server = time.process_time() - client, cpu(process) - server
    if len(received) != streams * jobs or any("".join(pieces) != TOKEN * n for pieces in received):
        sys.exit(f"{side}: a text is wrong, so the measurement is invalid")
    total = n * streams * jobs
    print(
        json.dumps(
            {
                "tokens_per_second": total / seconds,
                "server_us": server / total * 1e6,
                "client_us": client / total * 1e6,
                "pieces": sum(map(len, received)) / total,
            }
        )
    )


# --- the whole measurement


def sides() -> dict[str, str]:
    found = {"tidewire": OURS}
    if installed("sse_starlette") and installed("httpx_sse"):
        found["sse-starlette"] = STARLETTE
    if installed("gradio"):
        found["gradio"] = GRADIO
    return found


def measure(lengths: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    from wire import serving

    rows = []
    with contextlib.ExitStack() as stack:
        servers = {side: stack.enter_context(serving(source)) for side, source in sides().items()}
        for n, streams, block in itertools.product(lengths, STREAMS, BLOCKS):
            found: dict[str, list[dict[str, float]]] = {}
            for turn in range(rounds):
                for side, (port, process) in servers.items():
                    if side == "gradio" and (turn >= GRADIO_ROUNDS or n * streams > GRADIO_MOST):
                        continue
                    arguments = map(str, (side, port, process, n, block, streams))
                    command = [sys.executable, __file__, "read", *arguments]
                    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                    found.setdefault(side, []).append(json.loads(done.stdout.splitlines()[-1]))
            rows += compared(found, n, streams, block)
    return rows


def source_alone(rounds: int) -> dict[int, float]:
    """Return the CPU time of the source per token in microseconds, by block size."""
    found = {}
    for block in BLOCKS:
        command = [sys.executable, "-c", SOURCE_ALONE, "400000", str(block)]
        runs = [
            float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(rounds)
        ]
        found[block] = statistics.median(runs)
        print(f"the source alone, blocks of {block:2}: {found[block]:.2f} us of CPU per token", flush=True)
    return found


def compared(
    found: dict[str, list[dict[str, float]]], n: int, streams: int, block: int
) -> list[dict[str, Any]]:
    """Return the median results of each server, compared with tidewire.

    `times` is the throughput of tidewire divided by that of the server. `cpu_times` is the CPU time of the server and its
    client divided by that of tidewire.
    """
    rows = []
    for side, taken in found.items():
        row: dict[str, Any] = {"server": side, "tokens": n, "streams": streams, "block": block}
        row |= {name: statistics.median(one[name] for one in taken) for name in taken[0]}
        row["us"] = statistics.median(one["server_us"] + one["client_us"] for one in taken)
        rows.append(row)
    for row in rows:
        row["times"] = rows[0]["tokens_per_second"] / row["tokens_per_second"]
        row["cpu_times"] = row["us"] / rows[0]["us"]
        print(
            f"{row['server']:14} {streams:3} x {n:6} tokens, blocks of {block:2}: {row['tokens_per_second']:9,.0f} tokens/s, "
            f"server {row['server_us']:7.2f} + client {row['client_us']:7.2f} us of CPU per token, "
            f"{row['pieces']:.3f} pieces per token; tidewire is {row['times']:.1f} x as fast; {row['cpu_times']:.1f} x the CPU time of tidewire",
            flush=True,
        )
    return rows


def main() -> None:
    if sys.argv[1:2] == ["read"]:
        read(sys.argv[2], *map(int, sys.argv[3:]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=LENGTHS, help="numbers of tokens per stream")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "end_to_end.json")
    arguments = parser.parse_args()

    rows = measure(arguments.tokens, arguments.rounds)
    packages = ("tidewire", "uvicorn", "sse-starlette", "httpx-sse", "pydantic", "gradio", "gradio-client")
    result = {
        "rounds": arguments.rounds,
        "rows": rows,
        "source_us": source_alone(arguments.rounds),
    }
    save(arguments.json, result, *packages)


if __name__ == "__main__":
    main()
