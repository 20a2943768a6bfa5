"""Recovery of jobs that were unfinished when the server stopped.

The table shows how such a job continues. It depends on the `on_restart` option of the job's endpoint:

the job                          | `on_restart="rerun"`          | `on_restart="fail"`
---------------------------------+-------------------------------+--------------------------------------------------
had no started item              | continues to wait             | same
had only ended items and items   | ends                          | same
  that a client had cancelled    |                               |
had a started item               | new attempt: ended items stay |  running items fail with `worker_lost`, queued
                                 |   as they are, others rerun   |   items continue to wait
has exceeded its deadline        | unfinished items fail with `deadline_exceeded`
has lost its endpoint            | unfinished items fail with `worker_lost`
has a damaged request            | unfinished items fail with `worker_lost`
has used up all attempts         | unfinished items fail with `worker_lost`
has a log that cannot be read    | is not recovered; the server's log has one line about it

In a store that several processes share, a job whose endpoint this process does not know waits for a process that knows it. This
process opens the job only to end items: at the deadline, without readers, or because a client has cancelled or deleted the job.

Items that a client had cancelled before the server stopped end as cancelled in every row of the table. They keep their
logged values, and their functions do not run again.

`on_restart="continue"` differs from `"rerun"` only in a new attempt, which keeps the values of all items, except for those
that the endpoint cannot continue (`Endpoint.continues`). Their functions run again, and continue from these values.

If a worker of the endpoint dies (`WorkerLostError`), the job is treated as if the server had crashed, except that with
`on_restart="fail"` only the items of this worker fail.

A new attempt starts a new epoch of the log with a snapshot whose reason is `restart`. If a job continues without a new
attempt, the log usually stays in its epoch. But if an item had started, or the log may have lost its last events, a new
epoch starts with a snapshot whose reason is `rewound` [TW-RES-035] [TW-RES-039].

The server is not ready before all jobs are recovered. Therefore the recovery calls no user code, and reads no inputs of waiting
items: the log contains the initial values and the columns with which the job was accepted. `StoredInputs` checks each input
when its item runs.
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from tidewire.protocol.messages import ENDED, SnapshotReason
from tidewire.protocol.problems import Problem, problem
from tidewire_server.endpoints.endpoint import Endpoint, Options
from tidewire_server.jobs.admission.admitted_job import AdmittedJob
from tidewire_server.jobs.admission.submit_body import Submission, read_stored
from tidewire_server.jobs.outcomes import missed_deadline
from tidewire_server.jobs.recovered_inputs import StoredInputs
from tidewire_server.settings import Settings
from tidewire_server.store.jobs_interface import Interrupted
from tidewire_server.store.log_interface import StateAt
from tidewire_server.store.store_interface import Store


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Plan for resuming an interrupted job."""

    at: StateAt
    """State of the job when the server restarted, and its columns."""
    state: dict[str, Any]
    """State with which the job continues."""
    reason: SnapshotReason | None
    """Reason of the snapshot that starts a new epoch. None if the job continues in the current epoch."""
    failing: Collection[int] = ()
    """Indexes of the items that fail immediately, unless they have ended."""
    error: Problem | None = None
    """Error of the items in `failing`."""


def _missing_function() -> None:
    """Placeholder for the function of an endpoint that was removed. It is never called."""


_NO_REQUEST = Submission([], False, {}, None, None, 0)
"""Placeholder for a submit request that cannot be read."""


async def admit_again(
    interrupted: Interrupted, endpoints: Mapping[str, Endpoint], store: Store, turn: asyncio.Lock
) -> tuple[AdmittedJob, str | None]:
    """Read a job's request, except for its inputs.

    Args:
        interrupted: The interrupted job.
        endpoints: All endpoints by name.
        store: Store of the server, from which the inputs are read later.
        turn: Lock that the inputs of all jobs share. See `StoredInputs`.

    Returns:
        A tuple of the request, and the reason why the job cannot run any more. The reason is None if the job can run.
    """
    record, reason = interrupted.record, None
    try:
        submission = read_stored(interrupted.submit)
    except ValueError as error:
        submission = _NO_REQUEST
        reason = (
            f"the stored request is damaged, so the job cannot run after the restart of the server: {error}"
        )
    endpoint = endpoints.get(record.endpoint)
    state: Any = (await interrupted.log.state()).view.value()
    if endpoint is None:
        endpoint = Endpoint(_missing_function, Options(name=record.endpoint))
        # In a store of several processes, a waiting job continues to wait, for example because its reader has just returned.
        if store.replicas is None or state["status"] != "queued":
            reason = f"endpoint {record.endpoint!r} no longer existed after the server restarted"
    items = len(state["items"])
    stored = StoredInputs(record.id, endpoint, items, lambda: store.jobs.submit_body(record.id), turn)
    return AdmittedJob(endpoint, submission, [], stored), reason


