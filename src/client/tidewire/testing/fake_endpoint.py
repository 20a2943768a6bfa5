"""`FakeEndpoint`: what an endpoint of a fake server answers, in the order in which a test has said it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from tidewire.protocol.resources import EndpointCapabilities
from tidewire.testing.endpoint_script import Answer, FakeToken


@dataclass(slots=True)
class _Refusal:
    code: str
    members: dict[str, Any]
    left: int


@dataclass(slots=True)
class FakeEndpoint:
    """An endpoint of a fake server. Answers are given in the order in which they were scripted, one for each input;
    the last one is given from then on.
    """

    name: str
    capabilities: EndpointCapabilities
    _answers: list[Answer | Callable[[Any], JsonValue]] = field(default_factory=list)
    _given: int = 0
    _refusals: list[_Refusal] = field(default_factory=list)

    def streams(self, pieces: Iterable[str]) -> Answer:
        """The next input is answered with a text in these pieces."""
        return self._add().streams(pieces)

    def returns(self, value: JsonValue) -> Answer:
        """The next input is answered with this value, at once."""
        return self._add().returns(value)

    def yields(self, values: Iterable[JsonValue], *, columns: Sequence[str] = ()) -> Answer:
        """The next input is answered with each of these values in turn; see `Answer.yields`."""
        return self._add().yields(values, columns=columns)

    def generates(self, tokens: Iterable[FakeToken], *, finish_reason: str = "stop") -> Answer:
        """The next input is answered with a text generation, with the columns that it asks for."""
        return self._add().generates(tokens, finish_reason=finish_reason)

    def fails(self, code: str = "internal", detail: str | None = None, **members: Any) -> Answer:
        """The next input fails; see `Answer.fails`."""
        return self._add().fails(code, detail, **members)

    def calls(self, function: Callable[[Any], JsonValue]) -> None:
        """From here on the value of an input is what this function makes of it."""
        self._answers.append(function)

    def refuses(self, code: str, detail: str | None = None, *, times: int = 1, **members: Any) -> None:
        """The next submits are refused, before any answer is used up.

        Args:
            code: One of the registry: `queue_full`, `unavailable`, `invalid_input`, …
            detail: Why.
            times: How many of them.
            members: Further members of the problem, such as `pointer`.
        """
        self._refusals.append(_Refusal(code, members | {"detail": detail}, times))

    def _add(self) -> Answer:
        answer = Answer()
        self._answers.append(answer)
        return answer

    def _refusal(self) -> _Refusal | None:
        for refusal in self._refusals:
            if refusal.left:
                refusal.left -= 1
                return refusal
        return None

    def _next(self, value: Any) -> Answer:
        if not self._answers:
            raise AssertionError(
                f"a submit to {self.name!r}, which has no answer: script one, as with .returns(value)"
            )
        found = self._answers[min(self._given, len(self._answers) - 1)]
        self._given += 1
        if isinstance(found, Answer):
            return found
        return Answer().returns(found(value))
