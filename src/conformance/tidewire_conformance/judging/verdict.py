"""Verdict of a check: its outcome, and its assertions about requirements with their evidence.

The following conditions determine the outcome of a check:

condition                                              | outcome
-------------------------------------------------------+-------------------------------------------------
an assertion about a MUST failed                       | fail
only assertions about SHOULD failed                    | warn
the suite itself failed                                | error
no verdict is possible, e.g. no response arrived       | inconclusive
something that the check needs is missing              | skipped: not declared, no occasion, untested or blocked
the check ended without an assertion                   | error, because such a check proves nothing
otherwise                                              | pass
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidewire_conformance import specification
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange


class Outcome(enum.StrEnum):
    """Result of a check or of a requirement."""

    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    WARN = "warn"
    SKIPPED = "skipped"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


class SkipReason(enum.StrEnum):
    """Reason why a check was skipped."""

    NOT_DECLARED = "not declared"
    """The server does not declare the capability. This does not lower the grade."""
    NO_OCCASION = "no occasion"
    """The requirement depends on a condition that did not occur in this run. This does not lower the grade."""
    UNTESTED = "untested"
    """The server declares the capability, but the suite has no way to test it. This lowers the grade."""
    BLOCKED = "blocked"
    """An earlier failure prevented the check from reaching a verdict. This lowers the grade."""


WORST_FIRST: Final = (
    Outcome.ERROR,
    Outcome.FAIL,
    Outcome.INCONCLUSIVE,
    Outcome.WARN,
    Outcome.SKIPPED,
    Outcome.PASS,
)
"""All outcomes, ordered from the worst to the best."""


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of the outcomes."""
    return min(outcomes, key=WORST_FIRST.index)


@dataclass(frozen=True)
class Assertion:
    """Recorded judgment about one requirement."""

    requirement: str
    holds: bool
    expected: str = ""
    got: str = ""
    exchange: RecordedExchange | None = None
    """Recorded request and response that prove the result."""
    block: Block | None = None
    """Event that the assertion is about."""
    transcript: tuple[str, ...] = ()
    """Lines of a transcript, which are the evidence if there is no recorded exchange."""

    @property
    def outcome(self) -> Outcome:
        if self.holds:
            return Outcome.PASS
        return Outcome.FAIL if specification.requirements()[self.requirement].binds else Outcome.WARN


@dataclass
class Verdict:
    """Result of one check, with its assertions."""

    check: str
    requirements: tuple[str, ...]
    about: str
    outcome: Outcome = Outcome.PASS
    note: str = ""
    """Reason for a skip, or description of the problem that prevented a verdict."""
    why: SkipReason | None = None
    assertions: list[Assertion] = field(default_factory=list)
    seconds: float = 0.0
    rounds: int = 1
    """Number of times the check ran."""
    place: int = 0
    """Position of the check among all checks of servers, ordered from causes to effects. A scenario has none."""
    whole_run: bool = False
    """Whether the check judges the requests and responses of the whole run, which other checks sent."""
    unsent: str = ""
    """Id of the requirement to send a cursor or request that the client in a scenario did not send."""

    @property
    def broken(self) -> list[Assertion]:
        return [each for each in self.assertions if not each.holds]

    def of(self, requirement: str) -> Outcome:
        """Return the outcome of the check for one requirement.

        The outcome is `skipped` if the check made no assertion about the requirement.
        """
        found = {each.outcome for each in self.assertions if each.requirement == requirement}
        if Outcome.FAIL in found or Outcome.WARN in found:
            return worst(found)
        if self.outcome in {Outcome.ERROR, Outcome.INCONCLUSIVE}:
            return self.outcome
        return Outcome.PASS if found else Outcome.SKIPPED
