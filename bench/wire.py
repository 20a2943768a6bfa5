"""Bytes on the wire while the last text of a chat grows, with gradio beside us in the same run.

The workload is that of Gradio's pull request 7102: a chat history whose answer grows by `" " + str(i)`, N times, each
step yielding the whole history. Counted is what the server sends on the connection of the stream: the bytes of the
event stream itself, and all bytes with HTTP's headers and chunk framing.

Rows: gradio (where it is installed); ours with one event for each step (`merge_window=0`), read as it grows and, with
GET, from the log when all is over; ours as it comes (adjacent appends merged, at most one event per 5 ms). The same
for a value that is no chat: any JSON with a text deep inside, which gradio's JSON output sends whole at each step (up
to N = 10,000: 250 MB). `floor` is the text alone, each character once. `checks` are the bytes that events with a check
take beyond the bare text. What was received is folded and compared with what was generated, so a count is of a right
answer or there is none.

Bars, at N = 20,000: one event per step at most 4.6 × floor and 1/13 of gradio; merged at most 1.1 × floor.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
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

from measured import save

SIZES = (200, 10_000, 20_000)
START_LIMIT = 120.0
MOST_WHOLE = 10_000
"""Steps beyond which a server that sends each value whole is not asked."""

GROW = '''
def grow(n: int):
    """The answer of a chat grows by one number at a time."""
    history = [{"role": "user", "content": "count"}, {"role": "assistant", "content": ""}]
    for i in range(int(n)):
        history[1]["content"] += " " + str(i)
        yield history

def deep(n: int):
    """A text grows deep inside a value that is no chat."""
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
    """A server that runs."""

    port: int
    process: int


@contextlib.contextmanager
def serving(source: str) -> Iterator[Served]:
    """Run a server's source in a process of its own; it writes its port to the file that its first argument names."""
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
                        sys.exit(f"the server did not start:\n{log.read_text()}")
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
    """One exchange on a connection of its own; returns the body, and all bytes that came."""
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
    """What one stream took, and the text that its events fold to."""

    stream: int
    wire: int
    text: str
    checks: int = 0


PLACES = {"grow": "/1/content", "deep": "/parts/1/body/text"}


def ours(port: int, endpoint: str, n: int) -> Read:
    """Submit and stream in one request."""
    body, wire = request(
        port, "POST", f"/v1/endpoints/{endpoint}/jobs", {"input": {"n": n}}, accept="text/event-stream"
    )
    return folded(body, wire, PLACES[endpoint])


def ours_by_get(port: int, endpoint: str, n: int) -> Read:
    """Submit, wait for the end, and read the stream from the log."""
    job = json.loads(request(port, "POST", f"/v1/endpoints/{endpoint}/jobs", {"input": {"n": n}})[0])
    path = f"/v1/jobs/{job['id']}"
    while json.loads(request(port, "GET", path)[0]).get("done") is None:
        time.sleep(0.05)
    body, wire = request(port, "GET", f"{path}/events?after=0-0", accept="text/event-stream")
    return folded(body, wire, PLACES[endpoint])


def folded(body: bytes, wire: bytes, place: str) -> Read:
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
        sys.exit("no snapshot came")
    return Read(len(body), len(wire), str(document.value("/items/0/value" + place)), checks)


def gradio(port: int, endpoint: str, n: int) -> Read:
    """Stream one event; the answer is in its last message, which repeats the value whole."""
    session = uuid.uuid4().hex
    join = {"data": [n], "fn_index": fn_index(port, endpoint), "session_hash": session}
    request(port, "POST", "/gradio_api/queue/join", join)
    body, wire = request(
        port, "GET", f"/gradio_api/queue/data?session_hash={session}", accept="text/event-stream"
    )
    last = json.loads(body[body.rindex(b'data: {"msg":"process_completed"') + 6 :].split(b"\n\n")[0])
    found = last["output"]["data"][0]
    for token in PLACES[endpoint].split("/")[1:]:
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
        "ours, one event per step": (each, ours),
        "ours, one event per step, GET": (each, ours_by_get),
        "ours, merged": (merged, ours),
    }
    if importlib.util.find_spec("gradio"):
        servers = {"gradio": (GRADIO.format(grow=GROW), gradio)} | servers
    else:
        print("gradio is not installed here: its rows are not run (pip install gradio into this environment)")

    rows = []
    for name, (source, measure) in servers.items():
        with serving(source) as (port, _):
            for endpoint in PLACES:
                for n in arguments.sizes:
                    if (name, endpoint) == ("gradio", "deep") and n > MOST_WHOLE:
                        continue
                    text = "".join(f" {i}" for i in range(n))
                    read = measure(port, endpoint, n)
                    if read.text.strip() != text.strip():  # gradio strips the text of a message
                        sys.exit(f"{name}, N = {n}: the answer is wrong; its bytes count for nothing")
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
