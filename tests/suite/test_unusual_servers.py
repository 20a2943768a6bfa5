"""Servers that use a freedom of the specification pass the suite, and a fault that they hide is reported with its cause."""

import asyncio
import json

import pytest

from proof.servers.fault_helpers import drop_header, refuse, rewrite_body
from proof.servers.fault_proxy import FaultProxy
from proof.servers.faults.framing import event_held_until_the_next
from proof.servers.judge_server import CALLER
from proof.servers.server_process import SETTINGS
from support.mutated_server import running
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.judging.verdict import Outcome
from tidewire_conformance.runner import Plan, run
from tidewire_server import Server, Stream
from tidewire_server.http.application import TidewireApp

pytestmark = pytest.mark.heavy


def judged(hooks, *names, caller=CALLER):
    """Grade a server with hooks by the checks with these names."""
    checks = [check for check in registry.checks() if check.is_named_by(names)]
    with running(hooks) as url:
        return grade(asyncio.run(run(Plan(url, caller), checks)))


def requirements(report):
    return {each.requirement.id for each in report.failures}


def test_a_server_may_trim_the_log_between_two_cancel_requests():
    """The second request for the whole log of a job gets a snapshot at the head."""
    seen = set()

    def trim(exchange):
        if exchange.cursor == "0-0" and exchange.path in seen:
            exchange.set_header("last-event-id", None)
        elif exchange.cursor == "0-0":
            seen.add(exchange.path)

    report = judged(FaultProxy(requests=[trim]), "cancels.cancel_ends_the_job")
    assert requirements(report) == set()


def test_a_server_may_read_an_empty_accept_header_in_either_way():
    def is_empty(exchange):
        return exchange.is_submit and (b"accept", b"") in exchange.scope["headers"]

    hooks = FaultProxy(instead=[refuse(is_empty, 406, "not_acceptable")])
    assert requirements(judged(hooks, "refused_submits.accept_header_selects_json_or_stream")) == set()


def test_an_early_expiry_is_reported_although_the_server_does_not_say_when_the_job_ended():
    hooks = FaultProxy(
        bodies=[
            rewrite_body(rb'"(started|ended)_at":"[^"]*",', b""),
            rewrite_body(rb'("expires_at":")\d{4}', rb"\g<1>2001"),
        ]
    )
    report = judged(
        hooks, "discovery.expires_at_respects_state_ttl_s", "cancels.cancel_of_ended_job_has_no_effect"
    )
    assert requirements(report) == {"TW-RES-052"}


def test_a_missing_location_is_reported_as_missing():
    hooks = FaultProxy(heads=[drop_header("location", [201])])
    report = judged(hooks, "jobs.submit_returns_the_job")
    assert requirements(report) == {"TW-JOB-018"}
    (finding, *_) = [each for _, each in report.results["TW-JOB-018"].broken]
    assert finding.got == "no Location"


def test_streams_of_jobs_without_a_location_are_not_mixed_up():
    hooks = FaultProxy(heads=[drop_header("location")])
    report = judged(hooks, "jobs.submit*", "framing.streams*", "parameters", "TW-RES-007", "TW-DIF-035")
    assert requirements(report) == {"TW-JOB-018", "TW-JOB-019"}


def test_a_stream_without_an_end_is_not_reported_as_an_effect_of_a_request():
    """The stream ends without `done` in each check, so no check sees how the job ends."""

    def cut(exchange, frame):
        return b"" if b"event:done" in frame and exchange.method == "GET" else frame

    names = (
        "cancels.cancel_with_empty*",
        "bodies.invalid_cancel*",
        "resume.disconnect*",
        "jobs.stream_continues*",
    )
    report = judged(FaultProxy(frames=[cut]), *names)
    assert requirements(report) == set()
    assert {each.outcome for each in report.run.verdicts} == {Outcome.INCONCLUSIVE}


def end_as_succeeded(exchange, status, body):
    """Let each job that was cancelled end as succeeded, and a request to cancel return the ended job."""
    if exchange.path.endswith("/cancel"):
        job = json.loads(body)
        job["done"] = {
            "status": "succeeded",
            "usage": {},
            "check": [],
            "digest": "0" * 16,
            "expires_at": "2030-01-01T00:00:00Z",
        }
        status, body = 200, json.dumps(job).encode()
    return status, body.replace(b'"cancelled"', b'"succeeded"')


SUCCEEDED = {
    "bodies": [end_as_succeeded],
    "frames": [lambda exchange, frame: frame.replace(b'"cancelled"', b'"succeeded"')],
}


def test_a_cancelled_script_that_ends_as_succeeded_fails():
    report = judged(FaultProxy(**SUCCEEDED), "cancels.cancel_ends_the_job")
    assert "TW-JOB-050" in requirements(report)


def judged_without_script(hooks, name, monkeypatch):
    """Judge a server with hooks, whose only endpoint has an example of 0.8 seconds, by one check."""
    server = Server(**SETTINGS)

    @server.endpoint(examples=[{"words": 8}])
    async def talk(words: int, stream: Stream[str]) -> None:
        for _ in range(words):
            stream.append("word ")
            await asyncio.sleep(0.1)

    call = TidewireApp.__call__

    async def changed(app, scope, receive, send):
        await hooks.wrap(lambda *arguments: call(app, *arguments))(scope, receive, send)

    monkeypatch.setattr(TidewireApp, "__call__", changed)
    checks = [check for check in registry.checks() if check.name == name]
    with server.running() as url:
        return grade(asyncio.run(run(Plan(url, CALLER), checks)))


@pytest.mark.parametrize("hold", [None, event_held_until_the_next])
def test_an_event_that_waits_for_the_next_one_is_found_in_the_job_of_an_example(hold, monkeypatch):
    hooks = FaultProxy(frames=[hold] if hold else [])
    report = judged_without_script(hooks, "framing.events_are_sent_without_delay", monkeypatch)
    assert requirements(report) == ({"TW-FRM-006"} if hold else set())
    assert report.run.verdicts[0].outcome is (Outcome.FAIL if hold else Outcome.PASS)


def test_a_cancelled_example_that_ends_as_succeeded_is_explained(monkeypatch):
    """The suite does not know how long the job of an example runs."""
    report = judged_without_script(FaultProxy(**SUCCEEDED), "cancels.cancel_ends_the_job", monkeypatch)
    (verdict,) = report.run.verdicts
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert (
        "as succeeded after the request; unless the job ended by itself in between, the server must end it as cancelled"
        in verdict.note
    )


@pytest.mark.parametrize("write", [str.lower, str.upper])
def test_the_names_of_header_options_are_compared_without_regard_to_case(write):
    caller = [(write(name), value) for name, value in CALLER]
    report = judged(FaultProxy(), "browser", "ownership", caller=caller)
    assert requirements(report) == set()
    tried = {each.check for each in report.run.verdicts if each.outcome is Outcome.PASS}
    assert "ownership.credentials_in_the_url_are_not_accepted" in tried


def test_a_token_may_have_one_character():
    def translate(exchange):
        if exchange.header("authorization") == "Bearer a":
            exchange.set_header("authorization", CALLER[0][1])

    hooks = FaultProxy(requests=[translate])
    report = judged(hooks, "ownership.invalid_credentials_return_401", caller=[("Authorization", "Bearer a")])
    assert [each.outcome for each in report.run.verdicts] == [Outcome.PASS]
