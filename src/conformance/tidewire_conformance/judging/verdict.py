"""What a check says: its assertions, each with its sentence and its evidence, and the outcome that follows.

what happened                                         | outcome
------------------------------------------------------+-------------------------------------------------
an assertion about a sentence with MUST failed        | fail
only assertions about SHOULD failed                   | warn
the suite itself failed                               | error
it cannot be judged, such as an answer that never came| inconclusive
what it needs is not there                            | skipped: not declared, untested, or blocked
it ended without an assertion                         | error: a check that asserts nothing proves nothing
otherwise                                             | pass
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from tidewire_conformance import specification
from tidewire_conformance.wire.event_stream_decoder import Block
from tidewire_conformance.wire.recorded_exchange import RecordedExchange


class Outcome(enum.StrEnum):
    """How a check, or a sentence, came out."""

    PASS = "pass"  # noqa: S105 - no word that opens anything
    FAIL = "fail"
    WARN = "warn"
    SKIPPED = "skipped"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"


class SkipReason(enum.StrEnum):
    """Why a check was skipped."""

    NOT_DECLARED = "not declared"
    """The server does not claim it: nothing is lacking."""
    NO_OCCASION = "no occasion"
    """It binds who does something that the server did not do here: nothing is lacking."""
    UNTESTED = "untested"
    """The server claims it, but nothing at hand can try it: this lowers the grade."""
    BLOCKED = "blocked"
    """Something else failed first: this lowers the grade."""


WORST: Final = (
    Outcome.ERROR,
    Outcome.FAIL,
    Outcome.INCONCLUSIVE,
    Outcome.WARN,
    Outcome.SKIPPED,
    Outcome.PASS,
)
"""Outcomes, the worst first."""


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of some outcomes."""
    return min(outcomes, key=WORST.index)


@dataclass(frozen=True)
class Assertion:
    """One thing that was judged."""

    sentence: str
    holds: bool
    expected: str = ""
    got: str = ""
    exchange: RecordedExchange | None = None
    """Where it was seen."""
    block: Block | None = None
    """The event that it is about."""
    told: tuple[str, ...] = ()
    """The record in lines, where it was no exchange of the suite's own."""

    @property
    def outcome(self) -> Outcome:
        if self.holds:
            return Outcome.PASS
        return Outcome.FAIL if specification.requirements()[self.sentence].binds else Outcome.WARN


@dataclass
class Verdict:
    """What came of one check."""

    check: str
    sentences: tuple[str, ...]
    about: str
    outcome: Outcome = Outcome.PASS
    note: str = ""
    """Why it was skipped, or what could not be judged."""
    why: SkipReason | None = None
    assertions: list[Assertion] = field(default_factory=list)
    seconds: float = 0.0
    rounds: int = 1
    """How often it was run."""

    @property
    def broken(self) -> list[Assertion]:
        return [each for each in self.assertions if not each.holds]

    def of(self, sentence: str) -> Outcome:
        """The outcome for one of its sentences; skipped where nothing was asserted about it."""
        found = {each.outcome for each in self.assertions if each.sentence == sentence}
        if Outcome.FAIL in found or Outcome.WARN in found:
            return worst(found)
        if self.outcome in {Outcome.ERROR, Outcome.INCONCLUSIVE}:
            return self.outcome
        return Outcome.PASS if found else Outcome.SKIPPED
