"""The profile `sse`: any server that streams events, any client that reads them, and the adapters for readers."""

import contextlib
import importlib.util
import itertools
import json
import shlex
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import uvicorn
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from proof.event_streams.faulty_readers import FAULTY_READERS
from proof.event_streams.judge_event_stream_proof import (
    NODE_CLIENTS,
    PYTHON_CLIENTS,
    ReaderRow,
    _examples,
    commands,
    page,
    plain_reader_fault,
    reader_fault,
    rows_of_page,
    server_fault,
)
from proof.event_streams.stream_servers import (
    HEAD,
    STREAM_SERVERS,
    StreamServer,
    running_stream_server,
    stream,
)
from proof.reimplementations.plain_event_stream_reader import EventStreamReaderAdapter, PlainEventStreamReader
from tidewire_conformance import specification
from tidewire_conformance.cli import app
from tidewire_conformance.clients.event_stream_clients import adapter_loop
from tidewire_conformance.clients.scenarios import Outcome, play
from tidewire_conformance.clients.scenarios.event_stream_scenarios import load_event_stream_scenarios
from tidewire_conformance.event_streams.stream_checks import STREAM_CHECKS
from tidewire_conformance.report import json_report
from tidewire_server import Server

HOLD = 3.0
SILENT_READER = """
import json, sys
print('{"client": "silent", "can": []}', flush=True)
for line in sys.stdin:
    if json.loads(line)["op"] == "bye":
        break
    print(json.dumps({"id": json.loads(line)["id"], "end": "closed"}), flush=True)
"""
"""Program that requests nothing and reports nothing."""
SCENARIOS = {scenario.name: scenario for scenario in load_event_stream_scenarios()}
REQUIREMENTS = {name: each for name, each in specification.requirements().items() if each.profile == "sse"}
ADAPTER = f"{shlex.quote(sys.executable)} -m tidewire_conformance.clients.event_stream_clients"


def conformance(*arguments):
    found = CliRunner().invoke(
        app, ["--profile", "sse", *map(str, arguments)], env={"COLUMNS": "300", "TIDEWIRE_URL": ""}
    )
    if found.exception is not None and not isinstance(found.exception, SystemExit):
        raise found.exception
    return found


def serve(name, respond, monkeypatch):
    monkeypatch.setitem(STREAM_SERVERS, name, StreamServer(name, "", respond))
    return running_stream_server(name)


