"""Everything that `tidewire` raises.

    TidewireError
    ├── RequestError                    the server refused a request
    │   ├── AuthenticationError         401: credentials are missing or not valid
    │   ├── PermissionDeniedError       403: these credentials do not allow it
    │   ├── EndpointNotFoundError       404: the server has no such endpoint
    │   ├── JobNotFoundError            404: the server has no such job
    │   ├── JobExpiredError             410: the job was purged or has expired
    │   ├── InvalidInputError           422, 413: the input does not fit; `pointer` names the member
    │   ├── QueueFullError              429: the endpoint's queue is full
    │   └── RateLimitError              429: too many requests, jobs or streams
    ├── JobFailedError                  the job ended without a value; `problem` says why
    ├── JobCancelledError               the job was cancelled (no relative of asyncio's CancelledError)
    ├── ItemFailedError                 one input of a batch ended without a value; `index` says which
    ├── InvalidValueError               a value does not fit the type that it was asked for as
    ├── VoidTextError                   text that was handed over as final has become void
    ├── CheckpointError                 a checkpoint cannot be read, or is of another job or server
    ├── ConcurrentReadError             two loops read one job object at the same time
    ├── ClientClosedError               the client was closed
    ├── EventLoopError                  a client was used on another event loop than its first (a RuntimeError)
    ├── StateTooLargeError              a job's state passes `max_state_bytes` of this client
    ├── ProtocolError                   the other side does not keep to the protocol
    │   ├── UnsupportedProtocolError    it speaks a version, an event or an op that this client does not know
    │   └── NotATidewireServerError     it speaks something else altogether
    ├── TransportError                  the network, or what stands between
    │   ├── ConnectTimeoutError         no connection in time (a TimeoutError)
    │   └── SilenceTimeoutError         no answer, or no byte of a stream, in time (a TimeoutError)
    └── TotalTimeoutError               the caller's own `timeout` passed (a TimeoutError)
        └── QueueTimeoutError           … while the job still waited in the server's queue

Each error says what happened, where, and what to do, and carries its evidence as attributes.
"""

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from pydantic import JsonValue

from tidewire.protocol.problems import Problem


@dataclass(frozen=True, slots=True)
class Where:
    """Where something happened, as far as it is known."""

    method: str | None = None
    url: str | None = None
    job_id: str | None = None
    last_event_id: str | None = None
    status_code: int | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        parts = []
        if self.url is not None:
            answer = "" if self.status_code is None else f" → {self.status_code}"
            parts.append(f"{self.method or 'GET'} {self.url}{answer}")
        # The URL of a job names it already.
        if self.job_id is not None and (self.url is None or self.job_id not in self.url):
            parts.append(f"job {self.job_id}")
        if self.last_event_id is not None:
            parts.append(f"last event {self.last_event_id}")
        if self.request_id is not None:
            parts.append(f"request {self.request_id}")
        return "; ".join(parts)


NOWHERE = Where()


