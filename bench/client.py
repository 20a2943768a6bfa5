"""Cost of a client: CPU time per event and per short job, time to the first value, memory, and many concurrent jobs.

CPU time per event: a server on plain sockets sends a prepared stream with one event per HTTP chunk, as fast as the
client reads, or paced: `RATE` events per second, so that each event arrives in a packet of its own. The server and each client run in separate processes. The result is the CPU time of the client process
(`time.process_time`) for one complete stream, including the time to create the client and to open the stream. The peers
are httpx-sse with `json.loads` over `httpx.AsyncClient`, which reads the same events, and, if installed, openai's
`AsyncStream`, which reads the same tokens in openai's format. The script compares the received text with the sent text.

First value: a reference server runs `def one() -> int`. The result is the wall time from the submit to the value, for a
raw event stream on an open connection, and for the async and the blocking client.

Short job: a client calls `run` with this function repeatedly, one call after another, on one open connection. The
result is the CPU time of the client process per call. For comparison, httpx posts the same submit and reads the event
stream in the response to its end. `httpx.Client` and `httpx.AsyncClient` are measured in separate processes.

Crowd: many short jobs that start at once, with `asyncio.gather`. The result is the CPU time of the client process per job.

Memory: the growth of the peak memory of a client process while it receives a document. The growth during the first job
of the process is not included. The document arrives as one value, or it grows by appends of `APPEND` characters.

Targets, for the async and the blocking client: at most 1.0 × the CPU time per event of httpx-sse in a burst, and at most
1.2 × if the events are paced; at most 3 × the CPU time of httpx for a short job; the first value at most 2 ms later than with the raw event stream; a memory growth of at
most 3 × the size of the document.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from measured import installed, save

TOKEN = " the"
RATE = 2_000
"""Number of events per second of a paced stream."""
DOCUMENTS = (1_000_000, 4_000_000, 12_000_000)
"""Sizes of the documents in the memory measurement, in characters."""
MEMORY_ROUNDS = 5
APPEND = 1_000
KINDS = ("httpx-sse + json", "openai", "tidewire, async", "tidewire, blocking")
JSON = {"Content-Type": "application/json"}
CROWD = ("httpx", "httpx2", "tidewire, async")
CROWDS = (300, 1_000)
"""Numbers of short jobs that start at once."""
SHORT_JOB = ("httpx, blocking", "httpx, async", "tidewire, blocking", "tidewire, async")

SERVER = """
import sys
from tidewire_server import Server, Stream
server = Server()
@server.endpoint(concurrency_limit=None)
def one() -> int:
    return 1
@server.endpoint(concurrency_limit=None)
def text(characters: int) -> str:
    return "x" * characters
