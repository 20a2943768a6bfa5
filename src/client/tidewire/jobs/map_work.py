"""Implementation of `map`, which submits inputs in batch jobs and collects the values in the order of the inputs.

Jobs run on the server even if no client reads them, so the client needs no background tasks while the caller processes
a value. Up to `concurrency` jobs run at the same time, and the client reads the first of them. This table shows the
client's action in each situation:

  situation                                   | action
  --------------------------------------------+----------------------------------------------------------------------
  fewer than `concurrency` jobs are running   | consume inputs until a job is full, and submit the job (the limit is
                                              |   `batch_size`, or the server's `max_inputs` or `max_body_bytes`)
  `concurrency` jobs are running              | read the first job and yield its values in order
  `_poll_interval` seconds have passed        | check the other jobs, and read those that have ended before the server
                                              |   deletes them
  the server refuses an input (422)           | record it as failed and submit the other inputs of its job
  the loop is left early                      | `aclose` of the map or of the client cancels the running jobs, unless
                                              |   the user passed an `idempotency_key`; another `map` with this key can
                                              |   reuse the jobs
  a connection breaks                         | send the request again with its idempotency key, so that no input runs
                                              |   twice; this key is derived from the body
"""

import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import anyio

from tidewire.errors import ConcurrentReadError, InvalidInputError, ItemFailedError, TidewireError
from tidewire.hooks import Hook
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.options import Options, check_key
from tidewire.protocol.resources import EndpointDescription, Limits
from tidewire.submit_members import encoded, jsonable, options_on_the_wire
from tidewire.types import ResultType

CONCURRENCY: Final = 4
"""Default of the maximum number of jobs that run at the same time."""
BATCH_SIZE: Final = 256
"""Default number of inputs in one job, if the server allows that many.

At most `concurrency` × `batch_size` inputs are consumed ahead of the yielded values."""
POLL_INTERVAL: Final = 60.0
"""Interval in seconds between two checks of the running jobs that the client is not reading. The server keeps ended
jobs for `state_ttl_s` seconds. If a quarter of this time is shorter, the interval is that quarter."""
MIN_POLL_INTERVAL: Final = 0.25
"""Minimum interval between two checks of the running jobs that the client is not reading, in seconds."""

CANCEL_TIMEOUT: Final = 2.0
"""Time limit for cancelling all jobs of a `map`, in seconds."""

_BODY_OVERHEAD: Final = 1024
"""Number of bytes in a request body that are reserved for everything except the inputs."""
_OF_INPUT: Final = re.compile(r"/inputs/(\d+)\b(/[^\s:]*)?(: )?")
"""Pattern of a JSON Pointer to an input in the request, such as `/inputs/3/prompt`. In an error response of the server,
this is the member `pointer` or the start of the message.
"""

T = TypeVar("T")


class MapProgress(NamedTuple):
    """Progress of a `map`, passed to its `progress` callback.

    Attributes:
        taken: Number of inputs consumed so far.
        ended: Number of inputs that have succeeded or failed.
        failed: Number of inputs that have failed.
        jobs: Number of running jobs.
        total: Number of inputs, or None if the iterable has no length.

    Example:
        def show(progress):
            print(f"{progress.ended} of {progress.total}")

        values = list(client.map("generate", inputs, progress=show))
    """

    taken: int
    ended: int
    failed: int
    jobs: int
    total: int | None


@dataclass(slots=True)
class _Part:
    """The inputs of one job and their outcomes. The number of an input is its index among all inputs of the `map`."""

    first: int
    """Number of the first input."""
    inputs: dict[int, bytes] = field(default_factory=dict)
    """The inputs as JSON, by number. Inputs that the server refused are removed."""
    size: int = 0
    """Total size of the inputs in bytes."""
    outcomes: dict[int, Any] = field(default_factory=dict)
    count: int = 0
    """Number of inputs, including refused ones."""
    delivered: int = 0
    job: AsyncBatchJob[Any] | None = None
    reading: UpdateIterator[tuple[int, Any]] | None = None

    def add(self, number: int, content: bytes) -> None:
        self.inputs[number] = content
        self.size += len(content) + 1
        self.count += 1

    def fail(self, number: int, error: Exception) -> None:
        self.outcomes[number] = error
        self.count += 1

    @property
    def over(self) -> bool:
        return self.delivered == self.count


