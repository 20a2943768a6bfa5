"""Servers that use a freedom of the specification pass the suite, and a fault that they hide is reported with its cause."""

import asyncio

import pytest

from proof.servers.fault_helpers import refuse, rewrite_body
from proof.servers.fault_proxy import FaultProxy
from proof.servers.judge_server import CALLER
from support.mutated_server import running
from tidewire_conformance import registry
from tidewire_conformance.judging.grade import grade
from tidewire_conformance.runner import Plan, run

pytestmark = pytest.mark.heavy


def judged(hooks, *names):
    """Grade a server with hooks by the checks with these names."""
    checks = [check for check in registry.checks() if check.name in names]
    with running(hooks) as url:
        return grade(asyncio.run(run(Plan(url, CALLER), checks)))


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
