"""OpenTelemetry traces, if OpenTelemetry is installed. One trace covers the submit of a job, its streams and its function.

A job outlives its requests, and may outlive the process, so no single span covers it. Each step is a separate span:

  span              | begins and ends with                   | parent
  ------------------+----------------------------------------+------------------------------------------------------
  submit ENDPOINT   | the request that submits the job       | the span of the caller, if its request names one
  run ENDPOINT      | the function of one item, one attempt  | `submit`
  stream ENDPOINT   | the response to a request for events   | the span of the reader if it is in the same trace, and
                    |                                        |   otherwise `submit`, with a link to that span

The job stores its `submit` span (`JobRecord.traceparent`), so that its trace continues in other processes. If the submit
request has no `traceparent` and there is no OpenTelemetry SDK, the job has no spans at all.

This module uses only the API of OpenTelemetry. The program that runs the server chooses the SDK and the exporter. Attributes
contain ids, times, numbers and error codes, but never an input, a value, a token, the text of an error or a caller's name.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from itertools import islice
from typing import Any, Final, Protocol

from tidewire_server.errors import ProblemError

try:
    from opentelemetry import context, trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError:
    _INSTALLED = False
else:
    _INSTALLED = True
    _tracer = trace.get_tracer("tidewire")
    _propagator = TraceContextTextMapPropagator()

JOB_ID: Final[ContextVar[str | None]] = ContextVar("job_id", default=None)
"""Id of the job for which the current task or thread runs a function. Log records contain it. None in a batched call."""

MAX_HEADER_LENGTH: Final = 512
"""Maximum length of a `traceparent` header. A longer header is ignored."""

MAX_USAGE_ATTRIBUTES, MAX_CODE_LENGTH = 32, 100
"""Maximum number of usage numbers in one span, and maximum length of an error code. Functions choose both freely."""

_TOKEN_COUNTS: Final = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
}
"""Usage number → attribute that the semantic conventions of OpenTelemetry define for it."""

_NO_TRACE: Final = contextlib.nullcontext()


class TracedJob(Protocol):
    """Attributes of `JobRecord` that spans need."""

    id: str
    endpoint: str
    traceparent: str | None
    attempt: int
    created_at: float


class JobSpan:
    """Span of one step of a job. It is exported when `end` is called."""

    __slots__ = ("_span", "_started_at")

    def __init__(self, span: Any) -> None:
        self._span = span
        self._started_at = time.monotonic()

    def end(
        self,
        status: str,
        error_code: str | None = None,
        usage: Mapping[str, int | float] | None = None,
        first_event_at: float | None = None,
    ) -> None:
        """End the span.

        Args:
            status: How the step ended.
            error_code: Code of the problem with which the step failed, or None.
            usage: Usage that an item's function has reported.
            first_event_at: Time of the function's first change, on the clock `time.monotonic`.
        """
        found: dict[str, Any] = {"tidewire.status": status}
        if first_event_at is not None:
            found["tidewire.time_to_first_event"] = max(0.0, first_event_at - self._started_at)
        for name, number in islice((usage or {}).items(), MAX_USAGE_ATTRIBUTES):
            found[_TOKEN_COUNTS.get(name, f"tidewire.usage.{name}")] = number
        if error_code is not None:
            found["tidewire.error.code"] = error_code[:MAX_CODE_LENGTH]
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.set_attributes(found)
        self._span.end()


# ---- requests ----------------------------------------------------------------------------------------------------


def continued(headers: Iterable[tuple[bytes, bytes]]) -> contextlib.AbstractContextManager[None]:
    """Continue the trace that a request names, during a `with` block.

    An invalid header, and a `traceparent` that occurs twice, are ignored. If the application around the server has already
    created a span for the request, the trace of this span takes precedence.

    Args:
        headers: Headers of the ASGI scope.
    """
    parents = [value for name, value in headers if name == b"traceparent"] if _INSTALLED else []
    if len(parents) != 1 or len(parents[0]) > MAX_HEADER_LENGTH or _has_span():
        return _NO_TRACE
    caller = _stored(parents[0].decode("latin-1"))
    return _attached(caller) if _has_span(caller) else _NO_TRACE


def submitting(endpoint: str) -> contextlib.AbstractContextManager[None]:
    """Create the `submit` span for a `with` block. The block must submit a job, and then call `accepted`. In this block,
    `trace_headers` returns the value to store as `JobRecord.traceparent`.
    """
    if _INSTALLED and (_has_span() or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)):
        return _submitting(endpoint)
    return _NO_TRACE


@contextlib.contextmanager
def _submitting(endpoint: str) -> Iterator[None]:
    span = _start(f"submit {endpoint}", None, trace.SpanKind.SERVER, {"tidewire.endpoint": endpoint})
    end: tuple[str, str | None] = ("failed", "internal")
    try:
        with _attached(trace.set_span_in_context(span)):
            yield
        end = ("accepted", None)
    except ProblemError as error:
        end = ("refused", error.problem.code)
        raise
    finally:
        JobSpan(span).end(*end)


def accepted(job: TracedJob, *, replayed: bool) -> None:
    """Add the job's id to the `submit` span. If `replayed`, an earlier request with the same idempotency key created the job."""
    if _INSTALLED and _has_span():
        span = trace.get_current_span()
        span.set_attributes({"tidewire.job.id": job.id, "tidewire.replayed": replayed})
        if replayed and job.traceparent is not None:
            span.add_link(_span_context(_stored(job.traceparent)))


