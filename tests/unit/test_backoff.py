"""How long a reader waits, and when it gives up."""

import random

import pytest

from tidewire.protocol.backoff import LEAST_WAIT, Backoff, RetryPolicy


def steady(**policy: float) -> Backoff:
    return Backoff(RetryPolicy(jitter=0, **policy), random.Random(1))


def test_waits_double_up_to_the_maximum():
    backoff = steady(initial=1, maximum=30)
    assert [backoff.failed() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_the_servers_retry_is_the_base():
    backoff = steady()
    backoff.retry = 0.01
    assert [backoff.failed() for _ in range(3)] == [0.01, 0.02, 0.04]


def test_a_retry_of_nothing_does_not_make_a_hot_loop():
    backoff = steady()
    backoff.retry = 0.0
    waits = [backoff.failed() for _ in range(12)]
    assert waits[0] > 0
    assert waits[-1] > 1


def test_only_progress_starts_the_count_again():
    backoff = steady(initial=1)
    backoff.failed()
    backoff.failed()
    backoff.progress()
    assert backoff.failed() == 1


def test_jitter_spreads_a_wait_around_itself():
    backoff = Backoff(RetryPolicy(initial=1, maximum=1, jitter=0.5), random.Random(7))
    waits = [backoff.failed() for _ in range(500)]
    assert min(waits) >= 0.5
    assert max(waits) <= 1.5
    assert max(waits) - min(waits) > 0.9


def test_a_wait_that_a_server_asked_for_is_never_cut_short():
    backoff = Backoff(RetryPolicy(initial=0.001, maximum=0.001), random.Random(7))
    assert all(backoff.failed(at_least=5) >= 5 for _ in range(100))


def test_a_shorter_wait_than_the_least_is_taken_as_the_least():
    backoff = Backoff(RetryPolicy(), random.Random(7))
    assert all(backoff.invited(0) >= LEAST_WAIT for _ in range(100))


def test_many_failures_do_not_overflow():
    backoff = steady(initial=1, maximum=30)
    backoff.failures = 10_000
    assert backoff.failed() == 30


def test_it_is_exhausted_after_as_many_failures_as_the_policy_allows():
    backoff = steady(max_attempts=2)
    backoff.failed()
    assert not backoff.exhausted
    backoff.failed()
    assert backoff.exhausted
    backoff.progress()
    assert not backoff.exhausted


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"submit_attempts": 0},
        {"initial": 0},
        {"initial": 2, "maximum": 1},
        {"jitter": 1},
        {"jitter": -0.1},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        RetryPolicy(**wrong)