@contextlib.contextmanager
def running(application):
    """Run an ASGI application and yield its URL."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_level="error", lifespan="on"))
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


# ---- servers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STREAM_SERVERS)
def test_event_streams_conform_to_the_profile_unless_the_server_is_faulty(name):
    assert server_fault(STREAM_SERVERS[name]) == ""


def test_each_requirement_of_a_server_has_a_check_and_each_check_a_faulty_server():
    judged = {name for check in STREAM_CHECKS.values() for name in check.requirements}
    assert judged == {
        name for name, each in REQUIREMENTS.items() if each.role == "server" and each.level != "MAY"
    }
    assert {server.check for server in STREAM_SERVERS.values()} - {""} == {*STREAM_CHECKS}


def test_the_streams_of_the_reference_server_conform():
    server = Server()

    @server.endpoint
    async def count(n: int = 3):
        for number in range(n):
            yield number

    with running(server.app) as url:
        created = httpx2.post(f"{url}/v1/endpoints/count/jobs", json={"input": {"n": 5}})
        found = conformance(f"{url}{created.headers['location']}/events")
    assert found.exit_code == 0, found.output
    assert "sse · " in found.output


def test_a_server_with_sse_starlette_is_judged():
    sse_starlette = pytest.importorskip("sse_starlette", reason="sse-starlette is in the extra `peers`")
    from starlette.applications import Starlette
    from starlette.routing import Route

    async def events():
        for number in range(3):
            yield {"id": str(number), "event": "tick", "data": "a\nb"}

    async def endpoint(_):
        return sse_starlette.EventSourceResponse(events())

    with running(Starlette(routes=[Route("/", endpoint)])) as url:
        found = conformance(url, "--skip", "TW-SSE-012")
    assert found.exit_code == 0, found.output


def test_a_body_is_sent_with_post_and_the_stream_is_requested_once(tmp_path):
    asked = []

    async def application(scope, receive, send):
        if scope["type"] == "http":
            message = await receive()
            asked.append((scope["method"], scope["query_string"], message["body"]))
            headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"id: 1\ndata: a\n\n"})

    body = tmp_path / "body.json"
    body.write_text('{"stream": true}')
    with running(SimpleApplication(application)) as url:
        assert conformance(f"{url}/chat?a=b", "--body", f"@{body}").exit_code == 0
    assert asked == [("POST", b"a=b", b'{"stream": true}')]


@pytest.mark.parametrize(
    ("status", "other_origin", "asked"),
    [
        (307, False, [("POST", "Bearer a"), ("POST", "Bearer a")]),
        (302, False, [("POST", "Bearer a"), ("GET", "Bearer a")]),
        (308, True, [("POST", "Bearer a"), ("POST", "")]),
    ],
)
def test_a_redirect_is_followed_without_credentials_for_other_origins(status, other_origin, asked):
    seen = []

    async def application(scope, receive, send):
        headers = dict(scope["headers"])
        seen.append((scope["method"], headers.get(b"authorization", b"").decode()))
        if scope["path"] == "/events/":
            host = headers[b"host"].replace(b"127.0.0.1", b"localhost") if other_origin else headers[b"host"]
            head, body = {"status": status, "headers": [(b"location", b"http://%b/events" % host)]}, b""
        else:
            media = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
            head, body = {"status": 200, "headers": media}, b"data: a\n\n"
        await send({"type": "http.response.start"} | head)
        await send({"type": "http.response.body", "body": body})

    with running(SimpleApplication(application)) as url:
        found = conformance(f"{url}/events/", "--body", "{}", "--header", "Authorization: Bearer a")
    assert found.exit_code == 0, found.output
    assert seen == asked


class SimpleApplication:
    """ASGI application without a lifespan of its own."""

    def __init__(self, http):
        self.http = http

    async def __call__(self, scope, receive, send):
        if scope["type"] == "lifespan":
            for name in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{name}.complete"})
            return
        await self.http(scope, receive, send)


def test_without_an_event_stream_the_other_checks_are_blocked():
    with running_stream_server("plain_text") as url:
        found = conformance(url)
    assert found.exit_code == 1
    assert "TW-SSE-001" in found.output
    assert "11 checks" in found.output


def test_a_header_is_sent_and_not_shown(monkeypatch):
    with serve("secret", stream(b"dat: a\n\n"), monkeypatch) as url:
        found = conformance(url, "--header", "Authorization: Bearer 0123456789abcdef")
    assert "$AUTHORIZATION" in found.output
    assert "0123456789abcdef" not in found.output


def test_an_unreachable_url_is_reported():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert conformance(f"http://127.0.0.1:{port}/").exit_code == 3


@pytest.mark.parametrize(
    ("steps", "exit_code", "message"),
    [
        ([], 3, "the server closed the connection without a response"),
        ([HOLD], 3, "no response header within"),
        ([b"SSH-2.0-x\r\n\r\n"], 3, "illegal status line"),
        ([HEAD + b"\r\n", HOLD], 0, "the stream had no event: 0 bytes without an empty line"),
        ([HEAD + b"\r\n", b"data: a\n" * 1000, HOLD], 0, "8000 bytes without an empty line, and the response did not end"),
        ([HEAD + b"\r\n"], 0, "0 bytes without an empty line, and the response ended"),
        ([HEAD.replace(b"event-stream", b"html") + b"\r\n<p>", HOLD], 1, "200, text/html"),
        ([b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"], 1, "302"),
    ],
    ids=["closed", "silent", "not HTTP", "no byte", "no empty line", "empty", "HTML", "redirect"],
)  # fmt: skip
def test_a_url_without_events_is_reported_after_a_bounded_time(steps, exit_code, message, monkeypatch):
    """`HOLD` keeps the connection open for longer than the suite reads."""
    with serve("hostile", lambda _: steps, monkeypatch) as url:
        found = conformance(url, "--patience", "0.1")
    assert found.exit_code == exit_code, found.output
    assert message in found.output


@pytest.mark.heavy
def test_the_suite_stops_reading_a_stream_that_never_ends(monkeypatch):
    flood = (b"data: a\n" * 1000 for _ in itertools.count())
    with serve("flood", lambda _: itertools.chain([HEAD + b"\r\n"], flood), monkeypatch) as url:
        found = conformance(url, "--patience", "0.1")
    assert found.exit_code == 0
    assert "bytes without an empty line, and the response did not end" in found.output


@pytest.mark.parametrize("kind", ["server", "client"])
def test_the_json_report_matches_its_schema(kind, tmp_path):
    schema = json.loads(
        Path(json_report.__file__).with_name("report.schema.json").read_text(encoding="utf-8")
    )
    file = tmp_path / "report.json"
    if kind == "server":
        with running_stream_server("latin_1") as url:
            found = conformance(url, "--json", file)
    else:
        reader = tmp_path / "reader.py"
        reader.write_text(SILENT_READER, encoding="utf-8")
        command = f"{shlex.quote(sys.executable)} {shlex.quote(str(reader))}"
        only = ("--only", "sse_framing.lf-ends-a-line", "--only", "sse_reconnecting.lost-connection")
        found = conformance("--client", command, "--json", file, *only)
    assert found.exit_code == 1, found.output
    report = json.loads(file.read_text(encoding="utf-8"))
    Draft202012Validator(schema).validate(report)
    failed = {each["id"] for each in report["sentences"] if each["outcome"] == "fail"}
    assert ("TW-SSE-003" if kind == "server" else "TW-SSE-021") in failed


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["ftp://a"],
        ["http://127.0.0.1:1/#a"],
        ["http://127.0.0.1:1", "--endpoint", "count"],
        ["http://127.0.0.1:1", "--profile", "core"],
        ["http://127.0.0.1:1", "--body", "@/does/not/exist"],
        ["http://127.0.0.1:1", "--repeat", "2"],
        ["http://127.0.0.1:1", "--lanes", "2"],
        ["--client", "true", "--body", "x"],
        ["--client", "true", "--variants", "all"],
    ],
    ids=str,
)
def test_invalid_options_are_usage_errors(arguments):
    assert conformance(*arguments).exit_code == 2


# ---- clients -----------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_plain_reader_passes_all_scenarios():
    assert plain_reader_fault() == ""


def test_a_faulty_reader_is_noticed_for_its_requirement():
    with ThreadPoolExecutor(8) as pool:
        faults = dict(zip(FAULTY_READERS, pool.map(reader_fault, FAULTY_READERS.values()), strict=True))
    assert {name: fault for name, fault in faults.items() if fault} == {}


def test_each_requirement_of_a_client_has_a_scenario_and_a_faulty_reader():
    required = {name for name, each in REQUIREMENTS.items() if each.role == "client"}
    assert {name for each in SCENARIOS.values() for name in each.requirements} == required
    assert {reader.breaks for reader in FAULTY_READERS.values()} == required


def test_an_event_that_is_held_back_is_a_warning():
    verdict = play(
        SCENARIOS["event-is-whole-at-its-last-cr"],
        EventStreamReaderAdapter(FAULTY_READERS["HoldsEventsBack"]),
    )
    assert verdict.outcome is Outcome.WARN
    assert [finding.kind for finding in verdict.findings] == ["late"]


class DispatchesAllBlocks(PlainEventStreamReader):
    def has_event(self, fields):
        return True


class DropsEventsOfEmptyData(PlainEventStreamReader):
    def has_event(self, fields):
        return bool(fields.get("data"))


class IgnoresRetry(PlainEventStreamReader):
    def set_retry(self, value):
        pass


class CannotSendAllIds(PlainEventStreamReader):
    def headers(self):
        return {
            name: value if name == "Accept" else value.decode("ascii")
            for name, value in super().headers().items()
        }

    def run(self):
        try:
            return super().run()
        except UnicodeDecodeError:
            return {"end": "failed"}


FAULTS = FAULTY_READERS | {
    each.__name__: each
    for each in (DispatchesAllBlocks, DropsEventsOfEmptyData, IgnoresRetry, CannotSendAllIds)
}


@pytest.mark.parametrize(
    ("reader", "scenario", "rules"),
    [
        ("DispatchesAllBlocks", "id-without-data-is-committed", {"TW-SSE-027"}),
        ("DispatchesAllBlocks", "extra-blank-lines-dispatch-nothing", {"TW-SSE-027"}),
        ("DispatchesAllBlocks", "keep-alives-make-no-event", {"TW-SSE-027"}),
        ("DispatchesAllBlocks", "line-ends-alone", {"TW-SSE-027"}),
        ("DispatchesAllBlocks", "retry-with-letters-is-ignored", set()),
        ("DispatchesAllBlocks", "retry-alone-dispatches-nothing", {"TW-SSE-027"}),
        ("DropsEventsOfEmptyData", "empty-data-dispatches", {"TW-SSE-027"}),
        ("DoesNotEndLinesAtCr", "extra-blank-lines-dispatch-nothing", {"TW-SSE-021"}),
        ("DoesNotEndLinesAtCr", "event-is-whole-at-its-last-cr", {"TW-SSE-021"}),
        ("ForgetsCrAtAChunk", "crlf-ends-a-line", {"TW-SSE-022"}),
        ("ForgetsIdAfterAnEvent", "id-with-nul-is-ignored", {"TW-SSE-029"}),
        ("ForgetsIdAfterAnEvent", "token-stream", {"TW-SSE-029"}),
        ("KeepsSpaceAfterColon", "empty-data-dispatches", {"TW-SSE-024"}),
        ("RejectsInvalidUtf8", "half-a-bom-is-invalid", {"TW-SSE-019"}),
        ("DispatchesAtTheEnd", "id-of-an-unfinished-event-is-not-committed", {"TW-SSE-032"}),
        ("CommitsIdAtItsLine", "unfinished-event-of-a-lost-connection", {"TW-SSE-029"}),
        ("DoesNotReconnectAfterALoss", "unfinished-event-of-a-lost-connection", {"TW-SSE-033"}),
        ("IgnoresRetry", "malformed-retry", {"TW-SSE-034"}),
        ("CannotSendAllIds", "id-is-any-text", set()),
        ("CannotSendAllIds", "invalid-in-id-and-type", set()),
        ("CannotSendAllIds", "id-that-is-not-ascii", {"TW-SSE-035"}),
    ],
)  # fmt: skip
def test_only_the_requirement_that_a_reader_violates_is_reported(reader, scenario, rules):
    verdict = play(SCENARIOS[scenario], EventStreamReaderAdapter(FAULTS[reader]))
    assert {rule for finding in verdict.findings for rule in finding.rules} == rules


def test_a_client_that_raises_after_all_events_of_a_valid_stream_fails():
    class RaisesAtTheEnd(PlainEventStreamReader):
        def run(self):
            self.connect(self.url)
            return {"end": "failed", "detail": "oops"}

    verdict = play(SCENARIOS["plain-stream"], EventStreamReaderAdapter(RaisesAtTheEnd))
    assert [finding.kind for finding in verdict.findings] == ["end"]


def test_a_client_that_shows_neither_types_nor_ids_is_judged_by_its_data():
    class OnlyData(PlainEventStreamReader):
        def report(self, kind, data):
            self.say({"saw": "event", "data": data})

        def reconnects(self, status, number):
            return False

    adapter = EventStreamReaderAdapter(OnlyData)
    adapter.traits = frozenset()
    assert play(SCENARIOS["type-keeps-its-second-space"], adapter).outcome is Outcome.PASS
    assert play(SCENARIOS["id-stays-over-later-events"], adapter).outcome is Outcome.SKIPPED


@pytest.mark.heavy
@pytest.mark.parametrize("module", ["httpx_sse", "httpx2_sse"])
def test_an_adapter_runs_over_json_lines(module):
    command = f"{ADAPTER}.{module}"
    found = conformance(
        "--client", command, "--only", "sse_responses.plain-stream", "--only", "sse_framing.bom-at-the-start"
    )
    assert found.exit_code == 1
    assert "TW-SSE-020" in found.output
    assert "2 checks: 1 pass · 1 fail" in found.output
    assert "--only sse_framing.bom-at-the-start --profile sse" in found.output


@pytest.mark.parametrize("name", PYTHON_CLIENTS)
def test_an_adapter_names_the_package_that_it_needs(name):
    module = PYTHON_CLIENTS[name]
    program = f"import runpy, sys; sys.modules.update(dict.fromkeys({_modules(module)!r})); runpy.run_module('tidewire_conformance.clients.event_stream_clients.{module}', run_name='__main__')"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50)
    assert found.returncode == 1
    assert f"this client needs the package {name}: pip install {name}" in found.stderr
    assert found.stdout == ""


def _modules(module):
    """Names of the modules to hide, so that their import fails as if they were missing."""
    return [
        {
            "httpx_sse": "httpx_sse",
            "httpx2_sse": "httpx2",
            "launchdarkly_eventsource": "ld_eventsource",
            "openai_decoder": "openai",
            "anthropic_decoder": "anthropic",
            "sseclient_py": "sseclient",
            "requests_sse": "requests_sse",
            "aiohttp_sse_client": "aiohttp_sse_client",
        }[module]
    ]


def test_each_adapter_has_a_row_in_the_proof(tmp_path):
    found = commands(sys.executable, tmp_path)
    assert found.keys() == {*PYTHON_CLIENTS, *NODE_CLIENTS, "EventSource of Chromium"}
    for module in PYTHON_CLIENTS.values():
        assert importlib.util.find_spec(f"tidewire_conformance.clients.event_stream_clients.{module}")


def test_the_table_lists_readers_that_were_not_run():
    ran = ReaderRow(
        "a", "a 1.0", {"sse_framing": {"pass": 3, "warn": 1, "fail": 2}, "sse_responses": {"pass": 1}, "sse_reconnecting": {"skipped": 5}}, {"TW-SSE-020": "sse_framing.bom-at-the-start"},
    )  # fmt: skip
    text = "\n".join(page([ReaderRow("b", "", {}, {}, "this client needs b"), ran], {}, {}))
    assert "| a 1.0 | 3 | 1 | 2 | 0 | 1 of 1 | not offered |" in text
    assert "| b | *not run*: this client needs b | | | | | |" in text
    assert text.index("| a 1.0") < text.index("| b |")
    assert "| a 1.0 | `chromium_eventsource` | TW-SSE-020 | `sse_framing.bom-at-the-start` |" in text


def test_a_reader_that_cannot_run_keeps_its_row_of_the_page():
    framing = sum(scenario.area == "sse_framing" for scenario in load_event_stream_scenarios())
    outcomes = {
        "sse_framing": {"pass": framing - 3, "warn": 2, "fail": 1, "skipped": 0},
        "sse_responses": {"pass": 7, "fail": 1},
        "sse_reconnecting": {"pass": 0, "fail": 0},
    }
    examples = {"TW-SSE-020": "sse_framing.bom-at-the-start", "TW-SSE-023": "sse_framing.cr-ends-a-line"}
    rows = {
        "eventsource": ReaderRow("eventsource", "eventsource 4.1.1", outcomes, examples),
        "eventsource-parser": ReaderRow("eventsource-parser", "eventsource-parser 3.1.1", outcomes, {}),
        "fetch-event-source": ReaderRow(
            "fetch-event-source", "@microsoft/fetch-event-source 2.0.1", outcomes, examples
        ),
        "EventSource of Chromium": ReaderRow(
            "EventSource of Chromium", "EventSource of Chromium", outcomes, {}
        ),
    }
    assert rows_of_page("\n".join(page([*rows.values()], {}, {}))) == rows
    outcomes["sse_framing"]["pass"] += 1
    assert rows_of_page("\n".join(page([*rows.values()], {}, {}))) == {}, "of another number of cases"


def test_a_case_with_several_possible_causes_accuses_a_reader_only_without_a_clear_case():
    clear = {"sse_framing.a": {"TW-SSE-024", "TW-SSE-026"}, "sse_framing.b": {"TW-SSE-026"}}
    assert _examples(clear) == {"TW-SSE-026": "sse_framing.b"}
    assert _examples({"sse_framing.a": {"TW-SSE-024", "TW-SSE-026"}}).keys() == {"TW-SSE-024", "TW-SSE-026"}


def test_the_loop_of_an_adapter_reports_events_and_errors(monkeypatch, capsys):
    def open_stream(url, at_end):
        at_end["retry_ms"] = 5
        yield {"data": url}
        raise ValueError("broken")

    lines = [json.dumps({"op": "run", "id": "c1", "do": "open", "url": "u"}), '{"op": "bye"}']
    monkeypatch.setattr(sys, "stdin", lines)
    adapter_loop.serve("pytest", ["retry"], open_stream)
    introduction, event, end = map(json.loads, capsys.readouterr().out.splitlines())
    assert introduction == {"client": f"pytest {pytest.__version__}", "can": ["retry"]}
    assert event == {"id": "c1", "saw": "event", "data": "u"}
    assert end == {"id": "c1", "end": "failed", "detail": "ValueError('broken')", "retry_ms": 5}
