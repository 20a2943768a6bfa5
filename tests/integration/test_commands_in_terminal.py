"""The commands `map`, `jobs --watch`, `chat` and `serve` in a terminal, and the completion of words in shells."""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.terminal import Terminal, run
from tidewire import Client
from tidewire.testing import FakeServer, FakeToken


def test_map_shows_its_progress_and_a_summary_of_the_failures(terminal_url, tmp_path):
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text("".join(f'{{"number": {number}}}\n' for number in range(40)))
    with Terminal("map", terminal_url, "square", str(inputs), columns=100) as terminal:
        terminal.wait_for(r"\d+ of 40 inputs  \d+ failed")
        assert terminal.end() == 1
    *_, numbers, summary, first, second = [line for line in terminal.lines if line]
    assert re.fullmatch(r"40 of 40 inputs  20 failed  ([\d.]+ inputs/s  )?\d:\d\d:\d\d", numbers)
    assert summary == "tidewire: 20 of 40 inputs failed; see the member `error` of their output lines."
    assert first == "  19 × item_refused: odd (first at index 1)"
    assert second.startswith(r"  1 × item_refused: \x1b]0;owned")
    assert second.endswith("(first at index 7)")


def test_a_watched_list_of_jobs_shows_their_changes_until_an_interrupt(terminal_url, go):
    with (
        Client(terminal_url) as client,
        Terminal("jobs", terminal_url, "--watch", "--limit", "5", columns=100) as terminal,
    ):
        terminal.wait_for("updated every second; press Ctrl\\+C to end")
        job = client.submit("tell", count=6, go=str(go), pause_at=5)
        terminal.wait_for(rf"{job.id} +tell +running +\d:\d\d:\d\d")
        go.touch()
        terminal.wait_for(rf"{job.id} +tell +succeeded")
        terminal.resize(50, 20)
        terminal.wait_for(rf"{job.id[:8]}\w*… +tell +succeeded +\d:\d\d:\d\d")
        terminal.send_signal(signal.SIGINT)
        assert terminal.end() == 130
    assert job.id in terminal.text
    assert "updated every second" not in terminal.text


def test_a_watched_list_survives_a_restart_of_the_server(terminal_server):
    with (
        Client(terminal_server.url) as client,
        Terminal("jobs", terminal_server.url, "--watch", columns=100) as terminal,
    ):
        terminal.wait_for("updated every second")
        terminal_server.kill()
        terminal.wait_for(r"retrying in .* s")
        terminal_server.start()
        job = client.submit("tell", count=1)
        terminal.wait_for(job.id)
        terminal.send_signal(signal.SIGINT)
        assert terminal.end() == 130


def test_a_watched_list_in_a_pipe_is_refused(terminal_url):
    refused = run("jobs", terminal_url, "--watch")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--watch needs a terminal" in refused.stderr


@pytest.mark.heavy
def test_a_chat_keeps_the_conversation_and_an_interrupt_stops_only_the_reply(terminal_url):
    with Terminal("chat", terminal_url, "pause=1", "--system", "Be brief.", typed=True) as terminal:
        terminal.wait_for(">$")
        terminal.type("hello\r")
        terminal.wait_for("2 messages, the last is 'hello'\n>$")
        terminal.type("again\r")
        terminal.wait_for("4 messages,")
        terminal.type("\x03")
        terminal.wait_for(r"\[stopped\]\n>$")
        terminal.type("\x03")
        terminal.wait_for(r"press Ctrl\+D.\n>$")
        terminal.type("last\r")
        terminal.wait_for("6 messages, the last is 'last'\n>$")
        terminal.type("\x04")
        assert terminal.end() == 0


@pytest.mark.heavy
def test_a_chat_continues_after_an_outage_of_the_server(terminal_server):
    with Terminal("chat", terminal_server.url, "pause=2", typed=True) as terminal:
        terminal.wait_for(">$")
        terminal.type("hello\r")
        terminal.wait_for("1 messages,")
        terminal_server.again()
        terminal.wait_for(r"the last is 'hello'\n(.*\n)?>$")
        terminal.type("\x04")
        assert terminal.end() == 0


def test_a_chat_in_a_pipe_answers_each_line(terminal_url):
    chat = run("chat", terminal_url, stdin="one\n\ntwo\n")
    assert (chat.exit_code, chat.stdout) == (
        0,
        "1 messages, the last is 'one'\n3 messages, the last is 'two'\n",
    )


@contextmanager
def chat_in_a_pipe(url):
    """Start a chat whose input is a pipe, and wait until its first reply has begun, which then pauses."""
    command = [sys.executable, "-m", "tidewire", "chat", url, "pause=60"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as chat:
        chat.stdin.write("one\n")
        chat.stdin.flush()
        assert chat.stdout.read(11) == "1 messages,"
        yield chat


def test_an_interrupt_of_a_chat_in_a_pipe_cancels_the_job(terminal_url):
    with chat_in_a_pipe(terminal_url) as chat:
        chat.send_signal(signal.SIGINT)
        _, errors = chat.communicate(timeout=30)
    assert (chat.returncode, errors) == (130, "[stopped]\ninterrupted\n")
    with Client(terminal_url) as client:
        job = client.job(next(iter(client.jobs())).id)
        job.wait(timeout=10)
        assert job.status() == "cancelled"


@pytest.mark.heavy
def test_an_interrupt_of_a_chat_in_a_pipe_does_not_wait_for_a_lost_server(terminal_server):
    with chat_in_a_pipe(terminal_server.url) as chat:
        terminal_server.kill()
        chat.send_signal(signal.SIGINT)
        try:
            _, errors = chat.communicate(timeout=45)
        finally:
            chat.kill()
            terminal_server.start()
    assert chat.returncode == 130
    assert "the reply may still be generated; to cancel it, run: tidewire cancel" in errors
    assert "[stopped]" not in errors


def test_a_chat_that_requests_several_replies_starts_no_job(terminal_url):
    refused = run("chat", terminal_url, "n=2", stdin="one\n")
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "n=2 requests several replies" in refused.stderr


def test_a_piped_question_is_utf_8_in_any_locale(terminal_url):
    chat = subprocess.run(
        [sys.executable, "-m", "tidewire", "chat", terminal_url],
        input="é\n".encode() + b"\xe9\n",
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "latin-1"},
        timeout=30,
        check=False,
    )
    assert (chat.returncode, chat.stdout.decode()) == (2, "1 messages, the last is 'é'\n")
    assert chat.stderr == b"tidewire: standard input, line 2: not UTF-8: byte 0 cannot be decoded\n"


