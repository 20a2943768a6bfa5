"""State machine of an unfinished job. It runs the job's items, and ends the job after its last item has ended.

The table in the module `live_item` shows how the status of an item changes.

The final status of the job is succeeded if all items succeeded, and partially_failed if only some of them succeeded. If no item
succeeded, the status is failed if any item failed, and otherwise cancelled. If an item is cancelled while it ends normally, the
event that is logged first decides the item's status.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from pydantic import BaseModel, JsonValue

from tidewire.protocol import messages
from tidewire.protocol.document.view import View
from tidewire.protocol.problems import Problem, problem
from tidewire_server import tracing
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.invocation import run
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.endpoints.value_errors import said_of_value
from tidewire_server.endpoints.yieldables import UNSET, Unset
from tidewire_server.errors import (
    InvalidValueError,
    RunLaterError,
    StateTooLargeError,
    StreamClosedError,
    WorkerLostError,
)
from tidewire_server.job_log.log_writer import LogWriter
from tidewire_server.jobs.job_resource import timestamp
from tidewire_server.jobs.live_item import (
    ItemEnd,
    batch_slot,
    consume_cancellation,
    new_items,
    queue_entry,
    slot_of_attempt,
)
from tidewire_server.jobs.outcomes import (
    add_usage,
    error_of,
    missed_deadline,
    problem_of,
    status_of,
    write_failed,
    write_failure,
)
from tidewire_server.jobs.publish_ephemeral_events import (
    forget_progress,
    publish_progress,
    publish_queue_position,
)
from tidewire_server.jobs.recovered_inputs import RefusedInputError, StoredInputs
from tidewire_server.settings import Settings
from tidewire_server.store.log_interface import Log
from tidewire_server.store.records import BatchSlot, JobRecord, QueueEntry
from tidewire_server.store.store_errors import HeadMovedError, StoreError

_log = logging.getLogger(__name__)


class Job:
    """A job that was committed to the log and has not ended. All methods must be called on one event loop."""

    def __init__(
        self,
        record: JobRecord,
        endpoint: Endpoint,
        values: list[BaseModel],
        columns: list[list[str]],
        log_writer: LogWriter,
        log: Log,
        settings: Settings,
        *,
        stored: StoredInputs | None = None,
        crashed: bool = False,
        discard: Callable[[QueueEntry], Coroutine[Any, Any, None]],
        on_item_start: Callable[["Job"], None],
        on_item_end: Callable[["Job"], None],
        on_end: Callable[["Job"], None],
        restart: Callable[["Job"], Coroutine[Any, Any, None]],
        loop_ends: Callable[[], bool],
    ) -> None:
        self.record = record
        self.endpoint = endpoint
        self.finished = asyncio.Event()
        """Set when `done` was logged, when `done` cannot be logged, or when the job was suspended for a shutdown."""
        self._stored = stored
        """Inputs of a job that was reopened. None for a new job."""
        self._crashed = crashed
        """Whether the previous owner of the job has crashed."""
        self.log = log
        self._log_writer = log_writer
        self._pending = log_writer.pending
        self._settings = settings
        self._discard = discard
        self._on_item_start = on_item_start
        self._on_item_end = on_item_end
        self._on_end = on_end
        self._restart = restart
        self._loop_ends = loop_ends
        self._usage = record.usage
        self._suspended = False
        self._errors: list[Problem] = []
        self._deadline: asyncio.TimerHandle | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        report = partial(publish_progress, log, self._loop)
        inputs = values if stored is None else [None] * len(columns)
        self._items = new_items(record, endpoint, inputs, columns, log_writer.pending, report)
        self._unfinished = len(self._items)
        """Number of items that have not ended."""

    # ---- queries -----------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self.record.id

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self._items)

    @property
    def raised(self) -> BaseException | None:
        """Exception that the function of the first failed item raised, or None."""
        return next((item.raised for item in self._items if item.raised is not None), None)

    @property
    def waiting_entries(self) -> list[QueueEntry]:
        """Queue entries of the queued items."""
        return [queue_entry(self.record, n) for n, item in enumerate(self._items) if item.status == "queued"]

    @property
    def only_waits(self) -> bool:
        """Whether some items are still queued, and no function is running."""
        statuses = {item.status for item in self._items}
        return "queued" in statuses and statuses.isdisjoint({"starting", "running"})

    @property
    def cancelled_items(self) -> frozenset[int]:
        """Indexes of the unfinished items that were cancelled."""
        return frozenset(index for index in self.unfinished() if self._items[index].cancelled)

    def unfinished(self, items: list[int] | None = None) -> list[int]:
        """Return the indexes of the unfinished items among `items`, or among all items if `items` is None."""
        indices = range(len(self._items)) if items is None else items
        return [index for index in indices if not self._items[index].ended]

    def waits(self, index: int) -> bool:
        """Return whether an item is queued, and not about to end because it was cancelled."""
        item = self._items[index]
        return item.status == "queued" and not item.cancelled

    def has_input(self, index: int) -> bool:
        """Return whether the input of an item was validated. In a reopened job, it is validated when the item runs, or before
        the item joins a batch.
        """
        return self._items[index].value is not None

    def input(self, index: int) -> BaseModel:
        """Return the validated input of an item. In a reopened job, `check_input` or `refusal` must have validated it."""
        value = self._items[index].value
        assert value is not None  # noqa: S101 - guaranteed by the caller
        return value

    def batch_slot(self, index: int) -> BatchSlot:
        """Return the batch key and the cost of an item."""
        return slot_of_attempt(batch_slot(self.endpoint, self.input(index)), self.record)

    def writer(self, index: int) -> ItemWriter:
        """Return the writer of an item's value."""
        return self._items[index].writer

    @property
    def commits_starts(self) -> bool:
        """Whether the start of an item must be committed before the item's function is called.

        If the start is not committed, a crash may lose it. Then the restarted server would call the function again,
        even if it must not run twice. A function that crashes the server at once would do so at every restart, because
        its attempts would not be counted. Therefore starts are also committed if the job has started before, or if the
        server has crashed since the job was submitted.
        """
        return self.endpoint.on_restart == "fail" or self.record.attempt > 1 or self._crashed

    @property
    def _urgent(self) -> bool:
        """Whether starts and results are committed at once. In a batch job, this would need a commit for each item."""
        return len(self._items) == 1

    # ---- running -----------------------------------------------------------------------------------------------

    def announce(self, message: messages.Queue) -> None:
        """Publish the job's queue position, unless an item of the job has already started."""
        if self.record.status == "queued":
            publish_queue_position(self.log, message)

    async def run_item(self, index: int, free: Callable[[], Awaitable[None]]) -> bool:
        """Run the function of one item until the function returns. Return whether the item waits again (`RunLaterError`).

        A cancelled item may end before its function returns.

        Args:
            index: Index of the item.
            free: Function that is called when the item's function has ended, and before the end of the item is logged.
        """
        item = self._items[index]
        if not self.waits(index) or self._suspended:
            return False
        outcome: JsonValue | Unset | BaseException
        try:
            if self.endpoint.begins_itself and not (item.started or self.commits_starts):
                item.prepare(partial(self.begin, index))
                item.span = tracing.start_run(self.record, index)
            else:
                self.begin(index)
            # Run an async function in the current task, which runs only this item. A second task would begin only after the
            # commit of the item's start, and a function that never waits would need a second commit. A function in a thread has
            # no task, because it cannot be cancelled.
            item.task = asyncio.current_task() if self.endpoint.is_async else None
            try:
                with tracing.running(item.span, self.id):
                    outcome = await self._work(index)
            except BaseException as error:
                # `run` converts a `CancelledError` of a function in a thread. Here, it means that this task was cancelled.
                if item.task is None and isinstance(error, asyncio.CancelledError):
                    raise
                outcome = error
            task, item.task = item.task, None
            if task is not None and task.cancelling():
                if not item.writer.run.cancelled and self._loop_ends():
                    # The event loop ends without a drain, and has cancelled the function. The next process runs the item again.
                    self.suspend()
                    return False
                await consume_cancellation(task)
            if isinstance(outcome, RunLaterError) and not self._suspended and item.wait_again():
                self._on_item_end(self)
                return True
            await free()
            await self._after_run(index, outcome)
        except Exception:  # noqa: BLE001 - a bug of the server, but the item must end
            await self._fail_internally(index)
        return False

    def begin(self, index: int) -> None:
        """Set the status of an item to running, if the item is not in a batch. If it runs already or has ended, do nothing."""
        if self._items[index].status in {"queued", "starting"} and (ops := self._start(index)):
            self._pending.change(ops, reserved=True, urgent=self._urgent)

    def begin_rows(self, rows: Iterable[tuple[int, dict[str, int], Callable[[], None]]]) -> None:
        """Start the items of one batch. One event changes their statuses from `queued` to `running`.

        Args:
            rows: A tuple for each item: its index, the member `batch` of its state [TW-BAT-016], and a function that
                removes the item from its running batch. This function is called if the item ends before the batch, for
                example because the item was cancelled.
        """
        ops: list[Any] = []
        for index, batch, leave in rows:
            ops += self._start(index, batch, leave)
        self._pending.change(ops, reserved=True, urgent=self._urgent)

    def _start(
        self, index: int, batch: dict[str, int] | None = None, leave: Callable[[], None] | None = None
    ) -> list[Any]:
        """Start an item, and return the diff operations that record the start."""
        item = self._items[index]
        item.span = item.span or tracing.start_run(self.record, index)
        ops: list[Any] = []
        if item.start(leave):
            self._on_item_start(self)
            ops.append(["s", f"/items/{index}/status", "running"])
        if batch is not None:
            ops.append(["s", f"/items/{index}/batch", batch])
        if item.value is not None:
            self._start_time_limit(index)
        if self.record.status == "queued":
            self.record.started_at = self.record.started_at or time.time()
            self.record.status = "running"
            ops.append(["s", "/status", "running"])
            publish_queue_position(self.log, None)
        return ops

    def _start_time_limit(self, index: int) -> None:
        limit = self.endpoint.time_limit
        if limit is not None:
            self._items[index].limit = self._loop.call_later(limit, self._time_limit_exceeded, index, limit)

    def _work(self, index: int) -> Coroutine[Any, Any, JsonValue | Unset]:
        """Return the coroutine that runs the function of an item. Await it directly: whenever the function waits, each
        coroutine between the task and the function costs time.
        """
        item = self._items[index]
        if item.value is None:
            return self._run_recovered(index)
        work = run(self.endpoint, item.value, item.writer, self._log_writer)
        return self._after_commit(work) if self.commits_starts else work

    async def _after_commit(self, work: Coroutine[Any, Any, JsonValue | Unset]) -> JsonValue | Unset:
        with closing(work):
            await self.commit()
            return await work

    async def commit(self) -> None:
        """Write the pending changes to the log."""
        await self._log_writer.commit_shielded()

    async def _after_run(self, index: int, outcome: JsonValue | Unset | BaseException) -> None:
        if not self._items[index].ended:
            await self.settle(index, outcome)
        elif isinstance(outcome, BaseException) and not isinstance(
            outcome, asyncio.CancelledError | StreamClosedError
        ):
            _log.info(
                "job %s item %d: the function raised after the item's end: %r", self.record.id, index, outcome
            )

    async def settle(
        self, index: int, outcome: JsonValue | Unset | BaseException, *, logged: bool = False
    ) -> None:
        """End a running item with the outcome of its function. If the item has already ended, do nothing.

        Args:
            index: Index of the item.
            outcome: Final value as JSON, or an exception. If it is `UNSET`, the item keeps the value that was written
                so far.
            logged: Whether the exception was already written to the server's log.
        """
        item = self._items[index]
        if item.ended or self._suspended:
            return
        try:
            if item.writer.failure is not None:
                await self._end_all("failed", write_failed(item.writer.failure))
            elif item.cancelled:
                await self._end_item(index, "cancelled")
            elif isinstance(outcome, BaseException):
                await self._failed(index, outcome, logged=logged)
            else:
                await self._succeeded(index, outcome)
        except Exception:  # noqa: BLE001 - a bug of the server, but the item must end
            await self._fail_internally(index)

    async def _fail_internally(self, index: int) -> None:
        """Log the current exception, which is a bug of the server, and fail all unfinished items."""
        _log.exception("job %s item %d: internal server error", self.record.id, index)
        error = problem("internal", "an internal error; the server's log has the details")
        await self._end_all("failed", error)

    async def _succeeded(self, index: int, value: JsonValue | Unset) -> None:
        try:
            await self._end_item(index, "succeeded", value=value)
        except StateTooLargeError as error:
            await self._end_all("failed", write_failed(error))
        except ValueError as error:
            message = said_of_value(error, f"/items/{index}/value")
            await self._failed(index, InvalidValueError(message))

    async def _failed(self, index: int, raised: BaseException, *, logged: bool = False) -> None:
        self._items[index].raised = raised
        item_name = f"job {self.record.id} item {index}"
        error = problem_of(raised, item_name, self.endpoint.name, logged=logged, debug=self._settings.debug)
        await self._end_item(index, "failed", error)

    # ---- recovery ----------------------------------------------------------------------------------------------

    def restore(self, items: list[Any], previous: View) -> None:
        """Restore the items of an interrupted job.

        Args:
            items: Items of the state with which the job continues.
            previous: State of the job when the server restarted, which functions read as `ctx.previous`.
        """
        for item, stored in zip(self._items, items, strict=True):
            item.status = stored["status"]
            item.writer.restore(previous if self.record.attempt > 1 else None, stored.get("stable", {}))
            if item.ended:
                item.writer.close()
                self._unfinished -= 1
            if "error" in stored:
                self._errors.append(Problem.model_validate(stored["error"]))

    async def end_items(self, items: Iterable[int], status: ItemEnd, error: Problem | None = None) -> None:
        """After `restore`, end the items that have not ended, without running their functions. If no unfinished item remains,
        end the job.
        """
        for index in items:
            await self._end_item(index, status, error)
        if not self.finished.is_set() and not self._unfinished:
            await self._finish()

    async def _run_recovered(self, index: int) -> JsonValue | Unset:
        """Read and check an item's input, which is still in the store, and run the item's function.

        If the start must be committed, it is committed before the check. A crash during the check then counts as an attempt.
        """
        if self.commits_starts:
            await self.commit()
        item = self._items[index]
        value = await self._check_input(index)
        if item.cancelled or item.ended or self._suspended:
            raise StreamClosedError("the item was stopped while its input was checked")
        self._start_time_limit(index)
        return await run(self.endpoint, value, item.writer, self._log_writer)

    async def check_input(self, index: int) -> bool:
        """Read and validate the input of an item of a recovered job that waits for a batch. If the input is no longer valid,
        the item fails. Return whether the item can run.
        """
        try:
            await self._check_input(index)
        except Exception as error:  # noqa: BLE001 - any exception of the endpoint's functions
            await self._fail_waiting(index, error)
        return self.waits(index)

    async def refusal(self, index: int) -> str | None:
        """Validate the input of a waiting item of a job that other processes can run, too. Return why the code of this process
        rejects the input, or None if it does not. After any other error, the item fails.

        Raises:
            StoreError: The input cannot be read during an outage of the database. The item waits.
        """
        try:
            await self._check_input(index)
        except RefusedInputError as error:
            return str(error.__cause__)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - see `check_input`
            await self._fail_waiting(index, error)
        return None

    async def _fail_waiting(self, index: int, error: Exception) -> None:
        if self.waits(index):
            await self._discard(queue_entry(self.record, index))
            await self._failed(index, error)

    async def _check_input(self, index: int) -> BaseModel:
        item = self._items[index]
        if item.value is None and self._stored is not None:
            value, columns, initial = await self._stored.check(index)
            item.writer.set_columns(columns)
            # Keep a value that an earlier attempt has written, unless the item starts again.
            kept = item.writer.value
            is_reset = kept == self.endpoint.empty_value and kept != item.writer.run.previous
            if is_reset or self.endpoint.on_restart != "continue" or self.record.attempt == 1:
                item.writer.begin_with(initial)
            item.value = value
        return self.input(index)

    # ---- ending early ------------------------------------------------------------------------------------------

    def set_deadline(self, seconds: float) -> None:
        """Set the deadline, in seconds after the job was submitted. Items that are unfinished at the deadline fail."""
        remaining = max(0.0, self.record.created_at + seconds - time.time())
        self._deadline = self._loop.call_later(
            remaining, lambda: self.in_background(self._end_all("failed", missed_deadline(seconds)))
        )

    async def cancel(self, items: list[int] | None = None) -> None:
        """Cancel the items with these indexes, or all items if `items` is None.

        A running function that can notice the cancellation has up to `cancel_timeout` seconds to return before its item
        ends, unless it runs in a batch. All other items end immediately.
        """
        for index in self.unfinished(items):
            item = self._items[index]
            if item.status == "queued":
                item.cancel()
                await self._discard(queue_entry(self.record, index))
                await self._end_item(index, "cancelled")
            elif not item.ended and not item.cancelled:  # It may have ended during an await.
                item.cancel()
                if self.endpoint.notices_cancel and item.leave is None:
                    item.timer = self._loop.call_later(
                        self._settings.cancel_timeout, self._cancel_overdue, index
                    )
                else:
                    await self._end_item(index, "cancelled")

    async def end_at_once(self, error: Problem | None = None) -> None:
        """Fail all unfinished items with an error, or cancel them if there is no error, without waiting until their functions
        have returned. Items that were cancelled before end as cancelled.
        """
        for index in self.cancelled_items:
            await self._end_item(index, "cancelled")
        await self._end_all("cancelled" if error is None else "failed", error)
        await self.finished.wait()

    async def lose_worker(self, indexes: Sequence[int], error: WorkerLostError) -> None:
        """Handle the loss of a worker: fail its running items, or begin a new attempt of the job, depending on `on_restart`."""
        if self._suspended:
            return
        _log.error("job %s items %s: %s", self.id, list(indexes), error)
        if self.endpoint.on_restart != "fail":
            await self._restart(self)
            return
        reason = "the worker was lost while the item was running, and the item's function must not run twice"
        for index in indexes:
            await self._end_item(index, "failed", problem("worker_lost", reason))

    def _cancel_overdue(self, index: int) -> None:
        _log.warning(
            "job %s item %d: the function was cancelled, but did not return within cancel_timeout",
            self.record.id,
            index,
        )
        self.in_background(self._end_item(index, "cancelled"))

    def _time_limit_exceeded(self, index: int, limit: float) -> None:
        detail = (
            f"the function ran longer than {limit:g} s, the time_limit of endpoint {self.endpoint.name!r}"
        )
        self._items[index].stop()
        self.in_background(self._end_item(index, "failed", problem("deadline_exceeded", detail)))

    async def _end_all(self, status: ItemEnd, error: Problem | None = None) -> None:
        """End all unfinished items without waiting until their functions have returned."""
        for index, item in enumerate(self._items):
            if not item.ended:
                await self._discard(queue_entry(self.record, index))
                item.stop()
                await self._end_item(index, status, error)

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for this job in a separate task."""
        task = self._loop.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # ---- stopping without an end -------------------------------------------------------------------------------

    async def interrupt(self) -> None:
        """Log all changes so far, and then stop the job like `suspend`, so that this process can begin a new attempt. The
        caller sets `finished` when the new attempt has begun.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        self._suspended = True
        self._pending.close()
        await self.commit()
        self._stop()

    def suspend(self) -> None:
        """Stop the job without logging that it has ended, so that the next server process can recover the job."""
        self._suspended = True
        self._stop()
        self.finished.set()

    def _stop(self) -> None:
        self._log_writer.stop()
        if self._deadline is not None:
            self._deadline.cancel()
        for item in self._items:
            if not item.ended:
                item.stop()
                item.end_run("interrupted")

    # ---- the end -----------------------------------------------------------------------------------------------

    async def _end_item(
        self, index: int, status: ItemEnd, error: Problem | None = None, *, value: JsonValue | Unset = UNSET
    ) -> None:
        """Log the end of an item in a single event.

        Raises:
            StateTooLargeError: The value would exceed the size limit of the job's state.
            ValueError: The value is not strict JSON.
        """
        item = self._items[index]
        if item.ended or self._suspended:
            return
        pointer = f"/items/{index}"
        try:
            # Hold the lock until the writer is closed. Otherwise another thread could change the item after its end.
            with self._pending.lock:
                end_ops: list[Any] = [["s", f"{pointer}/status", status]]
                if value is not UNSET:
                    value_ops = [["s", f"{pointer}/value", value], *end_ops]
                    self._pending.change(value_ops, urgent=self._urgent)
                elif error is None:
                    self._pending.change(end_ops, check_below=pointer, reserved=True)
                else:
                    self._errors.append(write_failure(self._pending, pointer, end_ops, error))
                item.status = status
                self._unfinished -= 1
                used = item.writer.close()
            item.end_run(status, error, used)
            item.leave = None
            forget_progress(self.log, index)
            add_usage(self._usage, used)
            if not self._unfinished:
                await self._finish()
        except (HeadMovedError, StreamClosedError) as log_error:
            # If the job was stopped in the meantime, the log already contains the reason.
            level = logging.DEBUG if self._suspended else logging.WARNING
            _log.log(level, "job %s: cannot log the end of the job: %s", self.record.id, log_error)
            self.finished.set()
        self._on_item_end(self)

    async def _finish(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        record = self.record
        status = status_of([item.status for item in self._items])
        now = time.time()
        expires_at = now + self._settings.state_ttl
        error = error_of(self._errors, len(self._items)) if status == "failed" else None

        def ended(digest: str, checks: list[JsonValue]) -> JobRecord:
            until = timestamp(expires_at)
            done = messages.Done(
                status=status, usage=self._usage, check=checks, digest=digest, expires_at=until, error=error
            )
            return record.ended(done, now, expires_at)

        record.done = (await self._log_writer.end(ended)).done
        record.status, record.ended_at, record.expires_at = status, now, expires_at
        self._on_end(self)
        self.finished.set()
