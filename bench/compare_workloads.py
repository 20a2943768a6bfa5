"""Measurements that `compare.py` repeats for two revisions.

The program uses only names documented in docs/reference, because these do not change between revisions. PYTHONPATH must
contain the `src` folders of the revision; the program refuses to measure any other code:

    python -P bench/compare_workloads.py measure ROOT [--quick]    one run; prints a line of JSON
    python -P bench/compare_workloads.py serve ROOT PORT_FILE      the server, started by `measure`
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
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

TOKEN = " the"
CHUNK = 16 * 1024
START_LIMIT = 30.0


class Metric(NamedTuple):
    """Unit and description of a measured number."""

    unit: str
    what: str
    higher_is_better: bool = False


METRICS = {
    "decoder": Metric("µs", "CPU time to decode one event with an id, in chunks of 16 KiB"),
    "apply": Metric("µs", "CPU time to apply one append to a text of 100,000 characters"),
    "apply, row": Metric("µs", "CPU time to apply one row of five columns"),
    "diff": Metric("µs", "CPU time to compute the diff of two chat histories of 500 rows"),
    "append": Metric("µs", "CPU time of the server for one Stream.append, written to the log in memory"),
    "row": Metric(
        "µs", "CPU time of the server for one Stream.row of three columns, written to the log in memory"
    ),
    "yield": Metric(
        "µs", "CPU time of the server for one yield of a history of 1,000 rows whose last text has grown"
    ),
    "first value": Metric("ms", "wall time from the submit to the first value, through Client"),
    "first value, CPU": Metric("ms", "CPU time of server and client for a job with one value"),
    "tokens": Metric("/s", "tokens from a function on the server to the application, end to end", True),
    "tokens, CPU": Metric("µs", "CPU time of server and client for one token"),
}


class Amount(NamedTuple):
    """Amount of work in a run."""

    repetitions: int
    """Number of measured loops; the result is their median."""
    events: int
    applies: int
    appends: int
    jobs: int
    tokens: int


FULL = Amount(repetitions=15, events=100_000, applies=100_000, appends=50_000, jobs=400, tokens=200_000)
QUICK = Amount(repetitions=2, events=1_000, applies=500, appends=500, jobs=5, tokens=500)


def cpu_per_call(call: Callable[[], object], count: int, repetitions: int) -> float:
    """CPU time per call in microseconds, as the median of `repetitions` loops of `count` calls."""
    durations = []
    for _ in range(repetitions):
        gc.collect()
        began = time.process_time()
        for _ in range(count):
            call()
        durations.append((time.process_time() - began) / count * 1e6)
    return statistics.median(durations)


# --- measurements in this process


def decoder(amount: Amount) -> dict[str, float]:
    from tidewire.protocol.sse import Decoder, encode

    stream = b"".join(encode(json.dumps(TOKEN), id=f"1-{n}") for n in range(amount.events))
    chunks = [stream[at : at + CHUNK] for at in range(0, len(stream), CHUNK)]

    def decode() -> None:
        feed = Decoder().feed
        found = sum(len(list(feed(chunk))) for chunk in chunks)
        if found != amount.events:
            sys.exit(f"decoder: only {found} of {amount.events} events were decoded")

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
        sys.exit("diff: applying the computed diff does not give the new value")
    found = {
        "apply": cpu_per_call(lambda: text.apply(" word"), amount.applies, amount.repetitions),
        "apply, row": cpu_per_call(lambda: rows.apply(row), amount.applies // 20, amount.repetitions),
        "diff": cpu_per_call(lambda: diff(old, new), max(2, amount.applies // 1000), amount.repetitions),
    }
    if text.value(pointer) != "x" * 100_000 + " word" * (amount.applies * amount.repetitions):
        sys.exit("apply: the text after all appends is wrong")
    return found


# --- measurements against a server in a separate process


def serve(port_file: str) -> None:
    """Serve the endpoints of the measurements."""
    from tidewire_server import Server, Stream

    server = Server(default_concurrency_limit=None)
    durations_of: dict[str, list[float]] = {}

    @server.endpoint
    async def say(stream: Stream[str], n: int) -> None:
        for at in range(0, n, 16):
            await asyncio.sleep(0)
            for _ in range(min(16, n - at)):
                stream.append(TOKEN)

    async def durations(write: Callable[[], None], n: int, repetitions: int) -> list[float]:
        """Write in a tight loop. The time includes the event loop iterations that write the changes to the log."""
        found = []
        for _ in range(repetitions):
            gc.collect()
            began = time.process_time()
            for at in range(0, n, 100):
                await asyncio.sleep(0)
                for _ in range(min(100, n - at)):
                    write()
            found.append((time.process_time() - began) / n * 1e6)
        return found

    @server.endpoint
    async def append(stream: Stream[str], n: int, repetitions: int) -> None:
        durations_of["append"] = await durations(lambda: stream.append(TOKEN), n, repetitions)

    @server.endpoint(columns=["/text", "/ids", "/logprobs"], initial={"text": "", "ids": [], "logprobs": []})
    async def row(stream: Stream[Any], n: int, repetitions: int) -> None:
        durations_of["row"] = await durations(lambda: stream.row(TOKEN, 1917, -0.25), n, repetitions)

    @server.endpoint(name="yield")
    async def yield_(n: int, repetitions: int) -> AsyncIterator[list[dict[str, str]]]:
        history = [{"role": "user", "content": f"message number {at}"} for at in range(1000)]
        found = []
        for _ in range(repetitions):
            yield history
            gc.collect()
            began = time.process_time()
            for at in range(n):
                if at % 100 == 0:
                    await asyncio.sleep(0)
                history[-1]["content"] += TOKEN
                yield history
            found.append((time.process_time() - began) / n * 1e6)
        durations_of["yield"] = found

    @server.endpoint
    async def durations_in(endpoint: str) -> list[float]:
        while endpoint not in durations_of:  # noqa: ASYNC110 - revisions may run functions on different loops and threads, so an event is not possible
            await asyncio.sleep(0.01)
        return durations_of[endpoint]

    @server.endpoint
    async def one() -> int:
        return 1

    @server.endpoint
    async def cpu_time() -> float:
        return time.process_time()

    server.run(port=0, port_file=port_file, started=lambda _: None)


@contextlib.contextmanager
def serving(root: str) -> Iterator[int]:
    """Start the server in a separate process and yield its port."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        command = [sys.executable, "-P", __file__, "serve", root, str(port_file)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                give_up = time.monotonic() + START_LIMIT
                while not port_file.exists():
                    if process.poll() is not None or time.monotonic() > give_up:
                        sys.exit(f"the server did not start within {START_LIMIT:g} s")
                    time.sleep(0.02)
                yield int(port_file.read_text())
            finally:
                process.kill()


