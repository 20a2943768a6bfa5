"""The pages that the documentation shows, in Chromium, with jobs that began or ended before the page opened the stream.

One page shows every case in a frame. Each frame reports the values that it showed when its stream ends.
"""

import contextlib
import json
import re
import time
from pathlib import Path

import httpx2
import pytest

from support.chromium import chromium, needs_chromium
from support.reporting_site import Page, reporting_site
from support.sample_server import sentence, served

ROOT = Path(__file__).parents[2]
pytestmark = [*needs_chromium, pytest.mark.timeout(120)]

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

        def page(url):
            path, _, query = url.partition("?")
            job = httpx2.QueryParams(query).get("job")
            if path == "/":
                return Page("".join(f'<iframe src="{frame}"></iframe>' for frame in FRAMES))
            if path == "/stream-url":
                return Page(stream_url(job))
            if path not in FRAMES:
                return Page("", status=404)
            if job is None:  # Open the frame again, with its job.
                return Page(f"<script>location.search = '?job={start(path.rpartition('/')[2])}'</script>")
            if path.startswith("/spec/"):
                return Page(spec_page(stream_url(job)) + REPORT + REPORT_DONE)
            return Page(how_to_page() + REPORT)

        port, reports = stack.enter_context(reporting_site(page))
        origin = f"http://127.0.0.1:{port}"
        server_url = stack.enter_context(served(cors_origins=[origin], retry=0.05))
        short_lived = stack.enter_context(served(cors_origins=[origin], retry=0.05, stream_token_ttl=2))
        stack.enter_context(chromium(origin, tmp_path_factory.mktemp("chromium")))
        found = {}
        while len(found) < len(FRAMES):
            one = reports.get(timeout=PATIENCE)
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