@server.endpoint(concurrency_limit=None)
async def growing(stream: Stream[str], characters: int, step: int) -> None:
    for _ in range(characters // step):
        stream.append("x" * step)
server.run(port=0, port_file=sys.argv[1])
"""


# --- the stream that all clients read


def event(data: object, *, id: str = "", type: str = "") -> bytes:  # noqa: A002 - field names of SSE
    lines = [f"id:{id}"] * bool(id) + [f"event:{type}"] * bool(type) + [f"data:{json.dumps(data)}"]
    return ("\n".join(lines) + "\n\n").encode()


def tidewire_events(n: int) -> Iterator[bytes]:
    from tidewire.protocol.document.digests import digest

    yield event(
        {
            "protocol": "tidewire/1",
            "job": "j1",
            "events": "/v1/jobs/j1/events",
            "head": "1-1",
            "heartbeat_ms": 15_000,
        },
        type="hello",
    )
    state = {"status": "running", "items": [{"status": "running", "value": ""}], "usage": {}, "notes": []}
    yield event({"state": state, "columns": ["/items/0/value"], "reason": "start"}, id="1-1", type="snapshot")
    for at in range(n):
        yield event(TOKEN, id=f"1-{at + 2}")
    final = digest([{"status": "running", "value": TOKEN * n}])
    yield event(
        {"status": "succeeded", "usage": {}, "check": [], "digest": final}, id=f"1-{n + 2}", type="done"
    )


def openai_events(n: int) -> Iterator[bytes]:
    for _ in range(n):
        yield event(
            {
                "id": "chatcmpl-1",
                "object": "chat.completion.chunk",
                "created": 1,
                "model": "m",
                "choices": [{"index": 0, "delta": {"content": TOKEN}, "finish_reason": None}],
            }
        )
    yield b"data: [DONE]\n\n"


def chunked(events: Iterator[bytes]) -> list[bytes]:
    return [*(b"%x\r\n%s\r\n" % (len(one), one) for one in events), b"0\r\n\r\n"]


def serve(n: int, rate: int) -> None:
    """Send tidewire's stream in response to GET requests, and openai's stream in response to POST requests.

    With a rate of 0, send a stream as fast as the client reads, else that number of chunks per second.
    """
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    streams = {"GET": chunked(tidewire_events(n)), "POST": chunked(openai_events(n))}
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)

    def answer(connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while request := stream.readline():
                length = 0
                while (line := stream.readline().strip()) != b"":
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                stream.read(length)
                chunks = streams[request.split(b" ")[0].decode()]
                if rate == 0:
                    connection.sendall(head + b"".join(chunks))
                    continue
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(head)
                begun = time.perf_counter()
                for at, chunk in enumerate(chunks):
                    time.sleep(max(0.0, begun + at / rate - time.perf_counter()))
                    connection.sendall(chunk)

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


# --- clients: each reads one stream and returns its text


async def by_httpx_sse(url: str, tls: ssl.SSLContext) -> str:
    import httpx
    import httpx_sse

    async with (
        httpx.AsyncClient(verify=tls, timeout=None) as client,
        httpx_sse.aconnect_sse(client, "GET", f"{url}/v1/jobs/j1/events") as source,
    ):
        values = [json.loads(one.data) async for one in source.aiter_sse()]
    return "".join(value for value in values if type(value) is str)


async def by_openai(url: str, tls: ssl.SSLContext) -> str:
    import httpx
    import openai

    async with openai.AsyncOpenAI(
        base_url=url, api_key="none", http_client=httpx.AsyncClient(verify=tls)
    ) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": ""}], stream=True
        )
        return "".join([part.choices[0].delta.content or "" async for part in stream])


async def by_tidewire(url: str, tls: ssl.SSLContext) -> str:
    from tidewire import AsyncClient

    async with AsyncClient(url, verify=tls) as client:
        return "".join([update.text async for update in client.job("j1")])


def by_tidewire_blocking(url: str, tls: ssl.SSLContext) -> str:
    from tidewire import Client

    with Client(url, verify=tls) as client:
        return "".join(update.text for update in client.job("j1"))


def read(kind: str, url: str, n: int, repetitions: int) -> None:
    """Read the stream repeatedly, and print the CPU time per event of each repetition, in microseconds."""
    tls = ssl.create_default_context()
    found = []
    for turn in range(repetitions + 1):
        begun = time.process_time()
        if kind == "tidewire, blocking":
            text = by_tidewire_blocking(url, tls)
        else:
            reader = {
                "httpx-sse + json": by_httpx_sse,
                "openai": by_openai,
                "tidewire, async": by_tidewire,
            }[kind]
            text = asyncio.run(reader(url, tls))
        spent = time.process_time() - begun
        if text != TOKEN * n:
            sys.exit(f"{kind}: the text is wrong, so the measurement is invalid")
        if turn:
            found.append(spent / n * 1e6)
    print(json.dumps(found))


# --- measurements against a reference server


def first_values(url: str, repetitions: int) -> None:
    """Print the median time from a submit to its value, in milliseconds.

    The readers are a raw event stream, the async client and the blocking client.
    """
    import http.client

    from tidewire import AsyncClient, Client

    host = url.removeprefix("http://")
    raw = http.client.HTTPConnection(host)
    headers = {"Accept": "text/event-stream", "Content-Type": "application/json"}

    def ask() -> None:
        raw.request("POST", "/v1/endpoints/one/jobs", body=b'{"input":{}}', headers=headers)
        answer = raw.getresponse()
        while (line := answer.readline()) and not line.startswith(b"event:done"):
            pass
        answer.read()

    found: dict[str, list[float]] = {"raw": [], "async": [], "blocking": []}

    def note(name: str, begun: float) -> None:
        found[name].append((time.perf_counter() - begun) * 1e3)

    async def through_async() -> None:
        async with AsyncClient(url) as client:
            for _ in range(repetitions):
                begun = time.perf_counter()
                async for _update in await client.submit("one"):
                    note("async", begun)

    for _ in range(repetitions):
        begun = time.perf_counter()
        ask()
        note("raw", begun)
    asyncio.run(through_async())
    with Client(url) as client:
        for _ in range(repetitions):
            begun = time.perf_counter()
            for _update in client.submit("one"):
                note("blocking", begun)
    print(json.dumps({name: statistics.median(times) for name, times in found.items()}))


def short_jobs(kind: str, url: str, jobs: int) -> None:
    """Print the CPU time of the client per short job, in milliseconds."""
    import httpx

    from tidewire import AsyncClient, Client

    submit = {
        "url": f"{url}/v1/endpoints/one/jobs",
        "content": b'{"input":{}}',
        "headers": {"Accept": "text/event-stream", "Content-Type": "application/json"},
    }
    values: list[object] = []
    warm_up = 20
    begun = 0.0

    def note(turn: int) -> None:
        nonlocal begun
        if turn == warm_up:
            begun = time.process_time()

    def value_in(stream: bytes) -> object:
        return 1 if b'["s","/items/0/value",1]' in stream else None

    async def by_async(kind: str) -> None:
        if kind == "httpx, async":
            async with httpx.AsyncClient() as client:
                for turn in range(warm_up + jobs):
                    note(turn)
                    values.append(value_in((await client.post(**submit)).content))
        else:
            async with AsyncClient(url) as client:
                for turn in range(warm_up + jobs):
                    note(turn)
                    values.append(await client.run("one"))

    if kind.endswith("async"):
        asyncio.run(by_async(kind))
    elif kind == "httpx, blocking":
        with httpx.Client() as client:
            for turn in range(warm_up + jobs):
                note(turn)
                values.append(value_in(client.post(**submit).content))
    else:
        with Client(url) as client:
            for turn in range(warm_up + jobs):
                note(turn)
                values.append(client.run("one"))
    spent = time.process_time() - begun
    if values != [1] * (warm_up + jobs):
        sys.exit(f"{kind}: a value is wrong")
    print(json.dumps(spent / jobs * 1e3))


def memory(url: str, way: str, characters: int) -> None:
    """Print the growth of the peak memory of this process in bytes, and the size of the received document."""
    from tidewire import Client

    with Client(url) as client:
        client.run("one")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if way == "value":
            text = client.run("text", characters=characters)
        else:
            job = client.submit("growing", characters=characters, step=APPEND)
            received = sum(len(update.text) for update in job)
            text = job.result() if received == characters else ""
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if text != "x" * characters:
        sys.exit("the text is wrong")
    print(json.dumps({"way": way, "document": characters, "grown": grown * 1024}))


def crowd(kind: str, url: str, jobs: int) -> None:
    """Print the CPU time of the client per short job in milliseconds, and the wall time in seconds, if all jobs start at once.

    httpx and httpx2 have their default limit of 100 connections, and no time limit for the wait for a connection.
    """
    import httpx
    import httpx2

    from tidewire import AsyncClient

    async def together() -> list[object]:
        if kind == "tidewire, async":
            async with AsyncClient(url) as client:
                return await asyncio.gather(*(client.run("one") for _ in range(jobs)))
        async with {"httpx": httpx, "httpx2": httpx2}[kind].AsyncClient(timeout=None) as http:
            submit = {"content": b'{"input":{}}', "headers": {"Accept": "text/event-stream"} | JSON}
            posted = (http.post(f"{url}/v1/endpoints/one/jobs", **submit) for _ in range(jobs))
            streams = [response.content for response in await asyncio.gather(*posted)]
            return [1 if b'["s","/items/0/value",1]' in stream else None for stream in streams]

    began, spent = time.perf_counter(), time.process_time()
    values = asyncio.run(together())
    if values != [1] * jobs:
        sys.exit(f"{kind}: a value is wrong")
    print(json.dumps([(time.process_time() - spent) / jobs * 1e3, time.perf_counter() - began]))


def threads(url: str, jobs: int) -> None:
    """Print the number of threads of a blocking client that 16 threads call."""
    from concurrent.futures import ThreadPoolExecutor

    from tidewire import Client

    with Client(url) as client, ThreadPoolExecutor(16) as pool:
        values = list(pool.map(lambda _: client.run("one"), range(jobs)))
        own = sum(thread.name == "tidewire-client" for thread in threading.enumerate())
    if values != [1] * jobs:
        sys.exit("a value is wrong")
    print(json.dumps(own))


# --- the whole measurement


def run(*arguments: object) -> object:
    command = [sys.executable, __file__, *map(str, arguments)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


@contextlib.contextmanager
def streaming(n: int, rate: int) -> Iterator[str]:
    command = [sys.executable, __file__, "serve", str(n), str(rate)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


def grown_by(url: str, way: str, characters: int) -> float:
    """Return the median memory growth of several client processes, in bytes.

    A process requests memory from the system in large pieces, so a single result is too coarse for a small document.
    """
    return statistics.median(run("memory", url, way, characters)["grown"] for _ in range(MEMORY_ROUNDS))


def stream_costs(kinds: list[str], n: int, rate: int, rounds: int) -> dict[str, float]:
    """Return the median CPU time per event of each client, in microseconds."""
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    with streaming(n, rate) as url:
        for _ in range(rounds):
            # Alternate the clients, so that a change of the machine's load affects all of them.
            for kind in kinds:
                costs[kind] += run("read", kind, url, n, 3)
    return {kind: statistics.median(found) for kind, found in costs.items()}


def measure(arguments: argparse.Namespace) -> dict:
    from wire import serving

    if not installed("httpx_sse"):
        sys.exit("all results are relative to httpx-sse")

    kinds = [kind for kind in KINDS if kind != "openai" or installed("openai")]
    burst = stream_costs(kinds, arguments.n, 0, arguments.rounds)
    paced = stream_costs(kinds, arguments.paced, RATE, arguments.rounds)
    with serving(SERVER) as server:
        url = f"http://127.0.0.1:{server.port}"
        first = run("first", url, arguments.submits)
        short: dict[str, list[float]] = {kind: [] for kind in SHORT_JOB}
        for _ in range(arguments.short_rounds):
            for kind in SHORT_JOB:
                short[kind].append(run("short", kind, url, arguments.short_jobs))
        sizes = [
            {"way": way, "document": characters, "grown": grown_by(url, way, characters)}
            for way in ("value", "appends")
            for characters in DOCUMENTS
        ]
        many: dict[tuple[str, int], list[list[float]]] = {
            (kind, jobs): [] for jobs in CROWDS for kind in CROWD
        }
        for _ in range(arguments.rounds):
            for (kind, jobs), found in many.items():
                found.append(run("crowd", kind, url, jobs))
        client_threads = run("threads", url, min(CROWDS))
    return {
        "n": arguments.n,
        "repetitions": 3 * arguments.rounds,
        "us_per_event": burst,
        "us_per_paced_event": paced,
        "first_value_ms": first,
        "short_job_ms": {kind: statistics.median(found) for kind, found in short.items()},
        "short_jobs": arguments.short_jobs,
        "short_rounds": arguments.short_rounds,
        "memory": sizes,
        "crowd": [
            {"client": kind, "jobs": jobs, "ms": statistics.median(cpu), "seconds": statistics.median(wall)}
            for (kind, jobs), found in many.items()
            for cpu, wall in [zip(*found, strict=True)]
        ],
        "client_threads": client_threads,
    }


def main() -> None:
    roles = {
        "serve": serve,
        "read": read,
        "first": first_values,
        "short": short_jobs,
        "memory": memory,
        "crowd": crowd,
        "threads": threads,
    }
    if len(sys.argv) > 1 and sys.argv[1] in roles:
        values = [int(each) if each.isdigit() else each for each in sys.argv[2:]]
        roles[sys.argv[1]](*values)
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=20_000, help="number of events in a stream (%(default)s)")
    parser.add_argument(
        "--paced", type=int, default=4_000, help="number of events in a paced stream (%(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="number of processes per client; each reads three streams (%(default)s)",
    )
    parser.add_argument("--submits", type=int, default=200, help="number of submits per client (%(default)s)")
    parser.add_argument(
        "--short-jobs",
        type=int,
        default=1000,
        help="number of consecutive short jobs per process (%(default)s)",
    )
    parser.add_argument(
        "--short-rounds",
        type=int,
        default=7,
        help="number of processes per client that run short jobs (%(default)s)",
    )
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "client.json")
    arguments = parser.parse_args()

    result = measure(arguments)
    for way, costs in (("burst", result["us_per_event"]), ("paced", result["us_per_paced_event"])):
        for kind, cost in costs.items():
            base = costs["httpx-sse + json"]
            print(f"{kind:22} {way} {cost:7.1f} us per event, {cost / base:5.2f} x httpx-sse")
    for name, found in result["first_value_ms"].items():
        print(f"{'first value, ' + name:22} {found:7.2f} ms")
    short = result["short_job_ms"]
    for name, found in short.items():
        of = f"{found / short['httpx, blocking']:.2f} x httpx, {found / short['httpx, async']:.2f} x httpx async"
        print(f"{'short job, ' + name:32} {found:5.2f} ms of CPU, {of}")
    for row in result["memory"]:
        print(
            f"{'memory, ' + row['way']:22} {row['grown'] / row['document']:7.2f} x a document of "
            f"{row['document']:,} bytes"
        )
    for row in result["crowd"]:
        print(
            f"{row['jobs']:,} jobs at once, {row['client']:16} {row['ms']:5.2f} ms of CPU per job, {row['seconds']:.2f} s"
        )
    print(f"threads of the blocking client: {result['client_threads']}")
    save(arguments.json, result, "tidewire", "httpx", "httpx2", "httpx-sse", "openai")


if __name__ == "__main__":
    main()
