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

import httpx2
import pytest

from support.chromium import CHROMIUM, chromium
from support.sample_server import sentence, served

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.heavy,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.timeout(120),
]

PATIENCE = 60
"""Maximum time until all cases have reported, in seconds."""
LATE = 60
"""Minimum length of the text that exists before a page opens the stream, in code points."""
WORDS = {"running": 300, "ended": 30}
EXPIRING_WORDS = 600
EXPIRING = "/how-to/expiring"
"""Frame whose job runs longer than its stream tokens are valid."""
FRAMES = [*(f"/{document}/{state}" for document in ("spec", "how-to") for state in WORDS), EXPIRING]


def first_block(path, language):
    match = re.search(
        rf"^```{language}[^\n]*\n(.*?)^```$", (ROOT / path).read_text(), re.DOTALL | re.MULTILINE
    )
    return match[1]


def spec_page(url):
    return f"""<!doctype html><meta charset="utf-8">
<script>const url = {json.dumps(url)}, shown = [], show = (value) => shown.push(value);</script>
<script>{first_block("spec/10-browsers.md", "js")}</script>"""


def how_to_page():
    return (
        """
<script>
  const shown = [], sources = [];
  let source;
  window.EventSource = class extends EventSource {
    constructor(url) {
      super(url);
      source = this;
      sources.push(url);
      this.addEventListener("done", () => report());
    }
  };
</script>"""
        + first_block("docs/how-to/slow-readers.md", "html")
        + """
<script>
  new MutationObserver(() => shown.push(document.getElementById("text").textContent))
    .observe(document.getElementById("text"), { childList: true });
</script>"""
    )


REPORT = """
<script>
  const report = () => setTimeout(() => fetch("/results", {
    method: "POST", body: JSON.stringify({ frame: location.pathname, shown, state: source.readyState,
      sources: typeof sources === "undefined" ? [] : sources }),
  }));
</script>"""
REPORT_DONE = """<script>source.addEventListener("done", report);</script>"""


class Site(BaseHTTPRequestHandler):
    """Web server of the pages."""

    def do_GET(self):
        path, _, query = self.path.partition("?")
        parameters = httpx2.QueryParams(query)
        if path == "/":
            return self.respond("".join(f'<iframe src="{frame}"></iframe>' for frame in FRAMES))
        if path == "/stream-url":
            return self.respond(self.server.stream_url(parameters["job"]))
        if path not in FRAMES:
            return self.respond("", 404)
        if not query:  # Open the frame again, with its job.
            job = self.server.late_job(path.rpartition("/")[2])
            return self.respond(f"<script>location.search = '?job={job}'</script>")
        if path.startswith("/spec/"):
            page = spec_page(self.server.stream_url(parameters["job"])) + REPORT + REPORT_DONE
        else:
            page = how_to_page() + REPORT
        return self.respond(page)

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


def late_job(server_url, words, *, running):
    """Start a job, and wait until a part of its text exists or the job has ended."""
    with httpx2.Client(base_url=server_url) as http:
        members = {"words": words, "slow": running}
        job = http.post("/v1/endpoints/talk/jobs", json={"input": members}).json()["id"]
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = http.get(f"/v1/jobs/{job}").json()
            late = len(found["state"]["items"][0]["value"]) >= LATE
            if late and (running or found["status"] == "succeeded"):
                break
            time.sleep(0.01)
        return job


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The report of each frame."""
    with contextlib.ExitStack() as stack:
        site = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Site))
        site.daemon_threads = True
        origin = f"http://127.0.0.1:{site.server_port}"
        server_url = stack.enter_context(served(cors_origins=[origin], retry=0.05))
        short_lived = stack.enter_context(served(cors_origins=[origin], retry=0.05, stream_token_ttl=2))
        expiring = set()

        def start(state):
            if state != "expiring":
                return late_job(server_url, WORDS[state], running=state == "running")
            job = late_job(short_lived, EXPIRING_WORDS, running=True)
            expiring.add(job)
            return job

        def stream_url(job):
            base = short_lived if job in expiring else server_url
            return base + httpx2.post(f"{base}/v1/jobs/{job}/stream-token").json()["url"]

        site.results, site.late_job, site.stream_url = queue.Queue(), start, stream_url
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
    words = EXPIRING_WORDS if frame == EXPIRING else WORDS[frame.rpartition("/")[2]]
    shown, text = results[frame]["shown"], sentence(words)
    assert shown[-1] == text
    assert len(shown[0]) >= LATE, "the page did not attach late"
    assert all(text.startswith(value) for value in shown)


@pytest.mark.parametrize("frame", FRAMES)
def test_the_page_closes_its_stream_at_done(results, frame):
    assert results[frame]["state"] == 2


def test_the_page_requests_another_url_when_its_url_expires(results):
    urls = results[EXPIRING]["sources"]
    assert len(set(urls)) == len(urls) > 1
