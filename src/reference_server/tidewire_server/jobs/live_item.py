"""An item of an unfinished job, with its input, its writer, its timers, and the task that runs its function.

The table shows how the status of an item changes. *Active* means starting or running. `Job` logs the changes:

  item state | event                                  | next state
  -----------+----------------------------------------+---------------------------------------------------------------
  queued     | the scheduler starts the item          | running, or starting if the endpoint `begins_itself`
  queued     | cancel                                 | cancelled; the function never runs
  queued     | its recovered input is no longer valid | failed if the endpoint is batched; the function never runs
  queued     |   in a store of several processes      | queued; the job waits for another process
  queued     | in such a store, its recovered input   | queued during an outage of the database, and otherwise failed; the
             |   cannot be read                       |   function never runs
  active     | its recovered input is no longer valid | failed; the function never runs
  starting   | the work on the item begins            | running; until then, the log says that the item is queued
  active     | the function raises `RunLaterError`    | queued; if the item was running, the log says so further on
  active     | the function returns                   | succeeded, or failed if the value does not match its schema
  active     | the function raises                    | failed
  active     | cancel                                 | cancelled, when the function has ended or after
             |                                        |   `cancel_timeout`; until then the function may still write
  active     | cancel of a function that cannot       | cancelled immediately; the function continues in its thread
             |   notice it (`notices_cancel`)         |
  in a batch | cancel                                 | cancelled immediately; the batch continues without the row
  running    | `time_limit` of the endpoint           | failed immediately; the function is cancelled
  in a batch | the worker is lost                     | failed if the function must not run twice (`on_restart`),
             |                                        |   otherwise queued again in a new attempt of the job
  not ended  | deadline, state too large, an internal | failed immediately, like all unfinished items of the job; the
             |   error of the server                  |   function is cancelled or never runs
  not ended  | the job is deleted                     | cancelled immediately; the function is cancelled or never runs
  not ended  | the server stops                       | failed if the store is in memory, or cancelled if a client had
             |                                        |   cancelled the item; otherwise as the module `recovery` says
  ended      | any                                    | unchanged
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from tidewire.protocol.messages import ENDED, Progress
from tidewire.protocol.problems import Problem
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.job_log.pending_events import PendingEvents
from tidewire_server.store.records import SHARED_ATTEMPTS, BatchSlot, JobRecord, QueueEntry
from tidewire_server.tracing import JobSpan

_log = logging.getLogger(__name__)

ItemEnd = Literal["succeeded", "failed", "cancelled"]


@dataclass(slots=True)
class Item:
    """Item of an unfinished job. The table at the top of this module describes its states."""

    value: BaseModel | None
    """The validated input. None if the job was recovered and the input was not read yet."""
    writer: ItemWriter
    status: str = "queued"
    started: bool = False
    """Whether the log says that the item is running. It stays true if the item returns to the queue."""
    task: asyncio.Task[Any] | None = None
    """Task in which the function runs. None if no async function is running."""
    cancelled: bool = False
    leave: Callable[[], None] | None = None
    """Function that removes the item from its running batch. None if the item is not in a running batch."""
    timer: asyncio.TimerHandle | None = None
    """Timer that ends a cancelled item whose function does not return within `cancel_timeout`."""
    limit: asyncio.TimerHandle | None = None
    """Timer for the endpoint's `time_limit`."""
    raised: BaseException | None = None
    span: JobSpan | None = None
    """Span of the function while it runs. None if the job has no trace."""

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return self.status in ENDED

    def prepare(self, begin: Callable[[], None]) -> None:
        """Set the status to starting, until the function calls `begin`."""
        self.status, self.writer.run.begin = "starting", begin

    def start(self, leave: Callable[[], None] | None) -> bool:
        """Set the status to running, and set `leave`. Return whether the log must still record that the item is running."""
        self.status, self.leave = "running", leave
        is_first, self.started = not self.started, True
        return is_first

    def cancel(self) -> None:
        """Mark the item as cancelled, and cancel its function if the function was called."""
        self.cancelled = True
        if self.status != "queued":
            self.stop()

    def stop(self) -> None:
        """Cancel the item's function.

        This method sets the cancel flag. It also removes the item from its batch, or cancels the function's task if the
        item is not in a batch.
        """
        self.writer.run.cancel()
        if self.leave is not None:
            self.leave()
        elif self.task is not None:
            self.task.cancel()

    def wait_again(self) -> bool:
        """Return the item to the state `queued` after its function has ended. Return False if it was cancelled or has ended."""
        if self.cancelled or self.ended:
            return False
        self.status = "queued"
        self.end_run("returned")
        return True

    def end_run(
        self, status: str, error: Problem | None = None, used: Mapping[str, int | float] | None = None
    ) -> None:
        """Cancel the timers of the item, and end the span of its function, if there is one.

        Args:
            status: Status of the item, or `interrupted` if the server stops before the item has ended.
            error: Reason why the item failed.
            used: Usage that the function has reported.
        """
        for timer in (self.timer, self.limit):
            if timer is not None:
                timer.cancel()
        span, self.span = self.span, None
        if span is not None:
            code = None if error is None else error.code
            span.end(status, code, used, self.writer.first_event_at)


def new_items(
    record: JobRecord,
    endpoint: Endpoint,
    inputs: Sequence[BaseModel | None],
    columns: Sequence[Sequence[str]],
    pending: PendingEvents,
    report: Callable[[int, Progress], None],
) -> list[Item]:
    """Create the queued items of a job.

    Args:
        record: Record of the job.
        endpoint: Endpoint of the job.
        inputs: Validated input of each item, or None if the input was not read yet.
        columns: JSON Pointers of each item's columns.
        pending: Pending events of the job.
        report: Function that publishes the progress of an item.
    """
    return [
        Item(
            value,
            ItemWriter(
                pending,
                index,
                columns=columns_of_item,
                rollback=endpoint.rollback,
                report=report,
                to_json=endpoint.value.to_json,
                attempt=record.attempt,
                principal=record.principal,
            ),
        )
        for index, (value, columns_of_item) in enumerate(zip(inputs, columns, strict=True))
    ]


def queue_entry(record: JobRecord, index: int) -> QueueEntry:
    """Return the queue entry of an item."""
    return QueueEntry(record.endpoint, record.id, index, record.principal, record.created_at)


def batch_slot(endpoint: Endpoint, value: BaseModel) -> BatchSlot:
    """Return the batch key and the cost of an item. They determine into which batches the item fits.

    If the endpoint's `key` or `cost` function fails, return a default: the input was admitted, so the item must run.
    """
    try:
        return endpoint.place(value)
    except Exception:  # noqa: BLE001 - an error of user code
        _log.exception(
            "endpoint %r: key() or cost() failed for an input, although it had not failed for this input when the "
            "job was submitted",
            endpoint.name,
        )
        return BatchSlot()


def slot_of_attempt(slot: BatchSlot, record: JobRecord) -> BatchSlot:
    """Return the batch key and the cost of an item in the current attempt of its job.

    A job whose worker or server was lost twice no longer shares batches with other jobs. Otherwise an input that crashes the
    worker in each attempt would also fail all other jobs of its batch, including jobs of other callers.
    """
    return slot if record.attempt <= SHARED_ATTEMPTS else slot._replace(key=(slot.key, record.id))


async def consume_cancellation(task: asyncio.Task[Any]) -> None:
    """Reset the cancellation of a task after the task's function has ended. Otherwise the cancellation would interrupt
    the code that ends the item, which runs in the same task.
    """
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.uncancel():
        pass
