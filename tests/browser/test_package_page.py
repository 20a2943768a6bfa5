"""The page of the JavaScript how-to in Chromium: a job through cuts, a reload, and a cancellation.

The page has an origin with plain HTTP and a host other than localhost, so it has no `crypto.subtle`.
"""

import contextlib
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from browser.package_adapter import HOST, RESOLVE
from support.chromium import chromium, needs_chromium
from support.foreign_programs import cut_inside_events
from support.page_browser import watched
from support.reporting_site import Page, reporting_site
from support.sample_server import sentence, served
from support.server_address import address_of
from support.server_process import ServerProcess
from tidewire_conformance.wire.fault_proxy import FaultProxy

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "clients/javascript/src"
pytestmark = [*needs_chromium, pytest.mark.timeout(120)]

PATIENCE = 60
"""Seconds until the next report of the page."""
CUTS = 5
WORDS, LONG = 600, 4000
"""Numbers of words of the jobs. The last job runs for at least twenty seconds, unless the page cancels it."""

HARNESS = """
<script type="module">
  const state = document.getElementById("state"), states = [];
  const report = (step) => fetch("/results", { method: "POST", body: JSON.stringify({
    step, states, text: document.getElementById("text").textContent, subtle: typeof crypto.subtle, secure: isSecureContext,
  }) });
  const step = Number(sessionStorage.step ?? 0);
  // A state may last for less than a millisecond.
  new MutationObserver(() => {
    states.push(state.value);
    // If a connection is cut at once, the page is "connected" too briefly for an observer.
    if (step === 2 && state.value.startsWith("connect")) document.getElementById("cancel").click();
  }).observe(state, { childList: true, characterData: true, subtree: true });
  const timer = setInterval(async () => {
    if (state.value !== "complete" && state.value !== "cancelled") return;
    clearInterval(timer);
    await report(step);
    sessionStorage.step = step + 1;
    if (step === 1) location.hash = "";
    if (step < 2) location.reload();
  }, 1);
  if (step !== 1) document.getElementById("start").click();
</script>
"""


def html_of(source):
    """Return the page in a file of the documentation."""
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".html"):
        return text
    (page,) = re.findall(r"^```html\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return page


def how_to_page(url):
    page = html_of("docs/how-to/javascript.md")
    started = '"story", { hero: "Ada" }'
    assert started in page
    page = page.replace(
        started, f'"talk", {{ words: sessionStorage.step === "2" ? {LONG} : {WORDS}, slow: true }}'
    )
    return page.replace("http://127.0.0.1:8000", url) + HARNESS


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Reports of the page: after the first job, after a reload, and after a job that the page cancelled."""

    def page(path):
        source = SOURCES / path.removeprefix("/tidewire/")
        if path == "/":
            return Page(how_to_page(proxy.url))
        if source.is_file():
            return Page(source.read_text(encoding="utf-8"), "text/javascript")
        return Page("", status=404)

    with contextlib.ExitStack() as stack:
        port, reports = stack.enter_context(reporting_site(page))
        origin = f"http://{HOST}:{port}"
        server_url = stack.enter_context(served(cors_origins=[origin], retry=0.05))
        # Some connections carry no events: preflight requests, submits, and those that the browser opens in advance.
        plan = cut_inside_events(CUTS + 6, "fin")
        proxy = stack.enter_context(FaultProxy(address_of(server_url), plan=plan))
        stack.enter_context(chromium(f"{origin}/", tmp_path_factory.mktemp("chromium"), [RESOLVE]))
        found = {}
        while len(found) < 3:
            one = reports.get(timeout=PATIENCE)
            found[one["step"]] = one
        yield found, proxy


def test_request_that_a_browser_forbids_names_the_option_of_the_server(browser):
    context = browser.new_context()
    context.route("http://pages.test/*", lambda route, _: route.fulfill(content_type="text/html", body=""))
    context.route(
        "http://pages.test/*.js",
        lambda route, request: route.fulfill(path=SOURCES / request.url.rpartition("/")[2]),
    )
    with served() as url:
        page = context.new_page()
        page.goto("http://pages.test/")
        messages = page.evaluate(
            """async (url) => {
                 const { Client } = await import("/index.js");
                 const why = new Promise((resolve) => {
                   const job = new Client(url).job("a", { listener: ({ why }) => why && (resolve(why), job.close()) });
                   job.result().catch(() => {});
                 });
                 return [await why, await new Client(url).discover().catch((error) => error.message)];
               }""",
            url,
        )
    context.close()
    for message in messages:
        assert "tidewire serve --cors-origin http://pages.test" in message


@pytest.mark.parametrize(
    ("source", "submit", "state", "text"),
    [
        ("docs/how-to/javascript.md", '"story", { hero: "Ada" }', "#state", "#text"),
        ("docs/examples/own_page.html", '"poem", { topic: event.target.topic.value }', "#status", "#poem"),
    ],
)
def test_a_documented_page_shows_what_happens(browser, tmp_path, source, submit, state, text):
    """Two clicks start one job. The page says that the server is away, and that it has lost the job."""
    html = html_of(source)
    assert submit in html
    with (
        ServerProcess(tmp_path, "support.sample_server:sample_server", retry=0.05) as server,
        watched(browser) as visitor,
    ):
        html = html.replace(submit, f'"talk", {{ words: {WORDS}, slow: true }}')
        html = re.sub(r"new Client\(.*?\)", f'new Client("{server.url}")', html)
        # The files of the page are there while the server is away.
        visitor.context.route(
            f"{server.url}/pages/", lambda route: route.fulfill(content_type="text/html", body=html)
        )
        visitor.context.route(
            f"{server.url}/pages/tidewire/*.js",
            lambda route, request: route.fulfill(path=SOURCES / request.url.rpartition("/")[2]),
        )
        page = visitor.open(f"{server.url}/pages/")
        button = page.get_by_role("button").first
        button.evaluate("(button) => [button.click(), button.click()]")
        expect(page.locator(text)).to_have_text(sentence(WORDS).strip())
        expect(button).to_be_enabled()
        submits = [request for request in visitor.requests if request.method == "POST"]
        assert len(submits) == 1

        server.kill()
        page.reload()
        expect(page.locator(state)).to_contain_text(re.compile("lost|the connection failed"))
        server.start()
        expect(page.locator(state)).to_contain_text("job_not_found")
        assert page.evaluate("location.hash") == ""

        server.kill()
        page.reload()
        button.click()
        expect(page.locator(state)).to_contain_text("The client gave up")
        expect(button).to_be_enabled()


def test_the_page_shows_a_text_through_cuts(results):
    found, proxy = results
    assert found[0]["text"] == sentence(WORDS)
    assert found[0]["states"][-1] == "complete"
    assert len(proxy.cuts) >= CUTS - 1
    assert "connected again, nothing was lost" in found[0]["states"]


def test_the_page_attaches_to_its_job_after_a_reload(results):
    found, _ = results
    assert found[1]["text"] == sentence(WORDS)


def test_the_page_cancels_its_job(results):
    found, _ = results
    assert found[2]["states"][-1] == "cancelled"
    assert sentence(LONG).startswith(found[2]["text"])
    assert found[2]["text"] != sentence(LONG)


def test_the_page_has_no_secure_origin(results):
    found, _ = results
    assert {one["subtle"] for one in found.values()} == {"undefined"}
    assert {one["secure"] for one in found.values()} == {False}
