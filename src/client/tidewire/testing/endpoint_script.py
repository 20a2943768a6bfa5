"""What a fake endpoint does for one input: steps, in order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from pydantic import JsonValue

from tidewire.protocol.messages import Progress, Queue
from tidewire.protocol.problems import Problem, problem


class FakeToken(NamedTuple):
    """A token that a fake generation gives.

    Attributes:
        text: Its text, which is appended to that of the value.
        logprob: Its log-probability, None for a probability of 0.
        top: Candidates, most probable first: text and log-probability.
        rank: Its rank.
    """

    text: str
    logprob: float | None = -0.1
    top: Sequence[tuple[str, float | None]] = ()
    rank: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that is appended to the value."""

    text: str


@dataclass(frozen=True, slots=True)
class Whole:
    """The value from now on."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class Fails:
    """The item ends with a problem."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class Says:
    """A message that changes nothing."""

    message: Queue | Progress


@dataclass(frozen=True, slots=True)
class Restarts:
    """The job is started again: what came before is void."""


@dataclass(slots=True)
class Fault:
    """What happens once to the connection, in the middle of the event that comes next."""

    stalls: bool = False
    """Whether it falls silent, instead of breaking."""
    fired: bool = False


Step = Piece | Whole | FakeToken | Fails | Says | Restarts | Fault
_CHANGES = (Piece, Whole, FakeToken)


@dataclass(slots=True)
class Answer:
    """What a fake endpoint does for one input. The methods add to it and give it back, so that they can be chained."""

    steps: list[Step] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    """JSON Pointers within the value to the texts and arrays that grow, the first of them to the text."""
    initial: JsonValue = None
    """The value before anything happened; None: there is none."""
    finish_reason: str | None = None
    """Of a generation: set in its value at the end."""

    def streams(self, pieces: Iterable[str]) -> Self:
        """The value is a text that comes in these pieces, each an event of its own."""
        self.columns, self.initial = ("",), ""
        self.steps += [Piece(piece) for piece in pieces]
        return self

    def returns(self, value: JsonValue) -> Self:
        """The value comes at once."""
        self.steps.append(Whole(value))
        return self

    def yields(self, values: Iterable[JsonValue], *, columns: Sequence[str] = ()) -> Self:
        """The value is each of these in turn; the differences are sent.

        Args:
            values: What a function of the server would yield.
            columns: JSON Pointers within the value to the texts that grow, so that `update.text` and `iter_text` see
                them; a text itself is `""`.
        """
        self.columns = tuple(columns)
        self.steps += [Whole(value) for value in values]
        return self

    def generates(self, tokens: Iterable[FakeToken], *, finish_reason: str = "stop") -> Self:
        """The value is that of a text generation, one event for each token, with the columns that the input asks for."""
        self.finish_reason = finish_reason
        self.steps += tokens
        return self

    def fails(self, code: str = "internal", detail: str | None = None, **members: Any) -> Self:
        """Then the item fails.

        Args:
            code: One of the registry: `internal`, `item_refused`, `deadline_exceeded`, `worker_lost`, …
            detail: What went wrong.
            members: Further members of the problem.
        """
        self.steps.append(Fails(problem(code, detail, **members)))
        return self

    def queued(self, *positions: int) -> Self:
        """Before it begins, the client is told of these places in the queue; 1 is next."""
        self.steps[:0] = [Says(Queue(position=position)) for position in positions]
        return self

    def progresses(self, current: float, total: float | None = None, unit: str | None = None) -> Self:
        """Then a progress is reported."""
        self.steps.append(Says(Progress(current=current, total=total, unit=unit)))
        return self

    def cuts_after(self, changes: int) -> Self:
        """The connection breaks once, in the middle of the event that follows so many changes of the value."""
        self.steps.insert(self._behind(changes), Fault())
        return self

    def stalls_after(self, changes: int) -> Self:
        """The connection falls silent once, in the middle of the event that follows so many changes of the value."""
        self.steps.insert(self._behind(changes), Fault(stalls=True))
        return self

    def restarts_after(self, changes: int) -> Self:
        """After so many changes the server starts the job again: they are void, and all comes anew."""
        at = self._behind(changes)
        self.steps[:0] = [*(step for step in self.steps[:at] if isinstance(step, _CHANGES)), Restarts()]
        return self

    def _behind(self, changes: int) -> int:
        """The index in the steps behind so many changes."""
        seen = 0
        for at, step in enumerate(self.steps):
            if seen == changes:
                return at
            seen += isinstance(step, _CHANGES)
        if seen < changes:
            raise ValueError(f"after {changes} changes, but this answer has {seen}: give it the value first")
        return len(self.steps)
