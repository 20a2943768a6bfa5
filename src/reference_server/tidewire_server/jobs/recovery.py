"""What becomes of a job whose server stopped before the job had ended.

  the job                        | its function may run twice      | it must not (`on_restart="fail"`)
  -------------------------------+---------------------------------+--------------------------------------------------
  its `done` is logged           | its record is completed         | the same
  no item had started            | it waits on                     | the same
  all items had ended            | it ends                         | the same
  an item had started            | a new attempt: what had ended   | items that ran fail with `worker_lost`, the others
                                 |   stays, all else begins anew   |   wait on
  its endpoint or input is gone  | what had not ended fails with `worker_lost`
  attempts used up               | the same
  its deadline has passed        | what had not ended fails with `deadline_exceeded`

A new attempt opens a new epoch, `restart`. So does whatever goes on where the log may have lost its tail, or where
something had started and goes on all the same: `rewound` (TW-RES-035, TW-RES-039).
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from pydantic import BaseModel

from tidewire.protocol.messages import ENDED, Done, JobStatus, SnapshotReason
from tidewire.protocol.problems import Problem, problem
from tidewire.protocol.sse import Decoder
from tidewire_server.endpoints.endpoint import Endpoint, Options
from tidewire_server.errors import ProblemError
from tidewire_server.jobs.admission.submit_body import Submission, admit_inputs, read_submit
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import Interrupted, JobRecord, LogReader, Store, StoreError


@dataclass(frozen=True, slots=True)
class AdmittedJob:
    """A submit and its inputs, validated."""

    endpoint: Endpoint
    submission: Submission
    values: list[BaseModel]


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """How a job goes on."""

    state: dict[str, Any]
    columns: tuple[str, ...]
    reason: SnapshotReason | None
    """Of the snapshot that opens a new epoch; None where the one before goes on."""
    fail: Problem | None = None
    """What items fail with at once."""
    fail_status: str | None = None
    """Only items of this status do; None for all that have not ended."""

    @property
    def items(self) -> list[Any]:
        """The items of the state."""
        items: list[Any] = self.state["items"]
        return items

    @property
    def status(self) -> JobStatus:
        """The job's status."""
        status: JobStatus = self.state["status"]
        return status


class _Nothing(BaseModel):
    """Stands for an input that cannot be read any more."""


def _gone() -> None:
    """Stands for a function that is not there any more, and is never called."""


async def admit_again(left: Interrupted, endpoints: Mapping[str, Endpoint]) -> tuple[AdmittedJob, str | None]:
    """Read a submit that was admitted before; and why that cannot be done any more, None where it can."""
    submission = read_submit(left.submit, max_inputs=sys.maxsize)
    endpoint = endpoints.get(left.record.endpoint)
    why = f"endpoint {left.record.endpoint!r} was not there any more after the server started again"
    if endpoint is not None:
        try:
            return AdmittedJob(endpoint, submission, await admit_inputs(endpoint, submission)), None
        except ProblemError as error:
            why = f"its input is no longer valid since the server started again: {error}"
    stand_in = Endpoint(_gone, Options(name=left.record.endpoint))
    return AdmittedJob(stand_in, submission, [_Nothing() for _ in submission.inputs]), why


async def recovery_plan_of(
    left: Interrupted, what: AdmittedJob, settings: Settings, store: Store, gone: str | None
) -> RecoveryPlan:
    """Look up how a job goes on that had not ended.

    Args:
        left: The job.
        what: Its endpoint and inputs.
        settings: Bound the attempts.
        store: Says how the server before this one stopped.
        gone: Why it cannot run any more, if it cannot.
    """
    at = await left.log.state()
    state: Any = at.view.value()
    statuses = [item["status"] for item in state["items"]]
    began = state["status"] != "queued"
    rewound: SnapshotReason | None = "rewound" if began or store.may_have_lost else None
    if gone is None and began and not store.clean and left.record.attempt >= settings.max_attempts:
        gone = f"the server ended {settings.max_attempts} times while it ran (max_attempts)"
    deadline = what.submission.deadline
    if gone is None and deadline is not None and left.record.created_at + deadline <= time.time():
        expired = problem("deadline_exceeded", f"not ended {deadline:g} s after the submit")  # TW-JOB-071
        return RecoveryPlan(state, at.columns, rewound, expired)
    if gone is not None:
        return RecoveryPlan(state, at.columns, rewound, problem("worker_lost", gone))
    if not began or all(status in ENDED for status in statuses):
        return RecoveryPlan(state, at.columns, rewound)
    if what.endpoint.on_restart == "fail":
        why = problem("worker_lost", "the server stopped while it ran, and its function must not run twice")
        return RecoveryPlan(state, at.columns, "rewound", why, "running")
    return _new_attempt(state, what)


def _new_attempt(state: dict[str, Any], what: AdmittedJob) -> RecoveryPlan:
    """TW-RES-036: what had ended stays as it was, the values of all else are void."""
    items = [
        item if item["status"] in ENDED else {"status": "queued", "value": what.endpoint.initial(value)}
        for item, value in zip(state["items"], what.values, strict=True)
    ]
    # What was noted by items that had ended is not known apart from the rest.
    notes = state["notes"] if any(item["status"] in ENDED for item in items) else []
    within = what.endpoint.columns(what.values[0])
    columns = tuple(f"/items/0/value{column}" for column in within) if len(items) == 1 else ()
    new = {"status": "queued", "items": items, "usage": state["usage"], "notes": notes}
    return RecoveryPlan(new, columns, "restart")


async def complete_record(record: JobRecord, log: LogReader, state_ttl: float) -> None:
    """Take from a logged `done` what the record of its job lacks: the server ended between the two.

    Raises:
        StoreError: There is no such event.
    """
    extent = log.extent()
    chunk = await log.read(extent.id_at(extent.head.seq - 1), 1)
    events = [] if chunk is None else Decoder().feed(chunk.frames)
    if not events or events[-1].type != "done":
        raise StoreError(f"job {record.id}: the end of its log cannot be read: the file is damaged")
    record.done = done = Done.model_validate(orjson.loads(events[-1].data))
    record.status = done.status
    ends = (
        datetime.fromisoformat(done.expires_at).timestamp()
        if done.expires_at
        else record.created_at + state_ttl
    )
    record.expires_at, record.ended_at = ends, max(record.created_at, ends - state_ttl)
