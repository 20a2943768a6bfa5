"""A server that is only half built never makes the suite fail: each of its faults has a report."""

import asyncio
import contextlib
import copy
import io
import json
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from proof.servers.fault_helpers import change_json, refuse
from proof.servers.fault_proxy import FaultProxy
from proof.servers.judge_server import CALLER, SECOND_CALLER
from proof.servers.server_process import ORIGIN, SETTINGS
from support.mutated_server import FAULTS, RandomMutations, mutated, running
from tidewire_conformance import registry
from tidewire_conformance.cli import app
from tidewire_conformance.judging import server_probe
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome, SkipReason
from tidewire_conformance.report import badge, html_report, json_report, junit_report, terminal_report
from tidewire_conformance.runner import Plan, run
from tidewire_conformance.session import Hooks
from tidewire_conformance.specification import schema
from tidewire_server import Server, Stream

CHECKS = [check for check in registry.checks() if not check.seconds]
JSON, HTML, STREAM = "application/json", "text/html", "text/event-stream"
DISCOVERY = schema("discovery.schema.json")["examples"][0] | {
    "capabilities": ["list", "delete", "batches", "logprobs", "snapshots_only", "stream_tokens", "inband_problems"],
    "endpoints": [{"name": "words", "href": "/v1/endpoints/words"}],
}  # fmt: skip
WORDS = schema("endpoint.schema.json")["examples"][0] | {"name": "words"}
ENDLESS = object()
"""Body that never ends."""
ANSWERS = {
    "500 with a page": (500, HTML, b"<h1>error</h1>"),
    "500 with a problem": (500, "application/problem+json", b'{"code":"internal","title":"x","status":500}'),
    "404 without a body": (404, JSON, b""),
    "200 without a body": (200, JSON, b""),
    "200 with a page": (200, HTML, b"<html>"),
    "200 with garbage": (200, JSON, b"\xff\xfe{{{"),
    "200 with null": (200, JSON, b"null"),
    "200 with a list": (200, JSON, b"[]"),
    "200 with an empty object": (200, JSON, b"{}"),
    "201 with an empty object": (201, JSON, b"{}"),
    "201 with a job that is not described": (201, JSON, b'{"id":"abc"}'),
    "200 with an empty stream": (200, STREAM, b""),
    "200 with a stream of garbage": (200, STREAM, b"id:x\ndata:{\n\nevent:done\ndata:null\n\n"),
    "204": (204, JSON, b""),
}
"""Responses that a server sends to every request: status, media type and body."""
QUICK_ANSWERS = {
    "500 with a page",
    "200 with garbage",
    "200 with null",
    "201 with a job that is not described",
    "200 with a stream of garbage",
}
"""Responses with which the quick run judges a server: one for each way to fail."""


@contextlib.contextmanager
def half_built(answer=(404, JSON, b"{}"), **described):
    """A server that has these documents by path, and sends the same answer to all other requests; yields its URL."""

    closing = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, media, body = answer
            if self.command == "GET" and self.path in described:
                status, media, body = 200, JSON, json.dumps(described[self.path]).encode()
            self.send_response(status)
            self.send_header("Content-Type", media)
            self.send_header("Connection", "close")
            if status != 204 and body is not ENDLESS:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if body is not ENDLESS:
                self.wfile.write(body)
            with contextlib.suppress(OSError):
                while body is ENDLESS and not closing.wait(0.05):
                    self.wfile.write(b": more\n\n")

        do_GET = do_POST = do_DELETE = do_OPTIONS = do_PUT = answer  # noqa: N815 - http.server defines these names

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            closing.set()
            server.shutdown()
            thread.join(10)


def judged(url, folder=None, checks=CHECKS):
    """Run the suite and return the graded run, in which no check has the outcome `error`. With a folder, write every report."""
    plan = Plan(url, CALLER, Hooks(second=SECOND_CALLER, origin=ORIGIN), budget=40, patience=0.2)
    report = grade(asyncio.run(run(plan, checks)))
    for way in (badge, html_report, json_report, junit_report) if folder else ():
        way.write(report, folder / "report")
        terminal_report.show(report, Console(file=io.StringIO(), width=100), everything=True)
    assert [
        f"{each.check}: {each.note}" for each in report.run.verdicts if each.outcome is Outcome.ERROR
    ] == []
    return report


def described(discovery=DISCOVERY, words=WORDS):
    return {"/v1": discovery, "/v1/endpoints/words": words}


