"""The measurements that `compare.py` repeats on two revisions, as one program for both.

It uses only names that stay the same when modules move: those that docs/reference documents. It runs with PYTHONPATH
set to the `src` folders of one revision, and refuses to measure any other code:

    python -P bench/compare_workloads.py measure ROOT [--quick]    one run; prints a line of JSON
    python -P bench/compare_workloads.py serve ROOT PORT_FILE      the server that a run starts for itself
"""

import argparse
import asyncio
import contextlib
import gc
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

TOKEN = " the"
CHUNK = 16 * 1024
START_LIMIT = 30.0


class Metric(NamedTuple):
    """What a number means."""

    unit: str
    what: str
    higher_is_better: bool = False


METRICS = {
    "decoder": Metric("µs", "CPU time to decode one event with an id, in chunks of 16 KiB"),
    "apply": Metric("µs", "CPU time to apply one append to a text of 100,000 characters"),
    "apply, row": Metric("µs", "CPU time to apply one row of five columns"),
    "diff": Metric("µs", "CPU time to find the diff of two chat histories of 500 rows"),
    "append": Metric("µs", "CPU time of the server for one Stream.append, written to the log in memory"),
    "first value": Metric("ms", "wall time from the submit to the first value, through Client"),
    "first value, CPU": Metric("ms", "CPU time of server and client for such a job"),
    "tokens": Metric("/s", "tokens from a function on the server to the application, end to end", True),
    "tokens, CPU": Metric("µs", "CPU time of server and client for one such token"),
}


class Amount(NamedTuple):
    """How much work a run does."""

    repetitions: int
    """Inner loops, of which the median counts."""
    events: int
    applies: int
    appends: int
    jobs: int
    tokens: int


FULL = Amount(repetitions=15, events=100_000, applies=100_000, appends=50_000, jobs=400, tokens=200_000)
QUICK = Amount(repetitions=2, events=1_000, applies=500, appends=500, jobs=5, tokens=500)


def cpu_per_call(call: Callable[[], object], count: int, repetitions: int) -> float:
    """Microseconds of CPU for each of `count` calls; the median of some loops."""
    taken = []
    for _ in range(repetitions):
        gc.collect()
        began = time.process_time()
        for _ in range(count):
            call()
        taken.append((time.process_time() - began) / count * 1e6)
    return statistics.median(taken)


# --- in one process


def decoder(amount: Amount) -> dict[str, float]:
    from tidewire.protocol.sse import Decoder, encode

    stream = b"".join(encode(json.dumps(TOKEN), id=f"1-{n}") for n in range(amount.events))
    chunks = [stream[at : at + CHUNK] for at in range(0, len(stream), CHUNK)]

    def decode() -> None:
        feed = Decoder().feed
        found = sum(len(list(feed(chunk))) for chunk in chunks)
        if found != amount.events:
            sys.exit(f"decoder: {found} of {amount.events} events")

    return {"decoder": cpu_per_call(decode, 1, amount.repetitions) / amount.events}


