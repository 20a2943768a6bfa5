"""How long a reader waits before it asks again, and when it gives up.

Rules. The wait after the n-th failure running is `retry` doubled n - 1 times, at most the cap, times a random factor.
Progress, and only progress, starts the count again: a logged event, not the snapshot that opened a connection, that
moved the id forward. A server may name a longer wait (`Retry-After`, `goaway`); it is never cut short: one that is
longer than what is left of the policy's seconds ends the attempts at once.
"""

import random
from dataclasses import dataclass, field

DEFAULT_RETRY = 1.0
"""Seconds before the first attempt to reconnect, until the server's `retry:` says otherwise."""

LEAST_WAIT = 0.1
"""Seconds; a shorter wait asked for by a server is taken as this."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds on how a client repeats what failed."""

    max_attempts: int = 10
    """Failures in a row, without progress between, before the client gives up on a job's stream."""
    max_seconds: float = 600.0
    """Seconds of waiting and silence in a row, without progress between, before it gives up; so also the longest wait
    that a server may ask for. What a job takes to run is not counted."""
    submit_attempts: int = 4
    """Attempts at a request that is answered at once: a submit, a job read, a cancel."""
    initial: float = DEFAULT_RETRY
    """Seconds before the first repetition, where the server names none."""
    maximum: float = 30.0
    """Seconds that a wait is doubled up to, before the random factor."""
    jitter: float = 0.5
    """Each wait is multiplied by a random factor from 1 - jitter to 1 + jitter."""

    def __post_init__(self) -> None:
        for name in ("max_attempts", "submit_attempts", "max_seconds", "initial", "maximum", "jitter"):
            value, kind = getattr(self, name), int if name.endswith("attempts") else int | float
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(f"{name} is {'a whole' if kind is int else 'a'} number, not {value!r}")
        if self.max_attempts < 1 or self.submit_attempts < 1:
            raise ValueError("max_attempts and submit_attempts must be at least 1")
        if not self.max_seconds > 0:
            raise ValueError("max_seconds must be above 0")
        if not 0 < self.initial <= self.maximum:
            raise ValueError("initial must be above 0 and at most maximum (seconds)")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and below 1")


@dataclass(slots=True)
class Backoff:
    """The waits of one job's stream. Holds no clock: it is told of failures and progress, and answers in seconds."""

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    rng: random.Random = field(default_factory=random.Random)
    retry: float | None = None
    """Seconds; the base that the server named last."""
    failures: int = 0
    spent: float = 0.0
    """Seconds that were waited, or lost to a silence, since the last progress."""

    def progress(self) -> None:
        """A logged event moved the id forward."""
        self.failures = 0
        self.spent = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether attempts failed in a row as often, or as long, as the policy allows."""
        return self.failures >= self.policy.max_attempts or self.spent >= self.policy.max_seconds

    def allows(self, seconds: float | None) -> bool:
        """Whether a wait that a server asks for stays within what the policy leaves."""
        return seconds is None or self.spent + seconds <= self.policy.max_seconds

    def failed(self, *, at_least: float | None = None) -> float:
        """Count one failure and return the seconds to wait before the next attempt.

        Args:
            at_least: Seconds that the server asked for; jitter only adds to them.
        """
        base = max(self.policy.initial if self.retry is None else self.retry, 0.001)
        wait = min(self.policy.maximum, base * 2.0 ** min(self.failures, 30))
        self.failures += 1
        wait *= self.rng.uniform(1 - self.policy.jitter, 1 + self.policy.jitter)
        if at_least is not None:
            wait = max(wait, self.invited(at_least))
        self.spent += wait
        return wait

    def invited(self, seconds: float) -> float:
        """The wait before an attempt that the server asked for (a planned close, `Retry-After`), spread upwards."""
        return max(seconds, LEAST_WAIT) * self.rng.uniform(1, 1 + self.policy.jitter)
