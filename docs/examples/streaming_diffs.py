"""Example of two functions that yield their whole value in each step, although the server sends only the changes.

`write` yields a growing text, whose end is occasionally replaced. `chat` yields one list of messages that is changed in
place: its last message grows, and earlier messages change as well. Neither function computes diffs. The script serves
both functions in a separate process and reads their streams with the client. It compares each result with the last
value that the function yielded, and the size of the event stream with the total size of all yielded values.

The two workloads, a text box and a chatbot in which each step repeats all earlier content, come from Gradio
(gradio-app/gradio). Before Gradio sent diffs, the cost of its streams was quadratic in the length of the value.

    python docs/examples/streaming_diffs.py [STEPS]
"""

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from tidewire import Client
from tidewire_server import Server

STEPS = 1000
START_LIMIT = 60.0
"""Time limit in seconds for the start of the server."""

server = Server(default_concurrency_limit=4)


@server.endpoint
def write(n: int = STEPS) -> Iterator[str]:
    """Yield a text that grows by one number per step. Every hundredth step also replaces the last ten numbers."""
    text = ""
    for i in range(n):
        text += f" {i}"
        yield text
        if i % 100 == 99:
            text = text.rsplit(" ", 10)[0] + " …"
            yield text
    yield text.replace("…", "and so on")


@server.endpoint(columns=["/1/content"])
def chat(n: int = STEPS) -> Iterator[list[dict[str, str]]]:
    """Yield a chat history in which the last message grows while earlier messages occasionally change."""
    history = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": ""}]
    for i in range(n):
        history[1]["content"] += f" {i}"
        if i % 50 == 49:
            history[0]["content"] = f"Count. (Read by {i} people.)"
        if i % 200 == 199:
            history.append({"role": "user", "content": f"Still at it? You are at {i}."})
        yield history
    history.insert(0, {"role": "system", "content": "Answer in numbers."})
    history[1] |= {"content": "Count, please.", "edited": "yes"}
    del history[-1]
    yield history


def last_of(name: str, n: int) -> tuple[Any, int]:
    """Return the last value that a function yields, and the total size in bytes of all values that it yields."""
    whole, value = 0, None
    for value in {"write": write, "chat": chat}[name](n):
        whole += len(json.dumps(value))
    return value, whole


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve the functions of this file in a separate process, and yield the URL of the server."""
    with tempfile.TemporaryDirectory() as folder:
        port_file = Path(folder, "port")
        with subprocess.Popen([sys.executable, __file__, "--serve", str(port_file)]) as process:
            try:
                deadline = time.monotonic() + START_LIMIT
                while not (port_file.exists() and port_file.read_text().strip()):
                    if process.poll() is not None or time.monotonic() > deadline:
                        sys.exit("the server did not start")
                    time.sleep(0.02)
                yield f"http://127.0.0.1:{port_file.read_text().strip()}"
            finally:
                process.terminate()
                process.wait(20)


def streamed_bytes(url: str) -> int:
    """Return the number of bytes that the server has sent on event streams so far."""
    page = httpx2.get(f"{url}/metrics").text
    found = re.search(r"^tidewire_bytes_streamed_total (\S+)$", page, re.MULTILINE)
    if found is None:
        sys.exit("the server has no counter tidewire_bytes_streamed_total. Use the server of this repository")
    return int(float(found[1]))


def follow(url: str, name: str, n: int) -> bool:
    """Read one stream to its end, print its size, and return whether the result equals the last value of the function."""
    before = streamed_bytes(url)
    with Client(url) as client:
        job = client.submit(name, n=n)
        updates = sum(1 for _ in job)
        value = job.result()
    expected, whole = last_of(name, n)
    received = streamed_bytes(url) - before
    print(
        f"{name:6} {n:7,} steps: {updates:6,} updates, {received:9,} bytes; whole values: {whole:14,} bytes"
    )
    if value != expected:
        print(f"FAILED: {name} ended as {str(value)[-200:]!r}, not as {str(expected)[-200:]!r}")
    return bool(value == expected)


def main() -> None:
    """Start the server or run the comparison. Exit with code 1 if a result differs from the last yielded value."""
    if sys.argv[1:2] == ["--serve"]:
        server.run(port=0, port_file=sys.argv[2])
        return
    n = int(sys.argv[1]) if sys.argv[1:] else STEPS
    with serving() as url:
        correct = [follow(url, name, n) for name in ("write", "chat")]
    sys.exit(not all(correct))


if __name__ == "__main__":
    main()
