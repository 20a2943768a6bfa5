"""The appendix's client in a page of a real Chromium, served from another origin than the jobs.

One browser runs all cases at once; each test looks at what the page told of its own.
"""

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from support.foreign_programs import INTEROP, address, cut_inside_events
from support.sample_server import WORDS, sentence, served
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

PAGE = Path(__file__).with_name("page.html")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed"),
    pytest.mark.timeout(120),
]

FLAGS = [
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
]
PATIENCE = 60
"""Seconds that the browser has for all cases together."""
CUTS = 5
UNKNOWN = "2yJq8sVbT1mHkP0dXw4RcA"
TOKEN = "ada-knows-it"


class Site(BaseHTTPRequestHandler):
    """The origin of the page: its files, the cases, and what it tells."""

    def do_GET(self):
        files = {"/": PAGE, "/browser_client.js": INTEROP / "browser_client.js"}
        kind = "text/javascript" if self.path.endswith(".js") else "text/html"
        if self.path == "/cases":
            return self.say(200, "application/json", json.dumps({"cases": self.server.cases()}).encode())
        if self.path not in files:
            return self.say(404, "text/plain", b"")
        return self.say(200, kind, files[self.path].read_bytes())

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.told.put(json.loads(body))
        self.say(204, "text/plain", b"")

    def say(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def site():
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.daemon_threads = True
        server.told, server.cases = queue.Queue(), list
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def chromium(url, folder):
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}", url]
    home = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder)}
    with subprocess.Popen(
        command, env=home, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def start(url, endpoint, headers=None, **members):
    answer = httpx.post(f"{url}/v1/endpoints/{endpoint}/jobs", json={"input": members}, headers=headers)
    return answer.json()["id"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the page told, by case; and the proxies that it went through."""
    with contextlib.ExitStack() as stack:
        server, origin = stack.enter_context(site())
        ours = stack.enter_context(served(cors_origins=[origin], retry=0.05))
        locked = stack.enter_context(
            served(
                cors_origins=[origin], retry=0.05, tokens=[f"ada:{TOKEN}"], stream_token_ttl=1, merge_window=0
            )
        )
        stranger = stack.enter_context(served(retry=0.05))
        proxies = {
            "cuts": FaultProxy(address(ours), plan=cut_inside_events(CUTS, "fin")),
            "resets": FaultProxy(address(ours), plan=cut_inside_events(CUTS, "rst")),
            "token": FaultProxy(
                address(locked), plan=lambda n: Cut(mark=b"\nid:1-", after=3, occurrence=300)
            ),
        }
        for proxy in proxies.values():
            stack.enter_context(proxy)
        bearer = {"authorization": f"Bearer {TOKEN}"}
        plain = {"query": "errors=inband", "authorization": None}
        # Jobs begin when the page is there: a browser takes longer to start than they to end.
        server.cases = lambda: [
            {"name": "cuts", "base": proxies["cuts"].url, "job": start(ours, "talk", words=120, slow=True), **plain},
            {"name": "resets", "base": proxies["resets"].url, "job": start(ours, "hesitate", words=40), **plain},
            {"name": "token", "base": proxies["token"].url, "job": start(locked, "talk", bearer, words=1000, slow=True),
             "query": "", "authorization": bearer["authorization"]},
            {"name": "gone", "base": ours, "job": UNKNOWN, **plain},
            {"name": "lingers", "base": ours, "job": UNKNOWN, "lingers": True, **plain},
            {"name": "strangers", "base": stranger, "job": start(stranger, "talk"), "lingers": True, **plain},
        ]  # fmt: skip
        stack.enter_context(chromium(origin, tmp_path_factory.mktemp("chromium")))
        found = {}
        while len(found) < 6:
            one = server.told.get(timeout=PATIENCE)
            found[one["name"]] = one
        yield found, proxies


def test_a_page_of_another_origin_follows_a_job_through_cuts_inside_events(told):
    found, proxies = told
    assert (found["cuts"]["status"], found["cuts"]["value"]) == ("succeeded", sentence(120))
    assert all(sentence(120).startswith(value) for value in found["cuts"]["shown"])
    assert len(proxies["cuts"].cuts) == CUTS
    assert found["cuts"]["cursors"] == [""], (
        "EventSource comes back by itself, with its last id in the header"
    )


def test_a_page_closes_its_stream_at_done(told):
    _, proxies = told
    # Other cases last longer: an EventSource that stayed open would have asked again.
    assert proxies["cuts"].connections == CUTS + 1


def test_text_that_is_taken_back_survives_resets(told):
    found, proxies = told
    assert found["resets"]["value"] == "".join(f"{WORDS[at % len(WORDS)]} " for at in range(40))
    assert len(proxies["resets"].cuts) == CUTS


def test_a_page_whose_stream_token_has_expired_gets_another_and_goes_on_where_it_was(told):
    found, proxies = told
    assert (found["token"]["status"], found["token"]["value"]) == ("succeeded", sentence(1000))
    assert len(proxies["token"].cuts) >= 1
    first, *later = found["token"]["cursors"]
    assert first == "", "a page that holds no state names no cursor"
    assert later
    assert all(cursor.startswith("1-") for cursor in later)


def test_a_fatal_problem_in_band_ends_the_page_with_its_code(told):
    found, _ = told
    assert found["gone"]["failed"] == "job_not_found"


def test_an_event_source_that_closes_nothing_is_ended_by_204(told):
    found, _ = told
    assert found["lingers"]["codes"] == ["job_not_found"], "told once, and not again and again"
    assert found["lingers"]["errors"] == 2, "the end of the answer, then 204"


def test_a_page_of_an_origin_that_is_not_allowed_reads_nothing(told):
    found, _ = told
    assert found["strangers"] == {"name": "strangers", "codes": [], "errors": 1}


def test_the_page_needs_nothing_but_its_own_files():
    text = PAGE.read_text(encoding="utf-8")
    assert "http" not in text
