"""Exceptions of the `tidewire` client.

    TidewireError
    ├── RequestError                    the server rejected a request
    │   ├── AuthenticationError         401: credentials are missing or invalid
    │   ├── PermissionDeniedError       403: the credentials do not permit the request
    │   ├── EndpointNotFoundError       404: the server has no such endpoint
    │   ├── JobNotFoundError            404: the server has no such job
    │   ├── JobExpiredError             410: the job was purged or has expired
    │   ├── InvalidInputError           422, 413: the input does not match the schema; `pointer` names the member
    │   ├── QueueFullError              429: the endpoint's queue is full
    │   └── RateLimitError              429: too many requests, jobs or streams
    ├── JobFailedError                  the job failed; `problem` contains the reason
    ├── JobCancelledError               the job was cancelled (unrelated to asyncio's CancelledError)
    ├── ItemFailedError                 one input of a batch failed or was cancelled; `index` is its position
    ├── InvalidValueError               a value does not match the type passed as `returns`
    ├── VoidTextError                   the server retracted text that a loop may already have used
    ├── NoTextError                     `iter_text` was called for a job whose value contains no text
    ├── SeveralItemsError               a job with several items was read as a job with one item
    ├── CheckpointError                 a checkpoint is malformed, or belongs to another job or server
    ├── ResumeFileError                 the resume file of a `map` cannot be used, or belongs to other inputs
    ├── ConcurrentReadError             two loops read one job object at the same time
    ├── ClientClosedError               the client was closed
    ├── EventLoopError                  an async client was used on another event loop than before (a RuntimeError)
    ├── StateTooLargeError              a job's state exceeds the client's `max_state_bytes`
    ├── ProtocolError                   the server violates the protocol
    │   ├── UnsupportedProtocolError    the server uses a version, an event or an op that this client does not support
    │   └── NotATidewireServerError     the server at this URL is not a Tidewire server
    ├── TransportError                  the network or a proxy failed
    │   ├── ConnectTimeoutError         the client could not connect in time (a TimeoutError)
    │   └── SilenceTimeoutError         the server sent no response, or no bytes on a stream, in time (a TimeoutError)
    └── TotalTimeoutError               the `timeout` that the caller passed has expired (a TimeoutError)
        └── QueueTimeoutError           the `timeout` has expired while the job was still in the server's queue

Each error message says what happened, where it happened, and what to do. The attributes of the error contain the details.
"""

from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from tidewire.protocol.problems import Problem


class Where(NamedTuple):
    """Where an error occurred: the request, the job, and the last event before the error. Unknown details are None."""

    method: str | None = None
    url: str | None = None
    job_id: str | None = None
    last_event_id: str | None = None
    status_code: int | None = None
    request_id: str | None = None

    def __str__(self) -> str:
        parts = []
        if self.url is not None:
            status = "" if self.status_code is None else f" → {self.status_code}"
            parts.append(f"{self.method or 'GET'} {self.url}{status}")
        # The URL of a job already contains its id.
        if self.job_id is not None and (self.url is None or self.job_id not in self.url):
            parts.append(f"job {self.job_id}")
        if self.last_event_id is not None:
            parts.append(f"last event {self.last_event_id}")
        if self.request_id is not None:
            parts.append(f"request {self.request_id}")
        return "; ".join(parts)


NOWHERE = Where()


class TidewireError(Exception):
    """Base class of all errors that this package raises.

    Attributes:
        what: Description of the error, in one sentence.
        where: The request, the job, and the last event before the error, as far as they are known.
        advice: Suggestion for the user, which may be empty.
        problem: The problem details that the server sent, or None.
        retryable: Whether the same call may succeed later without changes.
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

    def __repr__(self) -> str:
        # `args` keeps the first description. In the failure of a `map`, that description has the index of another input.
        return f"{type(self).__name__}({self.what!r})"

    @property
    def status_code(self) -> int | None:
        """HTTP status of the response, or the status in the problem details. None if there is neither."""
        if self.where.status_code is not None:
            return self.where.status_code
        return None if self.problem is None else self.problem.status

    @property
    def code(self) -> str | None:
        """Machine-readable code of the problem, or None if the server sent no problem details."""
        return None if self.problem is None else self.problem.code

    @property
    def request_id(self) -> str | None:
        """Id of the request in the server's log, from the `X-Request-Id` response header. None if it is not known."""
        return self.where.request_id

    @property
    def job_id(self) -> str | None:
        """Id of the job to which the error belongs, or None."""
        return self.where.job_id

    @property
    def last_event_id(self) -> str | None:
        """Id of the last event that the client had applied before the error, or None."""
        return self.where.last_event_id

    def placed(self, **members: str | int | None) -> "TidewireError":
        """Add details of the place where this error occurred, and return the error.

        Details that are already known are kept.
        """
        known: dict[str, Any] = {
            name: value
            for name, value in members.items()
            if value is not None and getattr(self.where, name) is None
        }
        self.where = self.where._replace(**known)
        return self


