"""Bytes on the wire while the last text of a chat grows, compared with gradio in the same run.

The workload is that of Gradio's pull request 7102: the last message of a chat history grows by `" " + str(i)`, N times,
and the function yields the whole history at each step. The script measures the bytes of the event stream, and all bytes
of the connection including HTTP headers and chunk framing.

Rows: gradio (if installed); tidewire with one event per step (`merge_window=0`), read live, and read from the log with
GET after the end of the job; tidewire with its default settings (adjacent appends merged, at most one event per 5 ms).
The second workload is a JSON value that contains a deeply nested text. gradio's JSON output sends this value as a whole
at each step (250 MB at N = 10,000, its maximum here). `floor` is the size of the text. `checks` is the number of bytes
that checks add to events. The script applies the received events and compares the result with the generated value, so
that it reports only correct streams.

Targets at N = 20,000: with one event per step, at most 4.8 × floor and 1/13 of gradio; with merged events, at most
1.1 × floor.
"""

import argparse
import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from measured import installed, save

SIZES = (200, 10_000, 20_000)
START_LIMIT = 120.0
MAX_WHOLE_VALUE_STEPS = 10_000
"""Maximum number of steps for a server that sends the whole value at each step."""

GROW = '''
def grow(n: int):
    """Grow the last message of a chat by one number at each step."""
    history = [{"role": "user", "content": "count"}, {"role": "assistant", "content": ""}]
    for i in range(int(n)):
        history[1]["content"] += " " + str(i)
        yield history

def deep(n: int):
    """Grow a text deep inside a nested value."""
    value = {"model": "m", "parts": [{"kind": "plan", "done": True}, {"kind": "text", "body": {"text": ""}}], "seed": 7}
    for i in range(int(n)):
        value["parts"][1]["body"]["text"] += " " + str(i)
        yield value
'''

OURS = """
import sys
from collections.abc import Iterator
from typing import Any
from tidewire_server import Server
{grow}
grow.__annotations__["return"] = Iterator[list[dict[str, str]]]
deep.__annotations__["return"] = Iterator[dict[str, Any]]
server = Server(merge_window={window})
server.endpoint(columns=("/1/content",))(grow)
server.endpoint(columns=("/parts/1/body/text",))(deep)
server.run(port=0, port_file=sys.argv[1])
"""

GRADIO = """
import pathlib, sys
import gradio
{grow}
with gradio.Blocks() as app:
    number, chat, tree = gradio.Number(), gradio.Chatbot(), gradio.JSON()
    gradio.Button().click(grow, number, chat, api_name="grow")
    gradio.Button().click(deep, number, tree, api_name="deep")
app.queue().launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
pathlib.Path(sys.argv[1]).write_text(str(app.server_port))
app.block_thread()
"""


class Served(NamedTuple):
    """A running server."""

    port: int
    process: int


@contextlib.contextmanager
def serving(source: str) -> Iterator[Served]:
    """Run the source code of a server in a separate process. The server writes its port to the file in its first argument."""
    with tempfile.TemporaryDirectory() as folder:
        script, port_file, log = Path(folder, "server.py"), Path(folder, "port"), Path(folder, "log")
        script.write_text(source)
        with (
            log.open("w") as output,
            subprocess.Popen([sys.executable, script, port_file], stdout=output, stderr=output) as process,
        ):
            try:
                deadline = time.monotonic() + START_LIMIT
                while not (port_file.exists() and port_file.read_text().strip()):
                    if process.poll() is not None or time.monotonic() > deadline:
                        sys.exit(
                            f"the server did not start within {START_LIMIT:g} s; its output:\n{log.read_text()}"
                        )
                    time.sleep(0.05)
                yield Served(int(port_file.read_text()), process.pid)
            finally:
                process.terminate()
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()


def request(
    port: int, method: str, path: str, body: dict | None = None, accept: str = "*/*"
) -> tuple[bytes, bytes]:
    """Send a request on a new connection. Returns the body and all received bytes."""
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: {accept}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(head.encode() + payload)
        parts = []
        while part := connection.recv(1 << 18):
            parts.append(part)
    wire = b"".join(parts)
    header, _, content = wire.partition(b"\r\n\r\n")
    if not header.split(b" ", 2)[1].startswith(b"2"):
        sys.exit(f"{method} {path}: {wire[:2000]!r}")
    return (unchunked(content) if b"transfer-encoding: chunked" in header.lower() else content), wire


def unchunked(content: bytes) -> bytes:
    parts, at = [], 0
    while True:
        end = content.index(b"\r\n", at)
        size = int(content[at:end], 16)
        if size == 0:
            return b"".join(parts)
        parts.append(content[end + 2 : end + 2 + size])
        at = end + 2 + size + 2


class Read(NamedTuple):
    """Size of a stream in bytes, and the text after applying its events."""

    stream: int
    wire: int
    text: str
    checks: int = 0


TEXT_POINTERS = {"grow": "/1/content", "deep": "/parts/1/body/text"}


