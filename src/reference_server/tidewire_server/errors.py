"""What goes wrong, as exceptions that carry their problem details."""

import difflib
from collections.abc import Iterable
from typing import Any

from tidewire.protocol.problems import REGISTRY, Problem, problem, to_json

ITEM_ERROR = "item_refused"
"""The code of an `ItemError` that names none; a word that is no code of the registry comes after it and a dot."""


class ProblemError(Exception):
    """A request that is answered with a problem.

    Attributes:
        problem: The body of the answer.
        headers: Further headers of the answer.
    """

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.headers = headers or {}


def refuse(code: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any) -> ProblemError:
    """Make the error of a registry code; to be raised."""
    return ProblemError(problem(code, detail, **members), headers)


def late(detail: str) -> Problem:
    """What is said of a request that did not come in time. Nothing of it was begun, so that it may be sent again."""
    return Problem(
        code="request.late",
        title="The request did not arrive in time",
        status=408,
        detail=detail,
        retryable=True,
    )


class ItemError(Exception):
    """Raised by an endpoint's function: this item fails, and its caller reads the message.

    Args:
        message: For the caller; nothing else of the exception leaves the server.
        code: A code of the registry (`"input_too_long"`, …), or one of your own: an absolute URI, or a name that
            holds a dot. Any other word gets one: `"empty"` becomes `item_refused.empty`.
        members: Further members of the problem, such as a limit. With a code of your own also `retryable`.
    """

    def __init__(self, message: str, *, code: str = ITEM_ERROR, **members: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code in REGISTRY or set(":.") & set(code) else f"{ITEM_ERROR}.{code}"
        self.members = members

    def problem(self) -> Problem:
        """The problem details that the item's `error` becomes."""
        if self.code in REGISTRY:
            found = problem(self.code, self.message)
        else:
            kind = REGISTRY[ITEM_ERROR]
            uri = self.code if ":" in self.code else None
            found = Problem(
                code=self.code, type=uri, title=kind.title, status=kind.status, detail=self.message
            )
        # The registry says whether one of its own is retryable (TW-ERR-004); of the others their author does.
        own = () if self.code in REGISTRY else ("retryable", "retry_after_ms")
        said = {name: self.members[name] for name in own if name in self.members}
        return Problem(**(self.members | to_json(found) | said))


class InvalidValueError(ValueError):
    """A function returned, yielded or wrote what is no JSON or does not fit its endpoint's value schema."""


class StateTooLargeError(Exception):
    """A change would make a job's state larger than the server's limit; the job fails."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the job's state would pass max_state_bytes={limit}")
        self.limit = limit


class StreamClosedError(RuntimeError):
    """Something was written to the stream of an item that has ended."""


class UnknownEndpointError(KeyError):
    """A server has no endpoint of this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        super().__init__(name)
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        self._text = f"there is no endpoint {name!r}; {hint}there are: {', '.join(names) or 'none'}"

    def __str__(self) -> str:
        return self._text
