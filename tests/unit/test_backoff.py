"""Backoff: the length of each wait, and when retries are exhausted."""

import random

import pytest

from tidewire.protocol.backoff import MIN_WAIT, Backoff, RetryPolicy


def steady(**policy: float) -> Backoff:
    return Backoff(RetryPolicy(jitter=0, **policy), random.Random(1))


def test_waits_double_up_to_the_maximum():
    backoff = steady(initial=1, maximum=30)
    assert [backoff.failed() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_retry_field_of_the_server_sets_the_first_wait():
    backoff = steady()
    backoff.retry = 0.01
    assert [backoff.failed() for _ in range(3)] == [0.01, 0.02, 0.04]


def test_retry_of_zero_does_not_cause_a_busy_loop():
    backoff = steady()
    backoff.retry = 0.0
    waits = [backoff.failed() for _ in range(12)]
    assert waits[0] > 0
    assert waits[-1] > 1


def test_only_progress_resets_the_failure_count():
    backoff = steady(initial=1)
    backoff.failed()
    backoff.failed()
    backoff.progress()
    assert backoff.failed() == 1


def test_jitter_spreads_waits_around_the_nominal_wait():
    backoff = Backoff(RetryPolicy(initial=1, maximum=1, jitter=0.5), random.Random(7))
    waits = [backoff.failed() for _ in range(500)]
    assert min(waits) >= 0.5
    assert max(waits) <= 1.5
    assert max(waits) - min(waits) > 0.9


def test_wait_is_never_shorter_than_the_server_requested():
    backoff = Backoff(RetryPolicy(initial=0.001, maximum=0.001), random.Random(7))
    assert all(backoff.failed(at_least=5) >= 5 for _ in range(100))


def test_reconnect_delay_below_the_minimum_is_raised_to_it():
    backoff = Backoff(RetryPolicy(), random.Random(7))
    assert all(backoff.invited(0) >= MIN_WAIT for _ in range(100))


def test_many_failures_do_not_overflow():
    backoff = steady(initial=1, maximum=30)
    backoff.failures = 10_000
    assert backoff.failed() == 30


def test_retries_are_exhausted_after_max_attempts_failures():
    backoff = steady(max_attempts=2)
    backoff.failed()
    assert not backoff.exhausted
    backoff.failed()
    assert backoff.exhausted
    backoff.progress()
    assert not backoff.exhausted


def test_retries_are_exhausted_after_max_seconds_of_waits_and_silence():
    backoff = steady(initial=1, max_seconds=10)
    assert [backoff.failed() for _ in range(3)] == [1, 2, 4]
    assert not backoff.exhausted
    backoff.spent += 3
    assert backoff.exhausted
    backoff.progress()
    assert not backoff.exhausted


def test_requested_wait_must_fit_into_the_remaining_max_seconds():
    backoff = steady(initial=1, max_seconds=10)
    backoff.failed()
    assert backoff.allows(None)
    assert backoff.allows(9)
    assert not backoff.allows(9.1)


@pytest.mark.parametrize(("cause", "least", "widest"), [("cut", 0.5, 1.0), ("planned close", 1.0, 0.5)])
def test_reconnects_of_a_thousand_clients_are_spread_out(cause, least, widest):
    clients = [Backoff(RetryPolicy(initial=1), random.Random(seed)) for seed in range(1000)]
    first = sorted(one.failed() if cause == "cut" else one.invited(1) for one in clients)
    assert least <= first[0]
    assert first[-1] <= least + widest
    # The waits are spread evenly: each tenth of the range holds about a tenth of the clients.
    tenths = [sum(1 for wait in first if at <= (wait - least) / widest * 10 < at + 1) for at in range(10)]
    assert max(tenths) < 150
    # While the server stays down, retries spread further: the fifth attempts cover more than twelve seconds.
    fifth = [sum(one.failed() for _ in range(4 if cause == "cut" else 5)) for one in clients]
    assert max(fifth) - min(fifth) > 12


@pytest.mark.parametrize(
    "invalid",
    [
        {"max_seconds": 0},
        {"max_attempts": 0},
        {"submit_attempts": 0},
        {"initial": 0},
        {"initial": 2, "maximum": 1},
        {"jitter": 1},
        {"jitter": -0.1},
    ],
)
def test_invalid_policy_is_refused(invalid):
    with pytest.raises(ValueError, match="must be"):
        RetryPolicy(**invalid)
