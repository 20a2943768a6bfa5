"""Exceptions of the server, and their conversion to problem details (RFC 9457)."""

from collections.abc import Iterable
from typing import Any, Final

from tidewire.protocol.problems import REGISTRY, Problem, no_such_endpoint, problem, to_json

ITEM_ERROR = "item_refused"
"""Default code of an `ItemError`, and prefix of custom codes. A custom code with a dot, or that is a URI, gets no prefix."""


class ProblemError(Exception):
    """Error that the server sends to the client as a problem document.

    Attributes:
        problem: Body of the response.
        headers: Additional headers of the response.
    """

    def __init__(self, problem: Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.detail or problem.title)
        self.problem = problem
        self.headers = headers or {}


class EndpointFunctionError(RuntimeError):
    """A function in the options of an endpoint, such as `validate`, has failed for an input. Either it returned an invalid
    value, or it raised an unexpected exception, which is the cause of this error.

    Args:
        message: Name of the endpoint and of the function.
        pointer: JSON Pointer of the input in the body of the request. None if the error does not concern a single input.
    """

    def __init__(self, message: str, *, pointer: str | None = None) -> None:
        super().__init__(message)
        self.pointer = pointer


def refuse(code: str, detail: str, *, headers: dict[str, str] | None = None, **members: Any) -> ProblemError:
    """Create a `ProblemError` with a registered code. The caller must raise it."""
    return ProblemError(problem(code, detail, **members), headers)


_UNREAD_REQUESTS: Final = {
    "request.late": (408, "The request did not arrive in time"),
    "request.foreign_host": (421, "The Host header is not the name of this server"),
    "request.foreign_origin": (403, "Web pages of this origin may not use this server"),
}
"""HTTP status and title for each problem of a request that the server rejects unread. The codes are not registered."""


def unread_request(code: str, detail: str) -> Problem:
    """Create the problem for a request that the server rejects unread. `request.late` is retryable."""
    status, title = _UNREAD_REQUESTS[code]
    return Problem(code=code, title=title, status=status, detail=detail, retryable=code == "request.late")


class ItemError(Exception):
    """Exception that a function raises to fail the current item with a message for the client.

    Args:
        message: Error message for the client. The client does not receive the exception's traceback or cause.
        code: Registered error code such as `"input_too_long"`, absolute URI, or name that contains a dot. Any other
            name gets a prefix, so that `"empty"` becomes `item_refused.empty`.
        members: Additional members of the problem, such as a limit. With a custom code, `retryable` can also be
            set.
    """

    def __init__(self, message: str, *, code: str = ITEM_ERROR, **members: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code if code in REGISTRY or set(":.") & set(code) else f"{ITEM_ERROR}.{code}"
        self.members = members

    def problem(self) -> Problem:
        """Return the problem details of this error. They become the member `error` of the item."""
        if self.code in REGISTRY:
            found = problem(self.code, self.message)
        else:
            kind = REGISTRY[ITEM_ERROR]
            uri = self.code if ":" in self.code else None
            found = Problem(
                code=self.code, type=uri, title=kind.title, status=kind.status, detail=self.message
            )
        # For a registered code, the registry defines whether the error is retryable [TW-ERR-004]. For a custom code,
        # `members` defines this.
        custom = () if self.code in REGISTRY else ("retryable", "retry_after_ms")
        overrides = {name: self.members[name] for name in custom if name in self.members}
        return Problem.model_validate(self.members | to_json(found) | overrides)


class InvalidValueError(ValueError):
    """A function has produced a value that is not JSON or that does not match the schema of the endpoint's value."""


class StateTooLargeError(Exception):
    """A change would make a job's state larger than `max_state_bytes`. The job fails."""

    def __init__(self, limit: int) -> None:
        # Keep this message short. It is stored in the state, which is already close to its limit.
        super().__init__(
            f"the job's state would exceed max_state_bytes={limit}; return less, or raise this setting"
        )
        self.limit = limit


class LogUnavailableError(Exception):
    """The store was unavailable for so long that a job's unwritten changes reached their memory limit. The job fails."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"the server cannot write its log at the moment, and {waiting} bytes of this job wait to be written; "
            "submit the job again once the server is ready"
        )


class StreamClosedError(RuntimeError):
    """A function has written to the stream of an item that had already ended."""


class WorkerLostError(Exception):
    """The worker that ran a function has died or was replaced. `on_restart` decides how the items continue."""


class RunLaterError(Exception):
    """A function cannot run now, because a resource is busy. Its item returns to the queue, and keeps its current value."""


class WorkersUnavailableError(Exception):
    """The workers of an endpoint cannot be used. If this happens while the server starts, the start fails."""


class UnknownEndpointError(KeyError):
    """The server has no endpoint with this name."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(name)
        self._text = no_such_endpoint(name, known)

    def __str__(self) -> str:
        return self._text
