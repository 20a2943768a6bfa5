"""Execution of one batched call (`BatchCall`), in which a function processes several items at once.

Each item is a *row* of the call. The kind of function decides how the call runs:

  function        | where it runs      | if all rows were cancelled           | when a row ends
  ----------------+--------------------+--------------------------------------+-----------------------------------
  async def       | on the event loop  | its task is cancelled                | when the call returns
  async generator | on the event loop  | its task is cancelled, then the      | at `Last`, or when the call returns
                  |                    |   generator is closed                |
  def             | in a worker thread | the function must check              | when the call returns
                  |                    |   `ctx.cancelled`                    |
  generator       | in a worker thread | the generator is closed between two  | at `Last`, or when the call returns
                  |                    |   yields                             |
  def or generator| in a worker, see   | as above, and the worker is replaced | as above
  with the option |   `WorkerPool`     |   after `cancel_timeout`             |
  `workers`       |                    |                                      |

If a row is cancelled or exceeds its deadline, the row ends at once. Later results of the function for this row are dropped. A
worker is replaced if its function still processes a cancelled row after `cancel_timeout`. When a worker dies or is replaced,
`on_restart` decides how the unfinished rows continue. When the function has ended, the worker is released for the next batch.
At this time, the log may not contain the ends of all rows yet.
"""

import asyncio
import inspect
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from functools import partial
from typing import Any, Final

from tidewire_server.batching.batch_row_types import BatchedJob, BatchRow, Outcome, QueuedItem
from tidewire_server.batching.generator_yields import final, take
from tidewire_server.endpoints.context import Context, RowContext
from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.endpoints.invocation import YieldedSteps, as_value, exit_replacement, in_thread
from tidewire_server.errors import InvalidValueError, WorkerLostError

_log = logging.getLogger(__name__)

_TURN: Final = 0.0005
"""Maximum number of seconds for which ending the rows of a batch may block the event loop.

After this time, other tasks run before the server ends the remaining rows.
"""


