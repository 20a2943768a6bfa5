"""`RetryPolicy`, the user's limits for retries, and the wait before a retry. The module `request_policy` applies them."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits for the retries of streams, reads, submits and cancels. The client gives up when it reaches `patience` or
    `attempts`, whichever is first.

    Example:
        # Wait for a server for up to an hour, and at most one minute between two attempts.
        client = Client(url, retry=RetryPolicy(patience=3600.0, max_delay=60.0))

    Args:
        patience: Seconds without progress after which the client gives up.
        min_delay: Shortest first wait, in seconds.
        max_delay: Longest wait, in seconds, unless a server asks for a longer wait.
        attempts: Number of failures in a row after which the client gives up. None: no limit.
        jitter: Range of the random factor of each wait: from 1 - jitter to 1 + jitter.
    """

    patience: float = 300.0
    """Number of seconds without progress after which the client gives up. The time counts from the last progress or,
    before any progress, from the start of the call. It includes all waits, even those that a server asks for, but not
    the time during which a stream is live. It starts again when a ping confirms that no event is missing. If a server
    asks for a wait that is longer than the remaining time, the client gives up at once."""
    min_delay: float = 0.001
    """Shortest first wait, in seconds. A server may specify the first wait of its stream. Without such a value, 1
    second is used."""
    max_delay: float = 30.0
    """Longest wait, in seconds, before the random factor is applied. A server may ask for a longer wait."""
    attempts: int | None = None
    """Number of failures in a row after which the client gives up; None for no limit. A wait that a server asks for is
    not a failure."""
    jitter: float = 0.5
    """Range of the random factor with which each wait is multiplied: from 1 - jitter to 1 + jitter."""

    def __post_init__(self) -> None:
        if self.attempts is not None and type(self.attempts) is not int:
            raise TypeError(f"attempts must be an integer or None, not {self.attempts!r}")
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {self.attempts}")
        for name in ("patience", "min_delay", "max_delay", "jitter"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool):
                raise TypeError(f"{name} must be a number, not {value!r}")
        if not self.patience > 0:
            raise ValueError(f"patience must be more than 0 seconds, not {self.patience!r}")
        if not 0 < self.min_delay <= self.max_delay:
            raise ValueError("min_delay must be greater than 0 and at most max_delay (both in seconds)")
        if not 0 <= self.jitter < 1:
            raise ValueError("jitter must be at least 0 and less than 1")


def wait_before_retry(limits: RetryPolicy, first: float, doublings: int, rng: random.Random) -> float:
    """Return the time to wait before a retry, in seconds.

    Args:
        limits: The user's limits.
        first: Time of the first wait, in seconds, which is at least `min_delay`.
        doublings: Number of times that the wait has been doubled.
        rng: Random number generator for the jitter.
    """
    wait = min(limits.max_delay, max(limits.min_delay, first) * 2.0 ** min(doublings, 40))
    return wait * rng.uniform(1 - limits.jitter, 1 + limits.jitter)
