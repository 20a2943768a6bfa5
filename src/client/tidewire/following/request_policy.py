"""Policy for retries and redirects: the action after each response or fault, and the wait before each retry.

Every call and every event stream has one `RequestPolicy`. It owns the counters of the call or stream, and applies the
limits of the user's `RetryPolicy` to streams, reads, submits and cancels alike. The class does no I/O and never sleeps.
The caller passes a clock, reports each status, fault and interruption, performs the returned action, and sleeps for the
returned time. The module `http_status_actions` contains the actions for statuses, `FAULT_TABLE` the actions for faults, and
`RETRY_TABLE` the consequences of interruptions. The policy limits how often an action is repeated, as this table shows:

  action        | request      | repeated                                        | then
  --------------+--------------+-------------------------------------------------+--------------------------------------
  REFRESH       | any          | once for each request                           | FATAL
  REDIRECT      | GET          | `MAX_REDIRECTS` times for each request          | FATAL
  REDIRECT      | other        | never                                           | FATAL
  FIRST_CONTACT | any          | `FIRST_ATTEMPTS` attempts in all; first wait    | FATAL
                |              | `FIRST_WAIT`, then doubled each time            |
  CUT, WAIT     | any          | until `RetryPolicy.patience` or                 | `retry` returns a `GiveUp`
                |              | `RetryPolicy.attempts` is reached               |

First contact lasts until a response proves that the server is a Tidewire server. At first contact, only faults that
suggest a wrong URL end a call early. These limits no longer apply after the call has reached a server or a gateway: a
connection was lost, a response took too long, or a gateway sent a temporary error such as a 502.
"""

import random
from collections.abc import Callable
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidewire.following.http_status_actions import Action, RequestKind, action_for
from tidewire.following.retry_policy import RetryPolicy, wait_before_retry

MAX_REDIRECTS: Final = 5
"""Maximum number of redirects that one request follows."""
FIRST_ATTEMPTS: Final = 3
"""Maximum number of attempts to reach a server at first contact, that is before a response has proved that the server
is a Tidewire server."""
FIRST_WAIT: Final = 0.25
"""Time between the first and the second attempt at first contact, in seconds. It doubles before each further
attempt."""
DEFAULT_DELAY: Final = 1.0
"""First wait, in seconds, unless the stream has a `retry:` field. The bounds in the user's `RetryPolicy` apply to this
wait."""
MIN_REQUESTED_WAIT: Final = 0.1
"""Shortest wait, in seconds, if a server asks for a wait. If the server asks for less, the client waits this long."""

OUTAGE_FAILURES: Final = 2
"""Number of failures in a row after which the client reports an outage to the user. After a single broken connection, the
first reconnect usually succeeds."""


class RequestFault(Enum):
    """Reason why a request has no usable response."""

    UNREACHABLE = "unreachable"
    """The connection could not be opened."""
    CONNECT_TIMEOUT = "connect_timeout"
    """Opening the connection took too long."""
    LOST = "lost"
    """The connection broke before the response was complete."""
    TIMEOUT = "timeout"
    """The response took too long."""
    NOT_TIDEWIRE = "not_tidewire"
    """The response does not come from a Tidewire server."""


class FaultRow(NamedTuple):
    """The actions for one kind of fault.

    Attributes:
        first_contact: Action at first contact, unless `reached` applies.
        reached: Action at first contact, if an earlier request of the call has reached a server or a gateway.
        later: Action after first contact.
    """

    first_contact: Action
    reached: Action
    later: Action


FAULT_TABLE: Final = MappingProxyType(
    {
        # If a request has reached a server or a gateway, a server was there a moment ago, and may be restarting.
        RequestFault.UNREACHABLE: FaultRow(Action.FIRST_CONTACT, Action.CUT, Action.CUT),
        RequestFault.CONNECT_TIMEOUT: FaultRow(Action.FATAL, Action.CUT, Action.CUT),
        RequestFault.LOST: FaultRow(Action.CUT, Action.CUT, Action.CUT),
        RequestFault.TIMEOUT: FaultRow(Action.CUT, Action.CUT, Action.CUT),
        # After first contact, a response that no Tidewire server sends comes from a proxy in front of the server.
        RequestFault.NOT_TIDEWIRE: FaultRow(Action.FATAL, Action.FATAL, Action.CUT),
    }
)


