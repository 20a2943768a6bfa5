"""Request policy: the action for each status and fault, the wait after each interruption, and the limits."""

import random
from itertools import product

import pytest

from support.tables import for_each_case
from tidewire.following.http_status_actions import STATUS_TABLE, Action, RequestKind, action_for
from tidewire.following.request_policy import (
    FAULT_TABLE,
    FIRST_ATTEMPTS,
    FIRST_WAIT,
    MAX_REDIRECTS,
    MIN_REQUESTED_WAIT,
    GiveUp,
    Interruption,
    RequestFault,
    RequestPolicy,
)
from tidewire.following.retry_policy import RetryPolicy


class Clock:
    """A clock that stands still unless a test moves it."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def policy(clock=None, **limits):
    return RequestPolicy(RetryPolicy(**{"jitter": 0} | limits), clock=clock or Clock(), rng=random.Random(1))


def drawn(seed=7, **limits):
    return RequestPolicy(RetryPolicy(**limits), clock=Clock(), rng=random.Random(seed))


# ---- actions -----------------------------------------------------------------------------------------------------


@for_each_case(product([*STATUS_TABLE, 418, 500], RequestKind))
def test_first_response_gets_the_action_of_the_status_table(status, kind):
    assert policy().action(status, kind, has_cursor=True) is action_for(status, kind, has_cursor=True)


@pytest.mark.parametrize("kind", RequestKind)
def test_credentials_are_refreshed_once_per_request(kind):
    one = policy()
    assert [one.action(status, kind) for status in (401, 403, 401)] == [
        Action.REFRESH,
        Action.FATAL,
        Action.FATAL,
    ]
    one.begin()
    assert one.action(401, kind) is Action.REFRESH


def test_number_of_redirects_per_request_is_limited():
    one = policy()
    followed = [one.action(307, RequestKind.STREAM) for _ in range(MAX_REDIRECTS + 1)]
    assert followed == [Action.REDIRECT] * MAX_REDIRECTS + [Action.FATAL]
    one.begin()
    assert one.action(307, RequestKind.STREAM) is Action.REDIRECT


@pytest.mark.parametrize("kind", [RequestKind.SUBMIT, RequestKind.REQUEST])
def test_only_get_requests_follow_redirects(kind):
    assert policy().action(307, kind, is_get=False) is Action.FATAL


@pytest.mark.parametrize("kind", RequestKind)
@pytest.mark.parametrize("status", [500, 502, 504])
def test_gateway_errors_are_retried_however_often_they_occur(status, kind):
    one = policy()
    assert {one.action(status, kind) for _ in range(100)} == {Action.CUT}


def test_body_that_is_not_a_stream_is_retried_however_often_it_occurs():
    one = policy()
    found = {one.action(200, RequestKind.STREAM, usable=False) for _ in range(100)}
    assert found == {Action.CUT}
    assert one.action(200, RequestKind.STREAM) is Action.USE


# ---- waits -------------------------------------------------------------------------------------------------------


def test_waits_double_from_one_second_up_to_max_delay():
    one = policy(max_delay=30)
    assert [one.retry() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_min_delay_and_max_delay_bound_the_delay_of_the_server():
    one = policy(min_delay=0.5, max_delay=2)
    one.delay = 0.0
    assert [one.retry() for _ in range(4)] == [0.5, 1, 2, 2]
    one = policy(min_delay=0.5, max_delay=2)
    one.delay = 60.0
    assert one.retry() == 2


def test_delay_of_zero_neither_spins_nor_ends_the_retries():
    one = policy()
    one.delay = 0.0
    waits = [one.retry() for _ in range(20)]
    assert waits[:3] == [0.001, 0.002, 0.004]
    assert waits[-1] == 30


def test_only_progress_resets_the_failures():
    one = policy()
    one.retry()
    one.begin()
    one.live()
    assert one.retry() == 2
    one.progress()
    assert one.retry() == 1


def test_jitter_spreads_waits_around_the_nominal_wait():
    waits = []
    one = drawn(max_delay=1, patience=1e9)
    waits = [one.retry() for _ in range(500)]
    assert min(waits) >= 0.5
    assert max(waits) <= 1.5
    assert max(waits) - min(waits) > 0.9


@pytest.mark.parametrize("interruption", [Interruption.BUSY, Interruption.GOAWAY, Interruption.EARLY_GOAWAY])
def test_wait_is_never_shorter_than_the_server_requested(interruption):
    one = drawn(max_delay=0.001, patience=1e9)
    assert all(5 <= one.retry(interruption, asked=5) <= 7.5 for _ in range(100))


@pytest.mark.parametrize("interruption", [Interruption.GOAWAY, Interruption.EARLY_GOAWAY])
def test_a_short_reconnect_delay_is_raised_to_the_minimum(interruption):
    assert drawn().retry(interruption, asked=0) >= MIN_REQUESTED_WAIT


def test_many_failures_do_not_overflow():
    one = policy()
    one.failures = 10_000
    assert one.retry() == 30


@pytest.mark.parametrize(
    ("interruption", "least", "widest"),
    [(Interruption.FAILURE, 0.5, 1.0), (Interruption.GOAWAY, 1.0, 0.5)],
)
def test_reconnects_of_a_thousand_clients_are_spread_out(interruption, least, widest):
    clients = [drawn(seed) for seed in range(1000)]
    first = sorted(one.retry(interruption, asked=1) for one in clients)
    assert least <= first[0]
    assert first[-1] <= least + widest
    # The waits are spread evenly: each tenth of the range holds about a tenth of the clients.
    tenths = [sum(1 for wait in first if at <= (wait - least) / widest * 10 < at + 1) for at in range(10)]
    assert max(tenths) < 150
    # While the server stays down, retries spread further: the fifth attempts cover more than twelve seconds.
    fifth = [sum(one.retry() for _ in range(4)) for one in clients]
    assert max(fifth) - min(fifth) > 12


def test_reads_in_place_of_a_stream_slow_down_until_the_state_changes():
    one = policy(max_delay=5)
    assert [one.after_read(changed=False) for _ in range(4)] == [2, 4, 5, 5]
    assert one.after_read(changed=True) == 1


def test_a_read_in_place_of_a_stream_restores_patience_and_attempts():
    one = policy(patience=2, attempts=2)
    one.retry()
    one.after_read(changed=False)
    assert one.retry() == 1


# ---- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interruption", "counts"),
    [
        (Interruption.FAILURE, True),
        (Interruption.BUSY, False),
        (Interruption.GOAWAY, False),
        (Interruption.EARLY_GOAWAY, True),
    ],
)
def test_only_failures_count_toward_the_attempts(interruption, counts):
    one = policy(attempts=2)
    assert isinstance(one.retry(interruption, asked=1), float)
    assert isinstance(one.retry(interruption, asked=1), GiveUp) is counts


def test_a_requested_wait_after_the_end_of_the_patience_is_named_with_what_is_left():
    one = policy(patience=14)
    assert [one.retry(Interruption.BUSY, asked=7) for _ in range(2)] == [7, 7]
    found = one.retry(Interruption.BUSY, asked=7)
    assert found == GiveUp("the server asked to wait 7 s, but 0 s are left of patience=14 s")


def test_a_busy_response_without_a_time_is_a_failure():
    one = policy(attempts=3)
    assert [one.retry(Interruption.BUSY) for _ in range(2)] == [1, 2]
    assert one.retry(Interruption.BUSY) == GiveUp("3 failures in a row without progress, and attempts=3")


def test_a_requested_wait_of_zero_is_no_failure_and_the_patience_ends_it():
    one = policy(attempts=1, patience=1)
    waits = []
    while isinstance(wait := one.retry(Interruption.BUSY, asked=0), float):
        waits.append(wait)
    assert waits[:-1] == [MIN_REQUESTED_WAIT] * (len(waits) - 1)
    assert sum(waits) == pytest.approx(1)
    assert one.failures == 0
    assert wait == GiveUp("no progress, and patience=1 s")


def test_the_client_gives_up_when_its_patience_is_used_up():
    one = policy(patience=300)
    waits = []
    while isinstance(wait := one.retry(), float):
        waits.append(wait)
    assert sum(waits) == 300
    assert len(waits) == 14
    assert wait == GiveUp("15 failures in a row without progress, and patience=300 s")


def test_requested_waits_use_up_the_patience():
    one = policy(patience=10)
    assert one.retry(Interruption.BUSY, asked=7) == 7
    assert one.retry(Interruption.GOAWAY, asked=3) == 3
    assert isinstance(one.retry(), GiveUp)


def test_a_requested_wait_beyond_the_patience_ends_at_once_and_names_both_numbers():
    one = policy(patience=10)
    assert one.retry(Interruption.BUSY, asked=4) == 4
    assert one.retry(Interruption.BUSY, asked=6.5) == GiveUp(
        "the server asked to wait 6.5 s, but 6 s are left of patience=10 s"
    )
    assert one.retry(Interruption.BUSY, asked=6) == 6


def test_the_time_of_requests_uses_up_the_patience():
    clock = Clock()
    one = policy(clock, patience=31)
    one.begin()
    clock.now += 30
    assert one.retry() == 1
    one.begin()
    assert isinstance(one.retry(), GiveUp)


def test_the_time_of_a_live_stream_does_not_use_up_the_patience():
    clock = Clock()
    one = policy(clock, patience=10)
    one.begin()
    clock.now += 2
    one.live()
    clock.now += 3600
    assert one.retry(silence=3) == 1
    assert one.spent == 6


def test_progress_restores_the_patience():
    one = policy(patience=10)
    one.retry(Interruption.BUSY, asked=10)
    one.progress()
    assert one.retry() == 1


def test_the_first_limit_that_is_reached_ends_the_retries():
    one = policy(patience=1, attempts=2)
    assert one.retry() == 1
    assert "attempts=2" in one.retry().why
    one = policy(patience=1, attempts=3)
    assert one.retry() == 1
    assert "patience=1 s" in one.retry().why


# ---- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", list(RequestFault))
def test_fault_after_first_contact_is_retried(fault):
    assert policy().fault(fault, contacted=True) is Action.CUT


@pytest.mark.parametrize("fault", [RequestFault.NOT_TIDEWIRE, RequestFault.CONNECT_TIMEOUT])
def test_connect_timeout_or_foreign_response_at_first_contact_is_fatal(fault):
    assert policy().fault(fault, contacted=False) is Action.FATAL


@pytest.mark.parametrize("is_submit", [False, True])
@pytest.mark.parametrize("fault", [RequestFault.TIMEOUT, RequestFault.LOST])
def test_lost_response_at_first_contact_is_retried_within_the_policy(fault, is_submit):
    one = policy(patience=300)
    waits = []
    while type(wait := one.retry()) is float:
        assert one.fault(fault, contacted=False, is_submit=is_submit) is Action.CUT
        waits.append(wait)
    assert sum(waits) == 300


@pytest.mark.parametrize("first", [RequestFault.LOST, RequestFault.TIMEOUT])
@pytest.mark.parametrize("fault", [RequestFault.UNREACHABLE, RequestFault.CONNECT_TIMEOUT])
def test_a_server_that_may_be_restarting_is_retried_within_the_policy(fault, first):
    one = policy()
    one.fault(first, contacted=False)
    assert {one.fault(fault, contacted=False) for _ in range(10)} == {Action.CUT}


def test_only_a_submit_without_a_refusal_is_in_doubt():
    one = policy()
    one.fault(RequestFault.UNREACHABLE, contacted=True, is_submit=True)
    one.fault(RequestFault.LOST, contacted=True)
    one.action(500, RequestKind.SUBMIT, is_refusal=True)
    one.action(503, RequestKind.SUBMIT)
    assert not one.in_doubt
    one.action(502, RequestKind.SUBMIT)
    assert one.in_doubt


@pytest.mark.parametrize("fault", [RequestFault.UNREACHABLE, RequestFault.LOST, RequestFault.TIMEOUT])
@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_behind_a_gateway_is_retried_within_the_policy(status, fault):
    """The error page of a gateway proves no Tidewire server, but the server may be restarting behind it."""
    one = policy()
    for _ in range(5):
        one.action(status, RequestKind.REQUEST)
        assert type(one.retry()) is float
        assert one.fault(fault, contacted=False) is Action.CUT


@pytest.mark.parametrize("is_submit", [False, True])
def test_unreachable_server_is_tried_three_times_with_doubled_waits(is_submit):
    one, waits = policy(), []
    while one.fault(RequestFault.UNREACHABLE, contacted=False, is_submit=is_submit) is Action.CUT:
        waits.append(one.retry())
    assert waits == [FIRST_WAIT * 2**n for n in range(FIRST_ATTEMPTS - 1)]


def test_waits_follow_the_retry_policy_after_first_contact():
    one = policy(min_delay=8.0, max_delay=8.0)
    one.fault(RequestFault.UNREACHABLE, contacted=False)
    assert one.retry() == FIRST_WAIT
    one.action(503, RequestKind.REQUEST)
    assert one.retry() == 8.0


def test_tables_are_complete():
    assert set(FAULT_TABLE) == set(RequestFault)
