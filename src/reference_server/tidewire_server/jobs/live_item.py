"""An item of an unfinished job, with its input, its writer, its timers, and the task that runs its function."""

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
from tidewire_server.store.records import BatchSlot, JobRecord, QueueEntry
from tidewire_server.tracing import JobSpan

_log = logging.getLogger(__name__)

ItemEnd = Literal["succeeded", "failed", "cancelled"]


@dataclass(slots=True)
class Item:
    """Item of an unfinished job. The table in the module `job` defines its states."""

    value: BaseModel | None
    """The validated input. None if the job was recovered and the input was not read yet."""
    writer: ItemWriter
    status: str = "queued"
    started: bool = False
    """Whether the log says that the item is running. It may wait again."""
    task: asyncio.Task[Any] | None = None
    """Task that runs the function, while an asynchronous function runs."""
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
        if self.cancelled or self.status in ENDED:
            return False
        self.status = "queued"
        self.stop_timers()
        self.end_span("returned")
        return True

    def stop_timers(self) -> None:
        """Cancel the timers of the item."""
        for timer in (self.timer, self.limit):
            if timer is not None:
                timer.cancel()

    def end_span(
        self, status: str, error: Problem | None = None, used: Mapping[str, int | float] | None = None
    ) -> None:
        """End the span of the item's function, if there is one.

        Args:
            status: Status of the item, or `interrupted` if the server stops before the item has ended.
            error: Reason why the item failed.
            used: Usage that the function has reported.
        """
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
        record: The job.
        endpoint: Its endpoint.
        inputs: See `Item.value`.
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

    If the endpoint's functions fail, return a default, because the input was admitted, so the item must run.
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


async def no_op() -> None:
    """Do nothing. This is the default for a callback."""


async def consume_cancellation(task: asyncio.Task[Any]) -> None:
    """Reset the cancellation of a task after the task's function has ended. Otherwise the cancellation would interrupt
    the code that ends the item, which runs in the same task.
    """
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(0)
    while task.uncancel():
        pass
