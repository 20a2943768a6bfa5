"""The scenario player: its server, its judgment of clients, and its treatment of faulty programs."""

import contextlib
import json
import re
import select
import socket
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from proof.reimplementations import plain_client
from proof.reimplementations.plain_adapter import PlainAdapter
from proof.reimplementations.plain_client import TRAITS, PlainClient
from proof.reimplementations.plain_requests import CutError
from support.reference_server import eventually
from support.server_address import address_of
from tidewire_conformance.clients.scenarios import (
    AdapterError,
    Outcome,
    ProgramAdapter,
    ScenarioError,
    describe,
    load,
    load_all,
    play,
)
from tidewire_conformance.clients.scenarios.client_output import ClientOutput, same
from tidewire_conformance.clients.scenarios.conversation import ClientRun, Conversation
from tidewire_conformance.clients.scenarios.failure_transcript import transcript
from tidewire_conformance.clients.scenarios.scenario import JOB, Scenario
from tidewire_conformance.clients.scenarios.scenario_server import ScenarioServer
from tidewire_conformance.clients.scenarios.server_variants import variant_scenarios

SCENARIOS = load_all()
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
GET = f"GET /v1/jobs/{JOB}/events HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n".encode()
CLOSE_WAIT = 8
"""State of a TCP connection that the peer has closed, in `TCP_INFO` of Linux."""


def scripted(*exchanges, **members):
    """A scenario whose stream requests receive these exchanges."""
    return Scenario(
        "made-up", "…", ("TW-CLI-009",), {"end": ["succeeded"]}, scripts={"streams": exchanges}, **members
    )


def play_all(scenarios, adapter, workers=16):
    """Play scenarios concurrently, and return the verdicts."""
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda one: play(one, adapter), scenarios))


@contextlib.contextmanager
def stream_requested(scenario):
    """Start the server of a scenario and yield it with a connection that has requested the stream."""
    with ScenarioServer(scenario, patience=5) as server:
        with socket.create_connection(address_of(server.url), timeout=5) as connection:
            connection.sendall(GET)
            yield server, connection


