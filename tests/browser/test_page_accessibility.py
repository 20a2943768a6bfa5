"""The page at `/` in Chromium: axe-core in each view, state and theme, a phone's width, the keyboard, and reduced motion."""

from itertools import pairwise, product

import pytest
from playwright.sync_api import expect

from support.chromium import needs_chromium
from support.page_browser import AXE, PHONE, WIDE, run_job, status, watched
from support.server_process import running

pytestmark = [
    *needs_chromium,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        not AXE.exists(),
        reason="axe-core is not installed: npm install --prefix .venv/axe-core axe-core@4.14.1",
    ),
]


@pytest.fixture(scope="module")
def url():
    with running("support.page_server:page_server") as url:
        yield url


@pytest.fixture(scope="module")
def locked():
    with running("support.page_server:page_server", tokens=["ada:sesame"], operator_tokens=["other"]) as url:
        yield url


@pytest.fixture(scope="module")
def visitor(browser):
    """Context of all views. A new one for each view takes a second of processor time."""
    with watched(browser, reduced_motion="reduce") as visitor:
        visitor.context.new_page()
        yield visitor


def first_visit(page, url, locked):
    page.goto(url)
    expect(page.get_by_role("button", name="Run")).to_be_visible()


def long_form(page, url, locked):
    page.goto(f"{url}/#/endpoints/train")
    page.get_by_label("layers").fill("500")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_text("less than or equal to 96")).to_be_visible()


def input_as_json(page, url, locked):
    page.goto(f"{url}/#/endpoints/train")
    page.get_by_role("button", name="Edit as JSON").click()


def queued(page, url, locked):
    run_job(page, url, "wait_in_line", seconds=20)
    run_job(page, url, "wait_in_line", seconds=20)
    expect(page.locator(".queue")).to_contain_text("Position")


def running_text(page, url, locked):
    run_job(page, url, "talk", words=2000)
    expect(page.locator("#result .text")).to_contain_text("the tide")
    page.get_by_text("Connection", exact=True).click()


def cancelled_text(page, url, locked):
    run_job(page, url, "talk", words=2000)
    expect(page.locator("#result .text")).to_contain_text("the tide")
    page.get_by_role("button", name="Cancel").click()
    status(page, "⊘ cancelled")


def failed(page, url, locked):
    run_job(page, url, "fail")
    status(page, "✕ failed")


def running_tree(page, url, locked):
    run_job(page, url, "train")
    expect(page.locator("#result .tree")).to_contain_text("losses: [")


def ended_tokens(page, url, locked):
    run_job(page, url, "flood_tokens", messages=200, rate=100_000)
    status(page, "✓ succeeded")
    page.locator("#result .block span").nth(5).click()
    expect(page.locator("#token-details")).to_be_visible()


def running_tokens(page, url, locked):
    run_job(page, url, "flood_tokens", messages=5000, rate=20)
    expect(page.locator("#result .tokens")).to_contain_text("the tide")


def picture(page, url, locked):
    run_job(page, url, "draw", prompt="x", steps=2, pause=0)
    status(page, "✓ succeeded")
    expect(page.locator("#result img")).to_be_visible()


def lost(page, url, locked):
    page.goto(f"{url}/#/jobs/2yJq8sVbT1mHkP0dXw4RcA")
    status(page, "✕ lost")


def token_dialog(page, url, locked):
    page.goto(locked)
    expect(page.get_by_role("dialog")).to_be_visible()


def operator(page, url, locked):
    page.goto(f"{url}/#/operator")
    expect(page.get_by_role("row", name="wait_in_line")).to_be_visible()


VIEWS = [
    first_visit, long_form, input_as_json, queued, running_text, cancelled_text, failed, running_tree, ended_tokens,
    running_tokens, picture, lost, token_dialog, operator,
]  # fmt: skip


def findings(page) -> list[str]:
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{rule['id']}: {node['html'][:150]} {node['failureSummary']}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([(WIDE, "light"), (PHONE, "dark")], id="some"),
        pytest.param([*product((WIDE, PHONE), ("light", "dark"))], id="all", marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_in_both_themes_and_widths(visitor, url, locked, view, looks):
    [page] = visitor.context.pages
    page.set_viewport_size(WIDE)
    view(page, url, locked)
    # The script of axe-core is evaluated by the debugger, which the content security policy does not concern.
    page.evaluate(AXE.read_text(encoding="utf-8"))
    for size, scheme in looks:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert findings(page) == [], (size, scheme)
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert width[0] <= width[1], "the page scrolls sideways on a phone"
    assert visitor.faults == []


def test_keyboard_alone_leads_to_a_result(browser, url):
    with watched(browser) as visitor:
        page = visitor.open(url)
        expect(page.get_by_role("button", name="Run")).to_be_visible()
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        while page.evaluate("document.activeElement.textContent") != "words: 40 · pause: 0.2":
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.textContent") == "Run"
        page.keyboard.press("Enter")
        expect(page.locator("#result .text")).to_contain_text("the tide")
        tab = page.get_by_role("tab", name="Text")
        tab.focus()
        page.keyboard.press("ArrowRight")
        expect(page.get_by_role("tab", name="JSON")).to_be_focused()
        expect(page.locator("#result .tree")).to_contain_text("the tide")


def test_changes_flash_only_if_the_reader_accepts_motion(browser, url):
    for motion, flashes in (("no-preference", True), ("reduce", False)):
        with watched(browser, reduced_motion=motion) as visitor:
            visitor.context.add_init_script(
                """const animate = Element.prototype.animate;
                   window.flashes = [];
                   Element.prototype.animate = function (...all) {
                     window.flashes.push([this, performance.now()]);
                     return animate.apply(this, all);
                   };
                   window.shortest = () => Math.min(...flashes.map(([element, at], n) =>
                     at - Math.max(-Infinity, ...flashes.slice(0, n).filter(([other]) => other === element).map(([, before]) => before))));"""
            )
            page = visitor.open(url)
            run_job(page, url, "flood_tree", messages=700, rate=200)
            status(page, "✓ succeeded")
            assert (page.evaluate("flashes.length") > 3) is flashes
            if flashes:
                assert page.evaluate("shortest()") >= 1000, "a node flashed twice within a second"


def test_status_is_announced_but_streaming_text_is_not(browser, url):
    with watched(browser) as visitor:
        page = visitor.open(url)
        page.evaluate(
            """() => {
                 window.announced = [];
                 new MutationObserver(() => announced.push(performance.now()))
                   .observe(document.getElementById("announcements"), { childList: true, characterData: true, subtree: true });
               }"""
        )
        run_job(page, url, "talk", words=300, pause=0.03)
        status(page, "✓ succeeded")
        expect(page.locator("#announcements")).to_have_text("Job succeeded.")
        times = page.evaluate("announced")
        assert len(times) >= 3
        assert min(later - earlier for earlier, later in pairwise(times)) >= 4_990
        live = page.locator("[aria-live], [role=status], [role=alert], [role=log]").evaluate_all(
            "(all) => all.map((one) => one.textContent).join()"
        )
        assert "the tide" not in live
