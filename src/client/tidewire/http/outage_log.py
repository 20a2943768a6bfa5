"""`OutageLog`, which logs one warning when a client cannot reach its server, and one when the connection is back.

A client has one `OutageLog`, so an outage that breaks the streams of a hundred jobs is logged once. Both messages have the
level WARNING, because Python prints warnings even if logging is not configured. This table shows the messages:

  state of the client                    | repeated failure of a call or stream   | response, or `hello` of a stream
  ---------------------------------------+----------------------------------------+----------------------------------
  no outage was logged                   | warning                                | nothing
  in an outage that was logged           | nothing                                | "is back"
  in an outage, but no attempt has       | warning                                | "is back"
    failed for `QUIET_TIME` seconds      |                                        |
  "is back" was logged less than         | nothing                                | nothing
    `QUIET_TIME` seconds after a failure |                                        |

The last row limits the number of messages if some attempts succeed and others fail, as with a load balancer in front of
several servers, one of which is down.
"""

import logging
import math
from typing import Final

from tidewire.following.request_policy import RequestPolicy
from tidewire.terminal_escapes import one_line

QUIET_TIME: Final = 60.0
"""Minimum time in seconds between a logged outage, counted from the end of its last wait, and the next warning."""

log: Final = logging.getLogger("tidewire")


class OutageLog:
    """Logs the outages of one client. The module's docstring contains a table of the messages."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._in_outage = False
        """Whether the client has logged an outage, and has not logged its end yet."""
        self._quiet_until = -math.inf
        """Time before which the client logs no warning."""

    def failed(self, policy: RequestPolicy, why: str, *, wait: float, now: float) -> None:
        """Record a failed attempt that the client will repeat, and log a warning if the table says so.

        Args:
            policy: Counters of the call or stream.
            why: Description of the failure.
            wait: Time in seconds until the next attempt.
            now: Current time in seconds, on any clock.
        """
        if not policy.is_outage:
            return
        is_quiet = now < self._quiet_until
        if self._in_outage or not is_quiet:
            self._quiet_until = now + wait + QUIET_TIME
        if is_quiet:
            return
        self._in_outage = True
        log.warning(
            "the connection to %s failed %d times in a row (%s). The client retries %s",
            self._base,
            policy.failures,
            one_line(why).rstrip("."),
            _limits(policy, wait),
        )

    def responded(self) -> None:
        """Record that the server has responded, and log the end of an outage."""
        if self._in_outage:
            self._in_outage = False
            log.warning("the connection to %s is back", self._base)


def _limits(policy: RequestPolicy, wait: float) -> str:
    """Describe for how long the client retries, and the options that change this."""
    time, attempts = policy.remaining + wait, policy.attempts_left
    limits = ["without a time limit" if math.isinf(time) else f"for at most {time:.0f} s"]
    options = ["patience=…"]
    if attempts is not None:
        limits.append(f"until {attempts} more {'attempt has' if attempts == 1 else 'attempts have'} failed")
        options.append("attempts=…")
    return f"{', or '.join(limits)}; to change this, pass retry=RetryPolicy({', '.join(options)})"
