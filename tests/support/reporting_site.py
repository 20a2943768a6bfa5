"""Web server for pages in a browser that report results."""

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Page(NamedTuple):
    text: str
    kind: str = "text/html"
    status: int = 200


@contextlib.contextmanager
def reporting_site(page: Callable[[str], Page]) -> Iterator[tuple[int, queue.Queue[Any]]]:
    """Serve pages on 127.0.0.1. Yield the port, and the queue of the JSON values that the pages send with POST.

    Args:
        page: Function that returns the page for a path with its query. Several threads call it.
    """
    reports: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.respond(page(self.path))

        def do_POST(self) -> None:
            reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.respond(Page("", status=204))

        def respond(self, found: Page) -> None:
            body = found.text.encode()
            self.send_response(found.status)
            self.send_header("content-type", f"{found.kind}; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):  # The page may have gone.
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port, reports
        finally:
            server.shutdown()
            thread.join()
