"""The page at `/` in Chromium: endpoints, forms, and jobs while they run."""

import json
import re

import httpx2
import pytest
from playwright.sync_api import expect

from support.chromium import needs_chromium
from support.page_browser import PHONE, copied, run_job, shown_text, status, watched
from support.page_server import sentence
from support.server_process import running

SHORT_TIMEOUTS = "AbortSignal.timeout = ((real) => () => real.call(AbortSignal, 500))(AbortSignal.timeout)"
BELOW = "((text) => text.scrollHeight - text.clientHeight - text.scrollTop)(document.querySelector('#result .text'))"
"""JavaScript: how many pixels of the text are below those that are in view."""

pytestmark = [*needs_chromium, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def url():
    with running("support.page_server:page_server", max_inputs=8) as url:
        yield url


@pytest.fixture(scope="module")
def visitor(browser, url):
    """A visitor with one page, which the tests use in turn: to load it takes a second of processor time."""
    with watched(browser) as visitor:
        visitor.open(url)
        yield visitor


@pytest.fixture
def page(visitor):
    yield visitor.context.pages[0]
    assert visitor.faults == []


def test_two_clicks_lead_to_a_stream(page):
    shown = page.locator(".side [aria-current]")
    expect(shown).to_have_text(page.locator("main h1, main h2").first.inner_text())
    page.get_by_role("button", name="words: 300").click()
    page.get_by_role("button", name="Run").click()
    expect(page.locator("#result .text")).to_contain_text("the tide comes in")
    expect(page.locator(".job-head .chip")).to_have_text("● running")
    first = len(shown_text(page))
    page.wait_for_function("(n) => document.querySelector('#result .text').textContent.length > n", arg=first)
    page.get_by_role("button", name="Cancel").click()
    status(page, "⊘ cancelled")


def test_text_is_shown_and_copied_completely(page, url):
    run_job(page, url, "talk", words=280, pause=0)
    status(page, "✓ succeeded")
    assert shown_text(page) == sentence(280)
    assert copied(page, "#result .text") == sentence(280)


def test_long_text_is_copied_without_the_breaks_of_its_blocks(page, url):
    run_job(page, url, "flood_text", messages=4000, rate=100_000)
    status(page, "✓ succeeded")
    page.wait_for_function("() => document.querySelectorAll('#result .block').length > 3")
    text = shown_text(page)
    assert text.count("\n") == 200
    assert copied(page, "#result .text") == text


def test_end_of_a_long_text_stays_in_view(page, url):
    run_job(page, url, "flood_text", messages=20_000, rate=100_000)
    status(page, "✓ succeeded")
    page.wait_for_function("() => document.querySelectorAll('#result .block').length > 20")
    page.wait_for_function(f"() => {BELOW} < 40")


def test_growing_text_stays_where_its_reader_has_scrolled_to(page, url):
    run_job(page, url, "flood_text", messages=100_000, rate=2_000)
    page.wait_for_function(f"() => document.querySelectorAll('#result .block').length > 2 && {BELOW} < 40")
    page.locator("#result .text").hover()
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"() => {BELOW} > 1000")
    page.get_by_role("button", name="Cancel").click()
    status(page, "⊘ cancelled")


def test_echoed_prompt_that_begins_like_the_generated_text_is_not_shaded(page, url):
    run_job(page, url, "flood_tokens", messages=3, rate=20, prompt=" the tide turns")
    status(page, "✓ succeeded")
    expect(page.locator("#result .echo")).to_have_text(" the tide turns")
    expect(page.locator("#result .block span")).to_have_text([" the", " tide", " comes"])


