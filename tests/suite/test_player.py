"""The player itself: what its server does to a connection, how it judges, and what it makes of programs that misbehave."""

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
from tidewire_conformance.clients.player import (
    AdapterError,
    Outcome,
    ProgramAdapter,
    ScenarioError,
    describe,
    load,
    load_all,
    play,
    play_all,
)
from tidewire_conformance.clients.player.conversation import ClientRun, Conversation
from tidewire_conformance.clients.player.failure_transcript import transcript
from tidewire_conformance.clients.player.reported_values_and_texts import ClientOutput, same
from tidewire_conformance.clients.player.scenario import JOB, Scenario
from tidewire_conformance.clients.player.scenario_server import ScenarioServer

SCENARIOS = load_all()
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
GET = f"GET /v1/jobs/{JOB}/events HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n".encode()


def scripted(*exchanges, **members):
    """A scenario whose streams are these."""
    return Scenario(
        "made-up", "…", ("TW-CLI-009",), {"end": ["succeeded"]}, scripts={"streams": exchanges}, **members
    )


@contextlib.contextmanager
def asked(scenario):
    """The server of a scenario, and a connection on which the stream has been asked for."""
    with ScenarioServer(scenario, patience=5) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(GET)
            yield server, connection


def read_to_the_end(connection):
    return b"".join(iter(lambda: connection.recv(65536), b""))


# ---- what its server does to a connection ----------------------------------------------------------------------


def test_a_body_can_end_inside_a_character_without_the_end_of_its_chunks():
    exchange = {"events": [{"id": "1-4", "data": "é"}], "cut_after": 14, "then": "close"}
    with asked(scripted(exchange)) as (_, connection):
        body = read_to_the_end(connection).partition(b"\r\n\r\n")[2]
    assert body == b'e\r\nid:1-4\ndata:"\xc3\r\n'


def test_a_body_that_ends_in_good_order_ends_with_the_last_chunk():
    with asked(scripted({"events": [{"bytes": "a"}]})) as (_, connection):
        assert read_to_the_end(connection).endswith(b"\r\n\r\n1\r\na\r\n0\r\n\r\n")


def test_cut_after_counts_from_the_end_where_it_is_negative():
    with asked(
        scripted({"events": [{"bytes": "abc"}, {"bytes": "de"}], "cut_after": -3, "framing": "close"})
    ) as (
        _,
        connection,
    ):
        assert read_to_the_end(connection).endswith(b"\r\n\r\nab")


def test_a_connection_can_be_reset():
    with asked(scripted({"status": None, "then": "reset"})) as (_, connection):
        with pytest.raises(ConnectionResetError):
            connection.recv(1)


def test_a_connection_can_be_closed_without_an_answer():
    with asked(scripted({"status": None})) as (_, connection):
        assert connection.recv(1) == b""


def test_a_stalled_connection_stays_open_until_the_client_closes_it():
    with asked(scripted({"events": [{"bytes": "a"}], "then": "stall"})) as (server, connection):
        received = b""
        while not received.endswith(b"1\r\na\r\n"):
            received += connection.recv(4096)
        assert select.select([connection], [], [], 0.1)[0] == []
        (request,) = server.conversation.requests
        assert request.closed is None
        connection.close()
        assert server.wait(lambda: request.closed is not None, 5)


def test_a_server_holds_still_until_a_value_was_handed_over_and_notes_what_it_waits_for_in_vain():
    steps = [{"until_saw": "Hel"}, {"bytes": "a"}]
    with ScenarioServer(scripted({"events": steps}), patience=0.1) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(GET)
            assert read_to_the_end(connection).endswith(b"\r\n\r\n")
        (request,) = server.conversation.requests
    assert request.waited_for == 'the client delivers "Hel"'
    assert request.closed is None


def test_line_ends_are_those_that_the_scenario_names():
    exchange = {"events": [{"id": "1-4", "data": "a\n"}], "line_end": "crlf", "framing": "close"}
    with asked(scripted(exchange)) as (_, connection):
        assert read_to_the_end(connection).endswith(b'\r\n\r\nid:1-4\r\ndata:"a\\n"\r\n\r\n')


# ---- how it judges ---------------------------------------------------------------------------------------------


class Pretender:
    """Reports what it is told to report, and asks nothing."""

    name = "pretender"
    traits = frozenset(TRAITS)

    def __init__(self, report):
        self.report = report

    def run(self, command, tell, seconds):
        tell({"id": command["id"], **self.report(command)})


def test_a_client_that_always_says_succeeded_passes_nothing():
    outcomes = {
        verdict.outcome for verdict in play_all(SCENARIOS, Pretender(lambda command: {"end": "succeeded"}))
    }
    assert outcomes <= {Outcome.FAIL, Outcome.WARN, Outcome.ERROR}


