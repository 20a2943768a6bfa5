"""Group commit: the time of each commit, and the wider window while the server is behind. Simulated clock."""

import asyncio

import pytest

from tidewire_server.job_log.commit_schedule import WIDEST, GroupCommit

WINDOW = 0.005
"""In seconds, like all durations in this file."""


class Slow:
    """A job whose commit takes a fixed time of the simulated clock."""

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
    """Return the window after each round. In a round, the listed number of jobs commit in 0.5 ms each. A pair also contains the
    duration of other callbacks of the event loop that run before the round.
    """
    clock, found = Clock(), []
    commits = GroupCommit(lambda _events, _size: None, window, clock)
    for each in rounds:
        jobs, others = each if isinstance(each, tuple) else (each, 0.0)
        for _ in range(jobs):
            commits.soon(Slow(clock, 0.0005))
        clock.now += others
        await asyncio.sleep(0)
        found.append(commits.spacing)
    return found


def test_short_rounds_do_not_change_the_window():
    assert asyncio.run(spacings([1, 2, 0, 2])) == [WINDOW] * 4


@pytest.mark.parametrize("rounds", [(10, 0.0), (2, 0.004)], ids=["many jobs", "a busy event loop"])
def test_a_late_round_widens_the_window_to_four_times_its_delay(rounds):
    assert asyncio.run(spacings([rounds])) == pytest.approx([0.02])


def test_window_is_bounded():
    assert asyncio.run(spacings([24, 26, 1000])) == pytest.approx([0.048, WIDEST, WIDEST])


def test_window_narrows_again_after_short_rounds():
    first, *_, last = asyncio.run(spacings([10] + [1] * 30))
    assert (first, last) == pytest.approx((0.02, WINDOW))


def test_window_of_zero_is_never_widened():
    assert asyncio.run(spacings([100], window=0)) == [0.0]


def test_wider_configured_window_is_kept():
    assert asyncio.run(spacings([100], window=0.5)) == [0.5]


class Job:
    """A job that records its commits."""

    waits_until = None

    def __init__(self, commits, *, urgent=False, committed_at=float("-inf")):
        self.name, self.commits = "urgent" if urgent else "other", commits
        self.urgent, self.committed_at = urgent, committed_at

    def commit_now(self, now):
        self.commits.append((self.name, now))
        return 1, 10


async def committed(*, count, **jobs):
    """Run jobs until `count` have committed; return their names and commit times since the start."""
    begun, found = asyncio.get_running_loop().time(), []
    commits = GroupCommit(lambda _events, _size: None, 0.05)
    for settings in jobs.values():
        commits.soon(Job(found, committed_at=begun, **settings))
    async with asyncio.timeout(10):
        while len(found) < count:
            await asyncio.sleep(0)
    return [(name, now - begun) for name, now in found]


def test_job_that_committed_within_its_window_waits_for_the_end_of_the_window():
    ((_, now),) = asyncio.run(committed(count=1, job={}))
    assert now > 0.049


def test_urgent_job_does_not_wait_for_the_end_of_its_window():
    (first, _), (second, now) = asyncio.run(committed(count=2, one={}, other={"urgent": True}))
    assert (first, second) == ("urgent", "other")
    assert now > 0.049


class SteppingLoop(asyncio.SelectorEventLoop):
    """Event loop whose clock has steps of one millisecond and rounding errors, like the clock of uvloop."""

    timers = 0

    def time(self):
        return int(super().time() * 1000) / 1000

    def call_at(self, when, callback, *args, context=None):
        self.timers += 1
        return super().call_at(when - 1e-6, callback, *args, context=context)


def test_timer_that_fires_too_early_by_a_rounding_error_is_not_set_again():
    async def commit_late():
        loop = asyncio.get_running_loop()
        committed = asyncio.Event()
        commits = GroupCommit(lambda _events, _size: committed.set(), WINDOW)
        writer = Slow(Clock(), 0)
        writer.committed_at = loop.time() + 1e-6
        commits.soon(writer)
        while not committed.is_set():  # a busy event loop notices each step of the clock at once
            await asyncio.sleep(0)
        return loop.timers

    with asyncio.Runner(loop_factory=SteppingLoop) as runner:
        assert runner.run(commit_late()) == 1