@pytest.mark.parametrize("fail", [lambda route: route.abort(), lambda route: None], ids=["cut", "no answer"])
def test_vocabulary_is_read_again_after_a_failure(visitor, url, fail):
    page = visitor.open("about:blank")
    page.add_init_script(SHORT_TIMEOUTS)
    page.goto(url)
    page.route("**/vocabulary*", fail)
    job = run_job(page, url, "flood_tokens", messages=3, rate=1000)
    expect(page.get_by_role("tab", selected=True)).to_have_text("JSON")
    page.unroute("**/vocabulary*")
    page.goto(f"{url}/#/endpoints/talk")
    page.goto(f"{url}/#/jobs/{job}")
    expect(page.get_by_role("tab", selected=True)).to_have_text("Tokens")
    page.close()


def test_closed_views_of_tokens_leave_the_memory(visitor, url):
    page = visitor.open(url)
    debugger = visitor.context.new_cdp_session(page)

    def nodes():
        debugger.send("HeapProfiler.collectGarbage")
        return debugger.send("Memory.getDOMCounters")["nodes"]

    before = nodes()
    run_job(page, url, "flood_tokens", messages=1000, rate=100_000)
    status(page, "✓ succeeded")
    for _ in range(5):
        for tab in ("Text", "Tokens"):
            page.get_by_role("tab", name=tab).click()
            expect(page.get_by_role("tab", selected=True)).to_have_text(tab)
        expect(page.locator("#result .block span")).to_have_count(1000)
    page.goto(f"{url}/#/endpoints/talk")
    expect(page.locator("main h1")).to_have_text("talk")
    assert nodes() - before < 2 * 2000, "a token is two nodes"
    page.close()


def test_tokens_are_shaded_and_show_their_alternatives(page, url):
    run_job(page, url, "flood_tokens", messages=600, rate=100_000)
    status(page, "✓ succeeded")
    page.wait_for_function("() => document.querySelectorAll('#result .block span').length === 600")
    text = shown_text(page)
    assert text.startswith(" the tide comes in and né 😀 goes out") is True
    assert copied(page, ".tokens") == text
    expect(page.get_by_role("img", name="Bars of the surprise of 600 tokens")).to_be_visible()
    shades = page.locator("#result .block span").evaluate_all(
        "(all) => [...new Set(all.map((one) => one.className))]"
    )
    assert len(shades) > 4

    details = page.locator("#token-details")
    page.locator("#result .block span").nth(2).hover()
    expect(details).to_contain_text("token 3 · id 2")
    expect(details.locator("li")).to_have_count(5)
    expect(details.locator("li.chosen")).to_contain_text("␣comes")
    page.locator("#result .block span").nth(4).click()
    expect(details).to_contain_text("token 5 · id 4")
    page.keyboard.press("ArrowRight")
    expect(details).to_contain_text("token 6 · id 5")
    page.keyboard.press("Escape")
    expect(details).to_be_hidden()
    page.locator("#result .tokens").blur()
    page.locator("#result .tokens").focus()
    page.keyboard.press("ArrowLeft")
    expect(details).to_contain_text("token 600")


@pytest.mark.parametrize(
    ("endpoint", "members", "tabs"),
    [
        ("talk", {"words": 20, "pause": 0}, ["Text", "JSON"]),
        ("flood_tokens", {"messages": 20}, ["Tokens", "Text", "JSON"]),
        ("caption", {"scored": False}, ["Text", "JSON"]),
        ("caption", {"scored": True}, ["JSON", "Text"]),
    ],
)
def test_copy_copies_what_the_chosen_tab_shows(page, url, endpoint, members, tabs):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
    job = run_job(page, url, endpoint, **members)
    status(page, "✓ succeeded")
    value = httpx2.get(f"{url}/v1/jobs/{job}").json()["state"]["items"][0]["value"]
    text = value if isinstance(value, str) else value["text"]
    assert page.get_by_role("tab").all_inner_texts() == tabs
    expect(page.get_by_role("tab", selected=True)).to_have_text(tabs[0])
    button = page.locator(".job-head button").last
    for tab in tabs:
        page.get_by_role("tab", name=tab).click()
        expect(button).to_have_text("Copy")
        button.click()
        expect(button).to_have_text("Copied")
        copied = page.evaluate("navigator.clipboard.readText()")
        assert copied == (json.dumps(value, indent=2, ensure_ascii=False) if tab == "JSON" else text)