def test_a_client_that_says_what_is_expected_and_asks_nothing_passes_nothing():
    def adapter(scenario):
        expect = scenario.expect
        end = {"end": expect["end"][0], "checkpoint": 1, "incomplete": expect.get("incomplete", False)}
        if "value" in expect:
            end["value"] = expect["value"]
        problem = {"code": expect.get("code"), "status": expect.get("status"), **expect.get("problem", {})}
        return Pretender(lambda _: {**end, "problem": problem, "items": expect.get("items", [])})

    with ThreadPoolExecutor(16) as pool:
        verdicts = pool.map(lambda one: play(one, adapter(one)), SCENARIOS)
    assert [verdict.scenario.name for verdict in verdicts if verdict.outcome is Outcome.PASS] == []


def test_a_failure_tells_the_sentence_what_was_expected_what_came_and_the_bytes_with_their_times():
    class WithoutACursor(PlainClient):
        def cursor_to_send(self):
            return None

    verdict = play(BY_NAME["closed-inside-an-event"], PlainAdapter(WithoutACursor))
    text = describe(verdict)
    assert verdict.outcome is Outcome.FAIL
    assert "If a response ends, or a connection breaks" in text
    assert "[TW-CLI-009]" in text
    assert re.search(r"expected +event stream 2: 1-3\n +got +no cursor", text)
    # Reports of the client may come in between.
    first_stream = "\n".join(line for line in text.splitlines() if re.match(r" +\d+\.\d +1 ", line))
    assert re.search(
        r'\n +\d+\.\d +1 < id:1-4\\ndata:"l\n +\d+\.\d +1 < \(closed by the server before the end of the body\)$',
        first_stream,
    )
    assert re.search(r"\n +\d+\.\d +2 > GET /v1/jobs/", text)
    assert re.search(r"\n +\d+\.\d +\* .*'saw': 'value'", text)


