"""`FakeEndpoint`, an endpoint of a fake server, which answers inputs with the scripts that a test defines."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidewire.protocol.problems import Problem, problem
from tidewire.protocol.resources import EndpointCapabilities
from tidewire.testing.endpoint_script import Answer, FakeToken, known_code


@dataclass(slots=True)
class FakeEndpoint:
    """An endpoint of a fake server.

    Each method except `refuses` adds an answer. The endpoint uses one answer per input, in the order in which the answers were
    added. It uses the last answer for all further inputs.
    """

    name: str
    capabilities: EndpointCapabilities
    _answers: list[Answer | Callable[[Any], Any]] = field(default_factory=list)
    _answered: int = 0
    _refusals: list[Problem] = field(default_factory=list)

    def streams(self, pieces: Iterable[str]) -> Answer:
        """Answer the next input with a text that is streamed in pieces."""
        return self._add().streams(pieces)

    def returns(self, value: Any) -> Answer:
        """Answer the next input with a value that is sent in one event."""
        return self._add().returns(value)

    def yields(self, values: Iterable[Any], *, columns: Sequence[str] = ()) -> Answer:
        """Answer the next input with several values, one after the other. See `Answer.yields`."""
        return self._add().yields(values, columns=columns)

    def generates(self, tokens: Iterable[FakeToken], *, finish_reason: str = "stop") -> Answer:
        """Answer the next input with a text generation. See `Answer.generates`."""
        return self._add().generates(tokens, finish_reason=finish_reason)

    def fails(self, code: str = "internal", detail: str | None = None, **members: Any) -> Answer:
        """Fail the next input. See `Answer.fails`."""
        return self._add().fails(code, detail, **members)

    def calls(self, function: Callable[[Any], Any]) -> None:
        """Answer the next input with the result of a function that is called with the input."""
        self._answers.append(function)

    def refuses(self, code: str, detail: str | None = None, *, times: int = 1, **members: Any) -> None:
        """Reject the next requests that submit a job. A rejected request does not use up an answer.

        Args:
            code: Problem code, such as `queue_full`, `unavailable` or `invalid_input`.
            detail: Human-readable explanation.
            times: Number of requests to reject, at least 1.
            members: Additional members of the problem, such as `pointer`.

        Raises:
            ValueError: The protocol has no such problem code, or `times` is less than 1.
        """
        if times < 1:
            raise ValueError(f"times must be at least 1, not {times!r}")
        self._refusals += [problem(known_code(code), detail, **members)] * times

    def _add(self) -> Answer:
        answer = Answer()
        self._answers.append(answer)
        return answer

    def _next(self, value: Any) -> Answer:
        if not self._answers:
            raise AssertionError(
                f"the fake endpoint {self.name!r} received an input but has no answer; add an answer, for example with "
                f".returns(value)"
            )
        found = self._answers[min(self._answered, len(self._answers) - 1)]
        self._answered += 1
        if isinstance(found, Answer):
            return found
        return Answer().returns(found(value))