def test_a_tap_shows_alternatives_on_a_phone(browser, url):
    with watched(browser, viewport=PHONE, has_touch=True, is_mobile=True) as visitor:
        page = visitor.open(url)
        run_job(page, url, "flood_tokens", messages=30, rate=100_000)
        status(page, "✓ succeeded")
        page.locator("#result .block span").nth(3).tap()
        details = page.locator("#token-details")
        expect(details).to_contain_text("token 4")
        box = details.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]


def test_tree_shows_members_and_groups_of_a_long_array(page, url):
    run_job(page, url, "flood_tree", messages=1200, rate=100_000)
    status(page, "✓ succeeded")
    tree = page.locator("#result .tree")
    expect(tree).to_contain_text("step: 1196")
    expect(tree).to_contain_text("rows: [300 elements]")
    if tree.get_by_text("200 – 299").count() == 0:  # An array that is long at first is closed.
        tree.get_by_text("rows:").click()
    tree.get_by_text("200 – 299").click()
    tree.locator("summary", has_text=re.compile("^299: ")).click()
    expect(tree).to_contain_text("at: 1198")


def test_tree_shows_that_a_value_is_empty(page, url):
    page.goto(f"{url}/#/endpoints/label")
    page.get_by_label("Input as JSON").fill('{"none": [], "nothing": {}}')
    page.get_by_role("button", name="Run").click()
    status(page, "✓ succeeded")
    expect(page.locator("#result .leaf, #result summary")).to_have_text(
        ["{2 members}", "none: [0 elements]", "nothing: {0 members}"]
    )


def test_picture_refines_itself(page, url):
    run_job(page, url, "draw", prompt="x", steps=3, pause=0.1)
    status(page, "✓ succeeded")
    image = page.locator("#result img")
    expect(image).to_be_visible()
    assert image.evaluate("(image) => image.naturalWidth") == 192


def test_chosen_file_travels_as_base64(page, url, tmp_path):
    import base64

    from support.page_server import picture

    content = picture(1, 1, size=16)
    file = tmp_path / "waves.png"
    file.write_bytes(base64.b64decode(content))
    page.goto(f"{url}/#/endpoints/invert")
    expect(page.get_by_role("heading", name="invert", exact=True)).to_be_visible()
    page.get_by_label("image").set_input_files(file)
    expect(page.get_by_role("img", name="Chosen file waves.png")).to_be_visible()
    page.get_by_role("button", name="Run").click()
    status(page, "✓ succeeded")
    expect(page.locator("#result")).to_contain_text(str(len(content)))


def test_file_that_is_too_large_is_not_left_out(page, url, tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(7_000_000))
    page.goto(f"{url}/#/endpoints/invert")
    expect(page.get_by_role("heading", name="invert", exact=True)).to_be_visible()
    page.get_by_label("image").set_input_files(tmp_path / "large.png")
    for _ in range(2):
        expect(page.locator(".field .error")).to_contain_text("requests of at most 8 MiB")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("button", name="Run")).to_be_enabled()
    assert page.url == f"{url}/#/endpoints/invert"


def test_waiting_job_shows_its_position_and_its_estimate(page, url):
    running = httpx2.post(f"{url}/v1/endpoints/wait_in_line/jobs", json={"input": {"seconds": 60}}).json()[
        "id"
    ]
    run_job(page, url, "wait_in_line", seconds=1)
    expect(page.locator(".queue")).to_contain_text("Position 1 in the queue")
    expect(page.get_by_text("The job keeps its place in the queue")).to_be_visible()
    httpx2.post(f"{url}/v1/jobs/{running}/cancel")
    status(page, "✓ succeeded")
    expect(page.locator("#result .text")).to_contain_text("9")


def test_failed_job_shows_its_error_and_its_partial_value(page, url):
    run_job(page, url, "fail", after=2)
    status(page, "✕ failed")
    expect(page.locator(".banner.bad")).to_have_text(
        "the picture of the cat has no cat in it [example.no_cat]"
    )
    assert shown_text(page) == "word 0 word 1 "