def read_to_the_end(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


# ---- connections of the scenario server ------------------------------------------------------------------------


def test_a_cut_may_split_a_character_and_a_chunk():
    exchange = {"events": [{"id": "1-4", "data": "é"}], "cut_after": 14, "then": "close"}
    with stream_requested(scripted(exchange)) as (_, connection):
        body = read_to_the_end(connection).partition(b"\r\n\r\n")[2]
    assert body == b'e\r\nid:1-4\ndata:"\xc3\r\n'


def test_a_complete_body_ends_with_the_last_chunk():
    with stream_requested(scripted({"events": [{"bytes": "a"}]})) as (_, connection):
        assert read_to_the_end(connection).endswith(b"\r\n\r\n1\r\na\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "request_line", ["GET {path} HTTP/1.1\r\nConnection: keep-alive, Close", "GET {path} HTTP/1.0"]
)
@pytest.mark.parametrize("path", ["/v1", f"/v1/jobs/{JOB}/events"])
def test_the_server_closes_after_a_request_that_asks_for_it(request_line, path):
    exchange = {
        "events": [{"bytes": "a"}],
        "headers": {"TRANSFER-ENCODING": "chunked"},
        "then": "keep",
    }
    with ScenarioServer(scripted(exchange), patience=5) as server:
        with socket.create_connection(address_of(server.url), timeout=5) as connection:
            connection.sendall(f"{request_line.format(path=path)}\r\nHost: a\r\n\r\n".encode())
            head = read_to_the_end(connection).partition(b"\r\n\r\n")[0]
    # A client of HTTP/1.0 cannot decode chunks (RFC 9112, section 6.1).
    assert (b"chunked" in head) == ("1.1" in request_line and path != "/v1")


@pytest.mark.parametrize(
    "flood",
    [
        b"x" * 2**21,
        b"GET /v1 HTTP/1.1\r\n" + (b"a: " + b"b" * 64 + b"\r\n") * 2**15,
        b"POST /v1/endpoints/demo/jobs HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /v1/endpoints/demo/jobs HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/endpoints/demo/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n99999999999\r\n",
        b"POST /v1/endpoints/demo/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
        + (b"100000\r\n" + b"x" * 2**20 + b"\r\n") * 20,
    ],
    ids=["line", "header", "body", "negative-body", "chunk", "chunks"],
)
def test_the_server_reads_a_request_only_up_to_a_limit(flood):
    with ScenarioServer(scripted(), patience=5) as server:
        with socket.create_connection(address_of(server.url), timeout=5) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(flood)
                assert read_to_the_end(connection) == b""
        assert server.conversation.requests == []


def test_a_negative_cut_after_counts_from_the_end():
    with stream_requested(
        scripted({"events": [{"bytes": "abc"}, {"bytes": "de"}], "cut_after": -3, "framing": "close"})
    ) as (
        _,
        connection,
    ):
        assert read_to_the_end(connection).endswith(b"\r\n\r\nab")


def test_then_reset_resets_the_connection():
    with stream_requested(scripted({"status": None, "then": "reset"})) as (_, connection):
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_connection_can_be_closed_without_a_response():
    with stream_requested(scripted({"status": None})) as (_, connection):
        assert connection.recv(1) == b""


def test_a_stalled_connection_stays_open_until_the_client_closes_it():
    with stream_requested(scripted({"events": [{"bytes": "a"}], "then": "stall"})) as (server, connection):
        received = b""
        while not received.endswith(b"1\r\na\r\n"):
            received += connection.recv(4096)
        assert select.select([connection], [], [], 0.1)[0] == []
        (request,) = server.conversation.requests
        assert request.closed is None
        connection.close()
        assert server.wait(lambda: request.closed is not None, 5)


def test_until_saw_waits_for_a_value_and_records_a_timeout():
    steps = [{"until_saw": "Hel"}, {"bytes": "a"}]
    with ScenarioServer(scripted({"events": steps}), patience=0.1) as server:
        with socket.create_connection(address_of(server.url), timeout=5) as connection:
            connection.sendall(GET)
            assert read_to_the_end(connection).endswith(b"\r\n\r\n")
        (request,) = server.conversation.requests
    assert request.waited_for == 'the client delivers "Hel"'
    assert request.closed is None


def test_line_end_selects_the_line_ends():
    exchange = {"events": [{"id": "1-4", "data": "a\n"}], "line_end": "crlf", "framing": "close"}
    with stream_requested(scripted(exchange)) as (_, connection):
        assert read_to_the_end(connection).endswith(b'\r\n\r\nid:1-4\r\ndata:"a\\n"\r\n\r\n')


# ---- judging clients -------------------------------------------------------------------------------------------


class FixedReportAdapter:
    """A client adapter that sends prepared reports and makes no requests."""

    name = "pretender"
    traits = frozenset(TRAITS)

    def __init__(self, report):
        self.report = report

    def run(self, command, tell, seconds):
        tell({"id": command["id"], **self.report(command)})


def test_an_adapter_that_always_reports_succeeded_passes_no_scenario():
    outcomes = {
        verdict.outcome
        for verdict in play_all(SCENARIOS, FixedReportAdapter(lambda command: {"end": "succeeded"}))
    }
    assert outcomes <= {Outcome.FAIL, Outcome.WARN, Outcome.ERROR}


def test_an_adapter_that_reports_expected_results_without_requests_passes_no_scenario():
    def adapter(scenario):
        expect = scenario.expect
        end = {"end": expect["end"][0], "checkpoint": 1, "incomplete": expect.get("incomplete", False)}
        if "value" in expect:
            end["value"] = expect["value"]
        problem = {"code": expect.get("code"), "status": expect.get("status"), **expect.get("problem", {})}
        return FixedReportAdapter(lambda _: {**end, "problem": problem, "items": expect.get("items", [])})

    with ThreadPoolExecutor(16) as pool:
        verdicts = pool.map(lambda one: play(one, adapter(one)), SCENARIOS)
    assert [verdict.scenario.name for verdict in verdicts if verdict.outcome is Outcome.PASS] == []


def test_a_failure_shows_requirement_expectation_and_timed_bytes():
    class WithoutACursor(PlainClient):
        def cursor_to_send(self):
            return None

    verdict = play(BY_NAME["closed-inside-an-event"], PlainAdapter(WithoutACursor))
    text = describe(verdict)
    assert verdict.outcome is Outcome.FAIL
    assert "If a response ends, or a connection breaks" in text
    assert "[TW-CLI-009]" in text
    assert re.search(r"expected +event stream 2: 1-3\n +got +no cursor", text)
    # Reports of the client may be interleaved.
    first_stream = "\n".join(line for line in text.splitlines() if re.match(r" +\d+\.\d +1 ", line))
    assert re.search(
        r'\n +\d+\.\d +1 < id:1-4\\ndata:"l\n +\d+\.\d +1 < \(closed by the server before the end of the body\)$',
        first_stream,
    )
    assert re.search(r"\n +\d+\.\d +2 > GET /v1/jobs/", text)
    assert re.search(r"\n +\d+\.\d +\* .*'saw': 'value'", text)


@pytest.mark.parametrize(
    ("exchange", "message"),
    [
        ({"events": [{"bytes": "a"}]}, "(end of the body; the server closed the connection)"),
        ({"events": [{"bytes": "a"}], "then": "close"}, "(closed by the server before the end of the body)"),
        ({"events": [{"bytes": "a"}], "then": "reset"}, "(reset by the server)"),
        ({"status": None}, "(closed by the server before the end of the body)"),
        ({"status": 204}, "(end of the body; the connection stays open for the next request)"),
        (
            {"events": [{"bytes": "a"}], "then": "stall"},
            "(the server sends nothing more and keeps the connection open)",
        ),
    ],
)
def test_the_transcript_shows_how_the_server_ended_a_connection(exchange, message):
    with stream_requested(scripted(exchange)) as (server, _):
        (request,) = (
            server.conversation.requests if server.wait(lambda: bool(server.conversation.requests), 5) else ()
        )
        eventually(lambda: request.ending is not None, within=5)
    assert [line for line in transcript(server.conversation) if line.endswith(f" 1 < {message}")]


def test_the_transcript_abbreviates_many_client_reports():
    run = ClientRun({}, [(float(number), {"saw": "value", "value": number}) for number in range(100)])
    message = "\n".join(transcript(Conversation(runs=[run])))
    assert "'value': 11}" in message
    assert "'value': 88}" in message
    assert "'value': 12}" not in message
    assert "* … 76 reports …" in message


def test_reports_with_lone_surrogates_can_be_printed():
    lone = "LIE" + chr(0xD83D)
    message = [{"saw": "value", "value": lone}, {"end": "succeeded", "value": lone, "detail": lone}]

    class Careless(FixedReportAdapter):
        def run(self, command, tell, seconds):
            for report in message:
                tell({"id": command["id"], **report})

    verdict = play(BY_NAME["lone-surrogate"], Careless(None), patience=0.1)
    assert "never" in {finding.kind for finding in verdict.findings}
    assert r"LIE\ud83d" in describe(verdict).encode().decode()


def test_a_scenario_that_needs_an_undeclared_trait_is_skipped():
    adapter = PlainAdapter()
    adapter.traits = frozenset()
    verdict = play(BY_NAME["submit"], adapter)
    assert verdict.outcome is Outcome.SKIPPED
    assert "submit" in verdict.note


def test_a_violated_should_is_a_warning():
    class WithoutDates(PlainClient):
        def retry_after(self, answer):
            if "," in answer.headers.get("Retry-After", ""):
                self.refuse(answer)
            return super().retry_after(answer)

    assert play(BY_NAME["retry-after-as-a-date"], PlainAdapter(WithoutDates)).outcome is Outcome.WARN


def test_a_client_may_deliver_null_for_an_item_without_a_value():
    class DeliversNull(PlainClient):
        def start(self, job):
            super().start(job)
            self.deliver_value(0, None, None)

    names = [each.name for each in SCENARIOS if {"states", "told"} & {*each.expect} and not each.needs]
    assert len(names) > 10
    played = play_all([BY_NAME[name] for name in names], PlainAdapter(DeliversNull))
    assert {verdict.scenario.name: verdict.findings for verdict in played if verdict.findings} == {}


def test_a_value_that_becomes_null_is_compared_like_any_other():
    class ReturnsToNull(PlainClient):
        def deliver_value(self, index, value, before):
            super().deliver_value(index, value, before)
            super().deliver_value(index, None, value)

    verdict = play(BY_NAME["value-of-another-type"], PlainAdapter(ReturnsToNull))
    assert "order" in {finding.kind for finding in verdict.findings}


def test_a_client_that_does_not_repeat_a_lost_submit_does_not_violate_the_rule_against_repeating():
    class GivesUp(PlainClient):
        def on_failed_discovery(self, cut):
            raise plain_client.EndError("connection_error", detail=str(cut))

    verdict = play(BY_NAME["submit-lost-in-a-restart"], PlainAdapter(GivesUp))
    assert {rule for finding in verdict.findings for rule in finding.rules} == {"TW-CLI-054"}


def test_a_client_that_gives_up_a_lost_submit_does_not_violate_the_rule_against_repeating():
    class NeverRepeats(PlainClient):
        def may_repeat(self):
            return False

    verdict = play(BY_NAME["submit-lost"], PlainAdapter(NeverRepeats))
    assert {rule for finding in verdict.findings for rule in finding.rules} == {"TW-CLI-054"}
    assert verdict.outcome is Outcome.WARN


class SendsNoKey(PlainClient):
    def send(self, method, url, headers, body):
        kept = {name: value for name, value in headers.items() if name != "Idempotency-Key"}
        return super().send(method, url, kept, body)


@pytest.mark.parametrize("name", ["submit-409", "submit-429", "submit-503", "submit-401"])
def test_a_refused_submit_may_be_repeated_without_a_key(name):
    assert play(BY_NAME[name], PlainAdapter(SendsNoKey)).findings == ()


@pytest.mark.parametrize("name", ["submit-lost", "submit-lost-in-a-restart"])
def test_a_lost_submit_must_not_be_repeated_without_a_key(name):
    (finding,) = play(BY_NAME[name], PlainAdapter(SendsNoKey)).findings
    assert "TW-CLI-041" in finding.rules
    assert (finding.expected, finding.got) == (
        "submit 2: the Idempotency-Key of submit 1, which has none",
        "Idempotency-Key: None",
    )


class ReadsTheJobFirst(PlainClient):
    def follow(self, opened):
        if self.state is None and self.command["do"] == "follow":
            with contextlib.suppress(CutError):
                self.read_job(instead=True)
        return super().follow(opened)


def test_a_client_may_read_the_job_before_it_requests_the_stream():
    names = [
        "rows",
        "pointers",
        "stable",
        "code-points",
        "cut-right-after-the-header",
        "cuts-at-many-places",
        "no-retry-was-named",
        "400-without-a-cursor",
        "401-again-later",
        "two-jobs-in-turn",
    ]
    scenarios = [BY_NAME[name] for name in names]
    scenarios += variant_scenarios([BY_NAME["code-points"]])
    found = play_all(scenarios, PlainAdapter(ReadsTheJobFirst), workers=24)
    assert [describe(each) for each in found if each.outcome is not Outcome.PASS] == []


class LosesReceivedBytes(PlainClient):
    """A client whose HTTP library discards the bytes that it has received when a connection breaks, as browsers do."""

    def new_decoder(self, response):
        read = response.read

        def is_open():
            return response.sock.fileno() >= 0

        def read_unless_broken(seconds):
            chunk = read(seconds) if is_open() else b""
            time.sleep(0.05)
            if (
                is_open()
                and response.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSE_WAIT
            ):
                while more := read(1):
                    chunk += more
            return chunk

        response.read = read_unless_broken
        return super().new_decoder(response)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the state of a TCP connection")
def test_a_client_may_lose_bytes_that_it_received_when_a_connection_breaks():
    broken = [
        scenario
        for scenario in BY_NAME.values()
        if any(exchange.get("then") == "close" for exchange in scenario.scripts.get("streams", []))
    ]
    scenarios = [*broken, *map(BY_NAME.get, ["rows", "cut-between-cr-and-lf", "cuts-at-many-places"])]
    found = play_all(scenarios, PlainAdapter(LosesReceivedBytes), workers=24)
    assert [describe(each) for each in found if each.outcome is not Outcome.PASS] == []


def test_a_read_of_a_batch_job_says_that_it_is_a_batch():
    read = []

    class ReadsTheBatch(PlainClient):
        def follow(self, opened):
            read.append(self.request("GET", f"{self.base}/v1/jobs/{JOB}").json()["batch"])
            return super().follow(opened)

    for name in ("batch-of-one", "rows"):
        assert play(BY_NAME[name], PlainAdapter(ReadsTheBatch)).outcome is Outcome.PASS
        assert read.pop() == (name == "batch-of-one")


def test_the_cursor_of_another_job_is_not_accepted_after_a_read_of_the_job():
    class SharesTheCursor(ReadsTheJobFirst):
        def cursor_to_send(self):
            return "1-6" if self.job != JOB else super().cursor_to_send()

    verdict = play(BY_NAME["two-jobs-in-turn"], PlainAdapter(SharesTheCursor))
    assert "cursor" in {finding.kind for finding in verdict.findings}


def test_the_cursor_of_the_job_is_not_accepted_in_place_of_a_resync():
    class ResyncsWithFirstCursor(ReadsTheJobFirst):
        def cursor_to_send(self):
            return super().cursor_to_send() or "1-1"

    verdict = play(BY_NAME["stable-is-truncated"], PlainAdapter(ResyncsWithFirstCursor))
    assert "cursor" in {finding.kind for finding in verdict.findings}


def test_a_request_before_the_end_of_the_response_fails_the_minimum_wait():
    class AsksAheadOfTime(PlainClient):
        def at_eof(self):
            self.open().close()
            super().at_eof()

        def close_response(self, answer):
            self.open()
            super().close_response(answer)

    outcomes = {
        play(BY_NAME[name], PlainAdapter(AsksAheadOfTime), patience=0.3).outcome
        for name in ("done-closes", "goaway")
    }
    assert outcomes == {Outcome.FAIL}


def test_an_invalid_report_is_an_error_not_a_failure():
    verdict = play(BY_NAME["404"], FixedReportAdapter(lambda command: {"end": "well enough"}))
    assert verdict.outcome is Outcome.ERROR


def test_text_is_assembled_from_deltas_or_from_values():
    deltas = [{"value": "Help", "text": "Help"}, {"value": "Hello", "deleted": 1, "text": "lo"}]
    assert ClientOutput.of([deltas]).text(0) == ("Hello", 1)
    assert ClientOutput.of([[{"value": "Help"}, {"value": "Hello"}]]).text(0) == ("Hello", 1)
    assert ClientOutput.of([[{"value": {"text": "a"}, "index": 2}, {"value": 7, "index": 2}]]).text(2) == (
        "a",
        0,
    )


def test_values_are_compared_as_json():
    assert same({"a": [1, 1.0]}, {"a": [1.0, 1]})
    assert not same(True, 1)
    assert not same([1], [1, 2])
    assert not same(None, False)


def test_an_invalid_scenario_file_raises(tmp_path):
    file = tmp_path / "made-up.json"
    file.write_text(json.dumps({"description": "…", "scenarios": [{"name": "a"}]}), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"made-up\.json \$\.scenarios\[0\]"):
        load(file)
    one = {"name": "a", "about": "…", "requirements": ["TW-CLI-009"], "expect": {"end": ["succeeded"]}}
    file.write_text(json.dumps({"description": "…", "scenarios": [one, one]}), encoding="utf-8")
    with pytest.raises(ScenarioError, match="two scenarios have the name"):
        load_all(tmp_path)
    streams = [{"events": [{"use": "nothing"}]}]
    file.write_text(
        json.dumps({"description": "…", "scenarios": [one | {"streams": streams}]}), encoding="utf-8"
    )
    with pytest.raises(ScenarioError, match="undefined part 'nothing'"):
        load(file)


# ---- client programs -------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path):
    """A function that writes a Python program and returns an adapter for it."""
    with contextlib.ExitStack() as stack:

        def make(text):
            file = tmp_path / "client.py"
            file.write_text(textwrap.dedent(text), encoding="utf-8")
            return stack.enter_context(ProgramAdapter([sys.executable, str(file)]))

        yield make


def test_a_program_plays_scenarios_over_json_lines():
    names = ["closed-inside-an-event", "batch", "user-goes-on-later", "410", "goaway"]
    with ProgramAdapter([sys.executable, plain_client.__file__]) as adapter:
        assert adapter.name == "plain client"
        verdicts = list(play_all([BY_NAME[name] for name in names], adapter, workers=2))
    assert [describe(verdict) for verdict in verdicts if verdict.outcome is not Outcome.PASS] == []


INTRODUCTION = 'import sys, time\nprint(\'{"client": "bad", "can": []}\', flush=True)\nsys.stdin.readline()\n'


@pytest.mark.parametrize(
    ("then", "note"),
    [
        ("print('hello', flush=True)", "a line that is not JSON"),
        ("print('[1]', flush=True)", "a line that is not a JSON object"),
        ("print('{}', flush=True)", "is not a valid report"),
        ('print(\'{"id": "c0", "end": "succeeded"}\', flush=True)', "a report for 'c0'"),
        ('print(\'{"id": "c0"\' * 9, flush=True)', "a line that is not JSON"),
    ],
)
def test_invalid_output_of_a_program_is_an_error(program, then, note):
    verdict = play(BY_NAME["404"], program(INTRODUCTION + then))
    assert verdict.outcome is Outcome.ERROR
    assert note in verdict.note


def test_a_program_that_exits_during_a_scenario_fails_with_its_standard_error(program):
    verdict = play(BY_NAME["404"], program(INTRODUCTION + "sys.exit('out of order')"))
    assert verdict.outcome is Outcome.FAIL
    (finding,) = [finding for finding in verdict.findings if finding.kind == "died"]
    assert finding.got == "the program exited with 1; standard error: out of order"


def test_a_hanging_program_is_stopped_and_fails(program):
    adapter = program(INTRODUCTION + "time.sleep(3600)")
    verdict = play(BY_NAME["404"], adapter, patience=0.05)
    assert verdict.outcome is Outcome.FAIL
    assert "hung" in {finding.kind for finding in verdict.findings}


FLOOD = """
id = json.loads(line)["id"]
while True:
    print(json.dumps({"id": id, "saw": "value", "value": 1}), flush=True)
"""
INTRODUCED = """
import sys, json, time
print(json.dumps({"client": "several", "can": [], "at_once": 8}), flush=True)
for line in sys.stdin:
    if json.loads(line)["op"] == "bye":
        break
"""


def test_a_program_with_too_many_reports_is_stopped(program, monkeypatch):
    monkeypatch.setattr("tidewire_conformance.clients.scenarios.client_adapter.MAX_REPORTS", 50)
    verdict = play(BY_NAME["404"], program(INTRODUCED + textwrap.indent(FLOOD, "    ")))
    assert verdict.outcome is Outcome.ERROR
    assert "more than 50 reports" in verdict.note


def test_a_program_that_reports_endlessly_times_out(program):
    verdict = play(BY_NAME["404"], program(INTRODUCED + textwrap.indent(FLOOD, "    ")), patience=0.02)
    assert "hung" in {finding.kind for finding in verdict.findings}


def test_an_endless_line_is_read_up_to_a_limit(program, monkeypatch):
    monkeypatch.setattr("tidewire_conformance.clients.scenarios.client_adapter.MAX_LINE", 10_000)
    verdict = play(BY_NAME["404"], program(INTRODUCED + "    while True: sys.stdout.write('x' * 4096)\n"))
    assert verdict.outcome is Outcome.ERROR
    assert "a line that is not JSON" in verdict.note


def test_scenarios_interrupted_by_another_ones_crash_are_replayed(program):
    """One of three concurrent commands ends the program. The other two must not fail because of it."""
    text = (
        INTRODUCED
        + """
    asked = json.loads(line)
    if asked["do"] == "discover":
        sys.exit("not able to discover")
    time.sleep(0.3)
    print(json.dumps({"id": asked["id"], "end": "refused", "status": 404}), flush=True)
"""
    )
    adapter = program(text)
    adapter.traits = frozenset(TRAITS)
    names = ["404", "discovery", "410"]
    found = {v.scenario.name: v for v in play_all([BY_NAME[name] for name in names], adapter, workers=3)}
    died = {name for name, v in found.items() if "died" in {finding.kind for finding in v.findings}}
    assert died == {"discovery"}


def test_a_report_with_an_unknown_id_is_an_error_for_all_running_scenarios(program):
    text = (
        INTRODUCED
        + """
    if len(sys.argv) > 1:
        print(json.dumps({"id": "c0", "end": "succeeded"}), flush=True)
    sys.argv.append("asked")
"""
    )
    found = list(play_all([BY_NAME["404"], BY_NAME["410"]], program(text), workers=2))
    assert {verdict.outcome for verdict in found} == {Outcome.ERROR}
    assert all("'c0', but no command has this id" in verdict.note for verdict in found)


def test_a_program_that_swaps_two_reports_fails_both_scenarios(program):
    text = (
        INTRODUCED
        + """
    asked = globals().setdefault("asked", []) + [json.loads(line)["id"]]
    if len(asked) == 2:
        for name, status in zip(reversed(asked), (404, 410)):
            print(json.dumps({"id": name, "end": "refused", "status": status}), flush=True)
"""
    )
    found = play_all([BY_NAME["404"], BY_NAME["410"]], program(text), workers=2)
    assert {verdict.outcome for verdict in found} == {Outcome.FAIL}


def test_a_concurrent_program_is_started_once(program, tmp_path):
    text = (
        INTRODUCED
        + f"""
    open({str(tmp_path / "started")!r}, "a").write("x") if "seen" not in globals() else None
    seen = True
    print(json.dumps({{"id": json.loads(line)["id"], "end": "refused", "status": 404}}), flush=True)
"""
    )
    list(play_all(SCENARIOS[:20], program(text), workers=8))
    assert (tmp_path / "started").read_text() == "x"


def test_an_invalid_introduction_raises(program):
    with pytest.raises(AdapterError, match="is not an introduction: 'can' is a required property"):
        program('print(\'{"client": "a"}\', flush=True); input()')


def test_a_missing_program_raises():
    with pytest.raises(AdapterError, match="cannot start /no/such/client"):
        ProgramAdapter(["/no/such/client"])


def test_a_program_that_exits_before_its_introduction_raises(program):
    with pytest.raises(AdapterError, match="the program exited"):
        program("raise SystemExit(3)")