class TidewireError(Exception):
    """Base of all errors of this package.

    Attributes:
        what: What happened, in a sentence.
        where: Method, URL, job and last event ID, as far as they are known.
        advice: What can be done.
        problem: The problem details that the server sent, if it sent any.
        retryable: Whether the same call may succeed later without a change.
    """

    default_advice: ClassVar[str] = ""

    def __init__(
        self,
        what: str,
        *,
        where: Where = NOWHERE,
        problem: Problem | None = None,
        advice: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where: Where = where
        self.problem = problem
        self.advice: str = self.default_advice if advice is None else advice
        self.retryable: bool = (
            retryable if retryable is not None else problem is not None and problem.retryable
        )

    def __str__(self) -> str:
        place = str(self.where)
        text = f"{self.what.rstrip('.')} ({place})." if place else f"{self.what.rstrip('.')}."
        return f"{text} {self.advice}" if self.advice else text

    @property
    def status_code(self) -> int | None:
        """The HTTP status that was answered, or that the problem names."""
        if self.where.status_code is not None:
            return self.where.status_code
        return None if self.problem is None else self.problem.status

    @property
    def code(self) -> str | None:
        """The problem's code: what went wrong, as a word for programs."""
        return None if self.problem is None else self.problem.code

    @property
    def request_id(self) -> str | None:
        """What the server calls the request in its own log (`X-Request-Id`)."""
        return self.where.request_id

    @property
    def job_id(self) -> str | None:
        """The job that it is about."""
        return self.where.job_id

    @property
    def last_event_id(self) -> str | None:
        """The id up to which the job's state was held."""
        return self.where.last_event_id

    def placed(self, **members: str | int | None) -> "TidewireError":
        """Fill in what `where` does not know yet."""
        known = {
            name: value
            for name, value in members.items()
            if value is not None and getattr(self.where, name) is None
        }
        self.where = replace(self.where, **known)  # type: ignore[arg-type]
        return self


class RequestError(TidewireError):
    """The server refused a request."""


class AuthenticationError(RequestError):
    """401: credentials are missing or not valid."""

    default_advice = "Give valid credentials: Client(url, headers={'Authorization': …}) or auth=…."


class PermissionDeniedError(RequestError):
    """403: these credentials do not allow this."""

    default_advice = "Use credentials that allow it, or ask whoever runs the server."


class EndpointNotFoundError(RequestError):
    """404: the server has no such endpoint."""


class JobNotFoundError(RequestError):
    """404: the server has no such job, or not for these credentials."""

    default_advice = "Check the id, and that the server and the credentials are those of its submit."


class JobExpiredError(RequestError):
    """410: the job was purged or has expired. What was received stays readable, but may be incomplete."""

    default_advice = "Submit it again."


class InvalidInputError(RequestError, ValueError):
    """The input does not fit what the endpoint takes."""

    @property
    def pointer(self) -> str | None:
        """JSON Pointer into the request's body: the member that is wrong."""
        return None if self.problem is None else self.problem.pointer


class QueueFullError(RequestError):
    """429: the endpoint's queue is full, also after waiting as often as the retry policy allows."""

    default_advice = (
        "Submit again later, or allow more attempts: with_options(retry=RetryPolicy(submit_attempts=…))."
    )


class RateLimitError(RequestError):
    """429: too many requests, unfinished jobs or open streams, also after waiting."""

    default_advice = "Wait, or do less at the same time."


class JobFailedError(TidewireError):
    """The job failed; `problem` says why.

    Attributes:
        value: What it had given until then, as JSON.
    """

    value: JsonValue = None


class JobCancelledError(TidewireError):
    """The job was cancelled. Not related to the cancellation of tasks.

    Attributes:
        value: What it had given until then, as JSON.
    """

    value: JsonValue = None


class ItemFailedError(TidewireError):
    """One input of a batch failed or was cancelled; `problem` says why.

    Attributes:
        index: Which input, from 0.
        status: `failed` or `cancelled`.
        value: What it had given until then, as JSON.
    """

    index: int = 0
    status: str = "failed"
    value: JsonValue = None


class InvalidValueError(TidewireError, ValueError):
    """A value does not fit the type that it was asked for as."""


class VoidTextError(TidewireError):
    """Text that was handed over as final has become void."""

    default_advice = "Start over with client.job(id).iter_text(), or use iter_text_deltas(), which tells what becomes void."


class CheckpointError(TidewireError, ValueError):
    """A checkpoint cannot be read, or is of another job or server."""


class ConcurrentReadError(TidewireError, RuntimeError):
    """Two loops read one job object at the same time."""

    default_advice = "Let each reader have a job object of its own: client.job(job.id)."


class ClientClosedError(TidewireError, RuntimeError):
    """The client was closed."""

    default_advice = "Make a new client; a job goes on with client.job(checkpoint=job.checkpoint())."


class EventLoopError(TidewireError, RuntimeError):
    """An AsyncClient, or a job of it, was used on another event loop than the one on which it was first used."""

    default_advice = "Make an AsyncClient for each event loop; a tidewire.Client may be used from any thread."


class StateTooLargeError(TidewireError):
    """A job's state would become larger than this client's `max_state_bytes`. The job itself goes on."""

    default_advice = "Allow more, with max_state_bytes=… of the client or of with_options; what was received until then is right."


class ProtocolError(TidewireError):
    """The other side does not keep to the protocol."""

    default_advice = "The fault is on the server's side, or between; what was received until then is right."


class UnsupportedProtocolError(ProtocolError):
    """The server speaks a version of the protocol, an event or an op that this client does not know."""

    default_advice = "Use a newer version of this client."


class NotATidewireServerError(ProtocolError):
    """What answers at this address is something else."""

    default_advice = "Check the address: scheme, host, port, and the path below which the server is mounted."


class TransportError(TidewireError):
    """The network failed, or something between.

    Attributes:
        sent: Whether the request may have reached the server.
    """

    sent: bool = True


class ConnectTimeoutError(TransportError, TimeoutError):
    """No connection could be made in time."""

    sent = False


class SilenceTimeoutError(TransportError, TimeoutError):
    """The other side fell silent: no answer, or no byte of a stream, in time."""


class TotalTimeoutError(TidewireError, TimeoutError):
    """The caller's own `timeout` passed. The job keeps running on the server."""


class QueueTimeoutError(TotalTimeoutError):
    """The caller's own `timeout` passed while the job waited in the server's queue."""


_BY_CODE: MappingProxyType[str, type[RequestError]] = MappingProxyType(
    {
        "unauthorized": AuthenticationError,
        "forbidden": PermissionDeniedError,
        "endpoint_not_found": EndpointNotFoundError,
        "job_not_found": JobNotFoundError,
        "job_expired": JobExpiredError,
        "malformed_body": InvalidInputError,
        "body_too_large": InvalidInputError,
        "invalid_input": InvalidInputError,
        "input_too_long": InvalidInputError,
        "batch_too_large": InvalidInputError,
        "top_logprobs_too_large": InvalidInputError,
        "queue_full": QueueFullError,
        "rate_limited": RateLimitError,
        "too_many_streams": RateLimitError,
        "too_many_jobs": RateLimitError,
        "idempotency_key_reused": RequestError,
    }
)

_BY_STATUS: MappingProxyType[int, type[RequestError]] = MappingProxyType(
    {
        401: AuthenticationError,
        403: PermissionDeniedError,
        410: JobExpiredError,
        413: InvalidInputError,
        422: InvalidInputError,
        429: RateLimitError,
    }
)


def class_of(status: int, code: str | None = None, *, of_job: bool = False) -> type[RequestError]:
    """The class for a refusal: by its code where that is known, else by its status."""
    if status == 404 and of_job:
        return JobNotFoundError
    return _BY_CODE.get(code or "") or _BY_STATUS.get(status, RequestError)


def refusal(problem: Problem, where: Where = NOWHERE) -> RequestError:
    """The error for a problem that a server answered."""
    detail = problem.detail or problem.title
    what = f"{detail} [{problem.code}]"
    if problem.pointer is not None and problem.pointer not in detail:
        what = f"{what} at {problem.pointer!r} of the body"
    kind = class_of(problem.status, problem.code, of_job=where.job_id is not None)
    return kind(what, where=where, problem=problem)
