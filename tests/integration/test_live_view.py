"""The commands in a terminal: the live view of a job, its interrupts, and what a hostile server can do to it."""

import re
import signal
import subprocess
import sys

import pytest

from support.terminal import Terminal, run
from support.terminal_server import words
from tidewire import Client

CONTROLS = re.compile(rb"\x1b(\[J|\[\d+A|\[\d*(;\d+)*m|[D78])|\r|\n")
"""What the live view writes besides text: it moves the cursor within the screen, erases below it, and sets colors."""
STATUS = ("running", "of 200", "/s", "connection lost", "━")


def text_of(terminal):
    """Return the printed text of `tell`, without the lines before and after it, and without spaces."""
    return terminal.joined.partition(re.sub(r"\s", "", terminal.lines[0]))[2].partition("succeeded")[0]


@pytest.mark.heavy
@pytest.mark.parametrize("columns", [40, 80])
def test_the_text_grows_above_a_line_with_the_progress(terminal_url, go, columns):
    arguments = ("call", terminal_url, "tell", "count=200", f"go={go}", "pause_at=150")
    with Terminal(*arguments, columns=columns, rows=20) as terminal:
        terminal.wait_for(r"word149\s+running .*150 of 200 words")
        assert ("━" in terminal.text) == (columns == 80)
        go.touch()
        assert terminal.end() == 0
    assert text_of(terminal) == words(200).replace(" ", "")
    assert not any(each in terminal.text for each in STATUS)
    assert re.search(r"succeeded after \d+\.\d s$", terminal.text)


def test_a_waiting_job_shows_its_place_in_the_queue(terminal_url):
    with Client(terminal_url) as client:
        first = client.submit("forever")
        try:
            with Terminal("call", terminal_url, "forever") as terminal:
                terminal.wait_for(r"queued: position 1")
                first.cancel()
                terminal.wait_for(r"on and on")
                terminal.send_signal(signal.SIGINT)
                assert terminal.end() == 130
            client.job(terminal.wait_for(r"job (\w+)")[1]).cancel()
        finally:
            first.cancel()


@pytest.mark.heavy
def test_a_killed_server_is_shown_and_the_text_continues_after_its_restart(terminal_server, go):
    with Terminal("call", terminal_server.url, "tell", "count=200", f"go={go}", "pause_at=100") as terminal:
        terminal.wait_for("word99")
        terminal_server.kill()
        terminal.wait_for(r"connection lost; retrying in .*giving up in \d+ s")
        terminal_server.start()
        terminal.wait_until(lambda: "connection lost" not in terminal.text)
        go.touch()
        assert terminal.end() == 0
    assert text_of(terminal) == words(200).replace(" ", "")
    assert "reconnected 1 time, nothing lost" in terminal.text
    assert not any(each in terminal.text for each in STATUS)


def test_a_terminal_that_changes_its_size_keeps_the_text_and_nothing_of_the_status(terminal_url, go):
    with Terminal(
        "call", terminal_url, "tell", "count=200", f"go={go}", "pause_at=120", columns=90
    ) as terminal:
        # The emulator cuts lines that are longer than its new width, so the size changes before they are.
        for columns, rows in ((120, 20), (140, 6), (100, 30)):
            terminal.resize(columns, rows)
            terminal.wait_for("of 200 words")
        terminal.wait_for("word119")
        terminal.resize(100, 20)
        go.touch()
        assert terminal.end() == 0
    assert terminal.joined.count("word199") == 1
    assert not any(each in terminal.text for each in STATUS)


def test_the_first_interrupt_prints_how_to_attach_and_the_job_continues(terminal_url, go):
    with Terminal(
        "call", terminal_url, "tell", "count=20", f"go={go}", "pause_at=5", columns=200
    ) as terminal:
        terminal.wait_for("word4")
        terminal.send_signal(signal.SIGINT)
        hint = terminal.wait_for(rf"To attach to the job, run: tidewire attach {terminal_url} (\w+)")
        assert "To cancel the job, press Ctrl+C again now." in terminal.text
        assert terminal.end() == 130
    with Client(terminal_url) as client:
        assert client.job(hint[1]).status() == "running"
    go.touch()
    with Terminal("attach", terminal_url, hint[1], columns=200) as attached:
        assert attached.end() == 0
    assert words(20).strip() in attached.text


