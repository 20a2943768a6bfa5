"""What the client does after a response or a fault: the status table, and what depends on the attempts before.

Submits, reads and event streams share it. It is pure, and holds no clock: the caller reports what came, does what the
action says, and waits for as many seconds as `wait` says. `status_table` names the action of a status; here it is limited:

  action   | of           | happens                                         | then
  ---------+--------------+-------------------------------------------------+-------------------------------------------
  REFRESH  | any          | once for each request                           | FATAL
  REDIRECT | GET          | `MAX_REDIRECTS` times for each request          | FATAL
  REDIRECT | other        | never                                           | FATAL
  CUT      | stream       | `MAX_SERVER_FAULTS` times without a connection  | FATAL
  CUT, WAIT| submit, read | `RetryPolicy.submit_attempts` attempts in all   | `wait` returns None: raise the last fault
  fault    | submit, read | the same                                        | the same

The waits of an event stream are its follower's (`Follower.lost`): they also depend on the progress of the job.
"""

from typing import Final

from tidewire.protocol.backoff import Backoff
from tidewire.protocol.status_table import MAX_SERVER_FAULTS, Action, RequestKind, action_for

MAX_REDIRECTS: Final = 5
"""Redirects that one request follows."""


class RequestPolicy:
    """See the top of this file.

    Attributes:
        redirects: Redirects in response to this request.
    """

    def __init__(self, asked: RequestKind, backoff: Backoff, *, is_get: bool = True) -> None:
        self.redirects: int = 0
        self._asked = asked
        self._backoff = backoff
        self._is_get = is_get
        self._refreshed = False
        self._server_faults = 0

    @property
    def failures(self) -> int:
        """Failed attempts in a row."""
        return self._backoff.failures

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
        found = action_for(status, self._asked, has_cursor=has_cursor)
        match found:
            case Action.REFRESH:
                refreshed, self._refreshed = self._refreshed, True
                return Action.FATAL if refreshed else found
            case Action.REDIRECT:
                self.redirects += 1
                return found if self._is_get and self.redirects <= MAX_REDIRECTS else Action.FATAL
            case Action.CUT | Action.USE if found is Action.CUT or not usable:
                if self._asked is RequestKind.STREAM:
                    self._server_faults += 1
                    if self._server_faults > MAX_SERVER_FAULTS:
                        return Action.FATAL
                return Action.CUT
            case _:
                return found

    def wait(self, *, at_least: float | None = None, exactly: float | None = None) -> float | None:
        """Count a failed attempt of a submit or a read; return the seconds before the next one, None if there is none.

        Args:
            at_least: Seconds that the server asked for.
            exactly: Seconds instead of the backoff's, at first contact.
        """
        backoff = self._backoff
        last = backoff.failures + 1 >= backoff.policy.submit_attempts or backoff.exhausted
        if last or not backoff.allows(at_least):
            return None
        if exactly is None:
            return backoff.failed(at_least=at_least)
        backoff.failures += 1
        return exactly