def test_a_chat_without_a_chat_template_is_refused_in_one_line():
    with FakeServer() as server:
        server.endpoint("generate").generates([FakeToken("a")])
        refused = run("chat", server.url)
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)
    assert "chat" in refused.stderr


# ---- serve --------------------------------------------------------------------------------------------------------


def test_serve_shows_its_queue_in_one_line_below_its_output(tmp_path):
    (tmp_path / "app.py").write_text(
        "import asyncio\nfrom tidewire_server import Server\nserver = Server()\n@server.endpoint\n"
        "async def wait(text: str = '') -> None:\n    print('printed', text)\n    await asyncio.sleep(3600)\n"
        "@server.endpoint\ndef fail() -> None:\n    raise RuntimeError('broken function')\n"
    )
    port = tmp_path / "port"
    arguments = (
        "serve",
        str(tmp_path / "app.py"),
        "--port",
        "0",
        "--port-file",
        str(port),
        "--shutdown-timeout",
        "0",
    )
    with Terminal(*arguments, columns=100) as terminal:
        terminal.wait_for(r"2 endpoints  0 queued  0 running$")
        with Client(f"http://127.0.0.1:{port.read_text().strip()}") as client:
            jobs = [client.submit("wait", text=f"number {number}") for number in range(3)]
            terminal.wait_for(r"printed number 0\n2 endpoints  2 queued  1 running$")
            client.submit("fail").wait()
            terminal.wait_for(r"broken function\n(.*\n)*2 endpoints")
            terminal.resize(60, 10)
            jobs[0].cancel()
            terminal.wait_for(r"printed number 1\n2 endpoints  1 queued  1 running$")
        terminal.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    assert "queued  " not in terminal.text
    # The line replaces the log of jobs that have ended, but not the errors.
    assert "cancelled in" not in terminal.text


@pytest.mark.heavy
def test_serve_shows_the_batch_size_and_the_tokens_per_second_of_generations(tmp_path):
    port = tmp_path / "port"
    arguments = ("serve", "--port", "0", "--port-file", str(port), "--shutdown-timeout", "0")
    with Terminal(*arguments, columns=100) as terminal:
        terminal.wait_for(r"(?m)^1 endpoint  0 queued  0 running  0 tokens/s$")
        with Client(f"http://127.0.0.1:{port.read_text().strip()}") as client:
            jobs = [client.submit("generate", prompt="import ", max_tokens=1000) for _ in range(6)]
            terminal.wait_for(r"([2-6]) running  batch size generate \1  [1-9]\d* tokens/s$")
            for job in jobs:
                job.cancel()
        terminal.wait_for(r"(?m)^1 endpoint  0 queued  0 running  0 tokens/s$")
        terminal.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    assert "tokens/s" not in terminal.text


@pytest.mark.heavy
def test_serve_writes_a_log_if_it_is_not_on_a_terminal(tmp_path):
    (tmp_path / "app.py").write_text(
        "from tidewire_server import Server\nserver = Server()\n@server.endpoint\ndef one() -> int:\n    return 1\n"
    )
    port = tmp_path / "port"
    command = [
        sys.executable,
        "-m",
        "tidewire",
        "serve",
        str(tmp_path / "app.py"),
        "--port",
        "0",
        "--port-file",
        str(port),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert "press Ctrl-C to stop" in process.stdout.readline()
        with Client(f"http://127.0.0.1:{port.read_text().strip()}") as client:
            client.run("one")
        assert "one succeeded" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "\x1b" not in output + errors


# ---- shells -------------------------------------------------------------------------------------------------------

SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source <(_TIDEWIRE_COMPLETE=source_bash tidewire)"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -Uz compinit; compinit -u -D; source <(_TIDEWIRE_COMPLETE=source_zsh tidewire)",
    ),
    "fish": (["fish", "--no-config", "--interactive"], "_TIDEWIRE_COMPLETE=source_fish tidewire | source"),
}


@pytest.mark.heavy
@pytest.mark.parametrize(
    "shell", [each if each == "bash" else pytest.param(each, marks=pytest.mark.slow) for each in SHELLS]
)
def test_a_shell_completes_commands_and_options(shell, tmp_path):
    command, setup = SHELLS[shell]
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": path, "HOME": str(tmp_path), "PS1": "$ ", "PROMPT": "$ "}
    with Terminal(*command, program=True, columns=150, **environment) as terminal:
        terminal.type(f"{setup}; echo re''ady\r")
        terminal.wait_for("(?m)^ready")
        for typed, completed in (
            ("tidewire cance", "tidewire cancel"),
            ("tidewire jobs --wat", "tidewire jobs --watch"),
        ):
            terminal.type(f"{typed}\t")
            terminal.wait_for(re.escape(completed))
            terminal.type("\x15")