# ---- servers that answer every request in the same way -----------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [each if each in QUICK_ANSWERS else pytest.param(each, marks=pytest.mark.slow) for each in ANSWERS],
)
def test_the_same_answer_to_every_request_is_the_fault_of_the_server(answer, tmp_path):
    with half_built(ANSWERS[answer], **described()) as url:
        report = judged(url, tmp_path)
    assert report.exit_code == 1
    assert report.failures


def test_a_server_with_nothing_but_discovery_is_judged(tmp_path):
    with half_built(**{"/v1": DISCOVERY}) as url:
        report = judged(url, tmp_path)
    assert "TW-DSC-028" in {each.requirement.id for each in report.failures}


def test_a_slow_example_is_announced_while_the_suite_waits(monkeypatch):
    monkeypatch.setattr(server_probe, "ANNOUNCED_SECONDS", 0.1)
    with half_built((200, STREAM, ENDLESS), **described()) as url:
        done = CliRunner().invoke(
            app, [url, "--patience", "0.1", "--only", "errors.unknown_resources_return_404"]
        )
    assert (
        "An example of words has not reached `done` after 0.1 s. The suite waits for at most 6 s."
        in done.stderr
    )


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_without_discovery_is_described_in_one_message(answer):
    with half_built(ANSWERS[answer]) as url:
        done = CliRunner().invoke(app, [url])
    assert done.exit_code == 3
    assert done.stderr.startswith(f"tidewire conformance: GET {url}/v1 returned {ANSWERS[answer][0]} and ")
    assert done.stdout == ""


# ---- descriptions with one fault or several --------------------------------------------------------------------------


def members_of(name, example):
    """The members that a schema names, as paths into an example that has all of them."""
    found = schema(f"{name}.schema.json")["properties"]
    for member in found:
        if member in example:
            yield (member,)
            for inner in found[member].get("properties", {}):
                if inner in example[member]:
                    yield (member, inner)


QUICK_FAULTS = ("absent", "null", "text", "empty object")
DESCRIPTIONS = [
    *[("discovery", path) for path in members_of("discovery", DISCOVERY) if path != ("protocol",)],
    *[("discovery", ("endpoints", 0, name)) for name in ("name", "href")],
    *[("discovery", ("endpoints", 0))],
    *[("endpoint", path) for path in members_of("endpoint", WORDS)],
]


def pages_with(fault, *places):
    """The documents of a half-built server with a fault in some members."""
    pages = {"discovery": DISCOVERY, "endpoint": WORDS}
    for document, path in places:
        pages[document] = mutated(pages[document], path, fault)
    return described(pages["discovery"], pages["endpoint"])


def judge_members(fault, places):
    for place in places:
        with half_built(**pages_with(fault, place)) as url:
            assert judged(url).failures, place


@pytest.mark.parametrize(("first", "fault"), [*enumerate(QUICK_FAULTS)])
def test_a_description_with_one_fault_is_judged(first, fault):
    """Every third member has one of the faults here; `make slow` combines each member with each fault."""
    judge_members(fault, DESCRIPTIONS[first::12])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_description_with_any_one_fault_is_judged(fault):
    judge_members(fault, DESCRIPTIONS)


@pytest.mark.parametrize(
    "fault", [pytest.param(each, marks=[] if each == "absent" else [pytest.mark.slow]) for each in FAULTS]
)
def test_a_description_with_many_faults_is_judged(fault, tmp_path):
    outer = [place for place in DESCRIPTIONS if len(place[1]) == 1]
    with half_built(**pages_with(fault, *outer)) as url:
        assert judged(url, tmp_path).failures
    with half_built(**pages_with(fault, *(place for place in DESCRIPTIONS if len(place[1]) == 2))) as url:
        assert judged(url, tmp_path).failures


