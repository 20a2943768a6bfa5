"""Chromium that shows the page of a server, driven through Playwright. Whatever the page must not do fails the test."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from support.chromium import CHROMIUM

PATIENCE = 30.0
"""Seconds to wait for what the page must show."""
WIDE = {"width": 1280, "height": 860}
PHONE = {"width": 390, "height": 844}

VIOLATIONS = "addEventListener('securitypolicyviolation', (e) => console.error('CSP', e.violatedDirective, e.blockedURI));"
AXE = Path(__file__).parents[2] / ".venv/axe-core/node_modules/axe-core/axe.min.js"
"""Checks of accessibility."""

expect.set_options(timeout=1000 * PATIENCE)


@contextlib.contextmanager
def chromium_browser() -> Iterator[Browser]:
    """Run Chromium. An event loop runs in this thread until the `with` block ends."""
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A browser context whose pages report errors, and violations of the content security policy."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.faults: list[str] = []
        self.requests: list[Any] = []
        context.set_default_timeout(1000 * PATIENCE)
        context.add_init_script(VIOLATIONS)
        context.on("page", self._watch)
        context.on("request", self._sent)

    def _watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("console", lambda message: self._heard(message.type, message.text))

    def _sent(self, request: Any) -> None:
        self.requests.append(request)

    def _heard(self, kind: str, text: str) -> None:
        # Chromium itself reports each response with an error status, and each connection that failed.
        if kind in {"error", "warning"} and not text.startswith("Failed to load resource"):
            self.faults.append(f"{kind}: {text}")

    def open(self, url: str) -> Page:
        page = self.context.new_page()
        page.goto(url)
        return page


@contextlib.contextmanager
def watched(browser: Browser, **options: Any) -> Iterator[Watched]:
    """Open a context, as a new browser of a visitor. The end of the block checks that nothing went wrong in its pages."""
    context = browser.new_context(**({"viewport": WIDE} | options))
    try:
        found = Watched(context)
        yield found
        assert found.faults == []
    finally:
        context.close()


def run_job(page: Page, url: str, endpoint: str, **members: Any) -> str:
    """Fill in the form of an endpoint as JSON, run it, and return the id of the job."""
    page.goto(f"{url}/#/endpoints/{endpoint}")
    expect(page.get_by_role("heading", name=endpoint, exact=True)).to_be_visible()
    page.get_by_role("button", name="Edit as JSON").click()
    page.get_by_label("Input as JSON").fill(json.dumps(members))
    page.get_by_role("button", name="Run").click()
    page.wait_for_url("**/#/jobs/*")
    return page.url.rpartition("/")[2]


def status(page: Page, name: str) -> None:
    """Wait until the job of the page has a status."""
    expect(page.locator(".job-head .chip")).to_have_text(name)


def shown_text(page: Page) -> str:
    """Return the text that the page shows, all of it, as a program would read it from the document."""
    return str(page.locator("#result .text").evaluate("(element) => element.textContent"))


def copied(page: Page, selector: str) -> str:
    """Select everything in an element with the keyboard, copy it, and return what was copied."""
    page.locator(selector).first.focus()
    page.keyboard.press("Control+a")
    return str(
        page.evaluate(
            """() => new Promise((resolve) => {
                 addEventListener("copy", (event) => {
                   resolve(event.clipboardData.getData("text/plain"));
                 }, { once: true });
                 document.execCommand("copy");
               })"""
        )
    )