class Interruption(Enum):
    """Reason why a call has to wait before its next attempt."""

    FAILURE = "failure"
    """The connection was lost, or the response is a 5xx, has a wrong media type, or is a 408, 429 or 503 without
    `Retry-After`."""
    BUSY = "busy"
    """The response is a 408, 409, 429 or 503 with `Retry-After`, or a `problem` in the stream has `retry_after_ms`."""
    GOAWAY = "goaway"
    """The server sent `goaway` and closed a connection that had made progress."""
    EARLY_GOAWAY = "early_goaway"
    """The server sent `goaway` and closed a connection that had made no progress."""


class RetryRow(NamedTuple):
    """Whether one kind of interruption counts as a failure, and how long the client waits after it."""

    is_failure: bool
    """Whether the interruption counts as a failure. The wait after a failure is at least as long as the backoff."""
    is_requested: bool
    """Whether the wait is at least the time that the server asked for, multiplied by a random factor of at least 1."""


RETRY_TABLE: Final = MappingProxyType(
    {
        Interruption.FAILURE: RetryRow(is_failure=True, is_requested=False),
        Interruption.BUSY: RetryRow(is_failure=False, is_requested=True),
        Interruption.GOAWAY: RetryRow(is_failure=False, is_requested=True),
        Interruption.EARLY_GOAWAY: RetryRow(is_failure=True, is_requested=True),
    }
)


class GiveUp(NamedTuple):
    """The retry policy allows no further attempt."""

    why: str
    """The limit that was reached, for error messages."""