def test_all_faults_of_discovery_are_reported_at_once_with_the_expected_form():
    wrong = copy.deepcopy(DISCOVERY) | {"capabilities": {"list": True}, "heartbeat_ms": "15000"}
    del wrong["durability"], wrong["limits"]["state_ttl_s"]
    wrong["limits"]["max_event_bytes"] = 100
    wrong["endpoints"][0]["name"] = "2words"
    with half_built(**described(discovery=wrong)) as url:
        done = CliRunner().invoke(app, [url], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    first = done.stdout.partition("\nFAIL  ")[2].partition("\nFAIL  ")[0]
    assert "[TW-DSC-001]" in first
    assert [line.strip("- ") for line in first.splitlines() if line.startswith(f"{' ' * 16}- ")] == [
        'durability: missing; expected "process", "host" or "replicated"',
        'capabilities: expected an array in which each element is a string, not {"list": true}',
        'endpoints[0].name: expected a string that matches ^[A-Za-z][A-Za-z0-9_.-]{0,63}$, not "2words"',
        'heartbeat_ms: expected an integer of at least 1, not "15000"',
        "limits.state_ttl_s: missing; expected an integer of at least 0",
        "limits.max_event_bytes: expected an integer of at least 1024, not 100",
    ]


@pytest.mark.parametrize(
    ("discovery", "words"),
    [
        ({"endpoints": {"words": {"href": "/v1/endpoints/words"}}}, {}),
        ({"endpoints": ["words"]}, {}),
        ({"endpoints": [["words"], None, 7, {"name": 7}, {"name": "words", "href": {}}]}, {}),
        ({"limits": {}}, {}),
        ({"limits": dict.fromkeys(DISCOVERY["limits"], 0)}, {}),
        ({"limits": dict.fromkeys(DISCOVERY["limits"], "64")}, {}),
        ({"heartbeat_ms": 0, "min_interval_ms": "50"}, {}),
        ({"capabilities": dict.fromkeys(DISCOVERY["capabilities"], True)}, {}),
        ({}, {"examples": {"short": {"words": 3}}}),
        ({}, {"examples": None, "links": [], "capabilities": []}),
        ({}, {"capabilities": {"batch": True, "logprobs": 5}, "input_schema": True}),
    ],
)
def test_a_description_of_another_shape_is_judged(discovery, words):
    with half_built(**described(DISCOVERY | discovery, WORDS | words)) as url:
        report = judged(url)
        done = CliRunner().invoke(app, [url, "--only", "discovery"])
    assert report.failures
    assert done.exit_code == 1, done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"type": "strng"}, "'strng' is not valid"),
        ({"type": "object", "properties": {"n": {"pattern": "("}}}, "is not a 'regex'"),
        ({"$ref": "#/nowhere"}, "'/nowhere' does not exist"),
        ({"$ref": "#"}, "RecursionError"),
        ([], "the schema is [], not an object"),
        ("string", 'the schema is "string", not an object'),
    ],
)
def test_an_invalid_schema_of_an_endpoint_is_reported_and_not_raised(wrong, message, tmp_path):
    with half_built(**described(words=WORDS | {"input_schema": wrong, "value_schema": wrong})) as url:
        report = judged(url, tmp_path)
    faults = [each.got for _, each in report.results["TW-DSC-017"].broken]
    assert len(faults) == 2
    assert all(message in each for each in faults)


def test_a_reference_to_another_document_is_not_fetched(tmp_path):
    with (
        half_built() as elsewhere,
        half_built(**described(words=WORDS | {"input_schema": {"$ref": elsewhere}})) as url,
    ):
        report = judged(url, tmp_path)
    assert "TW-DSC-022" in {each.requirement.id for each in report.failures}
    assert not [each for each in report.run.record if elsewhere in each.url]


@pytest.mark.heavy
def test_all_faults_of_a_job_are_reported_although_no_example_succeeds(tmp_path):
    with half_built((201, JSON, b'{"id":"abc","status":"queued"}'), **described()) as url:
        report = judged(url, tmp_path)
        told = CliRunner().invoke(app, [url]).stdout
    (_, finding), *_ = report.results["TW-JOB-018"].broken
    assert "id: expected a string that matches" in finding.got
    assert "columns: missing; expected an array" in finding.got
    assert "no example of an endpoint succeeded: GET " in " ".join(told.split())


@pytest.mark.heavy
def test_checks_do_not_wait_for_jobs_if_no_example_ends(monkeypatch):
    monkeypatch.setattr(server_probe, "EXAMPLE_SECONDS", 5.0)
    monkeypatch.setattr(server_probe, "FURTHER_EXAMPLE_SECONDS", 2.0)
    server = Server(**SETTINGS)

    @server.endpoint(examples=[{"words": 8}, {"words": 9}])
    async def talk(words: int, stream: Stream[str]) -> None:
        stream.append(f"the first of {words} words")
        await asyncio.Event().wait()

    with server.running() as url:
        report = judged(url, checks=[check for check in CHECKS if check.is_named_by(["framing", "resume"])])
    assert {each.requirement.id for each in report.failures} == {"TW-FRM-051", "TW-OVR-022"}
    (finding, *_) = [each for _, each in report.results["TW-FRM-051"].broken]
    assert finding.got.endswith("/talk/jobs returned an event stream without a valid done within 1 s")
    resume = [each for each in report.run.verdicts if each.check.startswith("resume.")]
    blocked = [each for each in resume if each.why is SkipReason.BLOCKED]
    assert len(blocked) > 8
    assert all("no job of an example ended" in each.note for each in blocked)


