"""The `tidewire` commands, run as from a shell, against the reference server."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from support.sample_server import sentence, served
from support.scripted_server import (
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    done,
    event,
    hello,
    job,
    problem,
    snapshot,
    state,
)
from support.terminal import run
from tidewire import Client
from tidewire.commands import plugins
from tidewire.testing import FakeServer

COMMAND = [sys.executable, "-W", "error", "-m", "tidewire.commands.cli"]


@pytest.fixture(scope="module")
def url():
    with served(retry=0.005) as url:
        yield url


def test_call_writes_text_and_a_line_break_at_its_end(url):
    result = run("call", url, "talk", "words=9")
    assert (result.exit_code, result.stdout, result.stderr) == (0, sentence(9) + "\n", "")


@pytest.fixture
def lost_after_the_end():
    """A server that has lost its jobs when the stream of the only job has ended, as after a restart with a log in memory."""
    text = "/items/0/value"
    start = state(None, status="queued")
    ended = threading.Event()

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[text]), Location="/v1/jobs/j1")
        elif request.path.endswith("/events"):
            yield STREAM
            yield hello() + snapshot("1-1", start, columns=[text])
            yield event([["s", "/status", "running"], ["s", text, "Hel"]], id="1-2")
            yield event([["s", "/items/0/status", "succeeded"]], id="1-3")
            ended.set()
            yield done("1-4", [{"status": "succeeded", "value": "Hel"}])
        elif request.path == "/v1/jobs/j1" and not ended.is_set():
            yield answer(200, job(start, columns=[text]))
        else:
            yield problem(404, "job_not_found", "job 'j1' does not exist")

    with ScriptedServer(script) as server:
        yield server.url


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_call_delivers_a_result_whose_server_is_lost_after_the_end(lost_after_the_end, options):
    result = run("call", lost_after_the_end, "count", "-i", "{}", *options)
    if options:
        last = json.loads(result.stdout.splitlines()[-1])
        assert last == {"type": "result", "job": "j1", "value": "Hel", "usage": None, "notes": None}
    else:
        assert result.stdout == "Hel\n"
    assert "the notes and the usage of the job cannot be read: job 'j1' does not exist" in result.stderr
    assert result.exit_code == 0


@pytest.mark.heavy
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_piped_output_is_utf_8_in_any_locale(url, encoding):
    command = [sys.executable, "-m", "tidewire", "call", url, "talk", "words=9"]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    called = subprocess.run(command, capture_output=True, env=environment, timeout=30, check=False)
    assert (called.returncode, called.stdout.decode(), called.stderr) == (0, sentence(9) + "\n", b"")


@pytest.mark.parametrize(
    ("sent", "code", "says"),
    [
        ('{"é": 1}'.encode(), 2, "'é'"),
        ('{"é": 1}'.encode("latin-1"), 2, "tidewire: --input: not UTF-8: byte 2 cannot be decoded"),
    ],
)
def test_piped_input_is_utf_8_in_any_locale(url, sent, code, says):
    command = [sys.executable, "-m", "tidewire", "call", url, "point", "-i", "-"]
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    called = subprocess.run(
        command, input=sent, capture_output=True, env=environment, timeout=30, check=False
    )
    assert (called.returncode, says in called.stderr.decode("latin-1")) == (code, True), called.stderr


def test_call_writes_values_other_than_text_as_json(url):
    assert run("call", url, "point", "x=2").stdout == '{"x":2.0,"label":"at 2"}\n'
    assert run("call", url, "count", "n=3").stdout == "2\n"


@pytest.mark.parametrize("how", ["inline", "file", "stdin"])
def test_input_is_read_inline_from_a_file_or_from_standard_input(url, how, tmp_path):
    file = tmp_path / "input.json"
    file.write_text('{"x": 4}')
    input_option = {"inline": '{"x": 4}', "file": f"@{file}", "stdin": "-"}[how]
    assert (
        run("call", url, "point", "--input", input_option, stdin='{"x": 4}').stdout
        == '{"x":4.0,"label":"at 4"}\n'
    )


def test_json_writes_one_line_per_update_and_a_result_line(url):
    lines = [
        json.loads(line)
        for line in run("call", url, "talk", "words=20", "slow=true", "--json").stdout.splitlines()
    ]
    *updates, last = lines
    assert {line["type"] for line in updates} == {"update"}
    assert "".join(line["text"] for line in updates) == sentence(20)
    assert (last["type"], last["value"]) == ("result", sentence(20))


def test_a_failed_job_is_reported_on_stdout_stderr_and_by_the_exit_code(url):
    result = run("call", url, "point", "x=1", "fail=true", "--json")
    assert result.exit_code == 1
    last = json.loads(result.stdout.splitlines()[-1])
    assert (last["type"], last["error"]) == ("error", "JobFailedError")
    assert "no such point" in last["message"]
    assert result.stderr.startswith("tidewire: the job failed: no such point")


def test_a_detached_job_can_be_attached_listed_and_cancelled(url):
    job = run("call", url, "forever", "--detach").stdout.strip()
    assert run("attach", url, job, "--timeout", "0.3").exit_code == 124
    assert run("cancel", url, job).exit_code == 0
    assert run("attach", url, job).exit_code == 1
    assert (
        run("cancel", url, job, "--json").stdout
        == json.dumps({"job": job, "status": "cancelled"}, separators=(",", ":")) + "\n"
    )
    assert job in run("jobs", url).stdout
    newest = json.loads(run("jobs", url, "--json", "--limit", "1").stdout)
    assert (newest["id"], newest["status"]) == (job, "cancelled")


def test_attach_to_a_batch_writes_one_line_per_item(url):
    with Client(url) as client:
        job = client.submit_batch("point", [{"x": 1}, {"x": 2, "fail": True}]).id
    result = run("attach", url, job)
    lines = {line["item"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert lines[0] == {"item": 0, "value": {"x": 1.0, "label": "at 1"}}
    assert lines[1]["type"] == "error"
    assert (result.exit_code, "item 1 failed" in result.stderr) == (1, True)


def test_describe_shows_endpoints_and_input_schemas(url):
    assert "talk" in run("describe", url).stdout
    one = run("describe", url, "talk").stdout
    assert "words" in one
    assert "integer" in one
    assert (
        json.loads(run("describe", url, "talk", "--json").stdout)["input_schema"]["properties"]["words"][
            "default"
        ]
        == 12
    )
    assert json.loads(run("describe", url, "--json").stdout)["protocol"] == "tidewire/1"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["call", "URL", "nope"], 2, "endpoint 'nope' does not exist"),
        (["call", "URL"], 2, "endpoints: count, talk"),
        (["call", "URL", "point", "x=far"], 2, "/input/x"),
        (["call", "URL", "point", "x=9007199254740993"], 2, "tidewire: x: "),
        (["call", "URL", "point", "x"], 2, "'x' does not have the form KEY=VALUE"),
        (["call", "URL", "point", "x=1", "x=2"], 2, "'x' was passed twice"),
        (["call", "URL", "point", "x=1", "--input", "{}"], 2, "use either --input or KEY=VALUE"),
        (["call", "URL", "point", "--input", "{"], 2, "--input: not JSON"),
        (["call", "URL", "point", "--input", "@/no/such/file"], 2, "No such file"),
        (["call", "URL", "point", "x=1", "--header", "nonsense"], 2, "NAME: VALUE"),
        (["map", "URL", "point", "x=1"], 2, "To read standard input, write - before the members: - x=1"),
        (["attach", "URL", "A" * 22], 2, "job_not_found"),
        (["cancel", "URL", "A" * 22], 2, "job_not_found"),
        (["call", "127.0.0.1:8000", "point"], 2, "http://127.0.0.1:8000"),
        (["describe", "http://127.0.0.1:1"], 3, "no server is listening at 127.0.0.1:1"),
        (["call", "URL", "forever", "--timeout", "2"], 124, "tidewire attach"),
    ],
)
def test_errors_are_one_paragraph_and_an_exit_code(url, arguments, code, says):
    result = run(*(url if argument == "URL" else argument for argument in arguments))
    assert result.exit_code == code
    assert says in result.stderr.replace("\n", " ")
    assert result.stderr.splitlines()[-1].startswith("tidewire: ")
    assert "Traceback" not in result.output


def test_wrong_usage_exits_with_2(monkeypatch):
    monkeypatch.delenv("TIDEWIRE_URL", raising=False)
    missing = run("call")
    assert (missing.exit_code, "TIDEWIRE_URL" in missing.stderr) == (2, True)
    assert run("dance").exit_code == 2


def test_describe_of_a_url_that_is_not_a_server_fails(url):
    result = run("describe", url + "/v1/endpoints/talk")
    assert result.exit_code in {2, 4}


def test_help_lists_commands_and_exit_codes():
    text = run("--help").stdout
    for word in ("call", "attach", "cancel", "jobs", "describe", "serve", "Exit codes"):
        assert word in text


@pytest.mark.heavy
def test_an_interrupt_keeps_the_job_and_prints_the_commands_that_attach_and_cancel(url):
    with subprocess.Popen(
        [*COMMAND, "call", url, "forever"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.read(7) == "on and "
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    hint = re.search(
        rf"the job keeps running. To attach to the job, run: tidewire attach {url} (\S+)", errors
    )
    assert hint is not None, errors
    assert errors.splitlines()[-1] == f"To cancel the job, run: tidewire cancel {url} {hint[1]}"
    assert "Ctrl+C" not in errors
    assert run("cancel", url, hint[1]).exit_code == 0


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (
            ["call", "count", "--input", "{}"],
            "interrupted; the job may or may not have started. To look for it, run: tidewire jobs {url}",
        ),
        (["jobs"], "interrupted"),
    ],
)
def test_an_interrupt_of_a_request_without_a_response_exits_with_130(words, hint):
    with ScriptedServer(lambda _: [HOLD]) as server:
        command, *others = words
        with subprocess.Popen(
            [*COMMAND, command, server.url, *others],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            server.wait_until(lambda: server.requests != [])
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=20)
        assert (process.returncode, output, errors) == (130, "", hint.format(url=server.url) + "\n")


def test_an_interrupt_while_the_command_starts_exits_with_130(tmp_path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "tidewire", "jobs"]
    environment = os.environ | {"PYTHONPATH": path}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize("command", ["attach", "cancel"])
def test_a_job_id_may_begin_with_a_dash(url, command):
    result = run(command, url, "-XrCxrsDIssI4maOt_M2Lg")
    assert (result.exit_code, "job '-XrCxrsDIssI4maOt_M2Lg' does not exist" in result.stderr) == (2, True)


@pytest.mark.heavy
def test_on_a_terminal_text_is_shown_live_and_complete(url):
    main, side = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "call", url, "talk", "words=12", "slow=true"],
        stdout=side,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(side)
        shown = b""
        try:
            while chunk := os.read(main, 4096):
                shown += chunk
        except OSError:
            pass  # The terminal's other end is closed.
        _, errors = process.communicate(timeout=20)
    os.close(main)
    assert (process.returncode, errors) == (0, "")
    assert shown.decode().strip() == sentence(12)


def test_a_command_of_a_missing_package_prints_how_to_install_it(monkeypatch):
    monkeypatch.setattr(
        plugins,
        "_plugins",
        lambda: {"judge": EntryPoint("judge", "tidewire_conformance_missing.cli:app", "tidewire.commands")},
    )
    result = run("judge", "--all", "http://127.0.0.1:8000")
    assert result.exit_code == 2
    assert "pip install" in result.stderr


def run_with_closed_pipe(url, *arguments, lines=0, command=COMMAND):
    """Run a command and close its output pipe after reading some lines.

    Returns:
        The exit code and the standard error of the command.
    """
    with subprocess.Popen(
        [*command, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for _ in range(lines):
            assert process.stdout.readline()
        process.stdout.close()
        error_output = process.stderr.read()
        return process.wait(30), error_output


def test_a_closed_output_pipe_ends_the_command_silently(url):
    assert run_with_closed_pipe(url, "call", url, "talk", "words=5000", "slow=true", "--json", lines=2) == (
        141,
        "",
    )


@pytest.mark.heavy
def test_a_pipe_closed_before_the_first_byte_ends_the_command_silently(url):
    assert run_with_closed_pipe(url, "call", url, "talk", "words=20000") == (141, "")
    assert run_with_closed_pipe(url, "describe", url) == (141, "")


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [(), ("--help",), ("call", "--help"), ("serve", "--help")])
def test_help_in_a_closed_pipe_has_the_exit_code_of_other_commands(url, arguments):
    command = [sys.executable, "-m", "tidewire"]
    assert run_with_closed_pipe(url, *arguments, command=command) == (141, "")


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (
            ("call", "talk", "words=50", "slow=true"),
            "The job keeps running. To attach to the job, run: tidewire attach",
        ),
        (("call", "talk", "words=50", "--json"), "To attach to the job, run: tidewire attach"),
        (("describe",), ""),
        (("jobs", "--json"), ""),
    ],
)
def test_an_output_that_cannot_be_written_is_one_line(url, arguments, hint):
    command, *rest = arguments
    with Path("/dev/full").open("wb") as full:
        run = subprocess.run(
            [*COMMAND, command, url, *rest],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert run.returncode == 5
    assert run.stderr.startswith("tidewire: standard output cannot be written: No space left on device")
    assert hint in run.stderr
    assert run.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--version"],
        ["--help"],
        ["call", "--help"],
        ["serve", "--show-config"],
        pytest.param(["conformance", "--list"], marks=pytest.mark.heavy),
    ],
)
def test_a_text_that_cannot_be_written_is_one_line(arguments):
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tidewire", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    message = "tidewire: standard output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (5, message)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["call", "URL", "point", "-i", "-"], 2, "tidewire: --input: not JSON"),
        (["map", "URL", "double"], 0, ""),
        (["chat", "URL", "point"], 2, "tidewire: the input of 'point' has no member `messages`"),
    ],
)
def test_a_closed_standard_input_is_empty(url, arguments, code, says):
    words = [url if word == "URL" else word for word in arguments]
    shell = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "tidewire", *words]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stdout, done.stderr[: len(says)]) == (code, "", says)
    assert "Traceback" not in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_command_works_if_its_caller_has_closed_the_output(url, closed):
    command = [sys.executable, "-m", "tidewire", "call", url, "talk", "words=3"]
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=50, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_map_reads_a_pipe(url, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    writer = threading.Thread(target=pipe.write_text, args=('{"x": 1}\n{"x": 2}\n',))
    writer.start()
    result = run("map", url, "point", str(pipe))
    writer.join()
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [0, 1]


def write_lines(folder, *lines):
    file = folder / "inputs.jsonl"
    file.write_text("".join(line + "\n" for line in lines))
    return str(file)


def test_map_writes_one_line_per_input_line_in_order(url, tmp_path):
    file = write_lines(tmp_path, '{"x": 1}', "", '{"x": 2, "fail": true}', '{"y": 3}', '{"x": 4}')
    result = run("map", url, "point", file, "--batch-size", "2", "--concurrency", "2")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["index"] for line in lines] == [0, 1, 2, 3]
    assert lines[0]["value"] == {"x": 1.0, "label": "at 1"}
    assert lines[1]["error"] == {"code": "item_refused", "message": "no such point"}
    assert lines[2]["error"]["code"] == "invalid_input"
    assert lines[3]["value"]["x"] == 4
    assert (result.exit_code, "2 of 4 inputs failed" in result.stderr) == (1, True)


def test_map_counts_refused_inputs_by_their_reason(url):
    lines = '{"x": "far"}\n' * 20 + '{"y": 1}\n' * 3
    _, first, second = run("map", url, "point", "-", "--batch-size", "7", stdin=lines).stderr.splitlines()
    reason = '/x: Input should be a valid number; received "far"'
    assert first == f"  20 × invalid_input: {reason} (first at index 0)"
    reason = "/y: unknown member 'y'; known members: x, fail. Also the member 'x' is missing"
    assert second == f"  3 × invalid_input: {reason} (first at index 20)"


def test_map_reads_standard_input_and_sends_shared_members(url):
    result = run("map", url, "talk", "-", "words=3", stdin="{}\n" * 3)
    assert [json.loads(line)["value"] for line in result.stdout.splitlines()] == [sentence(3)] * 3
    assert (result.exit_code, result.stderr) == (0, "")


def test_map_with_an_idempotency_key_runs_each_input_once(url, tmp_path):
    file = write_lines(tmp_path, *(json.dumps({"x": 10_000 + at}) for at in range(30)))
    arguments = ("map", url, "double", file, "--batch-size", "10", "--idempotency-key", "tonight")
    first, second = run(*arguments), run(*arguments)
    assert first.stdout == second.stdout
    with Client(url) as client:
        assert client.run("most_runs_of_an_input") == [30, 1]


def test_files_may_begin_with_a_byte_order_mark(url, tmp_path):
    file = write_lines(tmp_path, '\ufeff{"x": 1}', '{"x": 2}')
    assert [
        json.loads(line)["value"]["x"] for line in run("map", url, "point", file).stdout.splitlines()
    ] == [1, 2]
    (input_file := tmp_path / "input.json").write_text('\ufeff{"x": 3}')
    assert json.loads(run("call", url, "point", "--input", f"@{input_file}").stdout)["x"] == 3
    piped = run("call", url, "point", "--input", "-", stdin=input_file.read_text())
    assert json.loads(piped.stdout)["x"] == 3
    (member_file := tmp_path / "x.txt").write_text("\ufeff4")
    assert json.loads(run("call", url, "point", f"x=@{member_file}").stdout)["x"] == 4


INVALID_LINES = [
    ("foo", "not JSON: Expecting value at character 0"),
    ("{x: 2}", "not JSON: Expecting property name enclosed in double quotes at character 1"),
    ('{"x": "\udc80"}', "not UTF-8: byte 7 cannot be decoded"),
    ('{"x": NaN}', "NaN is not JSON"),
]


@pytest.mark.parametrize("source", ["file", "stdin"])
@pytest.mark.parametrize(("line", "reason"), INVALID_LINES)
def test_map_prints_the_results_before_an_invalid_line_then_its_number_and_a_summary(
    url, tmp_path, line, reason, source
):
    file = tmp_path / "inputs.jsonl"
    file.write_bytes(
        f'{{"x": 1}}\n{{"x": 2, "fail": true}}\n{line}\n{{"x": 4}}\n'.encode(errors="surrogateescape")
    )
    inputs = str(file) if source == "file" else "-"
    result = run("map", url, "point", inputs, "--batch-size", "1", stdin=file.read_bytes())
    value, error = map(json.loads, result.stdout.splitlines())
    assert value == {"index": 0, "value": {"x": 1.0, "label": "at 1"}}
    assert error["error"]["message"] == "no such point"
    name = inputs if source == "file" else "standard input"
    first, second, third = result.stderr.splitlines()
    assert first == f"tidewire: {name}, line 3: {reason}. This line and the lines after it were not run."
    assert second.startswith("tidewire: 1 of 2 inputs failed; see the member `error`")
    assert third == "  1 × item_refused: no such point (first at index 1)"
    assert result.exit_code == 2


def test_map_with_a_resume_file_prints_all_results_and_runs_each_input_once(url, tmp_path):
    numbers = [json.dumps({"x": 20_000 + at}) for at in range(30)]
    resume = ("--resume", str(tmp_path / "run.jsonl"))
    first = run("map", url, "double", write_lines(tmp_path, *numbers[:20]), *resume, "--batch-size", "7")
    assert (first.exit_code, first.stderr, len(first.stdout.splitlines())) == (0, "", 20)
    second = run("map", url, "double", "-", *resume, stdin="\n".join(numbers))
    assert (second.exit_code, second.stderr) == (0, "")
    assert [json.loads(line) for line in second.stdout.splitlines()] == [
        {"index": at, "value": 2 * (20_000 + at)} for at in range(30)
    ]
    assert second.stdout.startswith(first.stdout)
    offline = run("map", "http://127.0.0.1:1", "double", "-", *resume, stdin="\n".join(numbers))
    assert offline.stdout == second.stdout


def test_map_repeats_the_failures_of_a_resume_file_only_on_request(url, tmp_path):
    inputs = write_lines(tmp_path, '{"x": 1}', '{"x": 2, "fail": true}', '{"x": "far"}')
    arguments = ("map", url, "point", inputs, "--resume", str(tmp_path / "run.jsonl"))
    first, second = run(*arguments), run(*arguments)
    assert (second.exit_code, second.stdout, second.stderr) == (1, first.stdout, first.stderr)
    assert "To run them again, repeat the command with --retry-failed." in second.stderr
    text = (tmp_path / "run.jsonl").read_text()
    third = run(*arguments, "--retry-failed")
    assert (third.exit_code, third.stdout) == (1, first.stdout)
    assert len((tmp_path / "run.jsonl").read_text()) > len(text)


def test_map_says_how_to_continue_after_a_temporary_error(tmp_path):
    inputs, resume = write_lines(tmp_path, "1", "2"), ("--resume", str(tmp_path / "run.jsonl"))
    with FakeServer() as server:
        endpoint = server.endpoint("double")
        endpoint.calls(lambda x: 2 * x)
        endpoint.refuses("unavailable", "starting", times=1000)
        result = run("map", server.url, "double", inputs, *resume)
        assert (result.exit_code, result.stdout) == (3, "")
        last = result.stderr.splitlines()[-1]
        assert "starting" in last
        assert last.endswith("The jobs may continue on the server. To continue, repeat the command.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--resume", "FILE", "--idempotency-key", "k"], "--resume and --idempotency-key were both passed"),
        (["--retry-failed"], "--retry-failed needs --resume"),
        (["--resume", "FOLDER"], "cannot open the resume file FOLDER: Is a directory"),
        (["--resume", "INPUTS"], "INPUTS exists, but it is not a resume file of a map"),
    ],
)
def test_map_refuses_a_resume_file_that_it_cannot_use(url, tmp_path, options, message):
    inputs = write_lines(tmp_path, '{"x": 1}')
    names = {"FILE": str(tmp_path / "run.jsonl"), "FOLDER": str(tmp_path), "INPUTS": inputs}
    result = run("map", url, "point", inputs, *(names.get(option, option) for option in options))
    for name, path in names.items():
        message = message.replace(name, path)
    assert (result.exit_code, result.stdout, message in result.stderr) == (2, "", True)


def test_map_names_the_line_of_an_invalid_input_and_a_missing_file(url, tmp_path):
    result = run("map", url, "point", write_lines(tmp_path, '{"x": 1}', "{x: 2}"))
    assert (result.exit_code, "inputs.jsonl, line 2" in result.stderr) == (2, True)
    assert result.stderr.splitlines()[1] == "tidewire: 0 of 1 inputs failed."
    first = run("map", url, "point", write_lines(tmp_path, "foo"))
    assert (first.exit_code, first.stderr.count("\n"), "0 of 0" in first.stderr) == (2, 1, False)
    missing = run("map", url, "point", str(tmp_path / "none.jsonl"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (2, True)
    assert "standard input" not in missing.stderr


@pytest.mark.parametrize("command", ["call", "map", "attach", "describe"])
def test_help_of_a_command_shows_an_example(command):
    assert f"tidewire {command} http://127.0.0.1:8000" in " ".join(run(command, "--help").stdout.split())