class BatchCall:
    """One call of a batched function. It processes several items, which are the rows of the call.

    The methods run on the event loop, with one exception: if the function is a synchronous generator, its worker thread
    writes the yielded values to the rows.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        join: Callable[[int, float], Awaitable[list[QueuedItem]]],
        may_join: Callable[[], bool],
        free: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Create a call that has no rows yet.

        Args:
            endpoint: The batched endpoint whose function is called.
            join: Function that takes late joiners from the queue: items that are added to the running batch. Its arguments
                are the number of running rows and their total cost.
            may_join: Function that returns whether `join` could return items. It may be called from any thread.
            free: Function that releases the worker. It is called when the endpoint's function has ended.
        """
        self._endpoint = endpoint
        assert endpoint.batching is not None  # noqa: S101 - guaranteed by the caller
        self._batching = endpoint.batching
        self._join = join
        self._may_join = may_join
        self._free = free
        self._rows: dict[int, BatchRow] = {}
        self._contexts: dict[int, Context] = {}
        self._context = Context(rows=self._contexts)
        self._task: asyncio.Task[Any] | None = None
        """Task that runs an async function, which can be cancelled. None if the function runs in a thread."""
        self._joining = False
        self._ends: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    @property
    def rows(self) -> int:
        """Number of rows that are still running."""
        return sum(not row.over for row in self._rows.values())

    async def run(self, arrivals: Sequence[QueuedItem]) -> None:
        """Call the function for some items, and wait until the function and all rows have ended."""
        try:
            rows = list(self._assign_rows(arrivals).values())
            self._begin(rows)
            await self._commit_starts(rows)
            if self.rows:
                work = self._launch(rows)
                if self._endpoint.is_generator:
                    await self._generated(work)
                else:
                    await self._attempt(rows, work)
        except Exception as error:  # noqa: BLE001 - on any error, such as no free thread, the rows must end
            await self._fail(list(self._rows.values()), error)
        finally:
            await self._free()
            if self._ends:
                await asyncio.wait(tuple(self._ends))

    # ---- rows --------------------------------------------------------------------------------------------------

    def _assign_rows(self, arrivals: Sequence[QueuedItem]) -> dict[int, BatchRow]:
        """Assign each item to the free row with the lowest number. Skip items that were cancelled after leaving the queue."""
        able = [arrival for arrival in arrivals if arrival.job.waits(arrival.index)]
        size = self.rows + len(able)
        assigned: dict[int, BatchRow] = {}
        number = 0
        for arrival in able:
            while number in self._rows and not self._rows[number].over:
                number += 1
            job, index = arrival.job, arrival.index
            place = {"size": size, "row": number, "wait_ms": round(1000 * arrival.waited)}
            writer = job.writer(index)
            steps = YieldedSteps(self._endpoint, writer)
            row = BatchRow(job, index, arrival.cost, job.input(index), writer, place, steps)
            assigned[number] = self._rows[number] = row
            self._contexts[number] = RowContext(row.writer)
        return assigned

    def _begin(self, rows: Iterable[BatchRow]) -> None:
        by_job: dict[BatchedJob, list[BatchRow]] = {}
        for row in rows:
            by_job.setdefault(row.job, []).append(row)
        for job, of_job in by_job.items():
            try:
                job.begin_rows([(row.index, row.place, partial(self._leave, row)) for row in of_job])
            except Exception as error:  # noqa: BLE001 - fails only the rows of this job
                indices = [row.index for row in of_job]
                _log.exception("job %s items %s: could not mark the items as running", job.id, indices)
                for row in of_job:
                    row.over = True
                self._end_soon([(row, error) for row in of_job])

    async def _commit_starts(self, rows: Iterable[BatchRow]) -> None:
        """Commit the starts of rows, for jobs that require this (`BatchedJob.commits_starts`)."""
        for row in rows:
            try:
                if row.job.commits_starts:
                    await row.job.commit()
            except Exception as error:  # noqa: BLE001 - fails only this row
                row.over = True
                self._end_soon([(row, error)])

    def _leave(self, row: BatchRow) -> None:
        """Mark a row as ended because its item was cancelled. If no other row is running, stop the function."""
        row.over = True
        self._stop_if_empty()

    def _stop_if_empty(self) -> None:
        if self._task is not None and not self._joining and self.rows == 0:
            self._task.cancel()

    async def _end(self, row: BatchRow, outcome: Outcome, *, logged: bool = False) -> None:
        row.over = True
        await row.job.settle(row.index, outcome, logged=logged)

    async def _fail(self, rows: Iterable[BatchRow], error: BaseException) -> None:
        """End all unfinished rows with an error. The server logs the error only once."""
        if isinstance(error, WorkerLostError):
            await self._lose_worker(rows, error)
            return
        logged = False
        for row in rows:
            if not row.over:
                await self._end(row, error, logged=logged)
                logged = True

    async def _lose_worker(self, rows: Iterable[BatchRow], error: WorkerLostError) -> None:
        by_job: dict[BatchedJob, list[int]] = {}
        for row in rows:
            if not row.over:
                row.over = True
                by_job.setdefault(row.job, []).append(row.index)
        for job, indexes in by_job.items():
            try:
                await job.lose_worker(indexes, error)
            except Exception:  # noqa: BLE001 - a bug in the server must not affect the other jobs of the batch
                _log.exception("internal server error after the worker of a batch was lost")

    # ---- functions ---------------------------------------------------------------------------------------------

    def _launch(self, rows: list[BatchRow]) -> asyncio.Future[Any]:
        """Start the function for some rows and the padding inputs, and return a future for the function's result."""
        endpoint, batching = self._endpoint, self._batching
        values = [row.value for row in rows]
        padding = batching.padded(len(values)) - len(values)
        filled = values + [values[-1] if endpoint.padding is None else endpoint.padding] * padding
        context = self._context
        if len(rows) != len(self._rows):
            context = Context(rows={number: RowContext(row.writer) for number, row in enumerate(rows)})
        if endpoint.workers is None:
            arguments = endpoint.input.batch_arguments(filled, context)
        else:
            arguments = {"inputs": filled, "context": context}
        if not endpoint.is_async:
            body = self._drive if endpoint.is_generator else self._call
            return in_thread(body, arguments, len(values), padding)
        work = self._drain if endpoint.is_generator else self._call_async
        self._task = self._loop.create_task(_replacing_exits(work, arguments, len(values), padding))
        return self._task

    async def _attempt(self, rows: list[BatchRow], work: asyncio.Future[Any]) -> None:
        """Wait for the function, and end the rows with their results.

        If the function failed and the endpoint has the option `bisect`, call the function again for each half of the
        rows.
        """
        outcomes: list[Outcome] = []
        error: Exception | None = None
        try:
            outcomes = await self._result(work)
        except Exception as raised:  # noqa: BLE001 - the function can raise any exception
            error = raised
        alive = [row for row in rows if not row.over]
        if error is not None and self._may_bisect(rows, error):
            middle = len(alive) // 2
            for half in (alive[:middle], alive[middle:]):
                # Skip rows of the second half that were cancelled while the function ran for the first half.
                waiting = [row for row in half if not row.over]
                if waiting:
                    await self._attempt(waiting, self._launch(waiting))
            return
        if len(rows) == len(self._rows):  # after a bisect, other rows may still need the function
            await self._free()
            # Let the next call of the function start first, so that the GPU does not wait until the results are written.
            await asyncio.sleep(0)
        if error is not None:
            await self._fail(alive, error)
            return
        turn_ends = self._loop.time() + _TURN
        for row, outcome in zip(rows, outcomes, strict=True):
            if not row.over:
                await self._end(row, outcome)
                # Ending many rows takes long. Let other tasks run in between, so that other batches start and end on
                # time.
                if self._loop.time() >= turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = self._loop.time() + _TURN

    def _may_bisect(self, rows: list[BatchRow], error: Exception) -> bool:
        # Do not bisect after an InvalidValueError. The function has returned invalid results for the whole batch, so no single
        # input is the cause. Do not bisect after the loss of a worker either, because `on_restart` decides how its rows
        # continue. Count rows that were cancelled during the call, because their inputs may be the cause.
        kept = isinstance(error, InvalidValueError | WorkerLostError)
        return self._batching.bisect and len(rows) > 1 and not kept

    async def _result(self, work: asyncio.Future[Any]) -> Any:
        """Wait for the function to end, and return its result.

        Raises:
            Exception: The function raised this exception.
        """
        if work is not self._task:
            return await work
        self._stop_if_empty()
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            work.cancel()
            raise
        finally:
            self._task = None
        if work.cancelled():
            raise RuntimeError("the function was cancelled")
        return work.result()

    async def _call_async(self, arguments: dict[str, Any], rows: int, padding: int) -> list[Outcome]:
        return self._outcomes(await self._endpoint.function(**arguments), rows, padding)

    def _call(self, arguments: dict[str, Any], rows: int, padding: int) -> list[Outcome]:
        # Convert the results to JSON before the next call starts, because that call may overwrite the output buffers.
        return self._outcomes(self._endpoint.function(**arguments), rows, padding)

    def _outcomes(self, returned: Any, rows: int, padding: int) -> list[Outcome]:
        results = by_row(returned, rows, padding, self._endpoint.outputs)
        return [self._outcome(result) for result in results]

    def _outcome(self, result: Any) -> Outcome:
        if isinstance(result, BaseException):
            return result
        try:
            return as_value(result, self._endpoint)
        except Exception as error:  # noqa: BLE001 - a type can raise any exception when it is converted to JSON
            return error

    # ---- generators --------------------------------------------------------------------------------------------

    async def _generated(self, work: asyncio.Future[Any]) -> None:
        error: BaseException | None = None
        try:
            await self._result(work)
        except Exception as raised:  # noqa: BLE001 - the function can raise any exception
            error = raised
        await self._free()
        left = [row for row in self._rows.values() if not row.over]
        if error is not None:
            if not left:
                _log.info(
                    "endpoint %r: the generator raised after all rows had ended: %r",
                    self._endpoint.name,
                    error,
                )
            await self._fail(left, error)
            return
        for row in left:
            await self._end(row, final(row, self._endpoint))

    async def _drain(self, arguments: dict[str, Any], rows: int, padding: int) -> None:
        returned = self._endpoint.function(**arguments)
        generator: AsyncGenerator[Any, Any] = await returned if inspect.isawaitable(returned) else returned
        check_generator(isinstance(generator, AsyncGenerator), generator)
        async with aclosing(generator):
            sent: Any = None
            while True:
                try:
                    yielded = await generator.asend(sent)
                except StopAsyncIteration:
                    return
                # Do not end the rows in this task. When the last running row is cancelled, this task is cancelled too, and
                # their ends would be lost.
                if ended := take(yielded, self._rows, rows + padding, self._endpoint):
                    self._end_soon(ended)
                sent = await self._late_joiners() if self._wants_late_joiners else self._no_late_joiners
                if not sent and self.rows == 0:
                    return
                # Let other tasks run, because a generator that never awaits would otherwise block the event loop.
                await asyncio.sleep(0)

    def _drive(self, arguments: dict[str, Any], rows: int, padding: int) -> None:
        """Run a synchronous generator and apply the values that it yields. This method runs in a worker thread."""
        generator: Generator[Any, Any, Any] = self._endpoint.function(**arguments)
        check_generator(isinstance(generator, Generator), generator)
        with closing(generator):
            sent: Any = None
            while True:
                try:
                    yielded = generator.send(sent)
                except StopIteration:
                    return
                ended = take(yielded, self._rows, rows + padding, self._endpoint)
                if ended:
                    self._loop.call_soon_threadsafe(self._end_soon, ended)
                sent = self._no_late_joiners
                if self._wants_late_joiners:
                    sent = asyncio.run_coroutine_threadsafe(self._late_joiners(), self._loop).result()
                if not sent and self.rows == 0:
                    return

    def _end_soon(self, ended: list[tuple[BatchRow, Outcome]]) -> None:
        async def end() -> None:
            for row, outcome in ended:
                await self._end(row, outcome)

        task = self._loop.create_task(end())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    # ---- late joiners ---------------------------------------------------------------------------------------------

    @property
    def _no_late_joiners(self) -> Any:
        return {} if self._endpoint.takes_late_joiners else None

    @property
    def _wants_late_joiners(self) -> bool:
        return self._endpoint.takes_late_joiners and self._may_join()

    async def _late_joiners(self) -> dict[int, Any]:
        """Take items for the running batch from the queue, assign them to rows, and return their inputs by row number."""
        self._joining = True
        try:
            running = [row for row in self._rows.values() if not row.over]
            arrivals = await self._join(len(running), sum(row.cost for row in running))
            assigned = self._assign_rows(arrivals)
            self._begin(assigned.values())
            await self._commit_starts(assigned.values())
        finally:
            self._joining = False
        return {number: self._endpoint.input.late_joiner(row.value) for number, row in assigned.items()}