def test_a_missing_stream_is_not_reported_as_a_content_coding():
    hooks = FaultProxy(instead=[refuse(lambda exchange: exchange.path.endswith("/events"), 404, "not_found")])
    names = {"framing.stream_request_returns_an_event_stream", "framing.streams_have_no_content_coding"}
    with running(hooks) as url:
        report = judged(url, checks=[check for check in CHECKS if check.name in names])
    assert {each.requirement.id for each in report.failures} == {"TW-FRM-001"}


def test_a_server_without_jobs_passes_the_first_step_of_the_guide():
    """Discovery, descriptions and problems come first, so their checks must not need a submission."""
    guide = (Path(__file__).parents[2] / "docs/how-to/write-a-server.md").read_text(encoding="utf-8")
    (step,) = re.findall(r"^\| discovery, descriptions, problems .*`(--only .*)` \|$", guide, re.MULTILINE)
    only_talk = change_json("/v1", lambda discovery: discovery | {"endpoints": discovery["endpoints"][:1]})
    no_jobs = refuse(lambda exchange: exchange.is_submit or "/v1/jobs" in exchange.path, 404, "not_found")
    hooks = FaultProxy(instead=[no_jobs], bodies=[only_talk])
    header = [f"--header={name}: {value}" for name, value in CALLER]
    with running(hooks) as url:
        done = CliRunner().invoke(app, [url, *header, *step.split()])
    assert done.exit_code == 0, done.stdout


# ---- faults in any response and event ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_faults_in_random_members_are_judged(tmp_path):
    judge_random_faults(1, 0.1, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", [0.02, 0.05, 0.1, 0.4, 1.0])
def test_faults_in_many_random_members_are_judged(share, tmp_path):
    for seed in range(100, 130):
        judge_random_faults(seed, share, tmp_path)


def judge_random_faults(seed, share, folder):
    hooks = FaultProxy()
    RandomMutations(seed, share).install(hooks)
    with running(hooks) as url:
        assert judged(url, folder).exit_code == 1, seed


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_description_of_the_reference_server_with_one_fault_is_judged(fault, tmp_path):
    for document, path in DESCRIPTIONS:
        place = "/v1" if document == "discovery" else "/v1/endpoints/talk"

        def change(exchange, status, body, place=place, path=path):
            if exchange.path != place or exchange.method != "GET":
                return None
            with contextlib.suppress(LookupError):
                return status, json.dumps(mutated(json.loads(body), path, fault)).encode()

        with running(FaultProxy(bodies=[change])) as url:
            judged(url, tmp_path)


# ---- servers of other kinds ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def raw_server(answer):
    """A server that calls `answer` with each connection; yields its URL."""
    closing = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=talk, args=(connection,), daemon=True).start()

        def talk(connection):
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                answer(connection, closing)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            closing.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def close_at_once(connection, closing):
    pass


def speak_no_http(connection, closing):
    connection.sendall(b"220 mail.example ready\r\n")


def endless(media):
    def answer(connection, closing):
        connection.sendall(f"HTTP/1.1 200 OK\r\nContent-Type: {media}\r\n\r\n".encode())
        while not closing.wait(0.05):
            connection.sendall(b"data: x\n\n")

    return answer


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (close_at_once, "the server closed the connection without a response"),
        (speak_no_http, "the response violates HTTP/1.1: "),
        (endless("text/event-stream"), "the response is an event stream, not JSON"),
        (endless("text/plain"), 'returned 200 and "data: x'),
    ],
)
def test_a_server_of_another_kind_is_described_in_one_message(answer, message):
    """An endless response takes as long as the time-out of one response at most, because its media type shows what it is."""
    with raw_server(answer) as url:
        done = CliRunner().invoke(app, [url])
    assert done.exit_code == 3
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(60)
def test_a_server_with_an_endless_stream_for_every_request_is_judged():
    """Discovery is right, and every other response is an event stream that never ends."""
    areas = ["discovery", "jobs", "errors", "bodies"]
    with half_built((200, STREAM, ENDLESS), **described()) as url:
        report = judged(url, checks=[check for check in CHECKS if check.is_named_by(areas)])
    assert report.failures
    assert not report.run.cut_short
