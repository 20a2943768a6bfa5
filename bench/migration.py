"""Cost of the apps in the migration guides before and after the move, and the effect of a broken connection.

The code comes from the guides `docs/how-to/coming-from-*.md`, so that what is measured is what a reader copies. Each client
runs in a separate process and reads the replies through a proxy. The script measures, in alternating rounds:

- bytes from the server to the client for one reply of 400 words, with the headers of HTTP;
- CPU time of the server and of the client for ten replies at the same time;
- lost and repeated words if the proxy cuts the connection once, in the middle of a reply. `gradio_client` is used as its
  documentation shows. httpx-sse does not reconnect by itself, so it is measured with and without a loop that repeats the
  request, as the EventSource of a browser does.

The script writes bench/results/migration.json, and the tables in the guides from it.
"""

import argparse
import asyncio
import json
import re
import statistics
import subprocess
import sys
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measured import installed, save
from readers import cpu, serving

from tidewire_conformance.wire.fault_proxy import TcpProxy

HOW_TO = Path(__file__).parents[1] / "docs/how-to"
PAGES = {"gradio": HOW_TO / "coming-from-gradio.md", "sse": HOW_TO / "coming-from-sse-starlette.md"}
WORDS = 400
CONCURRENT = 10
CUT_AT = b"word200"
"""The proxy cuts the connection after the first bytes that contain this word."""
CUT_LIMIT = 15.0
"""Seconds after which a client that has lost its connection is ended."""
LIMIT = 300.0

RUN_TIDEWIRE = "\nimport sys\nserver.run(port=0, port_file=sys.argv[1])\n"
RUN_GRADIO = """
import pathlib, sys
app.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
pathlib.Path(sys.argv[1]).write_text(str(app.server_port))
app.block_thread()
"""
RUN_STARLETTE = """
import pathlib, socket, sys, uvicorn
listener = socket.create_server(("127.0.0.1", 0))
pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
asyncio.run(uvicorn.Server(uvicorn.Config(app, log_level="error")).serve(sockets=[listener]))
"""

APPS = {
    "gradio": ("gradio", "gradio_app.py", RUN_GRADIO),
    "gradio, moved": ("gradio", "app.py", RUN_TIDEWIRE),
    "sse-starlette": ("sse", "sse_app.py", RUN_STARLETTE),
    "sse-starlette, repeated": ("sse", "sse_app.py", RUN_STARLETTE),
    "sse-starlette, moved": ("sse", "app.py", RUN_TIDEWIRE),
}
"""Name → guide, file in the guide, and code that serves the app."""


def code(guide: str, file: str) -> str:
    """Return a code block of a guide."""
    found = re.search(
        rf"^```python file={file}[^\n]*\n(.*?)^```$", PAGES[guide].read_text(), re.DOTALL | re.MULTILINE
    )
    if found is None:
        raise LookupError(f"{PAGES[guide].name} has no code block for {file}")
    return found[1]


