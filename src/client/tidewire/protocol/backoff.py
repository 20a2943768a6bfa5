"""Exponential backoff with jitter between attempts to reconnect, and the limits of `RetryPolicy`.

- The wait after the n-th consecutive failure is `retry`, doubled n - 1 times but at most `maximum`, and multiplied by a
  random factor.
- Only progress resets the count of failures. The client makes progress when it applies a logged event that it did not
  have yet. The snapshot at the beginning of a connection does not count as progress.
- A server can ask for a longer wait, with `Retry-After` or `goaway`. The client never waits less than the server asks. If
  the wait would exceed the total time that the policy allows without progress, the client gives up at once.
"""

import random
from dataclasses import dataclass, field

DEFAULT_RETRY = 1.0
"""Default wait before the first attempt to reconnect, in seconds. A `retry:` field from the server replaces it."""

MIN_WAIT = 0.1
"""Shortest wait, in seconds, if a server asks for a wait. If the server asks for less, the client waits this long."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits on the number and the duration of retries after failed requests and broken streams."""

    max_attempts: int = 10
    """Number of consecutive failures without progress after which the client gives up on a job's stream."""
    max_seconds: float = 600.0
    """Time without progress after which the client gives up on a job's stream, in seconds. Only the client's waits between
    attempts and the silence of lost connections count. The client also gives up if a server asks for a longer wait."""
    submit_attempts: int = 4
    """Maximum number of attempts for a request that does not open a stream, such as a request to submit, read or cancel a
    job."""
    initial: float = DEFAULT_RETRY
    """Wait before the first retry, in seconds, unless the server specifies a wait."""
    maximum: float = 30.0
    """Longest wait between attempts, in seconds, before the random factor is applied."""
    jitter: float = 0.5
    """Range of the random factor with which each wait is multiplied: from 1 - jitter to 1 + jitter."""

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
    """Counts the failures of one job's stream, and computes the waits between attempts.

    A `Backoff` has no clock. The caller reports failures and progress, and waits for the number of seconds that `failed`
    returns.
    """

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    rng: random.Random = field(default_factory=random.Random)
    retry: float | None = None
    """Wait before the first retry, in seconds, from the stream's latest `retry:` field. None if the stream had none yet."""
    failures: int = 0
    spent: float = 0.0
    """Time that the client has spent on waits and on silent connections since the last progress, in seconds."""

    def progress(self) -> None:
        """Reset the count of failures, because the client has applied a new event."""
        self.failures = 0
        self.spent = 0.0

    @property
    def exhausted(self) -> bool:
        """Whether the client has reached the policy's limit on consecutive failures or on seconds without progress."""
        return self.failures >= self.policy.max_attempts or self.spent >= self.policy.max_seconds

    def allows(self, seconds: float | None) -> bool:
        """Whether the wait that the server has requested stays within the policy's limit on seconds without progress."""
        return seconds is None or self.spent + seconds <= self.policy.max_seconds

    def failed(self, *, at_least: float | None = None) -> float:
        """Count one failure, and return the number of seconds to wait before the next attempt.

        Args:
            at_least: Minimum wait in seconds, as requested by the server. The result is never less.
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
        """Return the wait that the server has requested with `goaway` or `Retry-After`, lengthened by a random factor."""
        return max(seconds, MIN_WAIT) * self.rng.uniform(1, 1 + self.policy.jitter)