def test_invalid_input_is_shown_at_its_field(page, url):
    page.goto(f"{url}/#/endpoints/train")
    page.get_by_label("layers").fill("500")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_label("layers")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("less than or equal to 96")).to_be_visible()
    expect(page.get_by_label("layers")).to_be_focused()


def test_input_with_members_of_any_name_is_json(page, url):
    page.goto(f"{url}/#/endpoints/label")
    page.get_by_label("Input as JSON").fill('{"color": "red"}')
    page.get_by_role("button", name="Run").click()
    status(page, "✓ succeeded")
    expect(page.locator("#result .tree")).to_contain_text('color: "red"')


def test_input_survives_the_change_between_form_and_json(page, url):
    page.goto(f"{url}/#/endpoints/train")
    page.reload()
    page.get_by_role("button", name="lion · layers: 24").click()
    page.get_by_label("resume").check()
    page.get_by_role("button", name="Edit as JSON").click()
    expect(page.get_by_label("Input as JSON")).to_have_value(
        '{\n  "layers": 24,\n  "optimizer": "lion",\n  "resume": true\n}'
    )
    page.get_by_label("Input as JSON").fill('{"layers": 3}')
    page.get_by_role("button", name="Edit as a form").click()
    expect(page.get_by_label("layers")).to_have_value("3")
    expect(page.get_by_label("resume")).not_to_be_checked()


def test_description_that_arrives_late_does_not_replace_a_later_view(visitor, url):
    page = visitor.open(url)
    held = []
    page.route("**/v1/endpoints/train", lambda route, _: held.append(route))
    page.goto(f"{url}/#/endpoints/talk")
    expect(page.locator("main h1")).to_have_text("talk")
    page.goto(f"{url}/#/endpoints/train")
    expect(page.locator("main")).to_have_text("Loading train …")
    page.goto(f"{url}/#/endpoints/fail")
    expect(page.locator("main h1")).to_have_text("fail")
    with page.expect_response("**/v1/endpoints/train"):
        held[0].continue_()
    page.wait_for_timeout(100)
    expect(page.locator("main h1")).to_have_text("fail")
    page.goto(f"{url}/#/endpoints/train")
    expect(page.locator("main h1")).to_have_text("train")
    page.close()


def test_submit_that_is_accepted_late_does_not_replace_a_later_view(visitor, url):
    page = visitor.open(url)
    held = []
    page.route("**/v1/endpoints/talk/jobs", lambda route, _: held.append(route))
    page.goto(f"{url}/#/endpoints/talk")
    expect(page.locator("main h1")).to_have_text("talk")
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("button", name="Submitting …")).to_be_disabled()
    page.goto(f"{url}/#/endpoints/echo")
    page.get_by_label("prompt required").fill("half of a")
    # Read the body before the browser gets it, which may drop it once the page has read it.
    accepted = held[0].fetch()
    held[0].fulfill(response=accepted)
    expect(page.locator(f"#jobs a[href='#/jobs/{accepted.json()['id']}']")).to_be_visible()
    expect(page.get_by_label("prompt required")).to_have_value("half of a")
    page.close()


def test_list_of_jobs_keeps_the_focus(page, url):
    def refresh():
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")

    def submit():
        return httpx2.post(f"{url}/v1/endpoints/caption/jobs", json={"input": {}}).json()["id"]

    page.goto(f"{url}/#/endpoints/talk")
    first = page.locator(f"#jobs a[href='#/jobs/{submit()}']")
    refresh()
    first.focus()
    second = page.locator(f"#jobs a[href='#/jobs/{submit()}']")
    refresh()
    expect(second).to_be_visible()
    expect(first).to_be_focused()


