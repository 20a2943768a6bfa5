"""Jobs in notebooks, executed by nbclient in a real kernel against a real server."""

import html.parser
import subprocess
import sys
import time

import httpx2
import pytest

from support.reference_server import eventually

pytest.importorskip("ipykernel", reason="the kernel of notebooks is not installed")
pytest.importorskip("nbclient", reason="nbclient is not installed")

from support.killable_server import Killed
from support.notebook_server import HOSTILE, notebook
from tidewire.notebook.cell_output import UPDATE_INTERVAL
from tidewire.notebook.job_display import MAX_DISPLAYS, MAX_JSON_VALUES, MAX_OUTPUT_BYTES

pytestmark = [
    pytest.mark.timeout(120),
    # jupyter_client and zmq announce their own future changes.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"),
]


class Tags(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.text = set(), set(), ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_data(self, data):
        self.text += data


SAFE_TAGS = {"div", "b", "small", "code", "pre", "span", "progress", "table", "tr", "td"}
SAFE_ATTRIBUTES = {"style", "title", "max", "value"}


def check_is_safe(shown):
    assert set(shown) == {"text/html", "text/plain"}
    tags = Tags(shown["text/html"])
    assert tags.tags <= SAFE_TAGS
    assert tags.attributes <= SAFE_ATTRIBUTES
    for text in (shown["text/plain"], shown["text/html"]):
        assert not {"\x1b", "\x07", "\u202e"} & {*text}
        assert len(text.encode()) <= MAX_OUTPUT_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Killed(tmp_path_factory.mktemp("server"), "support.notebook_server:notebook_server") as server:
        yield server


@pytest.fixture(scope="module")
def shared_book(tmp_path_factory, server):
    with notebook(tmp_path_factory.mktemp("kernel") / "errors") as book:
        book.run("from tidewire import AsyncClient, Client")
        yield book


@pytest.fixture
def book(shared_book, server, tmp_path):
    """A notebook with a client of its own for each test, whose jobs wait for the file `gate` in `tmp_path`."""
    gate = str(tmp_path / "gate")
    shared_book.run(f"client, gate = Client({server.url!r}), {gate!r}")
    yield shared_book
    open_gate(tmp_path)
    shared_book.run("client.close()")
    until_streams(server, 0)


def open_gate(tmp_path):
    (tmp_path / "gate").touch()


def until_streams(server, count):
    """Wait until the server has a number of open event streams."""
    line = f"\ntidewire_open_streams {count:.1f}\n"
    eventually(lambda: line in httpx2.get(f"{server.url}/metrics").text, within=30)


def until_shown(book, at, text):
    """Run cells that do nothing, until an output of an earlier cell contains a text."""

    def is_shown():
        book.run("import time; time.sleep(0.1)")
        return text in book.shown(at)["text/plain"]

    eventually(is_shown, within=30)


@pytest.mark.heavy
def test_a_job_follows_itself_and_the_loop_still_receives_everything(book, tmp_path):
    at = book.run("job = client.submit('story', text='Once. ', gate=gate, steps=9)\njob")
    until_shown(book, at, "running · 9 of 10 step")
    assert '<progress max="10" value="9">' in book.shown(at)["text/html"]
    open_gate(tmp_path)
    printed = book.run("text = ''.join(update.text for update in job)\nprint(text == job.result(), text)")
    assert book.printed(printed) == f"True {'Once. ' * 9} The end.\n"
    shown = book.shown(at)
    check_is_safe(shown)
    assert shown["text/plain"].startswith("succeeded ")
    assert shown["text/plain"].splitlines()[1] == f"{'Once. ' * 9} The end."
    assert "The end." in shown["text/html"]
    assert book.printed(at) == "", "a warning"


def test_a_job_that_was_read_before_is_shown_from_its_start(book):
    book.run("job = client.submit('story', text='Once.')\nassert job.result() == 'Once. The end.'")
    at = book.run("job")
    until_shown(book, at, "Once. The end.")
    assert "succeeded" in book.shown(at)["text/plain"]


def test_hostile_text_is_escaped_in_every_format(book):
    book.run(f"hostile = {HOSTILE!r}")
    cells = [
        book.run("job = client.submit('story', text=hostile)\njob"),
        book.run("job = client.submit('refuse', text=hostile)\njob"),
        book.run("job = client.submit('tokens', texts=[hostile, hostile])\njob"),
        book.run("job = client.submit('repeat', value={hostile: [hostile]})\njob"),
    ]
    for at in cells:
        until_shown(book, at, "alert(1)")
    for shown in map(book.shown, cells):
        check_is_safe(shown)
        assert "<script>" in Tags(shown["text/html"]).text


def test_tokens_are_shaded_by_their_probability(book):
    at = book.run("""
        shared = AsyncClient(client.url)
        job = await shared.submit("tokens", texts=["def", " f", "("])
        job
    """)
    until_shown(book, at, "succeeded")
    shown = book.shown(at)
    check_is_safe(shown)
    assert shown["text/plain"].splitlines()[-1] == "def f("
    assert shown["text/html"].count("rgba(230,119,0,0.00)") == 2
    assert "rgba(230,119,0,0.31)" in shown["text/html"], "the token with the log-probability -2.5"
    assert "'(' 8.2%\n'(' 8.2%\n'other' 5.0%" in html.unescape(shown["text/html"])


@pytest.mark.parametrize("last", [-1e308, 5.0, 1e308])
def test_an_impossible_log_probability_is_shown(book, last):
    at = book.run(f"client.submit('tokens', texts=['a', 'b'], last={last!r})")
    until_shown(book, at, "succeeded")
    check_is_safe(book.shown(at))
    assert ">b</span>" in book.shown(at)["text/html"]


def test_an_async_job_follows_itself_and_cells_share_the_client(book, tmp_path):
    at = book.run("""
        shared = AsyncClient(client.url)
        job = await shared.submit("story", text="Once.", gate=gate)
        job
    """)
    until_shown(book, at, "Once.")
    open_gate(tmp_path)
    printed = book.run(
        "print([update.text async for update in job] and await job.result())\nawait shared.aclose()"
    )
    assert book.printed(printed) == "Once. The end.\n"
    assert book.shown(at)["text/plain"].startswith("succeeded ")


def test_a_batch_shows_how_many_of_its_items_have_ended(book, tmp_path):
    at = book.run("""
        batch = client.submit_batch("refuse", [{"text": "a"}, {"text": "b", "gate": gate}])
        batch
    """)
    until_shown(book, at, "running · 1 of 2 items have ended, 1 failed")
    assert '<progress max="2" value="1">' in book.shown(at)["text/html"]
    open_gate(tmp_path)
    until_shown(book, at, "2 of 2 items have ended")
    shown = book.shown(at)
    check_is_safe(shown)
    assert shown["text/plain"].startswith("failed · 2 of 2 items have ended, 2 failed ")


def test_a_failed_job_shows_its_error(book, tmp_path):
    at = book.run("job = client.submit('refuse', text='no coffee', gate=gate)\njob")
    open_gate(tmp_path)
    until_shown(book, at, "no coffee")
    shown = book.shown(at)
    assert shown["text/plain"].startswith("failed ")
    assert "no coffee" in shown["text/html"]


def test_a_job_that_ends_between_two_cells_is_shown_after_the_next_one(book, server, tmp_path):
    at = book.run("job = client.submit('story', text='Once.', gate=gate)\njob")
    open_gate(tmp_path)
    until_streams(server, 0)
    book.run("assert job.result() == 'Once. The end.'")
    assert book.shown(at)["text/plain"].startswith("succeeded ")


def test_a_cancelled_job_keeps_its_text(book):
    at = book.run("job = client.submit('story', text='Once.', gate=gate)\njob")
    until_shown(book, at, "Once.")
    book.run("job.cancel(); job.wait()")
    assert book.shown(at)["text/plain"].startswith("cancelled ")
    assert "Once." in book.shown(at)["text/plain"]


def test_the_server_is_killed_and_restarted_while_a_job_is_shown(book, server, tmp_path):
    at = book.run("job = client.submit('story', text='Once.', gate=gate)\njob")
    until_shown(book, at, "Once.")
    server.kill()
    open_gate(tmp_path)
    server.start()
    book.run("assert job.result() == 'Once. The end.'")
    until_shown(book, at, "succeeded ")
    assert "Once. The end." in book.shown(at)["text/plain"]


@pytest.mark.heavy
def test_updates_are_throttled_and_bounded(book):
    began, before = time.monotonic(), len(book.updates())
    book.run("burst = client.submit('burst', pieces=3000)\nburst")
    book.run("burst.wait()")
    updates = book.updates()[before:]
    # In addition: the first output, the last state, and at the end of each cell the state and what was drawn before it.
    assert len(updates) <= (time.monotonic() - began) / UPDATE_INTERVAL + 7
    assert len(updates) >= 2
    at = book.run("job = client.submit('story', text='<\U0001f600' * 1000, steps=200)\njob")
    until_shown(book, at, "The end.")
    check_is_safe(book.shown(at))
    at = book.run(f"job = client.submit('repeat', value=[0] * {MAX_JSON_VALUES})\njob")
    until_shown(book, at, f"(more than {MAX_JSON_VALUES:,} JSON values)")
    at = book.run(f"job = client.submit('repeat', value=[0] * {MAX_JSON_VALUES - 1})\njob")
    until_shown(book, at, "0,\n  0,")
    assert book.shown(at)["text/plain"].endswith(" …"), "the value is longer than the output"


def test_many_tokens_are_bounded(book):
    at = book.run("job = client.submit('tokens', texts=['<&\"' * 30] * 2000)\njob")
    until_shown(book, at, "succeeded")
    check_is_safe(book.shown(at))
    assert book.shown(at)["text/html"].count("<span") > 20


@pytest.mark.heavy
def test_the_oldest_display_stops_when_there_are_too_many(book):
    cells = [book.run("client.submit('story', text='Once.', gate=gate)") for _ in range(MAX_DISPLAYS)]
    until_shown(book, cells[-1], "Once.")
    assert not [at for at in cells if "stopped" in book.shown(at)["text/plain"]]
    cells.append(book.run("client.submit('story', text='Once.', gate=gate)"))
    stopped = [at for at in cells if "stopped" in book.shown(at)["text/plain"]]
    assert stopped == cells[:1]
    printed = book.run("from tidewire.notebook.job_display import _live\nprint(len(_live))")
    assert book.printed(printed) == f"{MAX_DISPLAYS}\n"


def test_closing_the_client_stops_the_display(book):
    at = book.run("job = client.submit('story', text='Once.', gate=gate)\njob")
    until_shown(book, at, "Once.")
    book.run("client.close()")
    until_shown(book, at, "client was closed")
    at = book.run("""
        shared = AsyncClient(client.url)
        job = await shared.submit("story", text="Once.", gate=gate)
        job
    """)
    until_shown(book, at, "Once.")
    book.run("await shared.aclose()")
    until_shown(book, at, "client was closed")


def test_a_job_is_shown_after_the_client_was_closed(book):
    book.run(
        "ended, running = client.submit('story', text='Once.'), client.submit('story', text='', gate=gate)"
    )
    book.run("ended.wait(); client.close()")
    shown = book.shown(book.run("ended"))
    assert "Once. The end." in shown["text/plain"]
    assert "closed" not in shown["text/plain"]
    assert "not followed: the client was closed" in book.shown(book.run("running"))["text/plain"]
    book.run("""
        shared = AsyncClient(client.url)
        job = await shared.submit("story", text="Once.")
        await job.wait()
        await shared.aclose()
    """)
    at = book.run("job")
    until_shown(book, at, "Once. The end.")
    assert "closed" not in book.shown(at)["text/plain"]


@pytest.mark.heavy
def test_the_end_of_the_kernel_closes_the_connections_without_complaints(server, tmp_path):
    with notebook(tmp_path / "kernel") as book:
        at = book.run(f"""
            from tidewire import AsyncClient, Client
            client, shared = Client({server.url!r}), AsyncClient({server.url!r})
            gate = {str(tmp_path / "gate")!r}
            client.submit("story", text="Once.", gate=gate)
        """)
        other = book.run("await shared.submit('story', text='Twice.', gate=gate)")
        until_shown(book, at, "Once.")
        until_shown(book, other, "Twice.")
    until_streams(server, 0)
    assert "Traceback" not in (tmp_path / "kernel").read_text()
    assert "never" not in (tmp_path / "kernel").read_text()


def test_a_map_shows_a_progress_bar(book):
    at = book.run("""
        inputs = [{"text": str(n)} for n in range(20)] + [{"txt": "misspelt"}]
        len([*client.map("story", inputs, batch_size=4, return_exceptions=True)])
    """)
    shown = book.shown(at)
    check_is_safe(shown)
    assert shown["text/plain"] == "21 of 21, 1 failed"
    assert '<progress max="21" value="21">' in shown["text/html"]
    at = book.run("""
        async with AsyncClient(client.url) as shared:
            texts = [text async for text in shared.map("story", (each for each in inputs[:5]))]
    """)
    assert book.shown(at) == {"text/html": "<div> 5</div>", "text/plain": "5"}
    at = book.run("""
        seen = []
        print(len([*client.map("story", inputs[:5], progress=seen.append)]), seen[-1].ended)
    """)
    assert book.printed(at) == "5 5\n"
    assert [each["output_type"] for each in book.outputs(at)] == ["stream"]


def test_a_map_that_is_left_early_keeps_the_last_progress(book):
    at = book.run("""
        for value in client.map("repeat", [{"value": n} for n in range(9)], batch_size=1, concurrency=1):
            if value == 3:
                break
    """)
    assert book.shown(at)["text/plain"] == "4 of 9"


@pytest.mark.heavy
def test_a_map_in_a_forked_process_shows_no_bar(server, tmp_path):
    with notebook(tmp_path / "kernel") as book:
        at = book.run(f"""
            import multiprocessing
            from tidewire import Client

            def work(number):
                with Client({server.url!r}) as client:
                    return list(client.map("repeat", [{{"value": number}}]))

            with multiprocessing.get_context("fork").Pool(1) as pool:
                print(pool.map(work, [7]))
        """)
    assert book.printed(at) == "[[7]]\n"
    # The kernel logs a message that a forked process sends, and drops it.
    assert "from fork" not in (tmp_path / "kernel").read_text()


PLAIN = """
import sys
from tidewire import Client
with Client({url!r}) as client:
    job = client.submit("story", text="Once.")
    for update in job: pass
    list(client.map("story", [{{"text": "a"}}] * 5))
assert "IPython" not in sys.modules
assert "asyncio" in sys.modules
"""


@pytest.mark.heavy
def test_a_script_imports_no_ipython_and_shows_no_bar(server):
    script = PLAIN.format(url=server.url)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


TERMINAL = """
from IPython.core.interactiveshell import InteractiveShell
from tidewire import Client
shell = InteractiveShell.instance()
shell.user_ns["client"] = Client({url!r})
shell.run_cell("job = client.submit('story', text='Once.')\\njob")
shell.run_cell("len([*client.map('story', [{{'text': 'a'}}])])")
shell.user_ns["client"].close()
"""


@pytest.mark.slow
def test_a_shell_in_a_terminal_shows_the_repr(server):
    done = subprocess.run(
        [sys.executable, "-c", TERMINAL.format(url=server.url)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f" at {server.url}>" in done.stdout
    assert done.stdout.count("Out[") == 2, done.stdout