class RequestError(TidewireError):
    """The server rejected a request."""


class AuthenticationError(RequestError):
    """The server responded with 401, because the credentials are missing or invalid."""

    default_advice = "Pass valid credentials: Client(url, token=…), headers={'Authorization': …} or auth=…."


class PermissionDeniedError(RequestError):
    """The server responded with 403, because the credentials do not permit the request."""

    default_advice = "Use credentials with this permission, or ask the operator of the server."


class EndpointNotFoundError(RequestError):
    """The server responded with 404, because it has no endpoint with this name."""


class JobNotFoundError(RequestError):
    """The server responded with 404, because it has no such job, or the credentials do not permit access to the job."""

    default_advice = (
        "Check the id, and use the server and the credentials with which the job was submitted. Several processes, as with "
        "`uvicorn --workers`, need a log in PostgreSQL."
    )


class JobExpiredError(RequestError):
    """The server responded with 410, because the job was purged or has expired.

    Data that the client has already received can still be read, but may be incomplete.
    """

    default_advice = "Submit the input again."


class InvalidInputError(RequestError, ValueError):
    """The server rejected the input, because it is malformed or too large, or does not match the endpoint's schema."""

    @property
    def pointer(self) -> str | None:
        """JSON Pointer to the invalid member in the body of the request. None if the server did not send a pointer."""
        return None if self.problem is None else self.problem.pointer


class QueueFullError(RequestError):
    """The endpoint's queue was full, so the server responded with 429 to the request and to all allowed retries."""

    default_advice = "Submit again later, or allow more time: with_options(retry=RetryPolicy(patience=…))."


class RateLimitError(RequestError):
    """The server responded with 429, because there were too many requests, unfinished jobs or open streams.

    The client raises this error only after it has made all allowed retries.
    """

    default_advice = "Wait, or lower the concurrency."


class JobFailedError(TidewireError):
    """The job failed. The attribute `problem` contains the reason.

    Attributes:
        value: The job's partial value at the time of the failure, as JSON.
    """

    value: Any = None


class JobCancelledError(TidewireError):
    """The job was cancelled on the server. This error has nothing to do with the cancellation of asyncio tasks.

    Attributes:
        value: The job's partial value at the time of the cancellation, as JSON.
    """

    value: Any = None


class ItemFailedError(TidewireError):
    """One item of a batch failed or was cancelled. The attribute `problem` contains the reason.

    Attributes:
        index: Index of the item's input in the batch, from 0.
        status: `failed` or `cancelled`.
        value: The item's partial value, as JSON.
    """

    index: int = 0
    status: str = "failed"
    value: Any = None


class InvalidValueError(TidewireError, ValueError):
    """A value does not match the type that the caller passed as `returns`."""


class VoidTextError(TidewireError):
    """The server retracted text that a loop may already have used.

    `iter_text` and `tokens` raise this error if they had already yielded the retracted text or tokens, and
    `update.text` raises it if the loop has not read `update.deleted`. The job itself is not affected.
    """

    default_advice = (
        "Start over with client.job(id).iter_text(), or use iter_text_deltas(), which reports retracted text."
    )


class NoTextError(TidewireError):
    """The value of the job contains no text that the server streams, so `iter_text` has nothing to yield."""

    default_advice = (
        "Read the value instead: `for update in job: update.value`, or job.result(). If the text is a member of the value, "
        "the server can stream it: @server.endpoint(columns=['/text']), or columns=['/1/content'] for the second message of "
        "a list of messages. For a conversation of any length, see docs/how-to/chat.md."
    )


