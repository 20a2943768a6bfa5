"""States of the URLs of an upstream, as a table (`TRANSITIONS`), and the choice of the URL for a request (`choose`).

  state         | meaning                                                              | requests
  --------------+----------------------------------------------------------------------+----------
  starting      | has not answered since the server started                            | wait
  ready         | has answered                                                         | are sent
  out           | refused a connection, failed, was silent or sent a redirect          | wait
  misconfigured | rejects the key, or serves another model or kind than the other URLs | wait

The table has no row for an error that the request itself has caused, because it says nothing about the URL.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

State = Literal["starting", "ready", "out", "misconfigured"]
Event = Literal["answered", "busy", "failed", "rejected"]

TRANSITIONS: Final[dict[Event, dict[State, State]]] = {
    "answered": {"starting": "ready", "ready": "ready", "out": "ready", "misconfigured": "ready"},
    "busy": {"starting": "starting", "ready": "ready", "out": "out", "misconfigured": "misconfigured"},
    "failed": {"starting": "starting", "ready": "out", "out": "out", "misconfigured": "starting"},
    "rejected": dict.fromkeys(("starting", "ready", "out", "misconfigured"), "misconfigured"),
}

MIN_PAUSE: Final = 1.0
"""Seconds for which a URL is left out after its first failure, or after 429 and 503 without `Retry-After`. The time doubles
with each failure."""
MAX_PAUSE: Final = 30.0
"""Maximum number of seconds until a URL that is left out is asked again."""
START_PAUSE: Final = 0.5
"""Seconds after which a URL that has not answered yet is asked again."""


@dataclass(eq=False)
class UrlState:
    """State of one URL."""

    url: str
    state: State = "starting"
    running: int = 0
    """Number of requests that the URL processes."""
    failures: int = 0
    """Number of failures since the last answer."""
    until: float = 0.0
    """Time before which no request is sent."""
    reason: str = "has not answered yet"

    def apply(self, event: Event, now: float, *, reason: str = "", wait: float | None = None) -> bool:
        """Apply an event, and return whether the state or the reason has changed.

        Args:
            event: The event.
            now: The current time.
            reason: Why the URL takes no requests.
            wait: Number of seconds from `Retry-After`, or None.
        """
        before = self.state, self.reason
        self.state = TRANSITIONS[event][self.state]
        self.reason = reason
        if event == "answered":
            # A failure after an answer begins with the shortest pause again, and one before it does not end its pause.
            self.failures = 0
        else:
            self.failures += event == "failed"
            pause = START_PAUSE if self.state == "starting" else MIN_PAUSE * 2 ** min(self.failures - 1, 8)
            if event == "rejected":
                pause = MAX_PAUSE
            elif event == "busy":
                pause = MIN_PAUSE if wait is None else wait
            self.until = now + min(MAX_PAUSE, max(0.1, pause))
        return (self.state, self.reason) != before

    def takes(self, now: float, limit: int) -> bool:
        """Return whether the URL takes another request."""
        return self.state == "ready" and self.running < limit and self.until <= now


def choose(states: Iterable[UrlState], now: float, limit: int) -> UrlState | None:
    """Return the URL with the fewest requests among those that take another one, or None."""
    free = [each for each in states if each.takes(now, limit)]
    return min(free, key=lambda each: each.running, default=None)


def unavailable_reason(states: Iterable[UrlState]) -> str | None:
    """Return why no URL has ever answered, or None if one has. Callers read it, so it does not contain the URLs."""
    states = list(states)
    if any(each.state in {"ready", "out"} for each in states):
        return None
    return reasons_of(states)


def reasons_of(states: Iterable[UrlState]) -> str:
    """Return the reasons of all URLs, without the URLs, which callers must not see."""
    found = [f"engine {number} {each.reason}" for number, each in enumerate(states, 1) if each.reason]
    return "; ".join(found)
