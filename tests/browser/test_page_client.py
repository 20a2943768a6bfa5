"""The specification's browser client in a Chromium page, served from another origin than the jobs.

One browser runs all cases concurrently; each test checks the result that the page reported for its case.
"""

import contextlib
import json
from pathlib import Path

import httpx2
import pytest

from support.chromium import chromium, needs_chromium
from support.foreign_programs import INTEROP, cut_inside_events
from support.reporting_site import Page, reporting_site
from support.sample_server import WORDS, sentence, served
from support.server_address import address_of
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

PAGE = Path(__file__).with_name("page.html")
pytestmark = [*needs_chromium, pytest.mark.timeout(120)]

PATIENCE = 60
"""Seconds for all cases together."""
CUTS = 5
QUIET = 8.0
"""Seconds without a logged event, which is longer than two stream tokens are valid."""
UNKNOWN = "2yJq8sVbT1mHkP0dXw4RcA"
TOKEN = "ada-knows-it"


def start(url, endpoint, headers=None, **members):
    response = httpx2.post(f"{url}/v1/endpoints/{endpoint}/jobs", json={"input": members}, headers=headers)
    return response.json()["id"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Results that the page reported, by case, and the proxies between page and servers."""
    with contextlib.ExitStack() as stack:
        port, reports = stack.enter_context(
            reporting_site(lambda path: pages[path]() if path in pages else Page("", status=404))
        )
        origin = f"http://127.0.0.1:{port}"
        server_url = stack.enter_context(served(cors_origins=[origin], retry=0.05))
        locked = stack.enter_context(
            served(
                cors_origins=[origin], retry=0.05, tokens=[f"ada:{TOKEN}"], stream_token_ttl=2, merge_window=0
            )
        )
        other_origin_server = stack.enter_context(served(retry=0.05))
        proxies = {
            "cuts": FaultProxy(address_of(server_url), plan=cut_inside_events(CUTS, "fin")),
            "resets": FaultProxy(address_of(server_url), plan=cut_inside_events(CUTS, "rst")),
            "token": FaultProxy(
                address_of(locked), plan=lambda n: Cut(mark=b"\nid:1-", after=3, occurrence=300)
            ),
        }
        for proxy in proxies.values():
            stack.enter_context(proxy)
        bearer = {"authorization": f"Bearer {TOKEN}"}
        plain = {"query": "errors=inband", "authorization": None}

        def cases():
            # Start jobs only when the page asks for the cases: the browser takes longer to start than a job to end.
            return [
                {"name": "token", "base": proxies["token"].url, "job": start(locked, "talk", bearer, words=1000, slow=True),
                 "query": "", "authorization": bearer["authorization"]},
                {"name": "quiet", "base": locked, "job": start(locked, "pause", bearer, seconds=QUIET), "query": "",
                 "authorization": bearer["authorization"]},
                {"name": "gone", "base": server_url, "job": UNKNOWN, **plain},
                {"name": "lingers", "base": server_url, "job": UNKNOWN, "lingers": True, **plain},
                {"name": "strangers", "base": other_origin_server, "job": start(other_origin_server, "talk"), "lingers": True, **plain},
                # These jobs are short, so they start last.
                {"name": "cuts", "base": proxies["cuts"].url, "job": start(server_url, "talk", words=120, slow=True), **plain},
                {"name": "resets", "base": proxies["resets"].url, "job": start(server_url, "hesitate", words=40), **plain},
            ]  # fmt: skip

        pages = {
            "/": lambda: Page(PAGE.read_text(encoding="utf-8")),
            "/browser_client.js": lambda: Page(
                (INTEROP / "browser_client.js").read_text(encoding="utf-8"), "text/javascript"
            ),
            "/cases": lambda: Page(json.dumps({"cases": cases()}), "application/json"),
        }
        stack.enter_context(chromium(origin, tmp_path_factory.mktemp("chromium")))
        found = {}
        while len(found) < 7:
            one = reports.get(timeout=PATIENCE)
            found[one["name"]] = one
        yield found, proxies


def test_page_reads_a_job_through_cuts_inside_events(results):
    found, proxies = results
    assert (found["cuts"]["status"], found["cuts"]["value"]) == ("succeeded", sentence(120))
    assert all(sentence(120).startswith(value) for value in found["cuts"]["shown"])
    assert len(proxies["cuts"].cuts) == CUTS
    assert found["cuts"]["cursors"] == [""], (
        "EventSource must reconnect by itself, with its last id in the header"
    )


def test_page_closes_its_stream_at_done(results):
    _, proxies = results
    # Other cases last longer, so an EventSource that stayed open would have reconnected by now.
    assert proxies["cuts"].connections == CUTS + 1


def test_rollbacks_survive_connection_resets(results):
    found, proxies = results
    assert found["resets"]["value"] == "".join(f"{WORDS[at % len(WORDS)]} " for at in range(40))
    assert len(proxies["resets"].cuts) == CUTS


def test_page_renews_an_expired_stream_token_and_continues_at_its_cursor(results):
    found, proxies = results
    assert (found["token"]["status"], found["token"]["value"]) == ("succeeded", sentence(1000))
    assert len(proxies["token"].cuts) >= 1
    first, *later = found["token"]["cursors"]
    assert first == "", "without a state the page must send no cursor"
    assert later
    assert all(cursor.startswith("1-") for cursor in later)


def test_page_renews_its_stream_token_several_times_without_an_event_in_between(results):
    found, _ = results
    assert (found["quiet"].get("failed"), found["quiet"]["status"]) == (None, "succeeded")
    assert found["quiet"]["value"] == "before after"
    assert len(found["quiet"]["cursors"]) > 2
    assert found["quiet"]["shown"][0].startswith("before ")


def test_page_reports_the_code_of_a_fatal_problem_in_the_stream(results):
    found, _ = results
    assert found["gone"]["failed"] == "job_not_found"


def test_event_source_left_open_is_ended_by_204(results):
    found, _ = results
    assert found["lingers"]["codes"] == ["job_not_found"], "the problem must be reported once"
    assert found["lingers"]["errors"] == 2, "one error at the end of the response and one at 204"


def test_page_of_a_forbidden_origin_reads_nothing(results):
    found, _ = results
    assert found["strangers"] == {"name": "strangers", "codes": [], "errors": 1}


def test_page_loads_only_its_own_files():
    text = PAGE.read_text(encoding="utf-8")
    assert "http" not in text