@pytest.mark.parametrize(
    ("exchange", "told"),
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
def test_the_record_of_a_connection_tells_how_the_server_ended_it(exchange, told):
    with asked(scripted(exchange)) as (server, _):
        (request,) = (
            server.conversation.requests if server.wait(lambda: bool(server.conversation.requests), 5) else ()
        )
        until(lambda: request.ending is not None)
    assert [line for line in transcript(server.conversation) if line.endswith(f" 1 < {told}")]


def test_of_many_reports_of_a_client_the_first_and_the_last_are_shown():
    run = ClientRun({}, [(float(number), {"saw": "value", "value": number}) for number in range(100)])
    told = "\n".join(transcript(Conversation(runs=[run])))
    assert "'value': 11}" in told
    assert "'value': 88}" in told
    assert "'value': 12}" not in told
    assert "* … 76 reports …" in told


def until(condition):
    """Wait for a condition that a thread of the server brings about."""
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_what_a_client_tells_can_be_written_whatever_it_is():
    lone = "LIE" + chr(0xD83D)
    told = [{"saw": "value", "value": lone}, {"end": "succeeded", "value": lone, "detail": lone}]

    class Careless(Pretender):
        def run(self, command, tell, seconds):
            for report in told:
                tell({"id": command["id"], **report})

    verdict = play(BY_NAME["lone-surrogate"], Careless(None), patience=0.1)
    assert "never" in {finding.kind for finding in verdict.findings}
    assert r"LIE\ud83d" in describe(verdict).encode().decode()


def test_a_client_that_cannot_do_what_a_scenario_needs_is_skipped_and_not_passed():
    adapter = PlainAdapter()
    adapter.traits = frozenset()
    verdict = play(BY_NAME["submit"], adapter)
    assert verdict.outcome is Outcome.SKIPPED
    assert "submit" in verdict.note


def test_a_broken_sentence_with_should_is_a_warning():
    class WithoutDates(PlainClient):
        def retry_after(self, answer):
            if "," in answer.headers.get("Retry-After", ""):
                self.refuse(answer)
            return super().retry_after(answer)

    assert play(BY_NAME["retry-after-as-a-date"], PlainAdapter(WithoutDates)).outcome is Outcome.WARN


def test_a_request_that_comes_before_the_answer_has_ended_has_not_waited_and_breaks_no_upper_bound():
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


def test_a_report_that_is_no_report_is_an_error_and_no_failure():
    verdict = play(BY_NAME["404"], Pretender(lambda command: {"end": "well enough"}))
    assert verdict.outcome is Outcome.ERROR


def test_text_is_put_together_from_deltas_or_else_from_values():
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


def test_a_file_that_is_not_what_its_schema_demands_is_refused(tmp_path):
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
    with pytest.raises(ScenarioError, match="unknown part 'nothing'"):
        load(file)


# ---- programs --------------------------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path):
    """Makes an adapter for a program in Python."""
    with contextlib.ExitStack() as stack:

        def make(text):
            file = tmp_path / "client.py"
            file.write_text(textwrap.dedent(text), encoding="utf-8")
            return stack.enter_context(ProgramAdapter([sys.executable, str(file)]))

        yield make


def test_a_program_meets_scenarios_over_lines_of_json():
    names = ["closed-inside-an-event", "batch", "user-goes-on-later", "410", "goaway"]
    with ProgramAdapter([sys.executable, plain_client.__file__]) as adapter:
        assert adapter.name == "plain client"
        verdicts = list(play_all([BY_NAME[name] for name in names], adapter, workers=2))
    assert [describe(verdict) for verdict in verdicts if verdict.outcome is not Outcome.PASS] == []


INTRODUCTION = 'import sys, time\nprint(\'{"client": "bad", "can": []}\', flush=True)\nsys.stdin.readline()\n'


@pytest.mark.parametrize(
    ("then", "note"),
    [
        ("print('hello', flush=True)", "a line is not JSON"),
        ("print('[1]', flush=True)", "a line is not a JSON object"),
        ("print('{}', flush=True)", "is not a report"),
        ('print(\'{"id": "c0", "end": "succeeded"}\', flush=True)', "a report for 'c0'"),
        ('print(\'{"id": "c0"\' * 9, flush=True)', "a line is not JSON"),
    ],
)
def test_a_program_that_reports_what_is_no_report_is_an_error(program, then, note):
    verdict = play(BY_NAME["404"], program(INTRODUCTION + then))
    assert verdict.outcome is Outcome.ERROR
    assert note in verdict.note


def test_a_program_that_ends_on_the_way_has_failed_with_its_last_words(program):
    verdict = play(BY_NAME["404"], program(INTRODUCTION + "sys.exit('out of order')"))
    assert verdict.outcome is Outcome.FAIL
    (finding,) = [finding for finding in verdict.findings if finding.kind == "died"]
    assert finding.got == "the program exited with 1; standard error: out of order"


def test_a_program_that_hangs_is_stopped_and_has_failed(program):
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


def test_a_program_that_reports_without_end_is_stopped_at_the_bound(program, monkeypatch):
    monkeypatch.setattr("tidewire_conformance.clients.player.client_adapter.MAX_REPORTS", 50)
    verdict = play(BY_NAME["404"], program(INTRODUCED + textwrap.indent(FLOOD, "    ")))
    assert verdict.outcome is Outcome.ERROR
    assert "more than 50 reports" in verdict.note


def test_a_program_that_reports_without_end_is_out_of_time_like_one_that_reports_nothing(program):
    verdict = play(BY_NAME["404"], program(INTRODUCED + textwrap.indent(FLOOD, "    ")), patience=0.02)
    assert "hung" in {finding.kind for finding in verdict.findings}


def test_a_line_without_end_is_read_no_further_than_the_bound(program, monkeypatch):
    monkeypatch.setattr("tidewire_conformance.clients.player.client_adapter.MAX_LINE", 10_000)
    verdict = play(BY_NAME["404"], program(INTRODUCED + "    while True: sys.stdout.write('x' * 4096)\n"))
    assert verdict.outcome is Outcome.ERROR
    assert "a line is not JSON" in verdict.note


def test_commands_of_one_program_that_dies_are_played_again_by_themselves(program):
    """Of three at once one ends the program: the other two are not blamed for it."""
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
    adapter._traits = frozenset(TRAITS)
    names = ["404", "discovery", "410"]
    found = {v.scenario.name: v for v in play_all([BY_NAME[name] for name in names], adapter, workers=3)}
    died = {name for name, v in found.items() if "died" in {finding.kind for finding in v.findings}}
    assert died == {"discovery"}


def test_a_program_that_reports_of_what_it_was_never_asked_for_is_an_error_for_all_that_it_is_at(program):
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
    assert all("'c0', which is not the id of any command" in verdict.note for verdict in found)


def test_a_program_that_mixes_up_what_it_is_at_passes_neither(program):
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


def test_a_program_that_does_several_things_at_once_is_started_once(program, tmp_path):
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


def test_what_is_no_introduction_is_told(program):
    with pytest.raises(AdapterError, match="is not an introduction: 'can' is a required property"):
        program('print(\'{"client": "a"}\', flush=True); input()')


def test_a_program_that_does_not_exist_is_told():
    with pytest.raises(AdapterError, match="cannot start /no/such/client"):
        ProgramAdapter(["/no/such/client"])


def test_a_program_that_ends_before_it_introduces_itself_is_told(program):
    with pytest.raises(AdapterError, match="the program exited"):
        program("raise SystemExit(3)")
