"""Conformance adapter that runs the browser client of the specification's appendix in Chromium.

Usage: `tidewire conformance --client 'python -m tidewire_conformance.clients.examples.chromium_client'`. The option
`--browser PATH` selects another browser.

The program serves a test page, whose origin differs from that of the scenario's server. The page polls the program for
commands, and posts reports to the program. The browser's EventSource cannot set request headers, choose the delay
before it reconnects, or read the status of a response. Therefore, the browser client cannot meet all requirements.
"""

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tidewire_conformance import specification

MAX_CONCURRENT_JOBS: Final = 24
"""Maximum number of jobs that the page follows concurrently."""
_POLL_TIMEOUT: Final = 10.0
"""Time, in seconds, that the program waits for the next command before it answers the page's request with null."""
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""Flags with which Chromium opens no window and contacts no other host."""


def page_client() -> str:
    """Extract the JavaScript module of the browser client from the appendix of the specification.

    The module exports the function `follow`.
    """
    text = (specification.folder() / "A-appendix.md").read_text(encoding="utf-8")
    found = re.search(r"^```js file=\S+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("A-appendix.md does not contain a JavaScript code block with a file name")
    return found[1]


class _Site(ThreadingHTTPServer):
    """HTTP server for the test page, and for the requests that the page sends."""

    daemon_threads = True

    def __init__(self, page: str, modules: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.commands: queue.Queue[str | None] = queue.Queue()
        self.page_loaded = threading.Event()
        self.lock = threading.Lock()
        self.files = {
            "/": ("text/html", page),
            "/client.js": ("text/javascript", page_client()),
            **{path: ("text/javascript", text) for path, text in modules.items()},
        }

    def write_report(self, line: str) -> None:
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class _Page(BaseHTTPRequestHandler):
    server: _Site

    def do_GET(self) -> None:
        if self.path == "/next":
            self.server.page_loaded.set()
            try:
                command = self.server.commands.get(timeout=_POLL_TIMEOUT)
            except queue.Empty:
                command = None
            self._respond("application/json", command or "null")
        elif self.path in self.server.files:
            self._respond(*self.server.files[self.path])
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for report in json.loads(body):
            self.server.write_report(json.dumps(report))
        self._respond("application/json", "null")

    def _respond(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def _browser(path: str, url: str, flags: Sequence[str]) -> Iterator[None]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), folder)
        with subprocess.Popen(  # noqa: S603 - the user chose the browser
            [path, *FLAGS, *flags, f"--user-data-dir={folder}", url],
            env={**os.environ, **home},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                yield
            finally:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGKILL)


def main(
    page: str = "",
    name: str = "EventSource in a page",
    can: Sequence[str] = (),
    *,
    modules: Mapping[str, str] = MappingProxyType({}),
    host: str = "127.0.0.1",
    flags: Sequence[str] = (),
) -> None:
    """Start the browser, print the introduction as soon as the page is loaded, and then pass all commands to the page.

    Args:
        page: HTML of the page. By default, the page runs the browser client of the specification.
        name: Name of the client in its introduction.
        can: Features of the client in its introduction.
        modules: JavaScript modules of the page: URL path → text.
        host: Host in the URL of the page, which must resolve to this machine.
        flags: Further flags of the browser.
    """
    page = page or Path(__file__).with_name("browser_page.html").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser(
        prog="python -m tidewire_conformance.clients.examples.chromium_client", description=__doc__
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, names)), None))
    arguments = parser.parse_args()
    if arguments.browser is None:
        sys.exit(f"cannot find a browser ({', '.join(names)}) in PATH; pass one with --browser")
    with _Site(page, modules) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        with _browser(arguments.browser, f"http://{host}:{site.server_port}/", flags):
            if not site.page_loaded.wait(20):
                sys.exit(f"{arguments.browser} did not load the test page within 20 seconds")
            site.write_report(json.dumps({"client": name, "can": [*can], "at_once": MAX_CONCURRENT_JOBS}))
            for line in sys.stdin:
                if json.loads(line)["op"] == "bye":
                    break
                site.commands.put(line)
        site.shutdown()


if __name__ == "__main__":
    main()
