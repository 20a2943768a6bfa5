"""The page at `/` in Chromium: tokens, the content security policy, and hostile names, schemas and values."""

import json
from urllib.parse import quote

import httpx2
import pytest
from playwright.sync_api import expect

from support.chromium import needs_chromium
from support.hostile_page_server import NAMES, SCRIPT
from support.page_browser import run_job, shown_text, status, watched
from support.server_process import ServerProcess, running

pytestmark = [*needs_chromium, pytest.mark.timeout(120)]

TOKEN, OPERATOR = "sesame-of-ada", "sesame-of-the-operator"


@pytest.fixture
def visitor(browser):
    with watched(browser) as visitor:
        yield visitor


def enter(page, token):
    page.get_by_label("Token", exact=True).fill(token)
    page.get_by_role("button", name="Continue").click()


@pytest.fixture(scope="module")
def locked():
    settings = {"tokens": [f"ada:{TOKEN}"], "operator_tokens": [OPERATOR]}
    with running("support.page_server:page_server", **settings) as url:
        yield url


def test_server_with_tokens_asks_for_one_and_keeps_it_in_the_tab(visitor, locked):
    page = visitor.open(locked)
    enter(page, "a-wrong-one")
    expect(page.get_by_text("does not accept this token")).to_be_visible()
    enter(page, TOKEN)
    job = run_job(page, locked, "talk", words=20, pause=0)
    status(page, "✓ succeeded")
    page.reload()
    status(page, "✓ succeeded")

    assert page.evaluate("Object.values(sessionStorage).join()") == TOKEN
    assert TOKEN not in page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    assert TOKEN not in page.content()
    for request in visitor.requests:
        assert TOKEN not in request.url + (request.post_data or "")
        carries = {name for name, value in request.all_headers().items() if TOKEN in value}
        assert carries <= {"authorization"}
    assert (
        httpx2.get(f"{locked}/v1/jobs/{job}", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    )

    other = visitor.open(page.url)
    expect(other.get_by_role("dialog")).to_be_visible()
    enter(other, TOKEN)
    status(other, "✓ succeeded")
    page.get_by_role("button", name="Forget token").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0


def test_page_of_an_application_shows_that_the_visitor_is_not_signed_in(visitor):
    unknown = "this server does not know the caller; sign in, and retry"
    with running("support.page_server:application_server") as url:
        page = visitor.open(url)
        expect(page.locator("#main")).to_contain_text(unknown)
        visitor.context.add_cookies([{"name": "session", "value": "ada", "url": url}])
        page.get_by_role("button", name="Retry").click()
        run_job(page, url, "talk", words=2000)
        status(page, "● running")
        visitor.context.clear_cookies()
        page.goto(f"{url}/#/endpoints/talk")
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".form > .error")).to_contain_text(unknown)
        expect(page.get_by_role("dialog")).to_be_hidden()


def test_server_that_no_longer_accepts_the_token_asks_for_another_one(visitor, tmp_path):
    settings = {"log": f"sqlite:///{tmp_path}/log.db", "retry": 0.05}
    with ServerProcess(
        tmp_path, "support.page_server:page_server", tokens=[f"ada:{TOKEN}"], **settings
    ) as server:
        page = visitor.open(server.url)
        enter(page, TOKEN)
        first = run_job(page, server.url, "talk", words=2000)
        status(page, "● running")
        server.kill()
        server.start(tokens=["ada:another-one"])
        expect(page.locator(".banner.bad")).to_contain_text("Reload the page to sign in again")
        status(page, "● running")
        page.goto(f"{server.url}/#/endpoints/talk")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_text("no longer accepts the token")).to_be_visible()
        enter(page, "another-one")
        page.wait_for_url("**/#/jobs/*")
        assert first not in page.url
        status(page, "● running")


def test_page_without_storage_keeps_its_token_in_memory(visitor, locked):
    denied = "get() { throw new DOMException('denied', 'SecurityError'); }"
    for name in ("localStorage", "sessionStorage"):
        visitor.context.add_init_script(f"Object.defineProperty(window, '{name}', {{ {denied} }})")
    page = visitor.open(locked)
    enter(page, TOKEN)
    run_job(page, locked, "talk", words=20, pause=0)
    status(page, "✓ succeeded")
    page.locator("#theme").click()