class BatchStarter(Protocol):
    """Interface of `JobStarter`, as far as `map` uses it."""

    running: set[AsyncBatchJob[Any]]
    """Jobs that calls of `map` have submitted, and that were neither read to their end nor cancelled. Closing the
    client cancels these jobs."""

    async def target(self, endpoint: str | None) -> tuple[str, Limits, EndpointDescription]:
        """Return the endpoint's name, the server's limits and the endpoint's description."""

    async def start(self, endpoint: str, body: bytes, key: str, shape: ResultType[T]) -> AsyncBatchJob[T]:
        """Submit a batch job with an idempotency key. The request body is already serialized."""


class MapWork(Generic[T]):
    """State of one `map`. The async and the blocking client share this class.

    The caller passes inputs to `feed` while `accepts_input` is true, calls `fill` to make progress, and gets the values
    from `take` while `ready()` is true. The caller also calls `listener` with each `new_progress()`. The module's docstring contains a table of the actions of `fill`.

    Attributes:
        finished: Whether all values were delivered or the map failed.
        closed: Whether the map was closed.
        listener: The user's `progress` callback. The blocking client calls it on the caller's thread.
    """

    def __init__(
        self,
        starter: BatchStarter,
        endpoint: str | None,
        shape: ResultType[T],
        shared: Mapping[str, Any],
        *,
        options: Options,
        sleep: Callable[[float], Awaitable[None]],
        concurrency: int,
        batch_size: int,
        return_exceptions: bool,
        progress: Callable[[MapProgress], object] | None,
        key: str | None,
        total: int | None,
    ) -> None:
        for name, value in (("concurrency", concurrency), ("batch_size", batch_size)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
        check_key(key)
        self.finished: bool = False
        self.closed: bool = False
        self._starter = starter
        self._options = options
        self._sleep = sleep
        self._endpoint = endpoint
        self._shape = shape
        self._shared: Any = jsonable(shared, "/shared")
        self._concurrency = concurrency
        self._batch_size = batch_size
        self._return_exceptions = return_exceptions
        self.listener: Hook[MapProgress] | None = progress
        self._total = total
        self._reported: MapProgress | None = None
        self._endpoint_name: str | None = None
        self._batches = True
        self._max_body = 0
        self._poll_interval = POLL_INTERVAL
        self._leaves_running = key is not None
        self._key = key or secrets.token_urlsafe(16)
        self._taken = self._ended = self._failed = 0
        self._exhausted = False
        self._part = _Part(0)
        """The inputs of the next job to submit."""
        self._full = False
        self._next: tuple[int, bytes] | None = None
        """Number and JSON of an input that did not fit into the next job. That input becomes the first one of the job
        after the next."""
        self._under_way: deque[_Part] = deque()
        self._values: deque[Any] = deque()

    # ---- inputs ------------------------------------------------------------------------------------------------

    @property
    def accepts_input(self) -> bool:
        """Whether the caller should call `feed` with the next input, or `end` if there are no more inputs."""
        return (
            self._endpoint_name is not None
            and not self._exhausted
            and not self._full
            and len(self._under_way) < self._concurrency
        )

    def feed(self, value: Any) -> None:
        """Add one input. An input that cannot be sent as valid JSON is not sent, and counts as a failed item."""
        number, self._taken = self._taken, self._taken + 1
        try:
            content = encoded(self._merged(jsonable(value, f"/inputs/{number}")))
        except InvalidInputError as error:
            self._part.fail(number, self._refused(number, error))
            self._count(failed=True)
        else:
            if self._part.inputs and self._part.size + len(content) + 1 > self._max_body:
                self._next = (number, content)
                self._full = True
                return
            self._part.add(number, content)
        self._full = self._part.count >= self._batch_size

    def end(self) -> None:
        """Record that there are no more inputs."""
        self._exhausted = True
        self._full = self._part.count > 0

    def _merged(self, value: Any) -> Any:
        if self._batches or not self._shared:
            return value
        if not isinstance(value, dict):
            raise InvalidInputError("shared members require inputs that are JSON objects")
        return {**self._shared, **value}

    # ---- values ------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether `take` can return a value without waiting."""
        return bool(self._values)

    def new_progress(self) -> MapProgress | None:
        """Return the progress if it has changed since the last call of this method. None if there is no callback."""
        if self.listener is None:
            return None
        progress = MapProgress(self._taken, self._ended, self._failed, len(self._under_way), self._total)
        if progress == self._reported:
            return None
        self._reported = progress
        return progress

    def take(self) -> Any:
        """Return the next value.

        Raises:
            ItemFailedError: The item failed and `return_exceptions` is False.
            InvalidInputError: The input was refused and `return_exceptions` is False.
        """
        value = self._values.popleft()
        if isinstance(value, ItemFailedError) and not self._return_exceptions:
            self.finished = True
            cause = value.__cause__
            raise cause if isinstance(cause, InvalidInputError) else value
        return value

    def _deliver(self, part: _Part) -> None:
        while (number := part.first + part.delivered) in part.outcomes:
            self._values.append(part.outcomes.pop(number))
            part.delivered += 1

    def _count(self, *, failed: bool) -> None:
        self._ended += 1
        self._failed += failed

    def _refused(self, number: int, error: InvalidInputError) -> ItemFailedError:
        """Create the error of an item whose input was refused."""
        # The server's message contains the index of the input within its job. Replace this index by the one among all
        # inputs of the `map`.
        why = _OF_INPUT.sub(_within_input, error.what, count=1)
        what = f"input {number} was refused: {why}"
        refused = InvalidInputError(what, where=error.where, problem=error.problem, advice=error.advice)
        failed = ItemFailedError(what, where=error.where, problem=error.problem)
        failed.index = number
        failed.__cause__ = refused
        return failed

    # ---- requests ----------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Make progress by one step: discover the endpoint, submit a job or read the first running job.

        Afterwards check `accepts_input`, `ready()` and `finished`.

        Raises:
            ConcurrentReadError: The map was closed.
            TidewireError: The server refused to start a job, or the client could not read a job.
        """
        if self.closed:
            raise ConcurrentReadError("this map was closed and cannot continue", advice="Call map() again.")
        try:
            if self._endpoint_name is None:
                await self._prepare()
            elif self._full:
                await self._submit()
            elif self.accepts_input:
                return
            elif self._under_way:
                await self._read()
            else:
                self.finished = True
        except TidewireError:
            self.finished = True
            raise

    async def _prepare(self) -> None:
        name, limits, description = await self._starter.target(self._endpoint)
        batch = description.capabilities.batch
        self._batches = batch is not None
        most = 1 if batch is None else min(limits.max_inputs, batch.max_items)
        self._batch_size = min(self._batch_size, most)
        shared = encoded(self._shared) if self._batches else b""
        self._max_body = limits.max_body_bytes - len(shared) - _BODY_OVERHEAD
        self._poll_interval = min(POLL_INTERVAL, max(MIN_POLL_INTERVAL, limits.state_ttl_s / 4))
        self._endpoint_name = name

    async def _submit(self) -> None:
        part = self._part
        while part.inputs:
            body = self._body(part)
            key = sha256(self._key.encode() + b"\0" + str(part.first).encode() + b"\0" + body).hexdigest()
            try:
                part.job = await self._starter.start(self._endpoint_name or "", body, key, self._shape)
            except InvalidInputError as error:
                if not self._remove_refused(part, error):
                    raise
                continue
            part.reading = part.job.as_completed()
            if not self._leaves_running:
                self._starter.running.add(part.job)
            break
        self._under_way.append(part)
        self._part, self._full = _Part(part.first + part.count), False
        if self._next is not None:
            self._part.add(*self._next)
            self._next = None
            self._full = self._exhausted or self._part.count >= self._batch_size

    def _body(self, part: _Part) -> bytes:
        inputs = b",".join(part.inputs.values())
        more: dict[str, Any] = options_on_the_wire(self._options)
        if not self._batches:
            return b'{"input":' + inputs + _tail(more)
        return (
            b'{"inputs":[' + inputs + b"]" + _tail(more | ({"shared": self._shared} if self._shared else {}))
        )

    def _remove_refused(self, part: _Part, error: InvalidInputError) -> bool:
        """If the server refused one input of a job, remove this input from the job.

        Returns False if the error does not name an input.
        """
        place = _OF_INPUT.match(error.pointer or "")
        if place is not None and int(place[1]) < len(part.inputs):
            number = [*part.inputs][int(place[1])]
        elif len(part.inputs) == 1 and not (error.pointer or "").startswith("/shared"):
            (number,) = part.inputs
        else:
            return False
        del part.inputs[number]
        part.outcomes[number] = self._refused(number, error)
        self._count(failed=True)
        if not self._return_exceptions:
            # The caller's loop will raise the error of this input, so the client need not submit the later inputs.
            self._exhausted = True
            self._next = None
            part.inputs = {other: content for other, content in part.inputs.items() if other < number}
        return True

    async def _read(self) -> None:
        part = self._under_way[0]
        reading = part.reading
        if reading is not None and not reading.finished:
            others = [other for other in self._under_way if other is not part]
            numbers = [*part.inputs]
            with suppress(StopAsyncIteration):
                self._record(
                    part,
                    numbers,
                    await (self._read_and_poll_others(reading, others) if others else anext(reading)),
                )
                # Take the remaining items of this block too, because they are available without waiting.
                while reading.block.at < len(reading.block.items):
                    self._record(part, numbers, await anext(reading))
        self._deliver(part)
        if reading is None or reading.finished:
            self._under_way.popleft()
            if part.job is not None:
                self._starter.running.discard(part.job)

    def _record(self, part: _Part, numbers: Sequence[int], ended: tuple[int, Any]) -> None:
        index, outcome = ended
        failed = isinstance(outcome, ItemFailedError)
        if failed:
            outcome.index = numbers[index]
        part.outcomes[numbers[index]] = outcome
        self._count(failed=failed)

    async def _read_and_poll_others(
        self, reading: UpdateIterator[tuple[int, Any]], others: Iterable[_Part]
    ) -> tuple[int, Any]:
        """Read an item of the first job, and request the status of the other jobs at the same time."""
        fault: Exception | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll_others, others)
            try:
                ended = await anext(reading)
            except Exception as error:  # noqa: BLE001 - raised below: the task group would wrap it in a group
                fault = error
            tasks.cancel_scope.cancel()
        if fault is not None:
            raise fault
        return ended

    async def _poll_others(self, others: Iterable[_Part]) -> None:
        while True:
            await self._sleep(self._poll_interval)
            for job in [other.job for other in others if other.job is not None]:
                # Ignore errors of this request. If they persist, they are raised later, when the results of this job
                # are read.
                with suppress(TidewireError):
                    if not job.ended and (await job.read()).done is not None:
                        await job.wait()

    # ---- closing -----------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> bool:
        """Whether there is a submitted job that was not read to its end."""
        return bool(self._under_way)

    async def aclose(self) -> None:
        """Close the connection and cancel the running jobs."""
        self.closed = self.finished = True
        self._values.clear()
        if self._under_way and (reading := self._under_way[0].reading) is not None:
            await reading.aclose()
        running = self._starter.running
        await cancel_all(running, [part.job for part in self._under_way if part.job in running])


async def cancel_all(
    running: set[AsyncBatchJob[Any]], jobs: Iterable[AsyncBatchJob[Any] | None] | None = None
) -> None:
    """Cancel running jobs, for at most `CANCEL_TIMEOUT` seconds.

    Args:
        running: The running jobs. Cancelled jobs are removed from the set.
        jobs: The jobs to cancel. None: all running jobs.
    """
    with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
        for job in [*(running if jobs is None else jobs)]:
            if job is not None and job in running:
                if not job.ended:
                    with suppress(TidewireError):
                        await job.cancel()
                running.discard(job)


def total_of(inputs: Any) -> int | None:
    """Return the number of inputs, or None if the iterable has no length."""
    return len(inputs) if isinstance(inputs, Sized) else None


def _tail(members: dict[str, Any]) -> bytes:
    """Serialize the last members of a JSON object, followed by the closing brace of the object."""
    return b"," + encoded(members)[1:] if members else b"}"


def _within_input(place: re.Match[str]) -> str:
    """Convert a match of `_OF_INPUT` to a location within the input, without the index of the input in its job."""
    _, pointer, colon = place.groups()
    if colon:
        return f"{pointer}: " if pointer else ""
    return f"the input at {pointer}" if pointer else "the input"