def test_large_file_is_listed_by_its_name(browser, tmp_path):
    (tmp_path / "large.png").write_bytes(bytes(5_000_000))
    for single_user in (True, False):
        with (
            running("support.page_server:page_server", single_user=single_user) as url,
            watched(browser) as visitor,
        ):
            page = visitor.open(f"{url}/#/endpoints/invert")
            page.get_by_label("image").set_input_files(tmp_path / "large.png")
            page.get_by_role("button", name="Run").click()
            status(page, "✓ succeeded")
            expect(page.locator("#jobs .name")).to_have_text("image")


def test_full_storage_of_the_browser_hides_no_job(browser):
    full = "Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }"
    with (
        running("support.page_server:page_server", single_user=False) as url,
        watched(browser) as visitor,
    ):
        visitor.context.add_init_script(full)
        page = visitor.open(url)
        run_job(page, url, "talk", words=5, pause=0)
        status(page, "✓ succeeded")
        page.locator("#theme").click()


@pytest.mark.parametrize("single_user", [False, True])
def test_list_shows_the_end_of_a_job_that_the_visitor_left(browser, single_user):
    with (
        running("support.page_server:page_server", single_user=single_user) as url,
        watched(browser) as visitor,
    ):
        page = visitor.open(url)
        job = run_job(page, url, "talk", words=2000)
        status(page, "● running")
        entry = page.locator(f"#jobs a[href='#/jobs/{job}']")
        expect(entry).to_contain_text("running")
        page.goto(f"{url}/#/endpoints/train")
        httpx2.post(f"{url}/v1/jobs/{job}/cancel")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        expect(entry).not_to_contain_text("running")
        expect(entry.locator(".chip")).to_have_text(["⊘ cancelled"] if single_user else [])


def test_duration_of_a_job_that_ended_before_it_is_read_is_that_of_the_server(page, url):
    page.goto(f"{url}/#/endpoints/train")
    job = httpx2.post(f"{url}/v1/endpoints/talk/jobs", json={"input": {"words": 1000}}).json()["id"]
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    entry = page.locator(f"#jobs a[href='#/jobs/{job}']")
    expect(entry).to_be_visible()
    page.route("**/v1/jobs?*", lambda route, _: route.abort())  # the list stays as it is
    page.route("**/v1/jobs", lambda route, _: route.abort())
    httpx2.post(f"{url}/v1/jobs/{job}/cancel")
    page.wait_for_timeout(3000)
    entry.click()
    status(page, "⊘ cancelled")
    expect(page.locator(".job .numbers").first).to_contain_text(re.compile(r"· [01]\.\d s"))
    page.unroute_all()


def sent(page):
    """Submit the form, and return the input in the request."""
    with page.expect_request("**/endpoints/echo/jobs") as request:
        page.get_by_role("button", name="Run").click()
    status(page, "✓ succeeded")
    return request.value.post_data_json["input"]


def test_last_notes_are_shown(page, url):
    run_job(page, url, "note", count=250)
    status(page, "✓ succeeded")
    notes = page.locator(".notes li")
    expect(notes.last).to_have_text("note 249")
    expect(notes).to_have_count(100)


def test_unknown_job_has_a_title(page, url):
    page.goto(f"{url}/#/jobs/2yJq8sVbT1mHkP0dXw4RcA")
    status(page, "✕ lost")
    expect(page).to_have_title("lost · job – Tidewire")


@pytest.fixture
def echo(page, url):
    page.goto(f"{url}/#/endpoints/talk")
    page.goto(f"{url}/#/endpoints/echo")
    expect(page.get_by_role("heading", name="echo", exact=True)).to_be_visible()
    return page


def test_example_is_sent_unchanged(echo):
    echo.locator(".example").click()
    assert sent(echo) == {"flag": False, "n": None, "s": "", "prompt": "one\ntwo"}


def test_field_keeps_the_lines_of_a_text_and_an_untouched_default_is_not_sent(echo):
    echo.get_by_label("prompt").fill("a\nb\n")
    assert sent(echo) == {"prompt": "a\nb\n"}


