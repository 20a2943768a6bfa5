"""The page at `/` in Chromium: lost connections, killed servers, reloads, links, hidden tabs, and jobs that are gone."""

import httpx2
import pytest
from playwright.sync_api import expect

from support.browser_tabs import browser_tabs
from support.chromium import needs_chromium
from support.free_port import free_port
from support.nginx import needs_nginx, nginx_with, page_configuration
from support.page_browser import PATIENCE, run_job, shown_text, status, watched
from support.page_server import sentence
from support.reference_server import eventually
from support.server_address import address_of
from support.server_process import ServerProcess, running
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy

pytestmark = [*needs_chromium, pytest.mark.timeout(180)]

SERVER = "support.page_server:page_server"
TABS = 8
"""More tabs than connections that a browser opens to one server."""


@pytest.fixture
def visitor(browser):
    with watched(browser) as visitor:
        yield visitor


def grows(page):
    """Wait until the page shows more text than now."""
    before = len(shown_text(page))
    page.wait_for_function(
        "(n) => document.querySelector('#result .text').textContent.length > n", arg=before
    )


def test_cut_connection_is_shown_and_the_stream_continues_without_a_gap(visitor):
    with running(SERVER, retry=0.6) as url:
        proxy = FaultProxy(address_of(url), plan=lambda number: Cut(mark=b"\nid:1-", occurrence=40, after=3))
        with proxy:
            page = visitor.open(proxy.url)
            run_job(page, proxy.url, "talk", words=160, pause=0.05)
            expect(page.locator(".connection.bad")).to_contain_text(
                "Connection lost. The job does not depend on it"
            )
            expect(page.locator(".connection.bad")).to_contain_text("continues after event 1-")
            expect(page.locator(".connection.good")).to_contain_text("nothing is missing")
            status(page, "✓ succeeded")
            assert shown_text(page) == sentence(160)
            expect(page.locator(".job .numbers").first).to_contain_text("resumed")
            page.get_by_text("Connection", exact=True).click()
            expect(page.locator(".history .bad").first).to_contain_text("Lost after event 1-")
        assert len(proxy.cuts) >= 2


def test_killed_server_with_a_log_file_continues_in_the_open_page(visitor, tmp_path):
    settings = {"log": f"sqlite:///{tmp_path}/log.db", "retry": 0.2, "max_attempts": 100}
    with ServerProcess(tmp_path, SERVER, **settings) as server:
        page = visitor.open(server.url)
        run_job(page, server.url, "count_up", n=60, pause=0.05)
        page.wait_for_function("() => document.querySelector('#result')?.textContent.includes('element')")
        server.kill()
        expect(page.locator(".connection.bad")).to_contain_text("Connection lost")
        server.start()
        status(page, "✓ succeeded")
        page.get_by_role("button", name="Copy", exact=True).click()
        expect(page.locator("#result .tree")).to_contain_text("[60 elements]")
        expect(page.locator("#result .tree")).to_contain_text("59: 59")


def test_page_tells_that_it_waits_for_a_server_that_is_away(visitor, tmp_path):
    with ServerProcess(tmp_path, SERVER) as server:
        page = visitor.open(f"{server.url}/#/endpoints/talk")
        expect(page.locator("main h1")).to_have_text("talk")
        server.kill()
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_have_text(
            "The server has not answered yet. The page keeps trying."
        )
        page.goto(f"{server.url}/#/jobs/unknown")
        expect(page.locator("main")).to_have_text("Opening the job …")
        expect(page.locator("main")).to_have_text("The server has not answered yet. The page keeps trying.")
        page.goto(f"{server.url}/#/endpoints/train")
        expect(page.locator("main")).to_have_text("Loading train …")
        expect(page.locator("main")).to_have_text("The server has not answered yet. The page keeps trying.")
        server.start()
        expect(page.locator("main h1")).to_have_text("train")


def test_killed_server_with_the_log_in_memory_has_lost_the_job(visitor, tmp_path):
    with ServerProcess(tmp_path, SERVER, retry=0.2, single_user=False) as server:
        page = visitor.open(server.url)
        run_job(page, server.url, "talk", words=2000)
        grows(page)
        expect(page.locator("#jobs li")).to_have_count(1)
        server.again()
        expect(page.locator(".banner.bad")).to_contain_text("This job is lost: the server was restarted")
        status(page, "✕ lost")
        assert shown_text(page).startswith("the tide"), "what had arrived stays readable"
        expect(page.locator("#jobs li")).to_have_count(0)


def test_link_attaches_after_a_reload_and_in_another_tab(visitor):
    with running(SERVER) as url:
        page = visitor.open(url)
        run_job(page, url, "talk", words=200, pause=0.03)
        grows(page)
        page.reload()
        grows(page)
        other = visitor.open(page.url)
        grows(other)
        for each in (page, other):
            status(each, "✓ succeeded")
            assert shown_text(each) == sentence(200)


def test_new_attempt_replaces_the_text_of_the_old_one(visitor, tmp_path):
    settings = {"log": f"sqlite:///{tmp_path}/log.db", "retry": 0.2, "max_attempts": 100}
    with ServerProcess(tmp_path, SERVER, **settings) as server:
        page = visitor.open(server.url)
        run_job(page, server.url, "talk", words=120, pause=0.02)
        grows(page)
        server.again()
        status(page, "✓ succeeded")
        assert shown_text(page) == sentence(120)