def writing(port: int, amount: Amount) -> dict[str, float]:
    """Measure the changes of a value without a reader, so that only the write path is included."""
    from tidewire import Client

    found = {}
    for name, n in (
        ("append", amount.appends),
        ("row", amount.appends // 5),
        ("yield", amount.appends // 50),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        body = json.dumps({"input": {"n": n, "repetitions": amount.repetitions}})
        connection.request("POST", f"/v1/endpoints/{name}/jobs", body, {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        connection.close()
        if response.status != 201:
            sys.exit(f"{name}: the server refused the job with status {response.status}: {content!r}")
        with Client(f"http://127.0.0.1:{port}") as client:
            durations: Any = client.run("durations_in", endpoint=name)
        found[name] = statistics.median(durations)
    return found


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
                sys.exit("first value: the job has a wrong result")
            return found

        for _ in range(3):
            seconds()
        server, own = client.run("cpu_time"), time.process_time()
        durations = [seconds() for _ in range(amount.jobs)]
        own, server = time.process_time() - own, client.run("cpu_time") - server
    cpu = (own + server) / amount.jobs
    return {"first value": statistics.median(durations) * 1e3, "first value, CPU": cpu * 1e3}


async def tokens(port: int, amount: Amount) -> dict[str, float]:
    from tidewire import AsyncClient

    async with AsyncClient(f"http://127.0.0.1:{port}") as client:

        async def seconds() -> float:
            began = time.perf_counter()
            job = await client.submit("say", n=amount.tokens)
            text = "".join([update.text async for update in job])
            found = time.perf_counter() - began
            if text != TOKEN * amount.tokens:
                sys.exit("tokens: the received text is wrong")
            return found

        await seconds()
        server, own = await client.run("cpu_time"), time.process_time()
        durations = [await seconds() for _ in range(amount.repetitions)]
        own, server = time.process_time() - own, await client.run("cpu_time") - server
    cpu = (own + server) / (amount.tokens * amount.repetitions)
    return {"tokens": amount.tokens / statistics.median(durations), "tokens, CPU": cpu * 1e6}


def measure(root: str, amount: Amount) -> dict[str, float]:
    """Measure all metrics once."""
    found = decoder(amount) | applying(amount)
    with serving(root) as port:
        found |= writing(port, amount) | first_value(port, amount) | asyncio.run(tokens(port, amount))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["measure", "serve"])
    parser.add_argument("root", help="root folder of the revision to measure")
    parser.add_argument("port_file", nargs="?", default="")
    parser.add_argument("--quick", action="store_true", help="minimal work, to test that every part runs")
    arguments = parser.parse_args()

    import tidewire

    if not Path(tidewire.__file__).is_relative_to(Path(arguments.root).resolve() / "src"):
        sys.exit(
            f"{tidewire.__file__} is not in {arguments.root}; set PYTHONPATH to the src folders of that revision"
        )
    if arguments.what == "serve":
        serve(arguments.port_file)
    else:
        print(json.dumps(measure(arguments.root, QUICK if arguments.quick else FULL)))


if __name__ == "__main__":
    main()