@pytest.mark.heavy
def test_a_second_interrupt_cancels_the_job(terminal_url):
    # The keys are typed, so this is also the test that Ctrl+C reaches the command.
    with Terminal(
        "call", terminal_url, "tell", "count=20", "go=/none", "pause_at=5", typed=True, columns=200
    ) as terminal:
        job = terminal.wait_for(r"job (\w+)")[1]
        terminal.wait_for("word4")
        terminal.type("\x03")
        terminal.wait_for("press Ctrl\\+C again now")
        terminal.type("\x03")
        assert terminal.end() == 1
    assert "To give up, press Ctrl+C again." in terminal.text
    assert re.search("the server cancels the job|the job has ended: cancelled", terminal.text)
    with Client(terminal_url) as client:
        client.job(job).wait()
        assert client.job(job).status() == "cancelled"


@pytest.mark.heavy
def test_lines_in_a_pipe_are_flushed_one_by_one(terminal_url, go):
    command = [
        sys.executable,
        "-m",
        "tidewire",
        "call",
        terminal_url,
        "tell",
        "count=20",
        f"go={go}",
        "pause_at=5",
        "--json",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        # The first words arrive while the job waits, although they fill no buffer.
        first = [process.stdout.readline() for _ in range(1)]
        assert '"text":"word0' in first[0]
        go.touch()
        assert '"type":"result"' in process.communicate(timeout=60)[0].splitlines()[-1]


@pytest.mark.heavy
def test_output_closed_by_head_ends_the_command(terminal_url):
    command = f"{sys.executable} -m tidewire call {terminal_url} tell count=3000 --json 2>&1 | head -n 2; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert ran.stdout.splitlines()[-1] == "141"
    assert len(ran.stdout.splitlines()) == 3


@pytest.mark.parametrize("endpoint", ["hostile", "hostile_text"])
@pytest.mark.parametrize("columns", [20, 100])
def test_texts_of_a_server_cannot_act_on_the_terminal(terminal_url, endpoint, columns):
    with Terminal("call", terminal_url, endpoint, columns=columns) as terminal:
        assert terminal.end() == 0
    left = CONTROLS.sub(b"", terminal.output)
    assert not re.search(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80\xae", left), left
    assert "[bold]x[/bold]" in terminal.joined


def test_a_command_without_colors_or_on_a_dumb_terminal_writes_none(terminal_url):
    with Terminal("call", terminal_url, "tell", "count=20", NO_COLOR="1") as terminal:
        assert terminal.end() == 0
    assert not re.search(rb"\x1b\[\d*;?(3|4|9)\d", terminal.output)
    with Terminal("call", terminal_url, "tell", "count=20", TERM="dumb") as dumb:
        assert dumb.end() == 0
    assert b"\x1b" not in dumb.output
    assert words(20).replace(" ", "") in dumb.joined


def test_tokens_have_the_color_of_their_probability_and_the_latest_shows_its_alternatives(terminal_url, go):
    with Terminal("call", terminal_url, "speak", "--logprobs=2", f"go={go}", rows=10) as terminal:
        terminal.wait_for(r"sure maybe rare\n.*\n' rare' 1%  not '\\x1b.* 0%")
        colors = [terminal.color_of(word) for word in ("sure", "maybe", "rare")]
        assert len({*colors, "default"}) == 4
        go.touch()
        assert terminal.end() == 0
    assert "not '" not in terminal.text


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["tell", "--logprobs", "count=1"], "unknown member 'logprobs'"),
        (["tell", "--logprobs=-1", "count=1"], "--logprobs"),
    ],
)
def test_logprobs_of_an_endpoint_without_them_are_refused(terminal_url, arguments, reason):
    refused = run("call", terminal_url, *arguments)
    assert (refused.exit_code, reason in " ".join(refused.stderr.split())) == (2, True)


def test_a_batch_shows_how_many_of_its_items_have_ended(terminal_url):
    with Client(terminal_url) as client:
        job = client.submit_batch("tell", [{"count": 3}, {"count": 5, "go": "/none"}])
        with Terminal("attach", terminal_url, job.id) as terminal:
            terminal.wait_for(r"\"item\":0.*\n.*1 of 2 items")
            job.cancel()
            assert terminal.end() == 1
        assert "item 1 was cancelled" in " ".join(terminal.text.split()) or "cancelled" in terminal.text
