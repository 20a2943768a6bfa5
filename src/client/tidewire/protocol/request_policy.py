"""What the client does after a response or a fault: two tables, and the limits that depend on earlier attempts.

Submits, reads and event streams share one `RequestPolicy` each. It is pure and has no clock: the caller reports a status
or a fault, performs the action that it gets, and sleeps for as long as `wait` says. `status_table` maps a status to an
action and `FAULT_TABLE` a fault. The policy limits how often an action is repeated:

  action       | request      | repeated                                         | then
  -------------+--------------+--------------------------------------------------+------------------------------------
  REFRESH      | any          | once for each request                            | FATAL
  REDIRECT     | GET          | `MAX_REDIRECTS` times for each request           | FATAL
  REDIRECT     | other        | never                                            | FATAL
  CUT (status) | stream       | `MAX_SERVER_FAULTS` times without a connection   | FATAL
  CUT (fault)  | any, at      | `FIRST_ATTEMPTS` attempts in all, `FIRST_WAIT`   | FATAL
               | first contact| apart, doubled each time                         |
  CUT, WAIT    | submit, read | `RetryPolicy.submit_attempts` attempts in all    | `wait` returns None: raise the last
               |              |                                                  | fault

First contact lasts until a response proves that the server is a Tidewire server. For the retries of an event stream
after first contact see `Follower.lost`: they also depend on the progress of the job.
"""

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidewire.protocol.backoff import Backoff
from tidewire.protocol.status_table import MAX_SERVER_FAULTS, Action, RequestKind, action_for

MAX_REDIRECTS: Final = 5
"""Redirects that one request follows."""
FIRST_ATTEMPTS: Final = 3
"""Attempts to reach a server at first contact."""
FIRST_WAIT: Final = 0.25
"""Seconds before the second of these attempts; doubled before the third."""


class RequestFault(Enum):
    """Why a request has no response that can be used."""

    NO_CONNECTION = "no_connection"
    """The connection could not be opened, or broke before the response was complete."""
    TIMEOUT = "timeout"
    """The connection or the response took too long."""
    NOT_TIDEWIRE = "not_tidewire"
    """The response is one that no Tidewire server sends."""


class FaultRow(NamedTuple):
    """What follows one kind of fault."""

    first_contact: Action
    later: Action


FAULT_TABLE: Final = MappingProxyType(
    {
        RequestFault.NO_CONNECTION: FaultRow(Action.CUT, Action.CUT),
        # A server that accepts connections and says nothing is most often another kind of server.
        RequestFault.TIMEOUT: FaultRow(Action.FATAL, Action.CUT),
        # Once the server has answered, such a response comes from a proxy in between.
        RequestFault.NOT_TIDEWIRE: FaultRow(Action.FATAL, Action.CUT),
    }
)


class RequestPolicy:
    """The actions that follow the responses and faults of one request, or of one event stream.

    Attributes:
        redirects: Redirects in response to this request.
    """

    def __init__(self, kind: RequestKind, backoff: Backoff, *, is_get: bool = True) -> None:
        self.redirects: int = 0
        self._kind = kind
        self._backoff = backoff
        self._is_get = is_get
        self._refreshed = False
        self._server_faults = 0
        self._first_contact = False
        """Whether the last attempt failed by a fault at first contact."""

    def begin(self) -> None:
        """Start a new request of the same stream."""
        self._refreshed = False
        self.redirects = 0

    def connected(self) -> None:
        """Count server faults from zero: a stream was opened."""
        self._server_faults = 0

    def action(self, status: int, *, has_cursor: bool = False, usable: bool = True) -> Action:
        """Decide what follows a response.

        Args:
            status: Its HTTP status.
            has_cursor: Whether a stream was requested with a cursor.
            usable: Whether a body that could be used is what was asked for; one that is not counts as a CUT.
        """
        self._first_contact = False
        found = action_for(status, self._kind, has_cursor=has_cursor)
        match found:
            case Action.REFRESH:
                refreshed, self._refreshed = self._refreshed, True
                return Action.FATAL if refreshed else found
            case Action.REDIRECT:
                self.redirects += 1
                return found if self._is_get and self.redirects <= MAX_REDIRECTS else Action.FATAL
            case Action.CUT | Action.USE if found is Action.CUT or not usable:
                if self._kind is RequestKind.STREAM:
                    self._server_faults += 1
                    if self._server_faults > MAX_SERVER_FAULTS:
                        return Action.FATAL
                return Action.CUT
            case _:
                return found

    def fault(self, fault: RequestFault, *, contacted: bool) -> Action:
        """Decide what follows a fault: CUT or FATAL.

        Args:
            fault: What happened instead of a response.
            contacted: Whether the server has answered an earlier request as a Tidewire server.
        """
        self._first_contact = not contacted
        if contacted:
            return FAULT_TABLE[fault].later
        last = self._backoff.failures + 1 >= FIRST_ATTEMPTS
        return Action.FATAL if last else FAULT_TABLE[fault].first_contact

    def first_wait(self) -> float:
        """Count a failed attempt at first contact; return the seconds before the next one."""
        pause = FIRST_WAIT * 2.0**self._backoff.failures
        self._backoff.failures += 1
        return pause

    def wait(self, *, at_least: float | None = None) -> float | None:
        """Count a failed attempt of a submit or a read; return the seconds before the next one, None if there is none.

        Args:
            at_least: Seconds that the server asked the client to wait.
        """
        backoff = self._backoff
        last = backoff.failures + 1 >= backoff.policy.submit_attempts or backoff.exhausted
        if last or not backoff.allows(at_least):
            return None
        return self.first_wait() if self._first_contact else backoff.failed(at_least=at_least)
