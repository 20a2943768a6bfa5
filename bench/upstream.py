"""Overhead of a server in front of an engine with OpenAI's API: tokens per second through the server and from the engine alone.

Two engines are measured: a scripted one that generates 2,000 tokens per second in total, whatever the number of streams, and
`transformers serve` with the default model. The engine alone gets the same requests that the server sends to it. All processes
run on the same machine, so the server and the engine share its cores. The script alternates between both ways, so that a
change of the machine's load affects both.

    python bench/upstream.py --rounds 5
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from engine_load import run, serving
from measured import installed, save

from tidewire_server.default_model import default_model
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.upstream.engine_kinds import ENGINE_KINDS, request_body

RESULTS = Path(__file__).parent / "results" / "upstream.json"
STREAMS = (1, 64)
RATE = 2000
TOKENS = {"scripted": {1: 2000, 64: 125}, "transformers serve": {1: 64, 64: 32}}
"""Number of tokens of each stream, by engine and number of streams."""
KINDS = {"scripted": "vllm", "transformers serve": "transformers"}
BAR = 10.0
"""Maximum overhead in percent."""
START_LIMIT = 120.0

SCRIPTED = """
import asyncio, json, sys, time

async def handle(reader, writer):
    global next_at
    while True:
        try:
            head = await reader.readuntil(b"\\r\\n\\r\\n")
        except asyncio.IncompleteReadError:
            return writer.close()
        length = next((int(line[15:]) for line in head.split(b"\\r\\n") if line.lower().startswith(b"content-length:")), 0)
        body = json.loads(await reader.readexactly(length) or b"{}")
        if head.startswith(b"GET"):
            found = json.dumps({"data": [{"id": "scripted", "owned_by": "vllm"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n%b" % (len(found), found))
            continue
        writer.write(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/event-stream\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n")
        for number in range(1, body["max_tokens"] + 1):
            now = time.perf_counter()
            next_at = max(now, next_at + 1 / RATE)
            if next_at - now > 0.001:
                await asyncio.sleep(next_at - now)
            end = number == body["max_tokens"]
            chunk = {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "scripted", "choices": [
                {"index": 0, "text": " word", "logprobs": None, "finish_reason": "length" if end else None}
            ], "usage": {"prompt_tokens": 5, "completion_tokens": number, "total_tokens": 5 + number}}
            data = b"data: %b\\n\\n" % json.dumps(chunk).encode() + (b"data: [DONE]\\n\\n" if end else b"")
            writer.write(b"%x\\r\\n%b\\r\\n" % (len(data), data))
            await writer.drain()
        writer.write(b"0\\r\\n\\r\\n")

async def main():
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    with open(sys.argv[1], "w") as file:
        file.write(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()

RATE, next_at = float(sys.argv[2]), 0.0
asyncio.run(main())
"""

FRONT = """
import sys
from tidewire_server import Server
from tidewire_server.generation.upstream import add_upstream

server = Server(log=sys.argv[2])
add_upstream(server, sys.argv[3], model=sys.argv[4])
server.run(port=0, port_file=sys.argv[1], started=lambda url: None)
"""


def wait_for(url: str) -> None:
    """Wait until a GET request succeeds."""
    give_up = time.monotonic() + START_LIMIT
    while True:
        try:
            urllib.request.urlopen(url, timeout=10).close()
        except urllib.error.HTTPError as error:
            if error.code != 503 or time.monotonic() > give_up:
                raise
        except OSError:
            if time.monotonic() > give_up:
                raise
        else:
            return
        time.sleep(0.1)


def seconds_alone(kind: str, port: int, model: str, streams: int, tokens: int, **members: object) -> float:
    """Return the time in which the engine alone answers the requests that the server would send to it."""
    heads = []
    for number in range(streams):
        request = Generate.model_validate({"max_tokens": tokens, "seed": number, **members})
        path, content = request_body(request, ENGINE_KINDS[kind], model)
        body = json.dumps(content)
        heads.append(
            f"POST /v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )

    async def one(head: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        tail = b""
        while not tail.endswith(b"\r\n0\r\n\r\n"):
            data = await reader.read(1 << 20)
            if not data:
                raise SystemExit("the engine closed the connection")
            tail = (tail + data)[-100:]
        writer.close()

    async def every() -> float:
        begun = time.perf_counter()
        await asyncio.gather(*map(one, heads))
        return time.perf_counter() - begun

    return asyncio.run(every())


def seconds_through(process: int, port: int, streams: int, tokens: int, **members: object) -> float:
    """Return the time in which the server in front of the engine answers the same requests."""
    return run(process, port, streams, tokens, **members).seconds


@contextmanager
def transformers_serve(device: str) -> Iterator[int]:
    """Run `transformers serve` with the default model, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [Path(sys.executable).with_name("transformers"), "serve", default_model(), "--device", device]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        yield port
    finally:
        process.terminate()
        process.wait()


def measure(name: str, engine: int, model: str, rounds: int, log: str) -> list[dict]:
    rows = []
    with serving(FRONT, log, f"http://127.0.0.1:{engine}/v1", model) as (process, port):
        wait_for(f"http://127.0.0.1:{port}/readyz")
        for streams in STREAMS:
            tokens = TOKENS[name][streams]
            body = {"prompt": "def f(", "temperature": 0}
            ways: dict[str, Callable[[], float]] = {
                "alone": partial(seconds_alone, KINDS[name], engine, model, streams, tokens, **body),
                "through": partial(seconds_through, process, port, streams, tokens, **body),
            }
            found: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(rounds + 1):
                for way, seconds in ways.items():
                    took = seconds()
                    if number:  # The first round warms up.
                        found[way].append(streams * tokens / took)
            alone, through = (statistics.median(found[way]) for way in ways)
            overhead = 100 * (1 - through / alone)
            rows.append(
                {"engine": name, "streams": streams, "alone": alone, "through": through, "overhead": overhead}
            )
            print(
                f"{name}, {streams} streams: {alone:.0f} tokens/s alone, {through:.0f} through the server, overhead "
                f"{overhead:.1f} % (target {BAR:g} %)",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="torch device of transformers serve (default: cpu)")
    parser.add_argument("--log", default="memory", help="log of the server, such as sqlite:///bench.db")
    arguments = parser.parse_args()
    with serving(SCRIPTED, RATE) as (_, port):
        rows = measure("scripted", port, "scripted", arguments.rounds, arguments.log)
    if all([installed("accelerate"), installed("fastapi"), installed("openai")]):
        with transformers_serve(arguments.device) as port:
            rows += measure("transformers serve", port, str(default_model()), arguments.rounds, arguments.log)
    save(
        RESULTS,
        {"rows": rows, "bar": BAR, "rate": RATE, "rounds": arguments.rounds, "load": os.getloadavg()[0]},
        "tidewire",
        "httpx2",
        "transformers",
    )


if __name__ == "__main__":
    main()