def start_stream(job: TracedJob, *, resumed: bool) -> JobSpan | None:
    """Start the `stream` span of the response to a request for events. Return None if the job has no trace.

    Args:
        job: The job.
        resumed: Whether the request has a cursor.
    """
    if not _INSTALLED or job.traceparent is None:
        return None
    parent, reader, links = _stored(job.traceparent), context.get_current(), []
    if _has_span(reader):
        if _span_context(reader).trace_id == _span_context(parent).trace_id:
            parent = reader
        else:
            links.append(trace.Link(_span_context(reader)))
    attributes = {
        "tidewire.job.id": job.id,
        "tidewire.endpoint": job.endpoint,
        "tidewire.stream.resumed": resumed,
    }
    return JobSpan(_start(f"stream {job.endpoint}", parent, trace.SpanKind.SERVER, attributes, links))


# ---- functions ---------------------------------------------------------------------------------------------------


def start_run(job: TracedJob, index: int) -> JobSpan | None:
    """Start the `run` span of one item. Return None if the job has no trace.

    Only the span of the first attempt contains the time in the queue. Later, this time would include the earlier attempts.
    """
    if not _INSTALLED or job.traceparent is None:
        return None
    attributes = {
        "tidewire.job.id": job.id,
        "tidewire.endpoint": job.endpoint,
        "tidewire.item.index": index,
        "tidewire.attempt": job.attempt,
    }
    if job.attempt == 1:
        attributes["tidewire.queue_time"] = max(0.0, time.time() - job.created_at)
    parent = _stored(job.traceparent)
    return JobSpan(_start(f"run {job.endpoint}", parent, trace.SpanKind.CONSUMER, attributes))


def running(span: JobSpan | None, job: str) -> contextlib.AbstractContextManager[None]:
    """Set `JOB_ID`, and make `span` the parent of the spans that this task and its threads create in the `with` block."""
    JOB_ID.set(job)
    return _NO_TRACE if span is None else _attached(trace.set_span_in_context(span._span))


def trace_headers() -> dict[str, str]:
    """Return headers for a request to another server, so that the request continues the trace of the current job. The current
    job is the one that this task or thread runs. Without a trace, the result is empty.
    """
    carrier: dict[str, str] = {}
    if _INSTALLED and _has_span():
        _propagator.inject(carrier)
    return carrier


def trace_id() -> str | None:
    """Return the id of the current trace as 32 hexadecimal digits, for log records, or None."""
    found = _span_context(context.get_current()) if _INSTALLED else None
    return trace.format_trace_id(found.trace_id) if found is not None and found.is_valid else None


# ---- OpenTelemetry -----------------------------------------------------------------------------------------------


def _start(name: str, parent: Any, kind: Any, attributes: dict[str, Any], links: Any = ()) -> Any:
    # Do not record exceptions, because their messages may contain values of users.
    return _tracer.start_span(
        name, parent, kind, attributes, links, record_exception=False, set_status_on_exception=False
    )


@contextlib.contextmanager
def _attached(found: Any) -> Iterator[None]:
    token = context.attach(found)
    try:
        yield
    finally:
        context.detach(token)


def _stored(traceparent: str) -> Any:
    # Leave out `tracestate`, because callers control it, and OpenTelemetry logs it if it is invalid.
    return _propagator.extract({"traceparent": traceparent}, context.Context())


def _span_context(found: Any) -> Any:
    return trace.get_current_span(found).get_span_context()


def _has_span(found: Any = None) -> bool:
    return bool(_span_context(found).is_valid)