class SeveralItemsError(TidewireError):
    """A job with several items was read as a job with one item, for example a generation with `n=3`.

    The job is not affected.
    """

    default_advice = (
        "Read it as a batch job: client.batch_job(job.id).results(), or a loop over client.batch_job(job.id)."
    )


class CheckpointError(TidewireError, ValueError):
    """A checkpoint is malformed, or belongs to another job or server."""


class ResumeFileError(TidewireError):
    """The resume file of a `map` cannot be opened, read or written, is in use, or belongs to other inputs.

    Attributes:
        index: Index of the input that differs from the one in the file. None for all other reasons.
    """

    index: int | None = None


class ConcurrentReadError(TidewireError, RuntimeError):
    """Two loops read the same job object at the same time."""

    default_advice = "Create a separate job object for each reader: client.job(job.id)."


class ClientClosedError(TidewireError, RuntimeError):
    """The client was closed."""

    default_advice = "Create a new client. To resume a job, call client.job(checkpoint=job.checkpoint())."


class EventLoopError(TidewireError, RuntimeError):
    """An `AsyncClient` was used on a different event loop than before, or a callback of a blocking client used that
    client.
    """

    default_advice = "Create one AsyncClient per event loop. A tidewire.Client can be used from any thread."


class StateTooLargeError(TidewireError):
    """A job's state exceeds the client's `max_state_bytes`. The job keeps running on the server."""

    default_advice = (
        "Raise max_state_bytes of the client or of with_options. Data received before this error is valid."
    )


class ProtocolError(TidewireError):
    """The server violates the protocol."""

    default_advice = "The server or a proxy is faulty. Data received before this error is valid."


class UnsupportedProtocolError(ProtocolError):
    """The server uses a version of the protocol, an event or an op that this client does not support."""

    default_advice = "Use a newer version of this client."


class NotATidewireServerError(ProtocolError):
    """The server at this URL is not a Tidewire server."""

    default_advice = "Check the URL: scheme, host, port, and the path under which the server is mounted."


class TransportError(TidewireError):
    """The connection to the server failed, because of the network, a proxy or the server.

    Attributes:
        sent: Whether the request may have reached the server.
    """

    sent: bool = True


class ConnectTimeoutError(TransportError, TimeoutError):
    """The client could not connect to the server within the time limit."""

    sent = False


class SilenceTimeoutError(TransportError, TimeoutError):
    """The server sent no response, or no bytes on an open stream, within the time limit."""


class TotalTimeoutError(TidewireError, TimeoutError):
    """The `timeout` that the caller passed has expired. The job keeps running on the server."""


class QueueTimeoutError(TotalTimeoutError):
    """The `timeout` that the caller passed has expired while the job was still in the server's queue."""


_ADVICE: MappingProxyType[str, str] = MappingProxyType(
    {
        "state_too_large": "The limit applies to the values of all items of a job together. Return smaller values, submit "
        "fewer inputs per job, or raise the setting max_state_bytes of the server: Server(max_state_bytes=…).",
    }
)
"""Advice for failed jobs and items, by problem code."""


def advice_for(problem: Problem | None) -> str | None:
    """Return the advice for a failed job or item. None if there is no special advice."""
    return None if problem is None else _ADVICE.get(problem.code)


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
    """Return the error class for a rejected request.

    The class depends on the problem code. If the client does not know the code, the class depends on the HTTP status.
    """
    if status == 404 and of_job:
        return JobNotFoundError
    return _BY_CODE.get(code or "") or _BY_STATUS.get(status, RequestError)


def refusal(problem: Problem, where: Where = NOWHERE) -> RequestError:
    """Create the error for problem details that a server sent."""
    detail = problem.detail or problem.title
    what = f"{detail} [{problem.code}]"
    if problem.pointer is not None and problem.pointer not in detail:
        what = f"{what} at {problem.pointer!r} of the body"
    kind = class_of(problem.status, problem.code, of_job=where.job_id is not None)
    return kind(what, where=where, problem=problem)