async def recovery_plan_of(
    interrupted: Interrupted, admitted: AdmittedJob, settings: Settings, store: Store, reason: str | None
) -> RecoveryPlan:
    """Decide how an interrupted job continues, according to the table at the top of this module.

    Args:
        interrupted: The interrupted job.
        admitted: Endpoint and request of the job.
        settings: Settings of the server, which include `max_attempts`.
        store: Store of the server.
        reason: Reason why the job cannot run any more, or None if the job can run.
    """
    at = await interrupted.log.state()
    state: Any = at.view.value()
    unfinished = [index for index, item in enumerate(state["items"]) if item["status"] not in ENDED]
    started = state["status"] != "queued"
    rewound: SnapshotReason | None = "rewound" if started or store.may_have_lost else None
    if (
        reason is None
        and started
        and interrupted.crashed
        and interrupted.record.attempt >= settings.max_attempts
    ):
        reason = (
            f"the server or the worker crashed {settings.max_attempts} times while the job was running, so the job is not run again "
            "(max_attempts)"
        )
    deadline = admitted.submission.deadline
    if deadline is not None and interrupted.record.created_at + deadline <= time.time():
        # TW-JOB-071
        return RecoveryPlan(at, state, rewound, unfinished, missed_deadline(deadline))
    if reason is not None:
        return RecoveryPlan(at, state, rewound, unfinished, problem("worker_lost", reason))
    if not started or interrupted.cancelled.issuperset(unfinished):
        return RecoveryPlan(at, state, rewound)
    if admitted.endpoint.on_restart == "fail":
        error = problem(
            "worker_lost",
            "the server stopped while the item was running, and the item's function must not run twice",
        )
        running = [index for index in unfinished if state["items"][index]["status"] == "running"]
        return RecoveryPlan(at, state, "rewound", running, error)
    kept = await _continuing_items(state, initial := await _initial_values(interrupted, admitted), admitted)
    return _new_attempt(state, at, initial, admitted.endpoint, interrupted.cancelled, kept)


async def _initial_values(interrupted: Interrupted, admitted: AdmittedJob) -> list[JsonValue]:
    """Return the value that each item had before its first attempt.

    If the beginning of the log was trimmed, return the values that an endpoint without the option `initial` would have.
    """
    if admitted.values:
        return [admitted.endpoint.initial(value) for value in admitted.values]
    oldest = await interrupted.log.state(oldest=True)
    state: Any = oldest.view.value()
    if oldest.cursor.seq != 1:
        return [admitted.endpoint.fixed_initial for _ in state["items"]]
    return [item["value"] for item in state["items"]]


async def _continuing_items(
    state: dict[str, Any], initial: list[JsonValue], admitted: AdmittedJob
) -> frozenset[int]:
    """Return the indexes of the unfinished items that continue from their logged values in a new attempt.

    An item whose value has not changed always continues. For the others, the endpoint decides, so only their inputs are read.
    """
    endpoint, stored = admitted.endpoint, admitted.stored
    if endpoint.on_restart != "continue":
        return frozenset()
    continuing = set()
    for index, (item, first) in enumerate(zip(state["items"], initial, strict=True)):
        if item["status"] in ENDED:
            continue
        changed = item["value"] != first
        if changed and endpoint.continues is not None and stored is not None:
            given = await stored.as_submitted(index)
            if not endpoint.continues(given, item["value"]):
                continue
        continuing.add(index)
    return frozenset(continuing)


def _new_attempt(
    state: dict[str, Any],
    at: StateAt,
    initial: list[JsonValue],
    endpoint: Endpoint,
    cancelled: frozenset[int],
    continuing: frozenset[int],
) -> RecoveryPlan:
    """Plan a new attempt of a job.

    Items that have ended keep their state [TW-RES-049]. Items that were cancelled end with their logged values
    [TW-JOB-057]. All other items start again, with their logged values if they continue, and otherwise with their initial
    values [TW-RES-050] [TW-RES-051].

    Args:
        state: The newest state.
        at: The same state as it was read from the log, with its columns.
        initial: Initial value of each item.
        endpoint: Endpoint of the job.
        cancelled: Indexes of the items that a client had cancelled.
        continuing: Indexes of the items that continue from their logged values.
    """
    continues = endpoint.on_restart == "continue"
    items = [
        item if item["status"] in ENDED
        else item | {"status": "cancelled"} if index in cancelled
        # Keep the member `stable` together with the text in `value`, so that `iter_text` of the client still yields
        # only the stable prefix.
        else {"status": "queued"} | {name: item[name] for name in ("value", "stable") if name in item}
        if index in continuing
        else {"status": "queued", "value": value}
        for index, (item, value) in enumerate(zip(state["items"], initial, strict=True))
    ]  # fmt: skip
    # A note does not say which item wrote the note. Therefore, if any item has ended or continues, keep all notes of
    # the job.
    notes = state["notes"] if continues or any(item["status"] in ENDED for item in items) else []
    new_state = {"status": "queued", "items": items, "usage": state["usage"], "notes": notes}
    return RecoveryPlan(at, new_state, "restart")
