"""Outcomes of items and jobs: conversion of exceptions to problems, and computation of the status, error and usage of a
job.
"""

import logging
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tidewire.protocol import problems, strict_json
from tidewire.protocol.messages import JobEnd
from tidewire.protocol.problems import Problem, problem
from tidewire_server.errors import InvalidValueError, ItemError, LogUnavailableError, StateTooLargeError
from tidewire_server.job_log.pending_events import PendingEvents
from tidewire_server.store.records import JobRecord

_log = logging.getLogger(__name__)

_MAX_DETAIL: Final = 2000
"""Maximum length of an error message sent to clients, in characters."""

_PACKAGE: Final = str(Path(__file__).parents[1])
_MAX_TRACEBACK: Final = 8000
"""Maximum length of a traceback that `debug` sends to clients, in characters."""
_SHORT_WAIT: Final = 0.1
"""Minimum waiting time in seconds that the log line about an ended job mentions."""

RESERVED_END_BYTES: Final = 256
"""Number of bytes reserved in the state for the end of each item: its status and a short error."""


def problem_of(
    raised: BaseException, item_name: str, endpoint: str, *, logged: bool, debug: bool = False
) -> Problem:
    """Convert an exception to the problem that the client receives. If the client cannot fix the cause, log the
    exception.

    The client receives the details of an exception only if the exception is meant for clients, such as `ItemError`.

    Args:
        raised: Exception raised by the endpoint's function.
        item_name: Name of the item in the server's log.
        endpoint: Name of the endpoint.
        logged: Whether the exception was already written to the server's log.
        debug: Whether the client receives the traceback of an exception that is not meant for clients.
    """
    try:
        found = _public_problem(raised)
    except Exception as error:  # noqa: BLE001 - a subclass of `ItemError` can raise any exception here
        _log.error("%s: the %s cannot be sent to the client: %r", item_name, type(raised).__name__, error)
        found = None
    if found is not None:
        if isinstance(raised, InvalidValueError) and not logged:  # the client cannot fix it
            _log.error("%s: endpoint %r produced an invalid value: %s", item_name, endpoint, found.detail)
        return found
    if not logged:
        _log.error("%s: endpoint %r failed", item_name, endpoint, exc_info=raised)
    if debug:
        return problem("internal", f"the function of endpoint {endpoint!r} failed:\n{_traceback(raised)}")
    return problem(
        "internal",
        f"the function of endpoint {endpoint!r} failed; the server's log has the details (during development, "
        "Server(debug=True) or `tidewire serve --debug` also sends them to the caller)",
    )


def _traceback(raised: BaseException) -> str:
    """Return the traceback of an exception, from the first frame outside of this package. If it is long, return only its
    end, which contains the cause.
    """
    trace = raised.__traceback__
    while trace is not None and trace.tb_next and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(raised), raised, trace)).rstrip()
    # A lone surrogate, for example in a file name, cannot be sent as JSON.
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _MAX_TRACEBACK else f"…{text[-_MAX_TRACEBACK:]}"


def _public_problem(raised: BaseException) -> Problem | None:
    """Convert an exception that is meant for clients to a problem. Return None for all other exceptions.

    Raises:
        Exception: The `ItemError` contains values that are not strict JSON, or its class does not call
            `ItemError.__init__`.
    """
    match raised:
        case ItemError():
            found = _truncate_detail(raised.problem())
            strict_json.check(problems.to_json(found))
            return found
        case InvalidValueError():
            return _truncate_detail(problem("invalid_value", str(raised)))
        case StateTooLargeError() | LogUnavailableError():
            return write_failed(raised)
    return None


def missed_deadline(seconds: float) -> Problem:
    """Create the problem for an item that has not ended at the deadline of its job.

    Args:
        seconds: The deadline, as a number of seconds after the job was submitted.
    """
    return problem("deadline_exceeded", f"the item had not ended {seconds:g} s after the job was submitted")


def write_failed(error: StateTooLargeError | LogUnavailableError) -> Problem:
    """Convert the error of a failed write to the problem that the client receives."""
    if isinstance(error, StateTooLargeError):
        return problem("state_too_large", str(error), limit=error.limit)
    return problem("unavailable", str(error))


def write_failure(pending: PendingEvents, pointer: str, end_ops: Sequence[Any], error: Problem) -> Problem:
    """Write the end of a failed item and its error to the log. If the error does not fit into the state, omit the
    error's details.

    Args:
        pending: Pending events of the job.
        pointer: JSON Pointer to the item.
        end_ops: Diff operations that end the item.
        error: Reason for the failure.

    Returns:
        The error that was written to the state.

    Raises:
        StateTooLargeError: Even the error without details does not fit into the state.
    """
    try:
        _write_error(pending, pointer, end_ops, error)
    except StateTooLargeError:
        short_error = problem(error.code if error.code in problems.REGISTRY else "internal")
        _write_error(pending, pointer, end_ops, short_error)
        return short_error
    return error


def _write_error(pending: PendingEvents, pointer: str, end_ops: Sequence[Any], error: Problem) -> None:
    pending.change(
        [*end_ops, ["s", f"{pointer}/error", problems.to_json(error)]],
        check_below=pointer,
        reserved=True,
    )


def _truncate_detail(found: Problem) -> Problem:
    if found.detail is not None and len(found.detail) > _MAX_DETAIL:
        return found.model_copy(update={"detail": found.detail[:_MAX_DETAIL] + "…"})
    return found


def status_of(items: Sequence[str]) -> JobEnd:
    """Return the status of a job whose items have all ended. The argument `items` contains the statuses of the
    items.
    """
    succeeded = items.count("succeeded")
    if succeeded:
        return "succeeded" if succeeded == len(items) else "partially_failed"
    return "failed" if "failed" in items else "cancelled"


def error_of(errors: Sequence[Problem], items: int) -> Problem:
    """Return the error of a failed job.

    The argument `errors` contains the errors of the job's items, in the order in which the items failed.
    """
    first, *more = errors
    if not more and items == 1:
        return first
    detail = f"{len(errors)} of {items} items failed; the first: {first.detail or first.title}"
    return first.model_copy(update={"detail": detail})


def add_usage(total: dict[str, int | float], used: Mapping[str, int | float]) -> None:
    """Add the usage of an item to the usage of its job.

    A sum that is too large for an integer in strict JSON becomes a float.
    """
    for name, number in used.items():
        added = total.get(name, 0) + number
        total[name] = added if abs(added) <= strict_json.MAX_INTEGER else float(added)


def end_line(record: JobRecord, items: int) -> str:
    """Return the line for the server's log about a job that has ended."""
    ended = record.ended_at or record.created_at
    started = record.started_at or ended
    seconds, queued = max(0.0, ended - started), max(0.0, started - record.created_at)
    error = None if record.done is None else record.done.error
    reason = "" if error is None else f" ({error.code})"
    after = f" after {queued:.3g} s in the queue" if queued >= _SHORT_WAIT else ""
    inputs = f", {items} inputs" if items > 1 else ""
    return f"job {record.id}: {record.endpoint} {record.status}{reason} in {seconds:.3g} s{after}{inputs}"