def check_generator(is_one: bool, returned: Any) -> None:
    if not is_one:
        found = type(returned).__name__
        raise InvalidValueError(
            f"the function returned a {found}, but its annotation declares a generator that yields rows"
        )


async def _replacing_exits(begin: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Await a call. If it raises an exception that would end the server, such as SystemExit, raise an ordinary error instead."""
    try:
        return await begin(*args)
    except (Exception, asyncio.CancelledError):
        raise
    except BaseException as error:
        raise exit_replacement(error) from error


def by_row(returned: Any, rows: int, padding: int, columns: int | None) -> list[Any]:
    """Split the return value of a batched call into one result per row. Results for padding inputs are dropped.

    Args:
        returned: Return value of the function. It is a list of values or, if `columns` is not None, one list per output.
        rows: Number of inputs, without padding.
        padding: Number of padding inputs at the end of the batch.
        columns: Number of outputs if the function returns one list per output, or None if it returns a single list of
            values.

    Returns:
        The result of each row: a value, or an exception if the function returned an exception for this row.

    Raises:
        InvalidValueError: The return value is not a list, or the number of results differs from the number of inputs.
    """
    if columns is None:
        return _sized(returned, rows, padding, "values")[:rows]
    outputs = _listed(returned)
    if len(outputs) != columns:
        raise InvalidValueError(
            f"the function returned {len(outputs)} lists, but its annotation declares {columns}"
        )
    names = [f"values in list {number} of {columns}" for number in range(1, columns + 1)]
    lists = [_sized(output, rows, padding, name) for output, name in zip(outputs, names, strict=True)]
    return [_joined(row) for row in zip(*lists, strict=True)][:rows]


def _joined(row: tuple[Any, ...]) -> Any:
    failed = next((value for value in row if isinstance(value, BaseException)), None)
    if failed is not None:
        return failed
    return row[0] if len(row) == 1 else row


def _sized(returned: Any, rows: int, padding: int, what: str) -> list[Any]:
    results = _listed(returned)
    if len(results) != rows + padding:
        padded = f" ({padding} of them padding)" if padding else ""
        raise InvalidValueError(
            f"the function returned {len(results)} {what} for {rows + padding} inputs{padded}"
        )
    return results


def _listed(returned: Any) -> list[Any]:
    # Reject strings, mappings and tables, although they are iterable. `list` would split them into characters, keys or column
    # names, and their number could match the number of rows by chance.
    refused = isinstance(returned, str | bytes | Mapping | set | frozenset) or hasattr(
        type(returned), "columns"
    )
    # For an array or tensor without dimensions, such as a mean over the whole batch, `len` would raise a TypeError.
    scalar = getattr(returned, "shape", None) == ()
    if refused or scalar or not hasattr(returned, "__len__"):
        found = f"{'a scalar ' if scalar else ''}{type(returned).__name__}"
        raise InvalidValueError(f"a batched function must return a list, not {found}")
    return list(returned)
