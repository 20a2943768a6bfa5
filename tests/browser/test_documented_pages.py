"""The pages that the documentation shows, in Chromium, with jobs that began or ended before the page opened the stream.

One page shows every case in a frame. Each frame reports the values that it showed when its stream ends.
"""

import contextlib
import json
import queue
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from support.chromium import CHROMIUM, chromium
from support.sample_server import sentence, served

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.timeout(120),
]

PATIENCE = 60
"""Maximum time until all cases have reported, in seconds."""
LATE = 60
"""Minimum length of the text that exists before a page opens the stream, in code points."""
WORDS = {"running": 300, "ended": 30}
FRAMES = [f"/{document}/{state}" for document in ("spec", "how-to") for state in WORDS]


def first_block(path, language):
    match = re.search(
        rf"^```{language}[^\n]*\n(.*?)^```$", (ROOT / path).read_text(), re.DOTALL | re.MULTILINE
    )
    return match[1]


def spec_page(url):
    return f"""<!doctype html><meta charset="utf-8">
<script>const url = {json.dumps(url)}, shown = [], show = (value) => shown.push(value);</script>
<script>{first_block("spec/10-browsers.md", "js")}</script>"""


def how_to_page(_url):
    return (
        first_block("docs/how-to/slow-readers.md", "html")
        + """
<script>
  const shown = [];
  new MutationObserver(() => shown.push(document.getElementById("text").textContent))
    .observe(document.getElementById("text"), { childList: true });
</script>"""
    )


REPORT = """
<script>
  source.addEventListener("done", () => setTimeout(() => fetch("/results", {
    method: "POST", body: JSON.stringify({ frame: location.pathname, shown, state: source.readyState }),
  })));
</script>"""


class Site(BaseHTTPRequestHandler):
    """Web server of the pages."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/":
            return self.respond("".join(f'<iframe src="{frame}"></iframe>' for frame in FRAMES))
        if path not in FRAMES:
            return self.respond("", 404)
        if not query:  # Open the frame again, with the URL of its stream.
            url = self.server.late_stream(path.rpartition("/")[2])
            return self.respond(f"<script>location.search = '?stream={quote(url, safe='')}'</script>")
        url = httpx.QueryParams(query)["stream"]
        page = spec_page(url) if path.startswith("/spec/") else how_to_page(url)
        return self.respond(page + REPORT)

    def do_POST(self):
        self.server.results.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.respond("", 204)

    def respond(self, text, status=200):
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", "text/html; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def late_stream(server_url, state):
    """Start a job, wait until a part of its text exists or the job has ended, and return the URL of its stream."""
    with httpx.Client(base_url=server_url) as http:
        members = {"words": WORDS[state], "slow": state == "running"}
        job = http.post("/v1/endpoints/talk/jobs", json={"input": members}).json()["id"]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = http.get(f"/v1/jobs/{job}").json()
            late = len(found["state"]["items"][0]["value"]) >= LATE
            if late and (state == "running" or found["status"] == "succeeded"):
                break
            time.sleep(0.01)
        return server_url + http.post(f"/v1/jobs/{job}/stream-token").json()["url"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The report of each frame."""
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Site))
        site.daemon_threads = True
        origin = f"http://127.0.0.1:{site.server_port}"
        server_url = stack.enter_context(served(cors_origins=[origin], retry=0.05))
        site.results = queue.Queue()
        site.late_stream = lambda state: late_stream(server_url, state)
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(site.shutdown)
        stack.enter_context(chromium(origin, tmp_path_factory.mktemp("chromium")))
        found = {}
        while len(found) < len(FRAMES):
            one = site.results.get(timeout=PATIENCE)
            found[one["frame"]] = one
        yield found


@pytest.mark.parametrize("frame", FRAMES)
def test_a_page_that_attaches_late_shows_the_whole_text(results, frame):
    shown, text = results[frame]["shown"], sentence(WORDS[frame.rpartition("/")[2]])
    assert shown[-1] == text
    assert len(shown[0]) >= LATE, "the page did not attach late"
    assert all(text.startswith(value) for value in shown)


@pytest.mark.parametrize("frame", FRAMES)
def test_the_page_closes_its_stream_at_done(results, frame):
    assert results[frame]["state"] == 2
