"""The page client of the appendix in a real Chromium, as a program that a conformance suite can test.

`tidewire conformance --client 'python -m tidewire_conformance.clients.adapters.chromium_page'`; `--browser PATH` names another one.
The page is served from an origin of its own, asks for what to do, and tells what it was given. An EventSource sets no
header, closes no wait and reads no status: the suite says which sentences a page cannot keep.
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
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tidewire_conformance import specification

AT_ONCE: Final = 24
"""Jobs that the page follows at a time."""
_ASKS_AGAIN: Final = 10.0
"""Seconds after which the page is told that there is nothing to do."""
_FLAGS: Final = (
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


def page_client() -> str:
    """The client of the appendix, which is a module with the function `follow`."""
    text = (specification.folder() / "A-appendix.md").read_text(encoding="utf-8")
    found = re.search(r"^```js file=\S+\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError("the appendix holds no client")
    return found[1]


class _Site(ThreadingHTTPServer):
    """The origin of the page."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.commands: queue.Queue[str | None] = queue.Queue()
        self.is_there = threading.Event()
        self.lock = threading.Lock()
        self.files = {
            "/": ("text/html", Path(__file__).with_name("browser_page.html").read_text(encoding="utf-8")),
            "/client.js": ("text/javascript", page_client()),
        }

    def tell(self, line: str) -> None:
        with self.lock:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()


class _Page(BaseHTTPRequestHandler):
    server: _Site

    def do_GET(self) -> None:
        if self.path == "/next":
            self.server.is_there.set()
            try:
                command = self.server.commands.get(timeout=_ASKS_AGAIN)
            except queue.Empty:
                command = None
            self._say("application/json", command or "null")
        elif self.path in self.server.files:
            self._say(*self.server.files[self.path])
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        for report in json.loads(body):
            self.server.tell(json.dumps(report))
        self._say("application/json", "null")

    def _say(self, kind: str, text: str) -> None:
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
def _browser(path: str, url: str) -> Iterator[None]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = dict.fromkeys(("HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), folder)
        with subprocess.Popen(  # noqa: S603 - the browser that was asked for
            [path, *_FLAGS, f"--user-data-dir={folder}", url],
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


def main() -> None:
    """Start the browser, introduce it once its page is there, then hand on what is asked."""
    parser = argparse.ArgumentParser(
        prog="python -m tidewire_conformance.clients.adapters.chromium_page", description=__doc__
    )
    names = ("chromium", "chromium-browser", "google-chrome")
    parser.add_argument("--browser", default=next(filter(None, map(shutil.which, names)), None))
    given = parser.parse_args()
    if given.browser is None:
        sys.exit(f"there is none of {', '.join(names)}: name a browser with --browser")
    with _Site() as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        with _browser(given.browser, f"http://127.0.0.1:{site.server_port}/"):
            if not site.is_there.wait(20):
                sys.exit(f"{given.browser} did not load the page")
            site.tell(json.dumps({"client": "EventSource in a page", "can": [], "at_once": AT_ONCE}))
            for line in sys.stdin:
                if json.loads(line)["op"] == "bye":
                    break
                site.commands.put(line)
        site.shutdown()


if __name__ == "__main__":
    main()