def applying(amount: Amount) -> dict[str, float]:
    from tidewire.protocol.diff import apply, diff
    from tidewire.protocol.document import Document

    pointer = "/items/0/value/text"
    members = ("text", "ids", "logprobs", "top_ids", "top_logprobs")
    empty: dict[str, Any] = {name: [] for name in members[1:]}
    state: Any = {"items": [{"value": {"text": "x" * 100_000, **empty}}]}
    row = [["r", " word", 1917, -0.25, [1, 2, 3, 4, 5], [-0.25, -1.5, -2.75, -4.125, -5.0]]]
    text = Document(state, [pointer])
    rows = Document(state, [f"/items/0/value/{name}" for name in members])
    old = [{"role": "user", "content": f"message number {n}"} for n in range(500)]
    new = json.loads(json.dumps([*old[:-1], {**old[-1], "content": old[-1]["content"] + " more"}]))
    if apply(old, diff(old, new)) != new:
        sys.exit("diff: what was found does not lead to the new value")
    found = {
        "apply": cpu_per_call(lambda: text.apply(" word"), amount.applies, amount.repetitions),
        "apply, row": cpu_per_call(lambda: rows.apply(row), amount.applies // 20, amount.repetitions),
        "diff": cpu_per_call(lambda: diff(old, new), max(2, amount.applies // 1000), amount.repetitions),
    }
    if text.value(pointer) != "x" * 100_000 + " word" * (amount.applies * amount.repetitions):
        sys.exit("apply: the text is wrong")
    return found


# --- against a server in a process of its own


def serve(port_file: str) -> None:
    """Serve the endpoints of the measurements."""
    from tidewire_server import Server, Stream

    server = Server(default_concurrency_limit=None)
    appended: list[float] = []

    @server.endpoint
    async def say(stream: Stream[str], n: int) -> None:
        for at in range(0, n, 16):
            await asyncio.sleep(0)
            for _ in range(min(16, n - at)):
                stream.append(TOKEN)

    @server.endpoint
    async def append(stream: Stream[str], n: int, repetitions: int) -> None:
        """Appends in a tight loop; the turns of the event loop in which they are written are in the time."""
        taken = []
        for _ in range(repetitions):
            gc.collect()
            began = time.process_time()
            for at in range(0, n, 100):
                await asyncio.sleep(0)
                for _ in range(min(100, n - at)):
                    stream.append(TOKEN)
            taken.append((time.process_time() - began) / n * 1e6)
        appended[:] = taken

    @server.endpoint
    async def append_time() -> list[float]:
        while not appended:  # noqa: ASYNC110 - whichever loop and thread a revision runs functions on
            await asyncio.sleep(0.01)
        return appended

    @server.endpoint
    async def one() -> int:
        return 1

    @server.endpoint
    async def cpu_time() -> float:
        return time.process_time()

    server.run(port=0, port_file=port_file, started=lambda _: None)


@contextlib.contextmanager
def serving(root: str) -> Iterator[int]:
    """A server in a process of its own; yields its port."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        command = [sys.executable, "-P", __file__, "serve", root, str(port_file)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                give_up = time.monotonic() + START_LIMIT
                while not port_file.exists():
                    if process.poll() is not None or time.monotonic() > give_up:
                        sys.exit("the server did not start")
                    time.sleep(0.02)
                yield int(port_file.read_text())
            finally:
                process.kill()


def appending(port: int, amount: Amount) -> dict[str, float]:
    """No client reads the job: the numbers are those of the write path alone."""
    from tidewire import Client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"input": {"n": amount.appends, "repetitions": amount.repetitions}})
    connection.request("POST", "/v1/endpoints/append/jobs", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    if answer.status != 201:
        sys.exit(f"append: the job was refused: {said!r}")
    with Client(f"http://127.0.0.1:{port}") as client:
        taken: Any = client.run("append_time")
    return {"append": statistics.median(taken)}


def first_value(port: int, amount: Amount) -> dict[str, float]:
    from tidewire import Client

    with Client(f"http://127.0.0.1:{port}") as client:

        def seconds() -> float:
            began = time.perf_counter()
            job = client.submit("one")
            for update in job:
                if update.value == 1:
                    found = time.perf_counter() - began
            if job.result() != 1:
                sys.exit("first value: the result is wrong")
            return found

        for _ in range(3):
            seconds()
        server, own = client.run("cpu_time"), time.process_time()
        taken = [seconds() for _ in range(amount.jobs)]
        own, server = time.process_time() - own, client.run("cpu_time") - server
    cpu = (own + server) / amount.jobs
    return {"first value": statistics.median(taken) * 1e3, "first value, CPU": cpu * 1e3}


async def tokens(port: int, amount: Amount) -> dict[str, float]:
    from tidewire import AsyncClient

    async with AsyncClient(f"http://127.0.0.1:{port}") as client:

        async def seconds() -> float:
            began = time.perf_counter()
            job = await client.submit("say", n=amount.tokens)
            text = "".join([update.text async for update in job])
            found = time.perf_counter() - began
            if text != TOKEN * amount.tokens:
                sys.exit("tokens: the text is wrong")
            return found

        await seconds()
        server, own = await client.run("cpu_time"), time.process_time()
        taken = [await seconds() for _ in range(amount.repetitions)]
        own, server = time.process_time() - own, await client.run("cpu_time") - server
    cpu = (own + server) / (amount.tokens * amount.repetitions)
    return {"tokens": amount.tokens / statistics.median(taken), "tokens, CPU": cpu * 1e6}


def measure(root: str, amount: Amount) -> dict[str, float]:
    """One run: a number for each metric."""
    found = decoder(amount) | applying(amount)
    with serving(root) as port:
        found |= appending(port, amount) | first_value(port, amount) | asyncio.run(tokens(port, amount))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "serve"])
    parser.add_argument("root", help="the folder of the revision whose code is to be measured")
    parser.add_argument("port_file", nargs="?", default="")
    parser.add_argument("--quick", action="store_true", help="as little as runs every part")
    arguments = parser.parse_args()

    import tidewire

    if not Path(tidewire.__file__).is_relative_to(Path(arguments.root).resolve() / "src"):
        sys.exit(f"{tidewire.__file__} is not in {arguments.root}: set PYTHONPATH to its src folders")
    if arguments.what == "serve":
        serve(arguments.port_file)
    else:
        print(json.dumps(measure(arguments.root, QUICK if arguments.quick else FULL)))


if __name__ == "__main__":
    main()
