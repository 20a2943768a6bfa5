"""Texts of a hostile server on a terminal and in a pipe: control characters, markup of rich, commands to copy."""

import json
import os
import pty
import re
import shlex
import subprocess
import sys

import pytest

from support.scripted_server import (
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    endpoint,
    event,
    hello,
    job,
    problem,
    snapshot,
    state,
)
from tidewire.terminal_escapes import visible, visible_json
from tidewire_conformance.report import failure_evidence

BAD = (
    "\x1b]0;title\x07\x1b]52;c;Y2Q=\x07\x1b[2J\x1bc\x9b2J\x90q\x9c\x1b]8;;http://evil\x1b\\link\x7f\r\x08\u202e\u2066"
    "[/bold][red]:smile: '$(id)' end"
)
MARKUP = "[/bold][red]:smile: '$(id)' end"
OF_COMMANDS = re.compile(r"\x1b(?:\[(?:J|\d+A|[0-9;]*m)|[D78])")
"""Sequences that the commands write themselves: for styles, and to move the cursor and erase in the live view."""
FAILED = {"code": "internal_error", "title": BAD, "detail": BAD, "status": 500, BAD: BAD}


def script(request):
    path = request.path.partition("?")[0]
    if path == "/v1":
        names = {"name": BAD, "summary": BAD, "href": "/v1/endpoints/a", "defaults": True}
        yield answer(200, discovery() | {"server": BAD, "endpoints": [names]})
    elif path in {"/v1/endpoints/a", "/v1/endpoints/count"}:
        member = {"type": BAD, "description": BAD, "default": BAD, "minimum": BAD}
        broken = {"type": [BAD, 1], "enum": "no list", "anyOf": 3, "items": 1}
        schema = {
            "type": "object",
            "required": [BAD],
            "properties": {BAD: member, "b": broken, "c": 7, "d": {"enum": [BAD]}},
        }
        yield answer(
            200,
            endpoint("a")
            | {
                "summary": BAD,
                "description": BAD,
                "input_schema": schema,
                "value_schema": {"const": BAD},
                "examples": [BAD],
            },
        )
    elif path == "/v1/jobs":
        listed = job() | {"endpoint": BAD, "created_at": BAD, "ended_at": BAD}
        yield answer(200, {"jobs": [{name: value for name, value in listed.items() if name != "state"}]})
    elif path == "/v1/endpoints/a/jobs":
        yield problem(422, "invalid_input", BAD, pointer=BAD)
    elif path.endswith("/cancel"):
        yield problem(404, "job_not_found", BAD)
    elif path.endswith("/events"):
        name = path.split("/")[3]
        yield STREAM + hello(name)
        yield event({"current": 1, "total": 2, "unit": BAD, "phase": BAD}, type="progress")
        values = {"text": [BAD], "value": [{BAD: [BAD]}], "failed": ["x"], "batch": [BAD, BAD]}[name]
        end = "failed" if name == "failed" else "succeeded"
        error = {"error": FAILED} if name == "failed" else {}
        items = [{"status": end, "value": value, **error} for value in values]
        content = state(*values, notes=[{"level": BAD, "text": BAD}])
        yield snapshot("1-2", content | {"items": items})
        yield done("1-3", items, status=end, **error)
    else:
        name = path.split("/")[3]
        yield answer(200, job(state(*[None] * (2 if name == "batch" else 1)), id=name, batch=name == "batch"))


COMMANDS = {
    "attach URL text": 0,
    "attach URL text --json": 0,
    "attach URL value": 0,
    "attach URL value --json": 0,
    "attach URL failed": 1,
    "attach URL failed --json": 1,
    "attach URL batch": 0,
    "attach URL batch --json": 0,
    "cancel URL text": 2,
    "call URL a x=1": 2,
    "call URL a x=1 --json": 2,
    "jobs URL": 0,
    "jobs URL --json": 0,
    "describe URL": 0,
    "describe URL --json": 0,
    "describe URL a": 0,
    "describe URL a --json": 0,
    "codegen URL": 4,
    "codegen URL --endpoint zzz": 2,
}
RUN = """
import sys
from tidewire.commands.cli import app
for line in sys.argv[2:]:
    print("=====" + line, flush=True)
    try:
        app([sys.argv[1] if word == "URL" else word for word in line.split(" ")])
    except SystemExit as ended:
        print("-----", ended.code, flush=True)
"""


@pytest.fixture(scope="module")
def shown():
    """What all commands write to a terminal."""
    main, side = pty.openpty()
    with ScriptedServer(script) as server:
        command = [sys.executable, "-c", RUN, server.url, *COMMANDS]
        environment = os.environ | {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "400"}
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=side, stderr=side, env=environment):
            os.close(side)
            written = b""
            try:
                while chunk := os.read(main, 65536):
                    written += chunk
            except OSError:
                pass  # The terminal's other end is closed.
        os.close(main)
    parts = written.decode().split("=====")[1:]
    return {part.partition("\r\n")[0]: part.partition("\r\n")[2].replace("\r\n", "\n") for part in parts}


@pytest.mark.heavy
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_writes_control_characters_to_a_terminal(shown, command):
    text = OF_COMMANDS.sub("", shown[command])
    assert text.endswith(f"----- {COMMANDS[command]}\n"), text
    # The live view returns to the beginning of the line.
    assert [sign for sign in text.replace("\r", "") if visible(sign) != sign] == []
    if command != "codegen URL --endpoint zzz":
        assert "Traceback" not in text


def test_the_characters_are_shown_as_escapes(shown):
    assert visible(BAD) in OF_COMMANDS.sub("", shown["attach URL text"])
    assert "[/bold][red]" in shown["describe URL"]
    assert '"\\u001b]0;title\\u0007' in shown["attach URL value"]
    assert "\\u009b2J" in shown["attach URL text --json"]


def test_json_on_a_terminal_is_unchanged_for_programs(shown):
    lines = [
        json.loads(line) for line in shown["attach URL value --json"].splitlines() if line.startswith("{")
    ]
    assert lines[-1]["value"] == {BAD: [BAD]}


def test_an_example_is_quoted_for_the_shell(shown):
    line = next(
        line
        for line in OF_COMMANDS.sub("", shown["describe URL a"]).splitlines()
        if line.startswith("tidewire")
    )
    assert shlex.split(line)[3:] == ["a", "--input", visible_json(BAD)]


@pytest.mark.heavy
def test_a_pipe_receives_the_text_unchanged():
    with ScriptedServer(script) as server:
        command = [sys.executable, "-m", "tidewire", "attach", server.url, "text"]
        written = subprocess.run(command, capture_output=True, timeout=30, check=True).stdout
    assert written == BAD.encode() + b"\n"


def test_every_control_character_is_escaped_and_no_other_character():
    for number in [
        *range(0x20),
        *range(0x7F, 0xA0),
        0x61C,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    ]:
        kept = chr(number) in "\n\t"
        assert (visible(chr(number)) == chr(number)) is kept
        assert json.loads(visible_json(chr(number))) == chr(number)
        assert visible_json(chr(number)).isascii()
    for text in ("a\tb\n", "é😀漢", "שלום", "\xa0\xad", "e\u0301", "👩\u200d👩"):
        assert visible(text) == text


def test_the_suite_escapes_the_same_characters():
    """The suite must not import the client, so it has its own function."""
    every = "".join(map(chr, range(0x3000)))
    assert failure_evidence.visible(every) == visible(every)
