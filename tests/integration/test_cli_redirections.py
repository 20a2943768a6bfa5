"""Every command with its output redirected in a terminal, as a user types it: `> file`, `| cat` and `2>/dev/null`."""

import json
import os
import pty
import re
import subprocess
import threading
from typing import NamedTuple

import pytest

from proof.forked_process import Forked
from support.sample_server import sentence, served
from tidewire import Client

REDIRECTIONS = ("> file", "| cat", "2>/dev/null")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class Output(NamedTuple):
    code: int
    stdout: str
    terminal: str


@pytest.fixture(scope="module")
def url():
    with served(retry=0.005) as url:
        yield url


@pytest.fixture(scope="module")
def job_id(url):
    with Client(url) as client:
        job = client.submit("talk", words=12)
        assert job.result() == sentence(12)
        return job.id


def run_in_terminal(redirection, folder, *arguments):
    """Run a command whose standard output and standard error are a terminal, except for one redirection."""
    main, side = pty.openpty()
    file, cat = folder / "file", None
    stdout, stderr = side, os.dup(side)
    match redirection:
        case "> file":
            stdout = os.open(file, os.O_WRONLY | os.O_CREAT)
            os.close(side)
        case "| cat":
            piped, stdout = os.pipe()
            with file.open("wb") as target:
                cat = subprocess.Popen(["cat"], stdin=piped, stdout=target)
            os.close(piped)
            os.close(side)
        case "2>/dev/null":
            os.close(stderr)
            stderr = os.open(os.devnull, os.O_WRONLY)
    terminal: list[bytes] = []
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "200"}
    command = Forked(
        "tidewire",
        *arguments,
        env=environment,
        streams=(stdout, stderr),
    )
    reader = threading.Thread(target=_read_terminal, args=(main, terminal))
    reader.start()
    with command:
        code = command.wait()
    reader.join(30)
    os.close(main)
    if cat is not None:
        assert cat.wait(30) == 0
    shown = _ESCAPES.sub("", b"".join(terminal).decode())
    return Output(code, shown if redirection == "2>/dev/null" else file.read_text(), shown)


def _read_terminal(main, terminal):
    try:
        while chunk := os.read(main, 65536):
            terminal.append(chunk)
    except OSError:
        pass  # The command has closed the terminal.


def lines_of(text):
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("redirection", REDIRECTIONS)
def test_results_of_map_arrive_at_the_redirected_output(url, redirection, tmp_path):
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text("".join(f'{{"x": {x}}}\n' for x in range(5)))
    output = run_in_terminal(redirection, tmp_path, "map", url, "double", str(inputs))
    assert output.code == 0
    assert lines_of(output.stdout) == [{"index": x, "value": 2 * x} for x in range(5)]


def test_the_progress_bar_of_map_counts_the_results_of_the_resume_file(url, tmp_path):
    inputs = tmp_path / "inputs.jsonl"
    inputs.write_text("".join(f'{{"x": {x}}}\n' for x in range(5)))
    arguments = ("map", url, "double", str(inputs), "--resume", str(tmp_path / "run.jsonl"))
    first = run_in_terminal("> file", tmp_path, *arguments)
    second = run_in_terminal("> file", tmp_path, *arguments)
    assert second.stdout == first.stdout
    assert "5 of 5 inputs  0 failed  5 from the resume file" in second.terminal
    assert "resume file" not in first.terminal


@pytest.mark.heavy
@pytest.mark.parametrize("redirection", REDIRECTIONS)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("call", "talk", "words=9", "slow=true"), sentence(9)),
        (("call", "count", "n=3"), "2"),
        (("call", "talk", "words=9", "--json"), '"type":"result"'),
        (("attach", "JOB"), sentence(12)),
        (("cancel", "JOB"), "succeeded"),
        (("jobs",), "talk"),
        (("describe",), "most_runs_of_an_input"),
        (("describe", "talk", "--json"), "input_schema"),
        (("codegen", "--endpoint", "double"), "class TypedClient"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_output_of_a_command_arrives_at_the_redirection(
    url, job_id, arguments, expected, redirection, tmp_path
):
    command, *rest = (job_id if word == "JOB" else word for word in arguments)
    output = run_in_terminal(redirection, tmp_path, command, url, *rest)
    assert output.code == 0
    assert expected in output.stdout
    if redirection != "2>/dev/null":
        shown = [line for line in output.terminal.splitlines() if not line.startswith("job ")]
        assert expected not in "\n".join(shown)
        assert "\x1b" not in output.stdout


@pytest.mark.parametrize("redirection", REDIRECTIONS)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(("conformance", "--list"), "TW-JOB-040"), (("serve", "--show-config"), "max_queue_size")],
    ids=["conformance", "serve"],
)
def test_output_of_a_command_without_a_server_arrives_at_the_redirection(
    arguments, expected, redirection, tmp_path
):
    output = run_in_terminal(redirection, tmp_path, *arguments)
    assert output.code == 0
    assert expected in output.stdout
    if redirection != "2>/dev/null":
        assert expected not in output.terminal