def test_operator_view_asks_for_the_token_of_an_operator(visitor, locked):
    page = visitor.open(locked)
    enter(page, TOKEN)
    page.get_by_role("link", name="Operator").click()
    expect(page.get_by_text("Operator's token needed")).to_be_visible()
    enter(page, OPERATOR)
    expect(page.get_by_role("row", name="wait_in_line")).to_contain_text("0 of 1")
    headers = {"authorization": f"Bearer {TOKEN}"}
    for _ in range(3):
        httpx2.post(
            f"{locked}/v1/endpoints/wait_in_line/jobs", json={"input": {"seconds": 8}}, headers=headers
        )
    httpx2.post(f"{locked}/v1/endpoints/lengths/jobs", json={"inputs": [{"text": "a"}] * 8}, headers=headers)
    expect(page.get_by_role("row", name="wait_in_line")).to_contain_text("1 of 1")
    expect(page.get_by_role("row", name="lengths")).to_contain_text("8")
    expect(page.locator(".tile", has_text="Waiting").locator("strong")).to_have_text("2")


def test_page_follows_only_links_of_its_own_server(visitor, locked):
    origins = {request.url.split("/")[2] for request in visitor.requests}
    page = visitor.open(locked)
    enter(page, TOKEN)
    expect(page.locator("#endpoints a").first).to_be_visible()
    origins = {request.url.split("/")[2] for request in visitor.requests}
    assert origins == {locked.split("/")[2]}


@pytest.fixture(scope="module")
def hostile():
    with running("support.hostile_page_server:hostile_page_server") as url:
        yield url


@pytest.fixture(scope="module")
def victim(browser, hostile):
    """A visitor with one page of the hostile server, which several tests use in turn."""
    with watched(browser) as visitor:
        page = visitor.open(hostile)
        page.on("dialog", lambda dialog: visitor.faults.append(f"dialog: {dialog.message}"))
        yield visitor


@pytest.fixture
def hostile_page(victim):
    """The page, in which a test must leave no error."""
    yield victim.context.pages[0]
    assert victim.faults == []


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_hostile_endpoint_is_shown_as_text_and_runs(hostile_page, hostile, name):
    page = hostile_page
    page.goto(f"{hostile}/#/endpoints/{quote(name, safe='')}")
    expect(page.locator(".call h1")).to_have_text(name)
    expect(page.locator("#endpoints .name").nth(0)).to_contain_text("<img src=x onerror")
    page.get_by_role("button", name="Edit as JSON").click()
    page.get_by_label("Input as JSON").fill(json.dumps({} if name != NAMES[4] else {"value": {"a": SCRIPT}}))
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".job-head .chip")).to_contain_text("succeeded" if name != NAMES[0] else "failed")
    expect(page.locator("#result")).not_to_be_empty()
    for tab in page.get_by_role("tab").all():
        tab.click()
    assert page.evaluate("window.pwned") is None
    assert page.evaluate("({}).polluted") is None
    assert page.locator("script").count() == 1
    assert page.locator("[onerror], [onload], iframe, object, embed, svg").count() == 0
    assert page.locator("img:not([src='page/icon.svg'])").count() == 0, "this is not a PNG image"


def test_hostile_values_are_complete_as_text(hostile_page, hostile):
    page = hostile_page
    page.goto(f"{hostile}/#/endpoints/{quote(NAMES[0], safe='')}")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".job-head .chip")).to_contain_text("failed")
    tree = page.locator("#result .tree")
    expect(tree).to_contain_text(f"{SCRIPT}: {json.dumps(SCRIPT)}")
    expect(tree).to_contain_text("__proto__: {1 member}")
    expect(page.locator(".notes")).to_have_text(SCRIPT)
    expect(page.locator(".banner.bad")).to_contain_text(SCRIPT)
    assert len(shown_text(page)) == 200_000


def test_script_in_a_url_of_the_page_does_nothing(hostile_page, hostile):
    page = hostile_page
    page.goto(f"{hostile}/#/endpoints/{quote(SCRIPT, safe='')}")
    expect(page.get_by_role("alert").first).to_contain_text("onerror")
    for link in ("jobs/..%2F..%2Fmetrics", "jobs/%E0%A4%A", "endpoints/%", "jobs/"):
        page.goto(f"{hostile}/#/{link}")
        expect(page.locator("main")).to_have_text("This is not a link of this page.")
        page.goto(f"{hostile}/#/endpoints/there-is-none")
        expect(page.locator("main")).to_contain_text("there-is-none")
    assert page.evaluate("window.pwned") is None