class RequestPolicy:
    """Decides the client's action after each response, fault or interruption of one call or one event stream.

    Attributes:
        delay: Wait after the first failure, in seconds. The `retry:` field of a stream sets it.
        failures: Number of failures in a row, without progress in between.
        spent: Time in seconds that counts toward the patience of the retry policy.
        redirects: Number of redirects that the server has sent in response to the current request.
        in_doubt: Whether a submit may have been received, although it has no usable response.
        reached: Whether a request has reached a server or a gateway: its connection was lost, its response took too
            long, or the response was a temporary error, such as the 502 of a gateway.
    """

    def __init__(
        self,
        limits: RetryPolicy | None = None,
        *,
        clock: Callable[[], float] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Create the counters of one call or stream.

        Args:
            limits: The user's limits. None: the default limits.
            clock: Function that returns a time in seconds. None: only waits and silences count toward the patience.
            rng: Random number generator for the jitter.
        """
        self.delay: float = DEFAULT_DELAY
        self.failures: int = 0
        self.spent: float = 0.0
        self.redirects: int = 0
        self.in_doubt: bool = False
        self.reached: bool = False
        self._limits: RetryPolicy = limits or RetryPolicy()
        self._clock = clock or (lambda: 0.0)
        self._rng = rng or random.Random()
        self._refreshed = False
        self._unchanged_reads = 0
        self._at_first_contact = False
        """Whether the next wait is one of the short waits of first contact."""
        self._began: float | None = None
        """Time at which the current request began. None if no request is open, or if its stream is live."""

    @property
    def is_outage(self) -> bool:
        """Whether so many attempts in a row have failed that the client should report it. At first contact, this is never
        the case, because the call raises an error within a second.
        """
        return self.failures >= OUTAGE_FAILURES and not self._at_first_contact

    @property
    def remaining(self) -> float:
        """Time in seconds until the client gives up if there is no progress, counted from the end of the last wait."""
        return max(0.0, self._limits.patience - self.spent)

    @property
    def attempts_left(self) -> int | None:
        """Number of further attempts that may fail; None if the number is not limited."""
        return None if self._limits.attempts is None else self._limits.attempts - self.failures

    # ---- counters ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start a new request. Its time counts toward the patience, and it may again refresh the credentials and follow
        redirects.
        """
        self._refreshed = False
        self.redirects = 0
        self._began = self._clock()

    def live(self) -> None:
        """Record that the stream is live. Its running time does not count toward the patience."""
        self.spent += self._elapsed()

    def progress(self) -> None:
        """Reset the failures and the spent time, because the client has applied a new event."""
        self.failures = 0
        self.spent = 0.0

    def confirmed(self) -> None:
        """Reset the spent time, because the server has confirmed that the client has all events of the job. The failures remain,
        so that the waits continue to grow.
        """
        self.spent = 0.0

    def _elapsed(self) -> float:
        began, self._began = self._began, None
        return 0.0 if began is None else self._clock() - began

    # ---- decisions ---------------------------------------------------------------------------------------------

    def action(
        self,
        status: int,
        kind: RequestKind,
        *,
        is_get: bool = True,
        has_cursor: bool = False,
        usable: bool = True,
        is_refusal: bool = False,
    ) -> Action:
        """Decide the action after a response.

        Args:
            status: HTTP status of the response.
            kind: Kind of the request.
            is_get: Whether the request is a GET.
            has_cursor: Whether the request for a stream had a cursor.
            usable: Whether the body of a successful response has the requested content type. If not, the action is CUT.
            is_refusal: Whether the body of the response is a problem. Such a response comes from the server, which has
                refused the request.
        """
        self._at_first_contact = False
        found = action_for(status, kind, has_cursor=has_cursor)
        self.reached = self.reached or found in {Action.CUT, Action.WAIT}
        match found:
            case Action.REFRESH:
                refreshed, self._refreshed = self._refreshed, True
                return Action.FATAL if refreshed else found
            case Action.REDIRECT:
                self.redirects += 1
                return found if is_get and self.redirects <= MAX_REDIRECTS else Action.FATAL
            case Action.USE if not usable:
                return Action.CUT
            case Action.CUT if kind is RequestKind.SUBMIT and not is_refusal:
                self.in_doubt = True
                return found
            case _:
                return found

    def fault(self, fault: RequestFault, *, contacted: bool, is_submit: bool = False) -> Action:
        """Decide the action after a fault. The action is CUT or FATAL.

        Args:
            fault: The fault.
            contacted: Whether an earlier response proved that the server is a Tidewire server.
            is_submit: Whether the request submits a job.
        """
        if fault in {RequestFault.LOST, RequestFault.TIMEOUT}:
            self.reached = True
            self.in_doubt = self.in_doubt or is_submit
        row = FAULT_TABLE[fault]
        found = row.later if contacted else row.reached if self.reached else row.first_contact
        self._at_first_contact = found is Action.FIRST_CONTACT
        if found is not Action.FIRST_CONTACT:
            return found
        return Action.FATAL if self.failures + 1 >= FIRST_ATTEMPTS else Action.CUT

    def retry(
        self,
        interruption: Interruption = Interruption.FAILURE,
        *,
        asked: float | None = None,
        silence: float = 0.0,
    ) -> float | GiveUp:
        """Count an interruption, and return the time to wait before the next attempt, in seconds.

        Args:
            interruption: The interruption. BUSY without a time counts as FAILURE.
            asked: Time in seconds that the server asked the client to wait, which may be 0. None: it named no time.
            silence: Time in seconds during which a live stream sent nothing.
        """
        limits = self._limits
        if interruption is Interruption.BUSY and asked is None:
            interruption = Interruption.FAILURE
        asked = asked or 0.0
        row = RETRY_TABLE[interruption]
        self.spent += self._elapsed() + silence
        left = limits.patience - self.spent
        if row.is_failure:
            self.failures += 1
            if limits.attempts is not None and self.failures >= limits.attempts:
                return GiveUp(f"{_failures(self.failures)} without progress, and attempts={limits.attempts}")
        if row.is_requested and asked > left:
            return GiveUp(
                f"the server asked to wait {asked:g} s, but {max(left, 0):.4g} s are left of "
                f"patience={limits.patience:g} s"
            )
        if left <= 0:
            failures = f"{_failures(self.failures)} without progress" if self.failures else "no progress"
            return GiveUp(f"{failures}, and patience={limits.patience:g} s")
        wait = self._backoff() if row.is_failure else 0.0
        if row.is_requested:
            wait = max(wait, max(asked, MIN_REQUESTED_WAIT) * self._rng.uniform(1, 1 + limits.jitter))
        if wait >= left:
            # Shorten the wait, so that the last attempt is made when the patience ends.
            self.spent = limits.patience
            return left
        self.spent += wait
        return wait

    def after_read(self, *, changed: bool) -> float:
        """Count a successful read of a job whose stream delivers nothing, and return the time to wait before the next
        read, in seconds.

        The server has answered. Therefore, the failures before this read and the wait after it do not count toward the
        patience.

        Args:
            changed: Whether the read returned a new state.
        """
        self.progress()
        self._unchanged_reads = 0 if changed else self._unchanged_reads + 1
        return wait_before_retry(self._limits, DEFAULT_DELAY, self._unchanged_reads, self._rng)

    def _backoff(self) -> float:
        if self._at_first_contact:
            return FIRST_WAIT * 2.0 ** min(self.failures - 1, 40)
        return wait_before_retry(self._limits, self.delay, self.failures - 1, self._rng)


def _failures(count: int) -> str:
    return "1 failure" if count == 1 else f"{count} failures in a row"
