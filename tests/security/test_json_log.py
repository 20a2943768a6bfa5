"""`--log-format json`: one JSON object per line with the id of the job, whatever a message or an exception contains."""

import ast
import io
import json
import logging
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import tidewire_server
from support.serve_command import run, served
from tidewire_server.serving import log_format
from tidewire_server.serving.log_format import JsonFormatter
from tidewire_server.tracing import JOB_ID

JOB = "0123456789abcdef" * 2


@pytest.fixture
def log():
    """Return a function that creates a logger, and a function that returns the lines that were written."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())

    def logger(name="tidewire_server.test"):
        created = logging.Logger(name)  # noqa: LOG001 - not shared with other tests
        created.addHandler(handler)
        return created

    return logger, lambda: [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_record_has_these_members(log):
    logger, lines = log
    logger().info("job %s item %d: done", JOB, 3)
    logger().warning("nothing about a job")
    first, second = lines()
    assert datetime.now(UTC) - datetime.fromisoformat(first.pop("time")) < timedelta(minutes=1)
    message = f"job {JOB} item 3: done"
    assert first == {"level": "INFO", "logger": "tidewire_server.test", "message": message, "job": JOB}
    assert set(second) == {"time", "level", "logger", "message"}


def test_a_function_logs_with_the_id_of_its_job(log):
    logger, lines = log
    token = JOB_ID.set(JOB)
    try:
        logger("app").info("job %s: another job", "f" * 32)
    finally:
        JOB_ID.reset(token)
    logger("app").info("job %s: no message of the server", "f" * 32)
    first, second = lines()
    assert first["job"] == JOB
    assert "job" not in second


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "\x1b[2J\x9b31m\x7f",
        "\u2028\u2029\x85\r\x0b",
        "\u202etxt.exe",
        "\x00",
        "\ud800",
        '", "job": "forged',
        f"job {JOB}",
    ],
)
def test_texts_of_callers_cannot_forge_a_line_or_a_member(log, text):
    logger, lines = log
    try:
        raise ValueError(text)
    except ValueError:
        logger().exception("%r of %s failed", "GET", text, stack_info=True)
    (line,) = lines()
    assert line["message"] == f"'GET' of {text} failed"
    assert "job" not in line
    assert line["traceback"].startswith("Traceback (most recent call last):")
    assert line["stack"].startswith("Stack (most recent call last):")
    assert json.dumps(line).isascii()
    assert json.dumps(line).isprintable()


def test_megabytes_of_a_caller_are_not_logged(log):
    logger, lines = log
    try:
        raise ValueError("x" * 2_000_000)
    except ValueError:
        logger().exception("y" * 2_000_000)
    (line,) = lines()
    assert max(len(line["message"]), len(line["traceback"])) < 17_000


def test_set_up_logging_uses_the_format_unless_the_program_has_configured_logging(monkeypatch):
    root = logging.RootLogger(logging.WARNING)
    monkeypatch.setattr(logging, "root", root)
    log_format.set_up_logging("json")
    (handler,) = root.handlers
    assert isinstance(handler.formatter, JsonFormatter)


def messages():
    """Return the first arguments of all log calls in the server's code."""
    for path in sorted(Path(tidewire_server.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log."):
                for each in node.args[:2]:
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield each.value


@pytest.mark.heavy
def test_each_message_about_a_job_begins_with_its_id():
    about = [each for each in messages() if re.search(r"\bjob %s", each)]
    assert len(about) > 10
    wrong = [each for each in about if not log_format._OF_A_JOB.match(each.replace("%s", JOB, 1))]
    assert wrong == []


APP = """
import logging
from tidewire_server import Server

server = Server()

@server.endpoint
def fail(text: str) -> str:
    logging.getLogger("app").warning("about to fail")
    raise RuntimeError(text)
"""


def test_the_command_writes_json_lines(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    with served(tmp_path, "app.py", "--log-format", "json") as (process, peer):
        job = peer.start("fail", {"text": "a\nb\x1b"})
        assert peer.ended(job)["status"] == "failed"
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=20)
    lines = [json.loads(line) for line in errors.splitlines()]
    of_job = [line for line in lines if line.get("job") == job]
    assert [line["logger"] for line in of_job] == [
        "app",
        "tidewire_server.jobs.outcomes",
        "tidewire_server.jobs.job_service",
    ]
    assert of_job[1]["traceback"].endswith("RuntimeError: a\nb\x1b")
    assert "fail failed (internal)" in of_job[2]["message"]


def test_another_format_is_refused(tmp_path):
    process = run(tmp_path, "--log-format", "yaml")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "--log-format: log_format = 'yaml': must be text or json" in errors