@pytest.mark.parametrize("single_user", [False, True])
def test_list_of_jobs_lasts_over_a_reload_without_those_that_are_gone(visitor, single_user):
    with running(SERVER, single_user=single_user, tombstone_ttl=3600) as url:
        page = visitor.open(url)
        first = run_job(page, url, "talk", words=3, pause=0)
        status(page, "✓ succeeded")
        second = run_job(page, url, "talk", words=4, pause=0)
        status(page, "✓ succeeded")
        page.reload()
        expect(page.locator("#jobs a")).to_have_count(2)
        assert httpx2.delete(f"{url}/v1/jobs/{first}").status_code == 204  # the server now responds with 410
        page.reload()
        expect(page.locator("#jobs a")).to_have_count(1)
        assert second in page.locator("#jobs a").get_attribute("href")
        page.goto(f"{url}/#/jobs/{first}")
        expect(page.locator(".banner.bad")).to_contain_text("has expired")
        page.goto(f"{url}/#/jobs/2yJq8sVbT1mHkP0dXw4RcA")
        expect(page.locator(".banner.bad")).to_be_visible()
        status(page, "✕ lost")


def proxy_page(route):
    """Respond as a proxy without a backend does."""
    route.fulfill(status=404, content_type="text/html", body="<html>404 page not found</html>")


def test_page_of_a_proxy_does_not_lose_a_job(visitor):
    with running(SERVER, single_user=False) as url:
        proxy = FaultProxy(address_of(url), plan=lambda number: Cut(mark=b"\nid:1-", occurrence=60, after=3))
        with proxy:
            page = visitor.open(proxy.url)
            job = run_job(page, proxy.url, "talk", words=100, pause=0.03)
            grows(page)
            page.route("**/v1/jobs/**", proxy_page)
            expect(page.locator(".connection.bad")).to_contain_text("Connection lost")
            page.get_by_text("Connection", exact=True).click()
            expect(page.locator(".history .bad").first).to_contain_text("404 text/html")
            page.reload()
            expect(page.locator(".connection.bad")).to_contain_text("Connection lost")
            assert job in page.locator("#jobs a").get_attribute("href")
            page.unroute("**/v1/jobs/**")
            status(page, "✓ succeeded")
            assert shown_text(page) == sentence(100)
            page.evaluate("localStorage.clear()")
            page.route("**/v1/jobs/**", proxy_page)
            page.reload()
            expect(page.locator("main")).to_contain_text("Opening the job")
            page.unroute("**/v1/jobs/**")
            status(page, "✓ succeeded")


@needs_nginx
def test_stream_that_a_proxy_compresses_is_read_while_it_grows(visitor, tmp_path):
    compressing = "gzip on; gzip_min_length 0; gzip_proxied any; gzip_types text/event-stream;"
    with running(SERVER) as url:
        site = page_configuration(path=False).replace("gzip off;", compressing)
        site = site.replace("127.0.0.1:8000", url.removeprefix("http://"))
        with nginx_with(site, tmp_path, free_port()) as front:
            page = visitor.open(front)
            with page.expect_response("**/events") as response:
                run_job(page, front, "talk", words=100, pause=0.03)
            grows(page)
            status(page, "✓ succeeded")
            assert shown_text(page) == sentence(100)
            assert response.value.header_value("content-encoding") == "gzip"
            expect(page.locator(".job .numbers").first).not_to_contain_text("resumed")


def test_view_is_shown_before_remembered_jobs_are_checked(visitor):
    with running(SERVER, single_user=False) as url:
        page = visitor.open(url)
        run_job(page, url, "talk", words=3, pause=0)
        status(page, "✓ succeeded")
        page.evaluate(
            """() => {
                 const [name] = Object.keys(localStorage).filter((name) => name.endsWith(" jobs"));
                 const [job] = JSON.parse(localStorage[name]);
                 const lost = Array.from({ length: 9 }, (_, at) => ({ ...job, id: `${at}`.repeat(22) }));
                 localStorage[name] = JSON.stringify([...lost, job]);
               }"""
        )
        held = []
        page.route("**/v1/jobs/*", lambda route, _: held.append(route))
        page.goto(f"{url}/#/endpoints/train")
        page.reload()
        expect(page.get_by_role("heading", name="train", exact=True)).to_be_visible()
        expect(page.locator("#jobs a")).to_have_count(10)
        page.wait_for_timeout(300)
        assert [route.request.method for route in held] == ["HEAD"]
        page.unroute("**/v1/jobs/*")  # the held requests continue
        expect(page.locator("#jobs a")).to_have_count(1)


def open_streams(url: str) -> float:
    page = httpx2.get(f"{url}/metrics").text
    return next(
        float(line.split()[1]) for line in page.splitlines() if line.startswith("tidewire_open_streams ")
    )


@pytest.mark.parametrize(("messages", "rate"), [(1000, 10), pytest.param(3000, 60, marks=pytest.mark.slow)])
def test_hidden_tabs_close_their_streams_and_resume_when_shown(messages, rate):
    with running(SERVER) as url, browser_tabs() as browser:
        jobs = [
            httpx2.post(
                f"{url}/v1/endpoints/flood_text/jobs", json={"input": {"messages": messages, "rate": rate}}
            ).json()["id"]
            for _ in range(TABS)
        ]
        tabs = [browser.open(f"{url}/#/jobs/{job}") for job in jobs]
        text = "document.querySelector('#result .text')?.textContent.length ?? 0"
        for tab in [*tabs, *tabs[:2]]:
            browser.show(tab)
            before = browser.evaluate(tab, text)
            eventually(lambda: browser.evaluate(tab, text) > before, within=PATIENCE)  # noqa: B023
            eventually(lambda: open_streams(url) == 1, within=PATIENCE)
            updates = browser.evaluate(tab, "document.querySelector('.job .numbers').textContent")
            assert "resumed" not in updates, "a tab that was hidden has lost no connection"
        status = "document.querySelector('.connection').textContent"
        eventually(lambda: browser.evaluate(tabs[0], status).startswith("Paused while"), within=PATIENCE)
