"""The page at `/` in Chromium stays responsive: no long task while very many messages arrive, as text, tree and tokens."""

import contextlib
import json

import httpx2
import pytest
from playwright.sync_api import expect

from support.chromium import needs_chromium
from support.page_browser import WIDE, copied, shown_text, watched
from support.server_process import running

pytestmark = [*needs_chromium, pytest.mark.timeout(400)]

RATE = 200
"""Messages per second."""
LONGEST_TASK_MS = 50
FORMS = {"text": "Text", "tree": "JSON", "tokens": "Tokens"}


@pytest.fixture(scope="module")
def url():
    with running("support.page_server:page_server", merge_window=0) as url:
        yield url


@contextlib.contextmanager
def tasks(browser, page):
    """Trace the tasks of the page's main thread. Yield a list, which is filled at the end of the block.

    Each task counts with the CPU time that it has used: another program may have delayed it, but the page has not.
    """
    found: list[float] = []
    browser.start_tracing(page=page, categories=["toplevel"])
    try:
        yield found
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    mains = {
        (e["pid"], e["tid"])
        for e in events
        if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"
    }
    found += sorted(
        event["tdur"] / 1000
        for event in events
        if event["name"].endswith("RunTask")
        and event.get("ph") == "X"
        and "tdur" in event
        and (event["pid"], event["tid"]) in mains
    )


def follow(page, url, form, messages):
    job = httpx2.post(
        f"{url}/v1/endpoints/flood_{form}/jobs", json={"input": {"messages": messages, "rate": RATE}}
    ).json()["id"]
    page.evaluate("(id) => { location.hash = `#/jobs/${id}`; }", job)
    expect(page.locator(".job-head .chip")).to_contain_text("running")
    expect(page.locator(".job-head .chip")).to_have_text("✓ succeeded", timeout=1000 * (messages / RATE + 60))
    return httpx2.get(f"{url}/v1/jobs/{job}").json()["state"]["items"][0]["value"]


@pytest.mark.parametrize("form", FORMS)
def test_page_shows_every_message(browser, url, form):
    with watched(browser) as visitor:
        page = visitor.open(url)
        expect(page.get_by_role("button", name="Run")).to_be_visible()
        shows_all(page, form, follow(page, url, form, 600))


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_20000_messages_cause_no_long_task(browser, url, form):
    with watched(browser, viewport=WIDE) as visitor:
        page = visitor.open(url)
        expect(page.get_by_role("button", name="Run")).to_be_visible()
        with tasks(browser, page) as durations:
            value = follow(page, url, form, 20_000)
            page.wait_for_timeout(1000)  # what follows the end belongs to it
        assert len(durations) > 1000, "the trace has no tasks"
        assert durations[-1] <= LONGEST_TASK_MS
        shows_all(page, form, value)


def shows_all(page, form, value):
    expect(page.get_by_role("tab", selected=True)).to_have_text(FORMS[form]) if form != "tree" else None
    if form == "tree":
        expect(page.locator("#result .tree")).to_contain_text(f"step: {value['step']}")
        expect(page.locator("#result .tree")).to_contain_text(f"rows: [{len(value['rows']):,} elements]")
        return
    text = value if form == "text" else value["text"]
    page.wait_for_function(
        "(n) => document.querySelector('#result .text').textContent.length >= n", arg=len(text)
    )
    assert shown_text(page) == text
    assert copied(page, "#result .text") == text
    if form == "tokens":
        count = len(value["token_ids"])
        assert page.locator("#result .block span").count() == count
        expect(page.get_by_role("img", name=f"Bars of the surprise of {count:,} tokens")).to_be_visible()
