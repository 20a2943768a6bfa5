"""Policy for retries and redirects, which decides the action after each response or fault. The decision depends on
earlier attempts.

Every request and every event stream has its own `RequestPolicy`. The class does no I/O and has no clock. The caller
reports a status or fault, performs the returned action, and sleeps for the time that `wait` returns. The module
`status_table` contains the actions for statuses, and `FAULT_TABLE` contains the actions for faults. The policy limits
how often an action is repeated, as this table shows:

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

First contact lasts until a response proves that the server is a Tidewire server. The retries of an event stream after
first contact also depend on the progress of the job; see `Follower.lost`.
"""

from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from tidewire.protocol.backoff import Backoff
from tidewire.protocol.status_table import MAX_SERVER_FAULTS, Action, RequestKind, action_for

MAX_REDIRECTS: Final = 5
"""Maximum number of redirects that one request follows."""
FIRST_ATTEMPTS: Final = 3
"""Maximum number of attempts to reach a server at first contact, that is before a response has proved that the server
is a Tidewire server."""
FIRST_WAIT: Final = 0.25
"""Time between the first and the second attempt at first contact, in seconds. It doubles before each further
attempt."""


class RequestFault(Enum):
    """Reason why a request has no usable response."""

    NO_CONNECTION = "no_connection"
    """The connection could not be opened, or broke before the response was complete."""
    TIMEOUT = "timeout"
    """The connection or the response took too long."""
    NOT_TIDEWIRE = "not_tidewire"
    """The response does not come from a Tidewire server."""


class FaultRow(NamedTuple):
    """The actions for one kind of fault, at first contact and after first contact."""

    first_contact: Action
    later: Action


FAULT_TABLE: Final = MappingProxyType(
    {
        RequestFault.NO_CONNECTION: FaultRow(Action.CUT, Action.CUT),
        # At first contact, a server that accepts connections but sends nothing usually speaks another protocol.
        RequestFault.TIMEOUT: FaultRow(Action.FATAL, Action.CUT),
        # After first contact, a response that no Tidewire server sends comes from a proxy in front of the server.
        RequestFault.NOT_TIDEWIRE: FaultRow(Action.FATAL, Action.CUT),
    }
)


class RequestPolicy:
    """Decides the client's action after each response or fault of one request or one event stream.

    Attributes:
        redirects: Number of redirects that the server has sent in response to the current request.
    """

    def __init__(self, kind: RequestKind, backoff: Backoff, *, is_get: bool = True) -> None:
        self.redirects: int = 0
        self._kind = kind
        self._backoff = backoff
        self._is_get = is_get
        self._refreshed = False
        self._server_faults = 0
        self._first_contact = False
        """Whether the last attempt failed at first contact."""

    def begin(self) -> None:
        """Reset the counts for one request, before a new request for the same stream."""
        self._refreshed = False
        self.redirects = 0

    def connected(self) -> None:
        """Reset the count of unusable responses, after a stream was opened."""
        self._server_faults = 0

    def action(self, status: int, *, has_cursor: bool = False, usable: bool = True) -> Action:
        """Decide the action after a response.

        Args:
            status: HTTP status of the response.
            has_cursor: Whether the request for a stream had a cursor.
            usable: Whether the body of a successful response has the requested content type. If not, the action is CUT.
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
        """Decide the action after a fault. The action is CUT or FATAL.

        Args:
            fault: The fault.
            contacted: Whether an earlier response proved that the server is a Tidewire server.
        """
        self._first_contact = not contacted
        if contacted:
            return FAULT_TABLE[fault].later
        last = self._backoff.failures + 1 >= FIRST_ATTEMPTS
        return Action.FATAL if last else FAULT_TABLE[fault].first_contact

    def first_wait(self) -> float:
        """Count a failed attempt at first contact, and return the time to wait before the next attempt, in seconds."""
        pause = FIRST_WAIT * 2.0**self._backoff.failures
        self._backoff.failures += 1
        return pause

    def wait(self, *, at_least: float | None = None) -> float | None:
        """Count a failed attempt of a request that does not open a stream, and return the time to wait before the next
        attempt.

        Args:
            at_least: Minimum wait in seconds that the server asked for, for example with Retry-After.

        Returns:
            Seconds to wait, or None if the policy allows no further attempt.
        """
        backoff = self._backoff
        last = backoff.failures + 1 >= backoff.policy.submit_attempts or backoff.exhausted
        if last or not backoff.allows(at_least):
            return None
        return self.first_wait() if self._first_contact else backoff.failed(at_least=at_least)
