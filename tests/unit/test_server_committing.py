"""How often jobs commit when the server is behind. Time is counted by hand."""

import asyncio

import pytest

from tidewire_server.committing import WIDEST, Commits

WINDOW = 0.005
"""Seconds, as all here."""


class Slow:
    """A job whose commit takes its time."""

    urgent = False
    waits_until = None
    committed_at = float("-inf")

    def __init__(self, clock, takes):
        self.clock, self.takes = clock, takes

    def commit_now(self, _now):
        self.clock.now += self.takes
        return 1, 10


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def spacings(rounds, window=WINDOW):
    """What lies between two events after each round, in which as many jobs commit as are named, a millisecond each."""
    clock, found = Clock(), []
    commits = Commits(lambda _events, _size: None, window, clock)
    for jobs in rounds:
        for _ in range(jobs):
            commits.soon(Slow(clock, 0.001))
        await asyncio.sleep(0)
        found.append(commits.spacing)
    return found


def test_rounds_of_commits_that_are_short_leave_the_window_as_it_is():
    assert asyncio.run(spacings([1, 2, 0, 2])) == [WINDOW] * 4


def test_a_long_round_widens_the_window_to_twice_its_time():
    assert asyncio.run(spacings([10])) == pytest.approx([0.02])


def test_the_window_is_never_wider_than_its_bound():
    assert asyncio.run(spacings([24, 26, 1000])) == pytest.approx([0.048, WIDEST, WIDEST])


def test_a_window_that_was_widened_narrows_again_once_rounds_are_short():
    first, *_, last = asyncio.run(spacings([10] + [1] * 30))
    assert (first, last) == pytest.approx((0.02, WINDOW))


def test_a_job_that_asks_for_each_event_by_itself_waits_for_none():
    assert asyncio.run(spacings([100], window=0)) == [0.0]


def test_a_job_that_asks_for_a_wider_window_keeps_it():
    assert asyncio.run(spacings([100], window=0.5)) == [0.5]