def test_field_of_a_number_or_null_is_a_field_of_a_number(echo):
    field = echo.get_by_label("n", exact=True)
    expect(field).to_have_attribute("type", "number")
    expect(field).to_have_attribute("max", "1000")
    expect(field).to_have_attribute("step", "1")


def test_field_that_may_be_null_sends_what_was_chosen(echo):
    echo.locator(".example").click()
    echo.get_by_label("flag").select_option("null")
    echo.get_by_label("n", exact=True).fill("7")
    echo.get_by_label("s", exact=True).fill("y")
    assert sent(echo) == {"n": 7, "s": "y", "prompt": "one\ntwo"}
    echo.get_by_label("flag").select_option("false")
    echo.get_by_label("n", exact=True).fill("")
    assert sent(echo) == {"flag": False, "n": None, "s": "y", "prompt": "one\ntwo"}


@pytest.mark.parametrize(
    "given",
    [
        {"prompt": "p"},
        {"prompt": "", "flag": None, "n": None, "s": None},
        {"prompt": "a\r\nb", "note": "", "flag": False, "n": 5, "s": "x", "big": 1, "f": 1.5},
        {"prompt": "p", "flag": True, "n": "five", "other": [None]},
    ],
)
def test_json_survives_the_form(echo, given):
    echo.get_by_role("button", name="Edit as JSON").click()
    echo.get_by_label("Input as JSON").fill(json.dumps(given))
    echo.get_by_role("button", name="Edit as a form").click()
    echo.get_by_role("button", name="Edit as JSON").click()
    assert json.loads(echo.get_by_label("Input as JSON").input_value()) == given


@pytest.mark.parametrize(
    ("name", "value", "in_field", "in_json"),
    [
        (
            "big",
            "9007199254740993",
            *["This cannot be sent: the integer 9007199254740993 is beyond 2^53."] * 2,
        ),
        (
            "big",
            "-12345678901234567890",
            *["This cannot be sent: the integer -12345678901234567890 is beyond 2^53."] * 2,
        ),
        (
            "f",
            "1e400",
            "This is not a number, or it is too large.",
            "This cannot be sent: a number is not finite.",
        ),
    ],
)
def test_number_that_would_change_is_refused(echo, name, value, in_field, in_json):
    requests = []
    echo.on("request", lambda request: requests.append(request.method))
    echo.get_by_label("prompt").fill("p")
    echo.get_by_label(name, exact=True).focus()
    echo.keyboard.press("Control+a")
    echo.keyboard.type(value)
    for button in ("Run", "Edit as JSON"):
        echo.get_by_role("button", name=button).click()
        expect(echo.locator(".field .error:visible")).to_have_text(in_field)
    echo.locator(".example").click()
    echo.get_by_role("button", name="Edit as JSON").click()
    echo.get_by_label("Input as JSON").fill(f'{{"prompt": "p", "{name}": {value}}}')
    for button in ("Run", "Edit as a form"):
        echo.get_by_role("button", name=button).click()
        expect(echo.locator(".form > .error")).to_have_text(in_json)
    assert "POST" not in requests


def test_items_of_a_batch_are_shown_one_at_a_time(page, url):
    inputs = [{"text": "a" * length} for length in (4, 7, 9)]
    job = httpx2.post(f"{url}/v1/endpoints/lengths/jobs", json={"inputs": inputs}).json()["id"]
    page.goto(f"{url}/#/jobs/{job}")
    status(page, "✓ succeeded")
    expect(page.locator("#result")).to_have_text("4")
    page.get_by_label("Item of the job").select_option("2 of 3 – succeeded")
    expect(page.locator("#result")).to_have_text("7")


def test_page_works_below_a_path_prefix(browser):
    with (
        running("support.page_server:page_server", root_path="/ai") as url,
        watched(browser) as visitor,
    ):
        page = visitor.open(f"{url}/ai/")
        page.get_by_role("button", name="words: 40").click()
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#result .text")).to_contain_text("the tide")
        assert {request.url.removeprefix(url)[:4] for request in visitor.requests} == {"/ai/"}