class CountingProxy(TcpProxy):
    """Proxy that counts the bytes of the responses, and can cut one connection at a mark."""

    def __init__(self, port: int, cut_at: bytes | None = None) -> None:
        super().__init__(("127.0.0.1", port))
        self.bytes = 0
        self.cut_at = cut_at

    async def serve(self, number: int, reader: StreamReader, writer: StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(*self.upstream)
        sending = asyncio.create_task(self._forward(reader, to_server))
        try:
            await self._forward(from_server, writer, counts=True)
        finally:
            sending.cancel()
            to_server.close()

    async def _forward(self, source: StreamReader, target: StreamWriter, *, counts: bool = False) -> None:
        while data := await source.read(65536):
            self.bytes += len(data) if counts else 0
            target.write(data)
            await target.drain()
            if counts and self.cut_at is not None and self.cut_at in data:
                self.cut_at = None
                return


# --- clients: each reads one reply, and returns the words that its user has seen


def by_tidewire(endpoint: str, url: str, message: str) -> list[str]:
    from tidewire import Client

    shown = ""
    with Client(url) as client:
        for update in client.submit(endpoint, message=message):
            shown = shown[: len(shown) - update.deleted] + update.text
    return shown.split()


def by_gradio_client(url: str, message: str, shown: list[str]) -> list[str]:
    from gradio_client import Client

    for text in Client(url, verbose=False).submit(message, api_name="/reply"):
        shown[:] = text.split()
    return shown


def by_httpx_sse(url: str, message: str, shown: list[str], *, repeats: bool) -> list[str]:
    import httpx2
    import httpx_sse

    with httpx2.Client(timeout=30) as client:
        while True:
            try:
                with httpx_sse.connect_sse(
                    client, "POST", f"{url}/talk", json={"message": message}
                ) as source:
                    shown.extend(event.data for event in source.iter_sse() if event.data)
            except httpx2.TransportError:
                if not repeats:
                    raise
            else:
                return shown


def read(app: str, url: str, message: str, shown: list[str]) -> list[str]:
    if app.endswith("moved"):
        return by_tidewire("reply" if app.startswith("gradio") else "talk", url, message)
    if app == "gradio":
        return by_gradio_client(url, message, shown)
    return by_httpx_sse(url, message, shown, repeats=app.endswith("repeated"))


def client(app: str, url: str, words: int, streams: int, limit: float) -> None:
    """Read some replies at the same time, and print the words of the first one and the CPU time of this process."""
    read(app, url, "warm up", [])
    message = " ".join(f"word{n}" for n in range(words))
    began = time.process_time()
    shown: list[list[str]] = [[] for _ in range(streams)]
    error = ""

    def one(at: int) -> None:
        shown[at] = read(app, url, message, shown[at])

    with ThreadPoolExecutor(streams) as pool:
        try:
            list(pool.map(one, range(streams), timeout=limit))
        except TimeoutError:
            error = f"no end within {limit:g} s"
        except Exception as raised:
            error = f"raises {type(raised).__name__}"
        print(json.dumps({"words": shown[0], "cpu": time.process_time() - began, "error": error}), flush=True)
        if error:
            import os

            os._exit(0)  # a client that waits forever would keep its thread


def run_client(app: str, url: str, streams: int, limit: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--client", app, url, str(streams), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        sys.exit(f"{app}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(app: str) -> dict[str, Any]:
    """Measure one round of one app."""
    guide, file, run = APPS[app]
    expected = [f"word{n}" for n in range(WORDS)]
    with serving(code(guide, file) + run) as (process, port):
        with CountingProxy(port) as proxy:
            whole = run_client(app, proxy.url, 1, LIMIT)
            count = proxy.bytes
        before = cpu(process)
        many = run_client(app, f"http://127.0.0.1:{port}", CONCURRENT, LIMIT)
        server = cpu(process) - before
        if expected not in (whole["words"], many["words"]) or whole["error"] or many["error"]:
            sys.exit(
                f"{app}: a reply is wrong, so the measurement is invalid: {whole['error']} {many['error']}"
            )
        with CountingProxy(port, CUT_AT) as proxy:
            cut = run_client(app, proxy.url, 1, CUT_LIMIT)
            if proxy.cut_at is not None:
                sys.exit(f"{app}: the connection was not cut")
    seen = Counter(cut["words"])
    return {
        "bytes": count,
        "server_cpu": server,
        "client_cpu": many["cpu"],
        "lost": len({*expected} - seen.keys()),
        "repeated": sum(n - 1 for n in seen.values()),
        "error": cut["error"],
    }


# --- tables in the guides

LABELS = {
    "gradio": "Gradio, gradio_client",
    "gradio, moved": "Tidewire",
    "sse-starlette": "sse-starlette, httpx-sse",
    "sse-starlette, repeated": "the same, with a loop that repeats the request",
    "sse-starlette, moved": "Tidewire",
}
ROWS = {
    "bytes": "bytes to the client, one reply",
    "server_cpu": "CPU time of the server, ten replies",
    "client_cpu": "CPU time of the client, ten replies",
    "lost": "words lost after a cut, of 400",
    "repeated": "words repeated after a cut",
}


def table(guide: str, medians: dict[str, dict[str, Any]]) -> str:
    """Format the results of one guide. Costs are ratios to those of Tidewire."""
    apps = [app for app in medians if APPS[app][0] == guide]
    lines = ["| | " + " | ".join(LABELS[app] for app in apps) + " |", "|---" + "|---:" * len(apps) + "|"]
    after = medians[apps[-1]]
    for name, label in ROWS.items():
        is_count = name in {"lost", "repeated"}
        cells = [
            f"{medians[app][name]:g}" if is_count else f"{medians[app][name] / after[name]:.1f} ×"
            for app in apps
        ]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    ends = [medians[app]["error"] or "continues" for app in apps]
    lines.append(f"| the caller's loop after the cut | {' | '.join(ends)} |")
    ours = f"1 × is {after['bytes']:,.0f} bytes, {after['server_cpu']:.2f} s and {after['client_cpu']:.2f} s."
    return "\n".join([*lines, "", ours])


def write_tables(results: Path) -> None:
    """Replace the tables in the guides by those of the results file."""
    found = json.loads(results.read_text())
    for guide, page in PAGES.items():
        if not any(APPS[app][0] == guide and not app.endswith("moved") for app in found["medians"]):
            continue
        versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
        text = f"{table(guide, found['medians'])} Measured with Python {found['python']}, {versions}."
        mark = f"<!-- measured: {guide} -->\n"
        before, _, rest = page.read_text().partition(mark)
        page.write_text(f"{before}{mark}{text}\n<!-- end -->{rest.partition('<!-- end -->')[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tables-only", action="store_true", help="write the tables from an earlier run")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/migration.json")
    options = parser.parse_args()
    if options.client:
        app, url, streams, limit = options.client
        client(app, url, WORDS, int(streams), float(limit))
        return
    if not options.tables_only:
        needed = {"gradio": ("gradio", "gradio_client"), "sse": ("sse_starlette", "httpx_sse")}
        apps = [app for app, (guide, *_) in APPS.items() if all(map(installed, needed[guide]))]
        rounds: dict[str, list[dict[str, Any]]] = {app: [] for app in apps}
        for number in range(options.rounds):
            for app in apps:
                rounds[app].append(measure(app))
                print(f"round {number + 1}, {app}: {rounds[app][-1]}", flush=True)
        medians = {
            app: {name: statistics.median(one[name] for one in each) for name in ROWS}
            | {"error": each[-1]["error"]}
            for app, each in rounds.items()
        }
        packages = ("tidewire", "gradio", "gradio-client", "sse-starlette", "httpx-sse", "uvicorn")
        save(options.out, {"medians": medians, "rounds": rounds}, *packages)
    write_tables(options.out)


if __name__ == "__main__":
    main()
