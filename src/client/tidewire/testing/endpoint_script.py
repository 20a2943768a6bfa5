"""`Answer`, the script with which a fake endpoint answers one input. A script is a list of steps that the fake job
executes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from tidewire.errors import InvalidInputError
from tidewire.inputs.submit_members import jsonable
from tidewire.protocol import strict_json
from tidewire.protocol.messages import Progress, Queue
from tidewire.protocol.problems import REGISTRY, Problem, did_you_mean, problem
from tidewire.protocol.strict_json import JsonValue


class FakeToken(NamedTuple):
    """A token of a fake text generation.

    Attributes:
        text: Text of the token, which the job appends to the text of its value.
        logprob: Log-probability of the token, or None for a probability of 0.
        top: The most probable tokens at this position, as pairs of text and log-probability, most probable first.
        rank: Rank of the token by its probability. The most probable token has rank 1.
    """

    text: str
    logprob: float | None = -0.1
    top: Sequence[tuple[str, float | None]] = ()
    rank: int = 1


@dataclass(frozen=True, slots=True)
class AppendText:
    """Script step that appends text to the value."""

    text: str


@dataclass(frozen=True, slots=True)
class SetValue:
    """Script step that replaces the value."""

    value: JsonValue


@dataclass(frozen=True, slots=True)
class FailItem:
    """Script step that ends the item with the status `failed` and a problem."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class SendEvent:
    """Script step that sends a `queue` or `progress` event, which does not change the value."""

    message: Queue | Progress


@dataclass(frozen=True, slots=True)
class RestartJob:
    """Script step that restarts the job, as after a restart of the server. The current value is retracted."""


@dataclass(slots=True)
class ConnectionFault:
    """Script step that breaks or stalls the connection once, in the middle of the next event."""

    stalls: bool = False
    """Whether the connection stays open but transfers no more data. Otherwise, the connection breaks."""
    fired: bool = False
    """Whether the fault has already occurred."""


def known_code(code: str) -> str:
    """Check that the protocol defines a problem code, and return the code.

    Raises:
        ValueError: The protocol does not define the code.
    """
    if code not in REGISTRY:
        question = did_you_mean(str(code), REGISTRY)
        raise ValueError(f"unknown problem code {code!r}; {question}the codes are: {', '.join(REGISTRY)}")
    return code


def _json(value: Any) -> JsonValue:
    """Convert a value to JSON, as a real server converts the value of a function. The result shares no containers with
    the value, because a generator may yield the same object repeatedly and change it in between.

    Raises:
        TypeError: The value cannot be converted.
    """
    try:
        made = jsonable(value, "/value")
        strict_json.check(made)
    except (InvalidInputError, strict_json.StrictJsonError) as error:
        raise TypeError(f"a fake endpoint cannot answer with {value!r:.80}: {error}") from None
    return made


Step = AppendText | SetValue | FakeToken | FailItem | SendEvent | RestartJob | ConnectionFault
_CHANGES = (AppendText, SetValue, FakeToken)


@dataclass(slots=True)
class Answer:
    """The script with which a fake endpoint answers one input.

    Each method adds steps to the script and returns the script, so that calls can be chained.
    """

    steps: list[Step] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    """JSON Pointers within the value to the texts and arrays that grow. The first pointer is that of the text."""
    initial: JsonValue = None
    """Value of the item before the first step, or None if the item has no value yet."""
    finish_reason: str | None = None
    """Member `finish_reason` at the end of a text generation. None if the script is not a text generation."""

    def streams(self, pieces: Iterable[str]) -> Self:
        """Stream a text in pieces, with one event per piece."""
        self.columns, self.initial = ("",), ""
        for piece in pieces:
            if not isinstance(piece, str):
                raise TypeError(f"the pieces of a text must be strings, not {piece!r:.80}")
            self.steps.append(AppendText(piece))
        return self

    def returns(self, value: Any) -> Self:
        """Set the whole value in one event. If the value is a text, the updates contain it as their text, as on a real
        server.

        Raises:
            TypeError: The value cannot be converted to JSON.
        """
        if isinstance(value, str):
            self.columns = ("",)
        self.steps.append(SetValue(_json(value)))
        return self

    def yields(self, values: Iterable[Any], *, columns: Sequence[str] = ()) -> Self:
        """Set the item's value several times. Each event contains the difference to the previous value.

        Args:
            values: The successive values, in the order in which a generator on a real server would yield them.
            columns: JSON Pointers to the texts within the value that grow. Clients read these texts with `update.text` and
                `iter_text`. If the value itself is a text, use `""`.

        Raises:
            TypeError: A value cannot be converted to JSON.
        """
        self.columns = tuple(columns)
        self.steps += [SetValue(_json(value)) for value in values]
        return self

    def generates(self, tokens: Iterable[FakeToken], *, finish_reason: str = "stop") -> Self:
        """Stream the tokens of a text generation, with one event per token.

        If the input of a call requests further lists, such as `logprobs`, the value of the job contains them.
        """
        self.finish_reason = finish_reason
        self.steps += tokens
        return self

    def fails(self, code: str = "internal", detail: str | None = None, **members: Any) -> Self:
        """Fail the item.

        Args:
            code: Problem code, such as `internal`, `item_refused`, `deadline_exceeded` or `worker_lost`, or a custom
                code, which contains a dot or is a URI, such as `item_refused.empty`.
            detail: Human-readable explanation.
            members: Additional members of the problem.

        Raises:
            ValueError: The protocol has no such problem code.
        """
        if set(":.") & set(code):
            found = problem("item_refused", detail, **members).model_copy(update={"code": code})
        else:
            found = problem(known_code(code), detail, **members)
        self.steps.append(FailItem(found))
        return self

    def queued(self, *positions: int) -> Self:
        """Send `queue` events with these positions before the item starts. The item at position 1 is the next to run."""
        self.steps[:0] = [SendEvent(Queue(position=position)) for position in positions]
        return self

    def progresses(self, current: float, total: float | None = None, unit: str | None = None) -> Self:
        """Send a `progress` event."""
        self.steps.append(SendEvent(Progress(current=current, total=total, unit=unit)))
        return self

    def cuts_after(self, changes: int) -> Self:
        """Break the connection once. It breaks in the middle of the event that follows the first `changes` changes."""
        self.steps.insert(self._behind(changes), ConnectionFault())
        return self

    def stalls_after(self, changes: int) -> Self:
        """Stall the connection once. It stalls in the middle of the event that follows the first `changes` changes."""
        self.steps.insert(self._behind(changes), ConnectionFault(stalls=True))
        return self

    def restarts_after(self, changes: int) -> Self:
        """Restart the job after the first `changes` changes. These changes are retracted and then repeated."""
        at = self._behind(changes)
        self.steps[:0] = [*(step for step in self.steps[:at] if isinstance(step, _CHANGES)), RestartJob()]
        return self

    def _behind(self, changes: int) -> int:
        """Return the index of the step that follows the first `changes` changes of the value."""
        seen = 0
        for at, step in enumerate(self.steps):
            if seen == changes:
                return at
            seen += isinstance(step, _CHANGES)
        if not 0 <= changes <= seen:
            raise ValueError(
                f"the script has only {seen} changes, not {changes}; pass the values before the fault"
            )
        return len(self.steps)
