"""Exponential backoff with jitter between attempts to reconnect, and the limits of `RetryPolicy`.

- The wait after the n-th consecutive failure is `retry` doubled n - 1 times, capped at `maximum`, times a random factor.
- Only progress resets the count of failures: a logged event that moved the cursor forward and was not the snapshot
  that opened the connection.
- A server can ask for a longer wait (`Retry-After`, `goaway`). The client never shortens it. If the wait does not fit
  into the seconds that the policy has left, the client gives up at once.
"""

import random
from dataclasses import dataclass, field

DEFAULT_RETRY = 1.0
"""Default wait in seconds before the first attempt to reconnect. The server's `retry:` field overrides it."""

MIN_WAIT = 0.1
"""Lower bound, in seconds, for a wait that a server asks for. Shorter waits are raised to this value."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits on how often and how long a client retries failed requests and broken streams."""

    max_attempts: int = 10
    """Consecutive failures without progress after which the client gives up on a job's stream."""
    max_seconds: float = 600.0
    """Seconds of backoff and silence without progress after which the client gives up on a job's stream. Also the longest
    wait that the client accepts from a server. The running time of a job does not count."""
    submit_attempts: int = 4
    """Maximum attempts for a request other than a stream, such as a submit, a job read or a cancel."""
    initial: float = DEFAULT_RETRY
    """Seconds before the first retry, unless the server names a wait."""
    maximum: float = 30.0
    """Upper bound, in seconds, of a doubled wait before the random factor is applied."""
    jitter: float = 0.5
    """Each wait is multiplied by a random factor from 1 - jitter to 1 + jitter."""

    def __post_init__(self) -> None:
        for name in ("max_attempts", "submit_attempts", "max_seconds", "initial", "maximum", "jitter"):
            value, kind = getattr(self, name), int if name.endswith("attempts") else int | float
            if not isinstance(value, kind) or isinstance(value, bool):
                raise TypeError(
                    f"{name} must be {'an integer' if kind is int else 'a number'}, not {value!r}"
                )
        if self.max_attempts < 1 or self.submit_attempts < 1:
            raise ValueError("max_attempts and submit_attempts must be at least 1")
        if not self.max_seconds > 0:
            raise ValueError("max_seconds must be greater than 0")
        if not 0 < self.initial <= self.maximum:
            raise ValueError("initial must be greater than 0 and at most maximum (both in seconds)")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and less than 1")


@dataclass(slots=True)
class Backoff:
    """Failure counter and wait times of one job's stream.

    A `Backoff` has no clock. Its caller reports failures and progress, and sleeps for the seconds that it returns.
    """

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    rng: random.Random = field(default_factory=random.Random)
    retry: float | None = None
    """Base wait in seconds from the stream's latest `retry:` field, or None before the first one."""
    failures: int = 0
    spent: float = 0.0
    """Seconds of waiting and of silence since the last progress."""

    def progress(self) -> None:
        """Reset the failure count, because a logged event moved the cursor forward."""
        self.failures = 0
        self.spent = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether the policy's limit on consecutive failures, or on seconds without progress, is reached."""
        return self.failures >= self.policy.max_attempts or self.spent >= self.policy.max_seconds

    def allows(self, seconds: float | None) -> bool:
        """Whether a wait that a server asks for fits into the seconds that the policy has left."""
        return seconds is None or self.spent + seconds <= self.policy.max_seconds

    def failed(self, *, at_least: float | None = None) -> float:
        """Count one failure and return the seconds to wait before the next attempt.

        Args:
            at_least: Seconds that the server asked for. Jitter only lengthens this wait.
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
        """Return a wait requested by the server (`goaway`, `Retry-After`), lengthened by jitter."""
        return max(seconds, MIN_WAIT) * self.rng.uniform(1, 1 + self.policy.jitter)
