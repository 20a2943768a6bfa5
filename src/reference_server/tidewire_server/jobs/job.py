"""A job that runs: its items, how they end, and how it ends with them.

  an item is | what happens                          | then it is
  -----------+---------------------------------------+-----------------------------------------------------------
  queued     | its turn comes                        | running
  queued     | cancel                                | cancelled; it never runs
  queued     | deadline, state too large             | failed; it never runs
  running    | its function returns                  | succeeded, or failed if the value does not fit its schema
  running    | its function raises                   | failed
  running    | cancel                                | cancelled, once its function has ended or `cancel_timeout`
             |                                       |   has passed: until then it may still write
  in a batch | cancel                                | cancelled at once; its row is dropped, the others go on
  running    | `time_limit` of its endpoint          | failed at once; its function is cancelled
  running    | deadline, state too large, purge      | failed (purge: cancelled) at once; its function is cancelled
  ended      | anything                              | as it was

When all items have ended the job has: succeeded if all did, partially_failed if some did, else failed if any failed,
else cancelled. Whichever of a cancel and the end is logged first holds.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from pydantic import BaseModel, JsonValue

from tidewire.protocol import messages
from tidewire.protocol.messages import ENDED
from tidewire.protocol.problems import Problem, problem
from tidewire_server.endpoints.batch_options import BatchSlot
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.invocation import keep_what_was_yielded, run
from tidewire_server.endpoints.yieldables import UNSET, Unset
from tidewire_server.errors import InvalidValueError, StateTooLargeError, StreamClosedError
from tidewire_server.jobs.ephemeral_events import forget_progress, publish_progress, publish_queue_position
from tidewire_server.jobs.live_item import Item, ItemEnd
from tidewire_server.jobs.outcomes import (
    add_usage,
    done_of,
    error_of,
    problem_of,
    status_of,
    too_large,
    write_failure,
)
from tidewire_server.log_writer.item_writer import ItemWriter
from tidewire_server.log_writer.log_writer import LogWriter
from tidewire_server.log_writer.value_errors import said_of_value
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import HeadMovedError, JobRecord, Log, QueueEntry

_log = logging.getLogger(__name__)


async def nothing() -> None:
    """What is done where nobody wants to know."""


class Job:
    """One job from its commit to its `done`. Lives on the event loop."""

    def __init__(
        self,
        record: JobRecord,
        endpoint: Endpoint,
        values: list[BaseModel],
        columns: list[list[str]],
        journal: LogWriter,
        log: Log,
        settings: Settings,
        *,
        discard: Callable[[QueueEntry], Coroutine[Any, Any, None]],
        ended: Callable[["Job"], Coroutine[Any, Any, None]],
    ) -> None:
        self.record = record
        self.endpoint = endpoint
        self.over = asyncio.Event()
        """Set once `done` is logged."""
        self._log = log
        self._journal = journal
        self._settings = settings
        self._discard = discard
        self._ended = ended
        self._usage = record.usage
        self._suspended = False
        self._errors: list[Problem] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._items = [
            Item(
                value,
                ItemWriter(
                    journal,
                    index,
                    columns=columns[index],
                    rollback=endpoint.rollback,
                    report=partial(publish_progress, log, self._loop),
                    to_json=endpoint.value.to_json,
                ),
            )
            for index, value in enumerate(values)
        ]
        self._left = len(self._items)
        """Items that have not ended."""

    @property
    def tickets(self) -> list[QueueEntry]:
        """One for each item."""
        return [self._ticket(index) for index in range(len(self._items))]

    def _ticket(self, index: int) -> QueueEntry:
        record = self.record
        return QueueEntry(record.endpoint, record.id, index, record.principal, record.created_at)

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def raised(self) -> BaseException | None:
        """What the first function that failed raised."""
        return next((item.raised for item in self._items if item.raised is not None), None)

    # ---- running -----------------------------------------------------------------------------------------------

    async def run_item(self, index: int, free: Callable[[], Awaitable[None]] = nothing) -> None:
        """Run one item's function to its end, which may come later than the item's.

        Args:
            index: Of the item.
            free: Told that the function has ended, before the item's end is written.
        """
        item = self._items[index]
        if item.status != "queued":
            return
        try:
            self.begin(index)
            outcome = await self._outcome(item)
            await free()
            await self._returned(index, outcome)
        except asyncio.CancelledError:
            if item.task is not None:
                item.task.cancel()
            raise
        except Exception:  # noqa: BLE001 - a fault of the server's own: the item must end all the same
            _log.exception("job %s item %d: it could not be run", self.record.id, index)
            await self._fail_all(problem("internal", "the server's log says why"))

    @property
    def waiting(self) -> bool:
        """Whether some item has not started."""
        return any(item.status == "queued" for item in self._items)

    def waits(self, index: int) -> bool:
        """Whether an item has neither started nor ended."""
        return self._items[index].status == "queued"

    def input(self, index: int) -> BaseModel:
        """The validated input of an item."""
        return self._items[index].value

    def place(self, index: int) -> BatchSlot:
        """Where an item stands among those that it may share a batch with."""
        return self.endpoint.place(self._items[index].value)

    def writer(self, index: int) -> ItemWriter:
        """The writer of an item's value."""
        return self._items[index].writer

    def begin(
        self, index: int, *, batch: dict[str, int] | None = None, leave: Callable[[], None] | None = None
    ) -> None:
        """Make an item run.

        Args:
            index: An item that waits.
            batch: How it was batched (TW-BAT-016), for its state.
            leave: Called when nobody waits for the item any more. Without it `run_item` runs its function.
        """
        item = self._items[index]
        item.status = "running"
        item.leave = leave
        ops: list[Any] = [["s", f"/items/{index}/status", "running"]]
        if batch is not None:
            ops.append(["s", f"/items/{index}/batch", batch])
        limit = self.endpoint.time_limit
        if limit is not None:
            item.limit = self._loop.call_later(limit, self._over_limit, index, limit)
        if self.record.status == "queued":
            self.record.started_at = self.record.started_at or time.time()
            self.record.status = "running"
            ops.append(["s", "/status", "running"])
            publish_queue_position(self._log, None)
        self._journal.change(ops, ends=True)

    async def _outcome(self, item: Item) -> JsonValue | Unset | BaseException:
        """What an item's function gave or raised."""
        work = run(self.endpoint, item.value, item.writer, self._journal)
        if not self.endpoint.is_async:
            # A thread cannot be cancelled, so it needs no task: that would be three turns of the loop before the next.
            try:
                return await work
            except asyncio.CancelledError:  # of whoever waits here; a function's own came as another
                raise
            except BaseException as error:  # noqa: BLE001 - whatever the function raised
                return error
        item.task = self._loop.create_task(work)
        await asyncio.wait({item.task})
        if item.task.cancelled():
            return asyncio.CancelledError()
        return item.task.exception() or item.task.result()

    async def _returned(self, index: int, outcome: JsonValue | Unset | BaseException) -> None:
        if self._items[index].status not in ENDED:
            await self.settle(index, outcome)
        elif isinstance(outcome, BaseException) and not isinstance(
            outcome, asyncio.CancelledError | StreamClosedError
        ):
            _log.info("job %s item %d: its function ended late: %r", self.record.id, index, outcome)

    async def settle(
        self, index: int, outcome: JsonValue | Unset | BaseException, *, told: bool = False
    ) -> None:
        """End an item whose function has given this; nothing if it has ended.

        Args:
            index: An item that runs.
            outcome: Its value as JSON; `UNSET` for the value that it has; or what went wrong.
            told: The log knows of this error already.
        """
        item = self._items[index]
        if item.status in ENDED or self._suspended:
            return
        if item.writer.failure is not None:
            await self._fail_all(too_large(item.writer.failure))
        elif item.cancelled:
            await self._end_item(index, "cancelled")
        elif isinstance(outcome, BaseException):
            await self._failed(index, outcome, told=told)
        else:
            await self._succeeded(index, outcome)

    async def _succeeded(self, index: int, value: JsonValue | Unset) -> None:
        try:
            await self._end_item(index, "succeeded", value=value)
        except StateTooLargeError as error:
            await self._fail_all(too_large(error))
        except ValueError as error:
            said = said_of_value(error, f"/items/{index}/value")
            await self._failed(index, InvalidValueError(said))

    async def _failed(self, index: int, raised: BaseException, *, told: bool = False) -> None:
        self._items[index].raised = raised
        here = f"job {self.record.id} item {index}"
        why = problem_of(raised, here, self.endpoint.name, told=told)
        await self._end_item(index, "failed", why)

    # ---- over a restart of the server --------------------------------------------------------------------------

    def restore(self, items: list[Any]) -> list[QueueEntry]:
        """Take over the items of the state that an earlier server left; returns the tickets of those that wait."""
        for item, was in zip(self._items, items, strict=True):
            item.status = was["status"]
            if item.status in ENDED:
                item.writer.close()
                self._left -= 1
            if "error" in was:
                self._errors.append(Problem.model_validate(was["error"]))
        return [self._ticket(index) for index, item in enumerate(self._items) if item.status == "queued"]

    async def fail(self, why: Problem, *, status: str | None = None) -> None:
        """Fail all items that have not ended, or those of a status; ends the job where none is left."""
        for index, item in enumerate(self._items):
            if item.status not in ENDED and status in {None, item.status}:
                await self._end_item(index, "failed", why)
        if not self.over.is_set() and not self._left:
            await self._finish()

    def suspend(self) -> None:
        """Stop without an end, for the next server to take the job up. Nothing more is logged."""
        self._suspended = True
        self._journal.stop()
        if self._deadline is not None:
            self._deadline.cancel()
        for item in self._items:
            if item.status not in ENDED:
                item.stop()
                item.stop_timers()
        self.over.set()

    # ---- ending early ------------------------------------------------------------------------------------------

    def set_deadline(self, seconds: float) -> None:
        """Fail what has not ended so long after the submit."""
        expired = problem("deadline_exceeded", f"not ended {seconds:g} s after the submit")
        left = max(0.0, self.record.created_at + seconds - time.time())
        self._deadline = self._loop.call_later(left, lambda: self._in_background(self._fail_all(expired)))

    async def cancel(self, items: list[int] | None = None) -> None:
        """Cancel some items, or all. A running function has `cancel_timeout` to end by itself."""
        for index in range(len(self._items)) if items is None else items:
            item = self._items[index]
            if item.status == "queued":
                await self._discard(self._ticket(index))
                await self._end_item(index, "cancelled")
            elif item.status == "running" and not item.cancelled:
                item.cancelled = True
                item.stop()
                if self.endpoint.notices_cancel and item.leave is None:
                    item.timer = self._loop.call_later(
                        self._settings.cancel_timeout, self._cancel_overdue, index
                    )
                else:
                    await self._end_item(index, "cancelled")

    def cancel_soon(self) -> None:
        """Cancel all items, from a callback of the event loop."""
        self._in_background(self.cancel())

    async def abandon(self) -> None:
        """Cancel all that has not ended, without waiting for any function."""
        for index, item in enumerate(self._items):
            if item.status not in ENDED:
                await self._discard(self._ticket(index))
                item.stop()
                await self._end_item(index, "cancelled")
        await self.over.wait()

    def _cancel_overdue(self, index: int) -> None:
        _log.warning("job %s item %d: its function did not end when it was cancelled", self.record.id, index)
        self._in_background(self._end_item(index, "cancelled"))

    def _over_limit(self, index: int, limit: float) -> None:
        detail = (
            f"its function ran longer than {limit:g} s, the time_limit of endpoint {self.endpoint.name!r}"
        )
        self._items[index].stop()
        self._in_background(self._end_item(index, "failed", problem("deadline_exceeded", detail)))

    async def _fail_all(self, why: Problem) -> None:
        for index, item in enumerate(self._items):
            if item.status not in ENDED:
                await self._discard(self._ticket(index))
                item.stop()
                await self._end_item(index, "failed", why)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ---- the end -----------------------------------------------------------------------------------------------

    async def _end_item(
        self, index: int, status: ItemEnd, error: Problem | None = None, *, value: JsonValue | Unset = UNSET
    ) -> None:
        """End an item, by one event.

        Raises:
            StateTooLargeError: There is no room for the value.
            ValueError: The value is not JSON as the protocol takes it.
        """
        item = self._items[index]
        if item.status in ENDED or self._suspended:
            return
        if status != "succeeded" and self.endpoint.is_async:
            keep_what_was_yielded(item.writer)
        place = f"/items/{index}"
        ends: list[Any] = [["s", f"{place}/status", status]]
        try:
            with (
                self._journal.lock
            ):  # a thread that writes between an item's end and its close changes what has ended
                if value is not UNSET:
                    self._journal.change([["s", f"{place}/value", value], *ends])
                elif error is None:
                    self._journal.change(ends, check_below=place, ends=True)
                else:
                    self._errors.append(write_failure(self._journal, place, ends, error))
                item.status = status
                self._left -= 1
                used = item.writer.close()
            item.stop_timers()
            item.leave = None
            forget_progress(self._log, index)
            add_usage(self._usage, used)
            if not self._left:
                await self._finish()
        except (HeadMovedError, StreamClosedError) as lost:
            _log.warning("job %s: its end could not be logged: %s", self.record.id, lost)
            self.over.set()

    async def _finish(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        record = self.record
        status = status_of([item.status for item in self._items])
        now = time.time()
        expires_at = now + self._settings.state_ttl
        error = error_of(self._errors, len(self._items)) if status == "failed" else None
        _, record.done = await self._journal.end(partial(done_of, status, self._usage, error, expires_at))
        record.status, record.ended_at, record.expires_at = status, now, expires_at
        await self._ended(self)
        self.over.set()

    def announce(self, message: messages.Queue) -> None:
        """Tell readers the job's place in the queue, while no item has started."""
        if self.record.status == "queued":
            publish_queue_position(self._log, message)
