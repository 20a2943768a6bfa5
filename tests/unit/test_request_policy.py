"""Request policy: the action for each status and fault, and the limits on repeated attempts."""

import random

import pytest

from tidewire.protocol.backoff import Backoff, RetryPolicy
from tidewire.protocol.request_policy import (
    FIRST_ATTEMPTS,
    FIRST_WAIT,
    MAX_REDIRECTS,
    RequestFault,
    RequestPolicy,
)
from tidewire.protocol.status_table import (
    MAX_SERVER_FAULTS,
    STATUS_TABLE,
    Action,
    RequestKind,
    action_for,
)


def policy(kind, *, is_get=True, **members):
    return RequestPolicy(kind, Backoff(RetryPolicy(jitter=0, **members), random.Random(1)), is_get=is_get)


@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize("status", [*STATUS_TABLE, 418, 500])
def test_first_response_gets_the_action_of_the_status_table(status, kind):
    assert policy(kind).action(status, has_cursor=True) is action_for(status, kind, has_cursor=True)


@pytest.mark.parametrize("kind", RequestKind)
def test_credentials_are_refreshed_once_per_request(kind):
    one = policy(kind)
    assert [one.action(401), one.action(403), one.action(401)] == [Action.REFRESH, Action.FATAL, Action.FATAL]
    one.begin()
    assert one.action(401) is Action.REFRESH


def test_number_of_redirects_per_request_is_limited():
    one = policy(RequestKind.STREAM)
    followed = [one.action(307) for _ in range(MAX_REDIRECTS + 1)]
    assert followed == [Action.REDIRECT] * MAX_REDIRECTS + [Action.FATAL]
    one.begin()
    assert one.action(307) is Action.REDIRECT


@pytest.mark.parametrize("kind", [RequestKind.SUBMIT, RequestKind.REQUEST])
def test_only_get_requests_follow_redirects(kind):
    assert policy(kind, is_get=False).action(307) is Action.FATAL


def test_consecutive_server_faults_of_a_stream_are_limited():
    one = policy(RequestKind.STREAM)
    faults = [one.action(502) for _ in range(MAX_SERVER_FAULTS + 1)]
    assert faults == [Action.CUT] * MAX_SERVER_FAULTS + [Action.FATAL]
    one.begin()
    assert one.action(502) is Action.FATAL
    one.connected()
    assert one.action(502) is Action.CUT


def test_body_that_is_not_a_stream_counts_as_a_server_fault():
    one = policy(RequestKind.STREAM)
    faults = [one.action(200, usable=False) for _ in range(MAX_SERVER_FAULTS + 1)]
    assert faults == [Action.CUT] * MAX_SERVER_FAULTS + [Action.FATAL]
    assert one.action(200) is Action.USE


def test_server_faults_of_a_job_read_are_limited_only_by_its_attempts():
    one = policy(RequestKind.REQUEST)
    assert [one.action(502) for _ in range(20)] == [Action.CUT] * 20


def test_waits_double_until_the_attempts_are_used_up():
    one = policy(RequestKind.SUBMIT, submit_attempts=4, initial=1.0)
    assert [one.wait() for _ in range(4)] == [1.0, 2.0, 4.0, None]


def test_wait_before_first_contact_counts_as_an_attempt():
    one = policy(RequestKind.SUBMIT, submit_attempts=2, initial=1.0)
    one.fault(RequestFault.NO_CONNECTION, contacted=False)
    assert one.wait() == FIRST_WAIT
    assert one.wait() is None


def test_retry_after_is_honored_or_exhausts_the_attempts():
    one = policy(RequestKind.REQUEST, max_seconds=10.0)
    assert one.wait(at_least=7.0) == 7.0
    assert one.wait(at_least=7.0) is None


# ---- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(RequestFault))
def test_fault_after_first_contact_is_retried(fault):
    assert policy(RequestKind.SUBMIT).fault(fault, contacted=True) is Action.CUT


@pytest.mark.parametrize("fault", [RequestFault.TIMEOUT, RequestFault.NOT_TIDEWIRE])
def test_timeout_or_foreign_response_at_first_contact_is_fatal(fault):
    assert policy(RequestKind.REQUEST).fault(fault, contacted=False) is Action.FATAL


def test_unreachable_server_is_tried_three_times_with_doubled_waits():
    one, waits = policy(RequestKind.REQUEST), []
    while one.fault(RequestFault.NO_CONNECTION, contacted=False) is Action.CUT:
        waits.append(one.wait())
    assert waits == [FIRST_WAIT * 2**n for n in range(FIRST_ATTEMPTS - 1)]


def test_waits_follow_the_retry_policy_after_first_contact():
    one = policy(RequestKind.REQUEST, initial=8.0, maximum=8.0)
    one.fault(RequestFault.NO_CONNECTION, contacted=False)
    assert one.wait() == FIRST_WAIT
    one.action(503)
    assert one.wait() == 8.0
