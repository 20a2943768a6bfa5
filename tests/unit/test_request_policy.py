"""The request policy: the actions of the status table, limited by the attempts before."""

import random

import pytest

from tidewire.protocol.backoff import Backoff, RetryPolicy
from tidewire.protocol.request_policy import MAX_REDIRECTS, RequestPolicy
from tidewire.protocol.status_table import (
    MAX_SERVER_FAULTS,
    STATUS_TABLE,
    Action,
    RequestKind,
    action_for,
)


def policy(asked, *, is_get=True, **members):
    return RequestPolicy(asked, Backoff(RetryPolicy(jitter=0, **members), random.Random(1)), is_get=is_get)


@pytest.mark.parametrize("asked", RequestKind)
@pytest.mark.parametrize("status", [*STATUS_TABLE, 418, 500])
def test_the_first_response_gets_the_action_of_the_table(status, asked):
    assert policy(asked).action(status, has_cursor=True) is action_for(status, asked, has_cursor=True)


@pytest.mark.parametrize("asked", RequestKind)
def test_credentials_are_refreshed_once_for_each_request(asked):
    one = policy(asked)
    assert [one.action(401), one.action(403), one.action(401)] == [Action.REFRESH, Action.FATAL, Action.FATAL]
    one.begin()
    assert one.action(401) is Action.REFRESH


def test_redirects_are_followed_so_many_times_for_each_request():
    one = policy(RequestKind.STREAM)
    followed = [one.action(307) for _ in range(MAX_REDIRECTS + 1)]
    assert followed == [Action.REDIRECT] * MAX_REDIRECTS + [Action.FATAL]
    one.begin()
    assert one.action(307) is Action.REDIRECT


@pytest.mark.parametrize("asked", [RequestKind.SUBMIT, RequestKind.REQUEST])
def test_only_a_get_follows_redirects(asked):
    assert policy(asked, is_get=False).action(307) is Action.FATAL


def test_server_faults_of_a_stream_are_fatal_after_so_many_in_a_row():
    one = policy(RequestKind.STREAM)
    faults = [one.action(502) for _ in range(MAX_SERVER_FAULTS + 1)]
    assert faults == [Action.CUT] * MAX_SERVER_FAULTS + [Action.FATAL]
    one.begin()
    assert one.action(502) is Action.FATAL
    one.connected()
    assert one.action(502) is Action.CUT


def test_a_body_that_is_not_a_stream_counts_as_a_server_fault():
    one = policy(RequestKind.STREAM)
    faults = [one.action(200, usable=False) for _ in range(MAX_SERVER_FAULTS + 1)]
    assert faults == [Action.CUT] * MAX_SERVER_FAULTS + [Action.FATAL]
    assert one.action(200) is Action.USE


def test_server_faults_of_a_read_are_limited_by_its_attempts_alone():
    one = policy(RequestKind.REQUEST)
    assert [one.action(502) for _ in range(20)] == [Action.CUT] * 20


def test_the_waits_double_until_the_attempts_are_used_up():
    one = policy(RequestKind.SUBMIT, submit_attempts=4, initial=1.0)
    assert [one.wait() for _ in range(4)] == [1.0, 2.0, 4.0, None]
    assert one.failures == 3


def test_the_wait_at_first_contact_counts_as_an_attempt():
    one = policy(RequestKind.SUBMIT, submit_attempts=3, initial=1.0)
    assert [one.wait(exactly=0.1), one.wait(exactly=0.2), one.wait(exactly=0.4)] == [0.1, 0.2, None]


def test_a_wait_that_the_server_asks_for_is_honored_or_ends_the_attempts():
    one = policy(RequestKind.REQUEST, max_seconds=10.0)
    assert one.wait(at_least=7.0) == 7.0
    assert one.wait(at_least=7.0) is None
