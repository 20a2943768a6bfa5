"""What is told of an end: of an item's, why it failed; of a job's, its status, its error and what it used."""

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic import JsonValue

from tidewire.protocol import problems, strict_json
from tidewire.protocol.messages import Done, JobStatus
from tidewire.protocol.problems import Problem, problem
from tidewire_server.errors import InvalidValueError, ItemError, StateTooLargeError
from tidewire_server.jobs.job_resource import timestamp

if TYPE_CHECKING:
    from tidewire_server.log_writer.log_writer import LogWriter

_log = logging.getLogger(__name__)

_MAX_DETAIL: Final = 2000
"""Characters of an error message that travel."""

ROOM_FOR_END: Final = 256
"""Bytes of a state that are kept for the end of each item: its status, and a problem without details."""


def problem_of(raised: BaseException, here: str, endpoint: str, *, told: bool) -> Problem:
    """What a caller reads of an exception. Of one that was not meant for callers: only that it was there.

    Args:
        raised: By the endpoint's function.
        here: The item, for the log.
        endpoint: Its name.
        told: The log knows of this error already.
    """
    try:
        found = _meant_for_callers(raised)
    except ValueError as error:
        _log.error("%s: its ItemError cannot be told: %s", here, error)
        found = None
    if found is not None:
        if isinstance(raised, InvalidValueError) and not told:  # the caller can do nothing about it
            _log.error("%s: endpoint %r gave what is no value of it: %s", here, endpoint, found.detail)
        return found
    if not told:
        _log.error("%s: endpoint %r failed", here, endpoint, exc_info=raised)
    return problem("internal", f"the function of endpoint {endpoint!r} failed; the server's log says why")


def _meant_for_callers(raised: BaseException) -> Problem | None:
    """What a caller reads of an exception; None where it was not meant for callers.

    Raises:
        ValueError: It was, and holds what is not JSON as the protocol takes it.
    """
    match raised:
        case ItemError():
            found = _cut(raised.problem())
            strict_json.check(problems.to_json(found))
            return found
        case InvalidValueError():
            return _cut(problem("invalid_value", str(raised)))
        case StateTooLargeError():
            return too_large(raised)
    return None


def too_large(error: StateTooLargeError) -> Problem:
    """The problem of a state that would pass its limit."""
    return problem("state_too_large", str(error), limit=error.limit)


def write_failure(journal: "LogWriter", place: str, ends: Sequence[Any], error: Problem) -> Problem:
    """End an item by its error: the whole of it, or where the state has no room the least that says what it was.

    Args:
        journal: Of its job.
        place: Pointer to the item.
        ends: The ops that end it.
        error: Why it failed.

    Returns:
        The error as it was written.

    Raises:
        StateTooLargeError: Not even that has room.
    """
    least = without_details(error)
    try:
        _write_error(journal, place, ends, error)
    except StateTooLargeError:
        _write_error(journal, place, ends, least)
        return least
    return error


def _write_error(journal: "LogWriter", place: str, ends: Sequence[Any], error: Problem) -> None:
    journal.change([*ends, ["s", f"{place}/error", problems.to_json(error)]], check_below=place, ends=True)


def without_details(error: Problem) -> Problem:
    """The least that says what a problem was, for a state that has no room for more."""
    return problem(error.code if error.code in problems.REGISTRY else "internal")


def _cut(found: Problem) -> Problem:
    if found.detail is not None and len(found.detail) > _MAX_DETAIL:
        return found.model_copy(update={"detail": found.detail[:_MAX_DETAIL] + "…"})
    return found


def status_of(items: Sequence[str]) -> JobStatus:
    """A job's status by those of its items, which have ended."""
    succeeded = items.count("succeeded")
    if succeeded:
        return "succeeded" if succeeded == len(items) else "partially_failed"
    return "failed" if "failed" in items else "cancelled"


def error_of(errors: Sequence[Problem], items: int) -> Problem:
    """The error of a job that failed, by those of its items in the order in which they came."""
    first, *more = errors
    if not more and items == 1:
        return first
    detail = f"{len(errors)} of {items} items failed; the first: {first.detail or first.title}"
    return first.model_copy(update={"detail": detail})


def done_of(
    status: JobStatus,
    usage: Mapping[str, int | float],
    error: Problem | None,
    expires_at: float,
    digest: str,
    checks: list[JsonValue],
) -> Done:
    """The data of the event that ends a job."""
    members = {
        "status": status,
        "usage": usage,
        "error": error,
        "check": checks,
        "digest": digest,
        "expires_at": timestamp(expires_at),
    }
    return Done.model_validate(members)


def add_usage(total: dict[str, int | float], used: Mapping[str, int | float]) -> None:
    """Add what an item used to what its job did; as floats where integers would pass what JSON carries."""
    for name, number in used.items():
        added = total.get(name, 0) + number
        total[name] = added if abs(added) <= strict_json.MAX_INTEGER else float(added)