def ours(port: int, endpoint: str, n: int) -> Read:
    """Submit and read the stream in one request."""
    body, wire = request(
        port, "POST", f"/v1/endpoints/{endpoint}/jobs", {"input": {"n": n}}, accept="text/event-stream"
    )
    return applied(body, wire, TEXT_POINTERS[endpoint])


def ours_by_get(port: int, endpoint: str, n: int) -> Read:
    """Submit, wait for the end, and then read the stream from the log."""
    job = json.loads(request(port, "POST", f"/v1/endpoints/{endpoint}/jobs", {"input": {"n": n}})[0])
    path = f"/v1/jobs/{job['id']}"
    while json.loads(request(port, "GET", path)[0]).get("done") is None:
        time.sleep(0.05)
    body, wire = request(port, "GET", f"{path}/events?after=0-0", accept="text/event-stream")
    return applied(body, wire, TEXT_POINTERS[endpoint])


def applied(body: bytes, wire: bytes, place: str) -> Read:
    from tidewire.protocol.document import Document
    from tidewire.protocol.sse import Decoder

    document, checks = None, 0
    for event in Decoder().feed(body):
        if event.type == "snapshot":
            snapshot = json.loads(event.data)
            document = Document(snapshot["state"], snapshot["columns"])
        elif event.type == "message" and document is not None:
            diff = json.loads(event.data)
            document.apply(diff)
            if isinstance(diff, dict) and diff["ops"][0][0] == "r":
                checks += len(event.data) - len(json.dumps(diff["ops"][0][1]))
    if document is None:
        sys.exit("the stream contains no snapshot")
    return Read(len(body), len(wire), str(document.value("/items/0/value" + place)), checks)


def gradio(port: int, endpoint: str, n: int) -> Read:
    """Run one event through gradio's queue. Its last message repeats the whole value, which contains the text."""
    session = uuid.uuid4().hex
    join = {"data": [n], "fn_index": fn_index(port, endpoint), "session_hash": session}
    request(port, "POST", "/gradio_api/queue/join", join)
    body, wire = request(
        port, "GET", f"/gradio_api/queue/data?session_hash={session}", accept="text/event-stream"
    )
    last = json.loads(body[body.rindex(b'data: {"msg":"process_completed"') + 6 :].split(b"\n\n")[0])
    found = last["output"]["data"][0]
    for token in TEXT_POINTERS[endpoint].split("/")[1:]:
        found = found[int(token)] if isinstance(found, list) else found[token]
    return Read(len(body), len(wire), found if isinstance(found, str) else found[0]["text"])


def fn_index(port: int, endpoint: str) -> int:
    config = json.loads(request(port, "GET", "/config")[0])
    return next(one["id"] for one in config["dependencies"] if one["api_name"] == endpoint)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "wire.json")
    arguments = parser.parse_args()

    each, merged = (OURS.format(grow=GROW, window=window) for window in (0, 0.005))
    servers = {
        "tidewire, one event per step": (each, ours),
        "tidewire, one event per step, GET": (each, ours_by_get),
        "tidewire, merged": (merged, ours),
    }
    if installed("gradio"):
        servers = {"gradio": (GRADIO.format(grow=GROW), gradio)} | servers
    else:
        print("gradio is not installed, so it is not measured (install it with `pip install gradio`)")

    rows = []
    for name, (source, measure) in servers.items():
        with serving(source) as (port, _):
            for endpoint in TEXT_POINTERS:
                for n in arguments.sizes:
                    if (name, endpoint) == ("gradio", "deep") and n > MAX_WHOLE_VALUE_STEPS:
                        continue
                    text = "".join(f" {i}" for i in range(n))
                    read = measure(port, endpoint, n)
                    if read.text.strip() != text.strip():  # gradio strips the text of a message
                        sys.exit(f"{name}, N = {n}: the result is wrong, so the measurement is invalid")
                    counts = {
                        "floor": len(text),
                        "stream": read.stream,
                        "wire": read.wire,
                        "checks": read.checks,
                    }
                    rows.append({"server": name, "value": endpoint, "n": n} | counts)
    report(rows)
    save(arguments.json, {"rows": rows}, "tidewire", "uvicorn", "gradio")


def report(rows: list[dict]) -> None:
    peer = {(row["value"], row["n"]): row["stream"] for row in rows if row["server"] == "gradio"}
    print(
        f"{'server':30} {'value':>6} {'N':>7} {'floor':>9} {'stream B':>11} {'x floor':>8} {'checks':>7} "
        f"{'wire B':>11} {'gradio / it':>12}"
    )
    for row in rows:
        known = peer.get((row["value"], row["n"]))
        ratio = f"{known / row['stream']:.1f}" if known else "not run"
        print(
            f"{row['server']:30} {row['value']:>6} {row['n']:7} {row['floor']:9} {row['stream']:11} "
            f"{row['stream'] / row['floor']:8.2f} {row['checks'] / row['floor']:7.2f} {row['wire']:11} "
            f"{ratio:>12}"
        )


if __name__ == "__main__":
    main()
