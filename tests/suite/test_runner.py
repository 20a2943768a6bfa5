"""The runner of the suite: exit codes, reports, baselines, broken checks, and servers that do not answer."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from proof.servers.judge_server import CALLER, plan
from proof.servers.server_process import ALICE, SETTINGS, running_server
from tidewire_conformance import cli, parse_option_values, registry, session
from tidewire_conformance.checks import durable
from tidewire_conformance.cli import app
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome, SkipReason
from tidewire_conformance.registry import Check
from tidewire_conformance.report import json_report
from tidewire_conformance.runner import Plan, run
from tidewire_server import Server
from tidewire_server.script_endpoint import add_script

FEW = ["--only", "errors.unknown_resources_return_404", "--only", "framing.log_ends_with_exactly_one_done"]
HEADER = ["--header", f"Authorization: Bearer {ALICE}"]


@pytest.fixture(scope="module")
def url():
    with running_server() as url:
        yield url


@pytest.fixture(scope="module")
def faulty_url():
    with running_server("stream_without_done") as url:
        yield url


def conformance(*arguments, **environment):
    return CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"} | environment)


def check_of(body, name="own.check", **members):
    defaults = {
        "requirements": ("TW-DSC-001",),
        "about": "x",
        "needs": (),
        "serial": False,
        "whole_run": False,
    }
    return Check(name, run=body, **defaults | members)


def verdicts(url, *checks, **options):
    found = asyncio.run(run(Plan(url, plan(url).header, **options), checks))
    return found, grade(found)


@pytest.mark.heavy
@pytest.mark.parametrize(("server", "endpoint"), [("", "tidewire.script"), ("no_script_endpoint", "spell")])
def test_the_idle_stream_stays_open_until_a_check_must_run_alone(server, endpoint):
    seen = {}

    def note(name):
        async def body(session):
            session.expect("TW-DSC-001", True, "yes")
            idle = [each for each in session.wire.record if each.check == "idle_stream"]
            for _ in range(100 if name != "alone" else 0):
                if idle and idle[0].logged:
                    break
                await asyncio.sleep(0.02)
                idle = [each for each in session.wire.record if each.check == "idle_stream"]
            seen[name] = [each.path.split("/")[3] for each in idle if not each.ended and each.is_stream]

        return body

    checks = [
        check_of(note("together"), "own.together", idle_stream=True),
        check_of(note("serial"), "own.serial", serial=True),
        check_of(note("alone"), "own.alone", serial=True, alone=True),
    ]
    with running_server(server) as url:
        verdicts(url, *checks)
    assert endpoint in seen["together"]
    if not server:  # The longest example may have ended.
        assert endpoint in seen["serial"]
    assert seen["alone"] == []


@pytest.mark.heavy
def test_a_check_judges_only_the_profiles_for_which_the_server_is_graded(url):
    """TW-DSC-001 belongs to `stream`, TW-DSC-014 only to `core`."""

    async def fails_in_core(session):
        session.expect("TW-DSC-001", True, "yes")
        session.expect("TW-DSC-014", False, "yes")

    async def stops_in_core(session):
        session.expect("TW-DSC-014", False, "yes")

    both = [
        check_of(body, f"own.{body.__name__}", requirements=("TW-DSC-001", "TW-DSC-014"))
        for body in (fails_in_core, stops_in_core)
    ]
    found, report = verdicts(url, *both)
    assert [each.outcome for each in found.verdicts] == [Outcome.FAIL, Outcome.FAIL]
    assert (report.exit_code, report.headline) == (1, "stream · 1/1 MUST · 0/0 SHOULD")
    found, report = verdicts(url, *(each.narrowed(["stream"]) for each in both))
    assert [each.outcome for each in found.verdicts] == [Outcome.PASS, Outcome.SKIPPED]
    assert found.verdicts[1].why is SkipReason.BLOCKED, "its failure may have hidden another one"
    assert [each.requirement for verdict in found.verdicts for each in verdict.assertions] == ["TW-DSC-001"]
    found, report = verdicts(url, *(each.narrowed(["core"]) for each in both))
    assert {each.requirement.id for each in report.failures} == {"TW-DSC-014"}, "stream is a part of core"


def test_a_correct_server_exits_with_0(url):
    done = conformance(url, *FEW, *HEADER)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "MUST" in done.stdout.splitlines()[0]


def test_url_and_token_are_read_from_the_environment(url, tmp_path):
    done = conformance(*FEW, "--json", tmp_path / "r.json", TIDEWIRE_URL=url, TIDEWIRE_TOKEN=ALICE)
    assert done.exit_code == 0, done.stdout + done.stderr
    assert ALICE not in done.stdout + (tmp_path / "r.json").read_text()
    done = conformance(url, *FEW, TIDEWIRE_TOKEN="my secret")
    assert (done.exit_code, "TIDEWIRE_TOKEN" in done.stderr, "secret" in done.stderr) == (2, True, False)
    assert "TIDEWIRE_URL" in conformance(*FEW).stderr


def test_the_token_of_the_environment_is_only_sent_to_the_server_of_the_environment(monkeypatch):
    monkeypatch.setenv("TIDEWIRE_TOKEN", "another")
    monkeypatch.setenv("TIDEWIRE_URL", "http://a:80/path")
    assert parse_option_values.caller("http://a", []) == ["Authorization: Bearer another"]
    for url in ("https://a", "http://b", "http://a:81"):
        assert parse_option_values.caller(url, []) == []


def test_a_user_in_the_url_is_refused_and_the_token_of_the_environment_is_not_sent(url):
    done = conformance(url.replace("://", "://ada:pw@"), *FEW, TIDEWIRE_TOKEN=ALICE)
    assert (done.exit_code, "must not contain credentials" in done.stderr) == (2, True)


def test_a_header_takes_precedence_over_the_token_of_the_environment(monkeypatch):
    monkeypatch.setenv("TIDEWIRE_TOKEN", "another")
    assert parse_option_values.caller("http://a", ["authorization: Bearer a"]) == ["authorization: Bearer a"]
    assert parse_option_values.caller("http://a", ["X: 1"]) == ["X: 1", "Authorization: Bearer another"]


def test_a_faulty_server_exits_with_1_and_writes_reports(faulty_url, tmp_path):
    done = conformance(
        faulty_url,
        *FEW,
        *HEADER,
        "--json",
        tmp_path / "r.json",
        "--junit",
        tmp_path / "r.xml",
        "--page",
        tmp_path / "r.html",
        "--badge",
        tmp_path / "r.svg",
    )
    assert done.exit_code == 1
    assert "a server MUST write exactly one event `done` into the log of the job" in done.stdout
    assert "expected  exactly one done, as the last event" in done.stdout
    assert "curl -iN" in done.stdout
    assert "id:1-" in done.stdout
    found = json.loads((tmp_path / "r.json").read_text())
    schema = json.loads(Path(json_report.__file__).with_name("report.schema.json").read_text())
    Draft202012Validator(schema).validate(found)
    assert found["exit_code"] == 1
    assert "TW-FRM-051" in {each["id"] for each in found["sentences"] if each["outcome"] == "fail"}
    cases = ET.parse(tmp_path / "r.xml").getroot().iter("testcase")
    assert [case.get("name") for case in cases if case.find("failure") is not None] == [
        "log_ends_with_exactly_one_done"
    ]
    page = (tmp_path / "r.html").read_text()
    assert "TW-FRM-051" in page
    assert re.search(r"tidewire: part · \d+/\d+ · \d broken", (tmp_path / "r.svg").read_text())
    for message in (done.stdout, page, json.dumps(found), (tmp_path / "r.xml").read_text()):
        assert ALICE not in message, "credentials stay out of reports"


@pytest.mark.heavy
def test_a_baseline_excuses_known_failures_and_reports_stale_ones(url, faulty_url, tmp_path):
    baseline = tmp_path / "known.toml"
    known = ["TW-FRM-051", "TW-OVR-018", "TW-OVR-022"]
    baseline.write_text("".join(f'[[known]]\nsentence = "{name}"\nreason = "no end yet"\n' for name in known))
    done = conformance(faulty_url, *FEW, *HEADER, "--baseline", baseline)
    assert done.exit_code == 0, done.stdout
    assert "no end yet" in done.stdout
    done = conformance(url, *FEW, *HEADER, "--baseline", baseline)
    assert done.exit_code == 1
    assert "TW-FRM-051 passes, but the baseline lists it as failing" in done.stdout


def test_the_jobs_of_a_run_are_announced_before_they_start(url):
    done = conformance(url, "--only", "resume.malformed_cursor_returns_400", *HEADER)
    examples, checks, *_ = done.stderr.splitlines()
    assert examples.startswith("Running each example once, to observe its job: ")
    assert "pass --endpoint NAME" in examples
    assert re.match(r"Running 1 check. They start these jobs: about \d+ on ", checks)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["http://127.0.0.1:9", *FEW], 3),
        (["http://127.0.0.1:9", "--only", "no.such.check"], 4),
        (["ftp://x", *FEW], 2),
        (["http://127.0.0.1:99999", *FEW], 2),
        (["http://a:b@127.0.0.1:9", *FEW], 2),
        (["http://127.0.0.1:9/?a", *FEW], 2),
        (["http://127.0.0.1:9", "--header", "X: \n", "--header", "Y: né", *FEW], 2),
        (["http://127.0.0.1:9", "--profile", "gold"], 2),
        (["http://127.0.0.1:9", "--json", "/no/such/folder/r.json"], 2),
        (["http://127.0.0.1:9", "--skip", "*"], 4),
        (["http://127.0.0.1:9", "--header", "no colon", *FEW], 2),
        (["http://127.0.0.1:9", "--repeat", "0"], 2),
    ],
)
def test_invalid_arguments_have_their_exit_codes(arguments, code):
    done = conformance(*arguments)
    assert done.exit_code == code, done.stdout + done.stderr
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(
    "option", [["--endpoint", "sqare"], ["--endpoint", "talk", "--example", 'sqare={"n": 3}']]
)
def test_an_unknown_endpoint_is_wrong_usage(url, option):
    done = conformance(url, *FEW, *HEADER, *option)
    assert done.exit_code == 2
    assert re.search(r"the server has no endpoint sqare; it has .*square", done.stderr)


def test_checks_that_fail_to_load_exit_with_3(tmp_path):
    # A checks module that raises on import replaces the original module.
    (tmp_path / "broken.py").write_text(
        "import sys\n"
        "from tidewire_conformance.cli import main\n"
        "sys.modules['tidewire_conformance.checks.framing'] = None\n"
        "main()\n"
    )
    command = [sys.executable, str(tmp_path / "broken.py"), "http://127.0.0.1:9"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stderr
    assert "cannot load the checks of the area framing" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_of_another_kind_exits_with_3(tmp_path):
    (tmp_path / "v1").write_text('{"openapi": "3.1"}')
    server = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "0",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(tmp_path),
    ]
    with subprocess.Popen(server, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        port = process.stdout.readline().split("port ")[1].split()[0]
        done = conformance(f"http://127.0.0.1:{port}", *FEW)
        process.kill()
    assert done.exit_code == 3
    assert "tidewire/1" in done.stderr


def test_a_check_that_asserts_nothing_is_an_error(url):
    async def silent(session):
        await session.wire.request("GET", "/v1")

    found, report = verdicts(url, check_of(silent))
    assert found.verdicts[0].outcome is Outcome.ERROR
    assert report.exit_code == 3


def test_a_check_that_raises_does_not_affect_the_others(url):
    async def broken(session):
        raise KeyError("state")

    async def sound(session):
        session.expect("TW-DSC-001", True, "yes")

    found, report = verdicts(url, check_of(broken), check_of(sound, "own.sound"))
    assert [each.outcome for each in found.verdicts] == [Outcome.ERROR, Outcome.PASS]
    assert "KeyError" in found.verdicts[0].note
    assert report.exit_code == 3


def test_a_check_that_fails_on_a_broken_response_is_inconclusive(url):
    async def breaks_off(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"5\r\n:hi\n\n\r\n")
        writer.close()

    async def indexes_missing_event(session):
        async with await asyncio.start_server(breaks_off, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with session.wire.open("GET", f"http://127.0.0.1:{port}/v1/jobs/x/events") as stream:
                found = await stream.to_end()
        session.expect("TW-DSC-001", found.of_type("done")[0], "done")

    found, report = verdicts(url, check_of(indexes_missing_event))
    assert found.verdicts[0].outcome is Outcome.INCONCLUSIVE
    assert re.match(r"the response to GET .*/events broke off after 5 bytes: .*", found.verdicts[0].note)
    assert not report.errors


@pytest.mark.parametrize(
    ("server", "alone", "outcome"),
    [
        ("few_jobs_per_caller", False, Outcome.INCONCLUSIVE),
        ("few_jobs_per_caller", True, Outcome.FAIL),
        ("fewer_jobs_allowed_than_declared", False, Outcome.FAIL),
    ],
)
def test_a_check_is_not_failed_by_the_number_of_the_suites_jobs(server, alone, outcome):
    async def submits_too_many(session):
        sample = session.script_sample({"sleep_ms": 5000})
        for _ in range(7):
            answer = await session.post(sample, once=True)
        session.at(answer).status("TW-DSC-001", 201)

    with running_server(server) as url:
        found, _ = verdicts(url, check_of(submits_too_many, alone=alone, serial=alone))
    (verdict,) = found.verdicts
    assert verdict.outcome is outcome
    assert ("reached max_jobs_per_principal" in verdict.note) is (outcome is Outcome.INCONCLUSIVE)


@pytest.mark.parametrize("limit", [{"max_jobs_per_principal": 6}, {"max_streams_per_principal": 2}])
def test_fewer_checks_run_together_if_the_server_allows_few_jobs_or_streams(limit):
    running = []
    server = Server(**SETTINGS | limit)
    add_script(server)

    async def body(session):
        running.append(session)
        assert len(running) == 1, "each check may start several jobs"
        await asyncio.sleep(0.02)
        running.remove(session)
        session.expect("TW-DSC-001", True, "yes")

    with server.running() as url:
        checks = [check_of(body, f"own.check{n}", idle_stream=True) for n in range(3)]
        found = asyncio.run(run(Plan(url, CALLER), checks))
    assert [each.outcome for each in found.verdicts] == [Outcome.PASS] * 3
    has_idle_stream = any(each.check == "idle_stream" for each in found.record)
    assert has_idle_stream is ("max_streams_per_principal" not in limit), "a check needs both streams"


@pytest.mark.heavy
def test_a_job_may_take_longer_than_the_first_reads(url, monkeypatch):
    monkeypatch.setattr(session, "MAX_READS", 4)

    async def waits_for_the_end(s):
        job = await s.submit(s.script_sample({"sleep_ms": 600}))
        read = await s.read_until(job, lambda now: now.member("done"))
        s.at(read).equal("TW-DSC-001", read.member("status"), "succeeded")

    found, _ = verdicts(url, check_of(waits_for_the_end), patience=0.1)
    assert [(each.outcome, each.note) for each in found.verdicts] == [(Outcome.PASS, "")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_the_results_so_far(number, url):
    async def sound(session):
        session.expect("TW-DSC-001", True, "yes")

    async def interrupted(session):
        os.kill(os.getpid(), number)
        await session.wire.request("GET", "/v1")
        await asyncio.Event().wait()

    checks = [check_of(sound), check_of(interrupted, "own.late", requirements=("TW-DSC-005",), serial=True)]
    found = cli._run(Plan(url, plan(url).header), checks)
    report = grade(found)
    assert [each.outcome for each in found.verdicts] == [Outcome.PASS, Outcome.SKIPPED]
    assert found.verdicts[1].note == found.cut_short == "the run was interrupted"
    assert (report.exit_code, report.headline) == (3, "no profile · 1/2 MUST · 0/0 SHOULD")


def test_the_run_stops_when_the_server_stops_answering():
    """The server answers discovery and one further request, and then stops."""
    discovery = {
        "protocol": "tidewire/1",
        "server": "brief",
        "endpoints": [],
        "capabilities": [],
        "limits": {},
    }

    class DiscoveryHandler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = json.dumps(discovery).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    later_sessions = []

    async def last(session):
        server.shutdown()
        server.server_close()
        await session.wire.request("GET", "/v1/jobs")

    async def later(session):
        later_sessions.append(session)
        session.expect("TW-DSC-001", True, "yes")

    with ThreadingHTTPServer(("127.0.0.1", 0), DiscoveryHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        checks = [check_of(last), *(check_of(later, f"own.later{n}", serial=True) for n in range(3))]
        one = Plan(f"http://127.0.0.1:{server.server_port}", patience=0.1)
        found = asyncio.run(run(one, checks))
        thread.join()
    assert [each.outcome for each in found.verdicts] == [Outcome.INCONCLUSIVE, *[Outcome.SKIPPED] * 3]
    assert not later_sessions
    assert re.match(
        r"the server has stopped responding \(.*Refused.*GET .*/v1, sent by discovery", found.cut_short
    )
    report = grade(found)
    assert report.exit_code == 4, "nothing was judged"


def test_the_wait_for_a_restarted_server_is_limited(url, monkeypatch):
    """After the restart, the server accepts connections but answers none of them, so that each request takes its whole timeout."""
    monkeypatch.setattr(durable, "RESTART_SECONDS", 5)
    connections = []

    async def restarts(session):
        session.expect("TW-DSC-001", True, "yes")
        async with await asyncio.start_server(
            lambda *streams: connections.append(streams), "127.0.0.1", 0
        ) as silent:
            port = silent.sockets[0].getsockname()[1]
            own = replace(session, wire=session.wire.as_caller(base_url=f"http://127.0.0.1:{port}"))
            try:
                await durable._restart(own, "true")
            finally:
                for _, writer in connections:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()

    found, _ = verdicts(url, check_of(restarts), patience=0.1)
    (verdict,) = found.verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert "did not answer any request after the restart" in verdict.note
    assert len(connections) <= 2, "one request takes as long as the check may wait"


def test_a_gateway_that_responds_during_a_restart_is_not_judged(url):
    statuses = iter(["200 OK", *["502 Bad Gateway"] * 3])
    answered = []

    async def gateway(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        answered.append(next(statuses, "200 OK"))
        head = f"HTTP/1.1 {answered[-1]}\r\nContent-Type: text/html\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + b"{}")
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def restarts(session):
        session.expect("TW-DSC-001", True, "yes")
        async with await asyncio.start_server(gateway, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            own = replace(session, wire=session.wire.as_caller(base_url=f"http://127.0.0.1:{port}"))
            await durable._restart(own, "true")

    found, _ = verdicts(url, check_of(restarts))
    assert found.verdicts[0].outcome is Outcome.PASS
    assert answered[-2:] == ["502 Bad Gateway", "200 OK"]
    assert 502 not in {each.status for each in found.record}


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"200 OK\r\nContent-Type: text/html\r\n\r\n<!doctype html>", "the response is a web page"),
        (b"302 Found\r\nLocation: https://example.org/api\r\n\r\n", "the redirect to https://example.org/api"),
        (b'401 No\r\nContent-Type: application/json\r\n\r\n{"code": "unauthorized"}', "--header 'Authorization: "),
        (b"200 OK\r\nContent-Length: 99\r\n\r\n{}", "peer closed connection"),
        (b"200 OK\r\nX: " + b"a" * 300_000, "cannot reach"),
    ],
)  # fmt: skip
def test_responses_of_other_servers_are_described(answer, message):
    def serve():
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 " + answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        done = conformance(f"http://127.0.0.1:{listener.getsockname()[1]}", *FEW)
        thread.join()
    assert (done.exit_code, message in done.stderr) == (3, True), done.stderr


def test_undeclared_capabilities_do_not_count_and_untested_ones_do(url):
    async def untested(session):
        session.skip_untested("needs more")

    async def absent(session):
        session.skip_not_declared("has none")

    found, report = verdicts(
        url, check_of(untested), check_of(absent, "own.absent", requirements=("TW-DSC-014",))
    )
    assert [each.why for each in found.verdicts] == [SkipReason.UNTESTED, SkipReason.NOT_DECLARED]
    counted = {name: each.counts for name, each in report.results.items()}
    assert counted == {"TW-DSC-001": True, "TW-DSC-014": False}
    assert report.headline.startswith("no profile · 0/1 MUST")
    assert report.exit_code == 4, "nothing was judged"


def test_a_check_that_fails_in_some_repetitions_is_reported_with_the_count(url):
    seen = []

    async def alternating(session):
        seen.append(0)
        session.expect("TW-DSC-001", len(seen) % 3, "the same each time")

    found, _ = verdicts(url, check_of(alternating), repeat=4)
    assert found.verdicts[0].outcome is Outcome.FAIL
    assert found.verdicts[0].note == "1 of 4 times."


@pytest.mark.parametrize(
    "text",
    [
        '[[unknown]]\nsentence = "TW-FRM-051"\nreason = "x"',
        '[[known]]\nsentence = "TW-FRM-051"\nreason = "x"\nuntil = "2020-01-01"',
        '[[known]]\nsentence = "TW-NOT-001"\nreason = "x"',
        '[[known]]\nsentence = "TW-FRM-051"\nreason = " "',
        "known = 3",
    ],
)
def test_an_invalid_baseline_is_refused(tmp_path, text):
    (tmp_path / "known.toml").write_text(text)
    done = conformance("http://127.0.0.1:9", *FEW, "--baseline", tmp_path / "known.toml")
    assert done.exit_code == 2, done.stderr
    assert "known.toml" in done.stderr


def test_a_baseline_entry_that_was_not_judged_is_reported(url, tmp_path):
    (tmp_path / "known.toml").write_text('[[known]]\nsentence = "TW-RES-052"\nreason = "short of room"')
    done = conformance(url, *HEADER, "--only", "discovery.expires_at*", "--baseline", tmp_path / "known.toml")
    assert "This run did not judge TW-RES-052, which the baseline lists as failing" in done.stdout


def test_a_spent_budget_leaves_checks_untested(url):
    found, report = verdicts(url, *registry.checks()[:3], budget=0.0)
    assert {each.why for each in found.verdicts} == {SkipReason.UNTESTED}
    assert report.exit_code == 4


def test_list_shows_each_check_with_its_requirements():
    done = conformance("http://127.0.0.1:9", "--list", "--only", "resume")
    assert done.exit_code == 0
    assert "resume.malformed_cursor_returns_400  TW-RES-011 TW-RES-012" in " ".join(
        done.stdout.split("\n")
    ).replace("  ", "  ")
