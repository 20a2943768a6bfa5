"""`JobReader`, which reads the event stream of one job and keeps the position up to which updates were delivered.

Every job object has a reader, which is a `SingleJobReader` for a job with one input and a `BatchJobReader` for a job
with many inputs. No background task reads the stream. A loop over the job, or a call such as `result()`, reads the
stream while it waits. If a loop and a call wait at the same time, they take turns. Changes that arrive during a call of
`result()` are kept for the next loop. They are merged into one change for each item, so that memory does not grow with
the number of changes.
"""

import logging
import math
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, Protocol

import anyio

from tidewire.checkpoint import Checkpoint, UndeliveredUpdate
from tidewire.errors import (
    ConcurrentReadError,
    JobNotFoundError,
    ProtocolError,
    QueueTimeoutError,
    RequestError,
    TidewireError,
    TotalTimeoutError,
    Where,
)
from tidewire.following.follower import Follower
from tidewire.following.follower_outcomes import Applied, Notice
from tidewire.hooks import Hook, tell
from tidewire.jobs.item_text_changes import TextColumns
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.options import check_seconds
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource, StreamToken
from tidewire.updates import ItemChange, Position

BLOCK: Final = 64
"""Maximum number of updates that one read of the stream returns."""

QUEUE_WARNING_AFTER: Final = 2.0
"""Time in seconds for which a call or a loop waits for a queued job before the client logs the job's queue position."""
QUEUE_WARNING_INTERVAL: Final = 300.0
"""Minimum time in seconds between two log messages of a client about queue positions."""
IN_QUEUE: Final = (
    "job %s is still in the queue%s. If a job of an interrupted program runs before it: `tidewire jobs %s` lists your "
    "jobs, and `tidewire cancel %s JOB` cancels one"
)
"""Log message for a queued job: id, position, and twice the server's URL. The command line shows it."""


log: Final = logging.getLogger("tidewire")


class QueueWarnings:
    """Logs the queue position of a job for which a caller has waited `QUEUE_WARNING_AFTER` seconds.

    Without the message, a user could not see that the job of an earlier, interrupted script is running first. Each
    client has one `QueueWarnings` for all jobs, which logs at most one message per `QUEUE_WARNING_INTERVAL`, because
    most jobs of a long `map` are queued.
    """

    def __init__(self) -> None:
        self._logged_at = -math.inf

    def log(self, job_id: str, queue: Queue | None, base: str) -> None:
        """Log that a job is queued, unless such a message was logged recently.

        Args:
            job_id: Id of the job.
            queue: The job's queue position; None if it is not known.
            base: Base URL of the server.
        """
        if (now := anyio.current_time()) >= self._logged_at + QUEUE_WARNING_INTERVAL:
            self._logged_at = now
            position = "" if queue is None else f", at position {queue.position}"
            log.warning(IN_QUEUE, job_id, position, base, base)


class ActiveIterator(Protocol):
    """The methods of an iterator that the job's reader calls. At most one iterator reads a job at a time."""

    closed: bool
    interrupted: bool

    def settle(self) -> None:
        """Record the position up to which the caller has received updates."""

    def leave(self) -> None:
        """Stop iterating, and return the undelivered updates to the job, for the next iterator."""


class JobReader(ABC):
    """Reads the event stream of one job for the iterators and waiting calls of a job object.

    Attributes:
        listener: Callback that receives queue positions and progress reports while a call or a loop waits for the job.
            The blocking client calls this callback on its background thread.
    """

    def __init__(
        self, stream: JobStream, delivered: Position | None, *, queue_warnings: QueueWarnings
    ) -> None:
        self.listener: Hook[Queue | Progress] | None = None
        self.queue: Queue | None = None
        """The job's position in the server's queue, as last received."""
        self.progress: Progress | None = None
        """The last received progress report."""
        self._stream, self._session, self._options = stream, stream.session, stream.options
        self._queue_warnings = queue_warnings
        self._queue_warning_due = True
        """Whether the queue position of this job may still have to be logged."""
        self._queue_warning_at: float | None = None
        """Time on the event loop's clock at which to log the position. None until a caller waits for the queued job."""
        self._lock: anyio.Lock | None = None
        self._ready: deque[ItemChange[Any]] = deque()
        self._merged: dict[int, tuple[Position | None, ItemChange[Any]]] = {}
        """Item index → the position before the first merged change, and the change that results from the merge."""
        self._committed: tuple[Position | None, Sequence[ItemChange[Any]]] = (delivered, ())
        """Position that a checkpoint contains, and the changes up to this position that were not delivered yet."""
        self._latest = delivered
        """Position of the last received event."""
        self._items_may_differ = True
        """Whether the number of items may have changed since `check_items` was called."""
        self._iterator: weakref.ref[ActiveIterator] | None = None
        self._texts = TextColumns(delivered)

    @property
    def base(self) -> str:
        """The server's base URL."""
        return self._session.base

    @property
    def id(self) -> str:
        """The id that the server has assigned to the job."""
        job_id = self._stream.follower.job_id
        if job_id is None:
            raise RuntimeError("the follower of a job's stream has no job id")
        return job_id

    @property
    def ended(self) -> bool:
        """Whether the client has received the job's end."""
        return self._stream.ended

    @property
    def item_count(self) -> int:
        """Number of the job's items; 0 until the client has received the job's state."""
        document = self._stream.follower.document
        return 0 if document is None else document.array_length("/items")

    async def read(self) -> JobResource:
        """Request the whole job from the server, including its status, its state, its timestamps and the number of the
        current attempt.
        """
        with self.bounded(self.deadline()):
            return await self._stream.read_job()

    async def wait(self, timeout: float | None = None, *, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the job has ended, whether it succeeded, failed or was cancelled. This method consumes no updates.

        Args:
            timeout: Maximum duration of this call in seconds. None: the client's `timeout`.
            check: Function that is called whenever events were received. It raises an error to end the wait early.
        """
        check()
        check_seconds("timeout", timeout)
        self._session.transport.loop.check()
        queue_until = self.queue_deadline()
        try:
            with self.bounded(self.deadline(timeout), timeout):
                while not self.ended:
                    async with self._reading_lock():
                        await self._advance(queue_until, merge=True)
                    check()
        finally:
            if self._active is None:
                await self.pause()

    def checkpoint(self) -> Checkpoint:
        """Return the position after the last delivered update as a checkpoint.

        An event can yield several updates. If some of them are not delivered yet, the checkpoint contains them and the
        state after the event.
        """
        delivered, undelivered = self._settled()
        if delivered is None:
            return Checkpoint(job=self.id, url=self._session.base)
        state: Any = delivered.view.value()
        return Checkpoint(
            job=self.id,
            url=self._session.base,
            state=state,
            columns=delivered.columns,
            cursor=str(delivered.cursor),
            undelivered=tuple(
                UndeliveredUpdate(
                    index=change.index,
                    first_seq=change.first_seq,
                    deleted=change.deleted,
                    text=change.text,
                    visible=change.visible,
                )
                for change in undelivered
            ),
        )

    @property
    def delivered(self) -> Position | None:
        """Position after the last delivered update; None if no update was delivered."""
        return self._settled()[0]

    def _settled(self) -> tuple[Position | None, Sequence[ItemChange[Any]]]:
        iterator = self._active
        if iterator is not None:
            iterator.settle()
        return self._committed

    @property
    def _active(self) -> ActiveIterator | None:
        """The iterator that has started and is not closed; None if there is no such iterator."""
        iterator = None if self._iterator is None else self._iterator()
        return None if iterator is None or iterator.closed else iterator

    async def stream_url(self) -> str:
        """Request a URL of the event stream that contains a stream token, and return it as an absolute URL."""
        with self.bounded(self.deadline()):
            try:
                response = await self._session.request(
                    "POST", f"{self._stream.job_url}/stream-token", self._options, job_id=self.id
                )
            except JobNotFoundError as error:
                if error.code in {None, "job_not_found"}:
                    raise
                what = "the server does not offer stream tokens"
                raise RequestError(what, where=error.where, problem=error.problem, advice="") from error
        link = self._session.read(StreamToken, response, what="stream token", job_id=self.id).url
        url = self._session.links.same_origin(response.url, link, "")
        if not url:
            what = "the URL with the stream token points to another origin"
            raise ProtocolError(what, where=response.where(job_id=self.id))
        return url

    async def cancel(self, body: bytes) -> JobStatus:
        try:
            with self.bounded(self.deadline()):
                response = await self._session.request(
                    "POST", f"{self._stream.job_url}/cancel", self._options, body=body, job_id=self.id
                )
        except TotalTimeoutError as error:
            error.advice = "The job may or may not be cancelled: read its status, or cancel it again."
            raise
        return self._session.read(JobResource, response, what="job", job_id=self.id).status

    # ---- called by the display in a notebook -------------------------------------------------------------------

    @property
    def last_state(self) -> View | None:
        """Final state of a job whose end was received, otherwise None."""
        document = self._stream.follower.document
        return document.view() if self.ended and document is not None else None

    def display_stream(self) -> JobStream:
        """Return another event stream of the job. Reading it consumes no updates."""
        policy, limit = self._session.policy(self._options), self._options.max_state_bytes
        follower = Follower(policy=policy, job_id=self.id, max_state_bytes=limit)
        urls = {"job_url": self._stream.job_url, "events_url": self._stream.events_url}
        return JobStream(self._session, follower, self._options, **urls)

    # ---- called by iterators -----------------------------------------------------------------------------------

    def acquire(self, iterator: ActiveIterator) -> None:
        """Register an iterator as the only one that reads this job.

        Raises:
            ConcurrentReadError: Another iterator is active.
            SeveralItemsError: The job has several items, and this reader is for jobs with one item.
        """
        self.check_items()
        other = self._active
        if other is not None and other is not iterator:
            if not other.interrupted:
                raise ConcurrentReadError("another loop is reading this job", where=self.where)
            # The iterator of a cancelled loop may still exist, because a traceback refers to it. The new iterator takes
            # over the connection of that iterator.
            other.leave()
        self._iterator = weakref.ref(iterator)

    async def take(self, queue_until: float | None) -> list[ItemChange[Any]]:
        """Wait for updates and return all available updates, oldest first. An empty list means that the job has ended.

        Args:
            queue_until: Time on the event loop's clock by which the job must have left the server's queue.

        Raises:
            QueueTimeoutError: The job was still queued at `queue_until`.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        follower = self._stream.follower
        async with self._reading_lock():
            while not (self._ready or self._merged or follower.done):
                await self._advance(queue_until)
            updates = [*self._ready]
            self._ready.clear()
            if self._merged:
                updates += self._take_merged()
        if self._items_may_differ:
            self.check_items()
            self._items_may_differ = False
        return updates

    async def read_ahead(self, queue_until: float | None) -> None:
        """Wait until `take` has updates to return, or until the job has ended. The arguments and errors are those of
        `take`.
        """
        follower = self._stream.follower
        async with self._reading_lock():
            while not (self._ready or self._merged or follower.done):
                await self._advance(queue_until)

    async def state_after(self, position: Position | None, queue_until: float | None) -> Position | None:
        """Wait for a state of the job that is newer than a position. None means that the job has ended.

        This method consumes no updates. If several events arrive together, only the last state is returned.

        Args:
            position: The last state that the caller has seen. None: the state that is already known, if any.
            queue_until: Time on the event loop's clock by which the job must have left the server's queue.

        Raises:
            QueueTimeoutError: The job was still queued at `queue_until`.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        async with self._reading_lock():
            while self._latest is position and not self.ended:
                await self._advance(queue_until, merge=True)
        self.check_items()
        return None if self._latest is position else self._latest

    def check_items(self) -> None:  # noqa: B027 - a batch job may have any number of items
        """Raise an error if the job is known to have more items than this reader can read."""

    def commit(self, position: Position, undelivered: Sequence[ItemChange[Any]]) -> None:
        """Record that the caller has received all updates up to a position, except those in `undelivered`. Checkpoints
        now contain this position and these updates.
        """
        # Assign both values at once. A KeyboardInterrupt between two assignments would leave a checkpoint that loses or
        # repeats updates.
        self._committed = (position, undelivered)

    def requeue(self, updates: Sequence[ItemChange[Any]]) -> None:
        """Keep the updates that an iterator has not delivered. The next iterator will deliver them."""
        self._ready.extendleft(reversed(updates))

    async def pause(self) -> None:
        """Close the connection, unless a call such as `result()` is reading from it."""
        if not self._stream_in_use:
            await self._stream.aclose()

    def pause_soon(self) -> None:
        """Close the connection soon, without awaiting the close. Finalizers and other threads use this method."""
        if not self._stream_in_use:
            self._stream.close_soon()

    def start_soon(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function on the event loop of the job, without waiting. This method may be called on any
        thread.
        """
        self._session.transport.loop.start_soon(work)

    @abstractmethod
    def raise_outcome(self) -> None:
        """Raise the error of a job that failed or was cancelled. An iterator calls this method after it has delivered
        all updates.
        """

    # ---- reading the stream ------------------------------------------------------------------------------------

    @property
    def _stream_in_use(self) -> bool:
        return self._lock is not None and self._lock.locked()

    def _reading_lock(self) -> anyio.Lock:
        """Return the lock that a task must hold while it reads the stream."""
        self._session.transport.loop.check()
        if self._lock is None:
            self._lock = anyio.Lock(fast_acquire=True)
        return self._lock

    async def _advance(self, queue_until: float | None, *, merge: bool = False) -> None:
        """Wait for the next events of the stream, and apply all events that are available without waiting again.

        Args:
            queue_until: Time on the event loop's clock by which the job must have left the server's queue.
            merge: Whether to merge the updates into one update for each item, because no iterator is consuming them.
        """
        follower, stream = self._stream.follower, self._stream
        if follower.done is not None:
            return
        if queue_until is None and not self._queue_warning_due:
            block = await stream.next_outcomes(BLOCK)
        else:
            block = await self._block_of_queued(queue_until)
        notices = False
        for outcome in block:
            if type(outcome) is Applied:
                self._receive(outcome, merge=merge)
            else:
                notices = True
        # Call the listener only after all updates of the block were stored, so that no update is lost if the listener
        # is cancelled.
        if notices:
            for outcome in block:
                if isinstance(outcome, Notice):
                    await self._notify(outcome.message)
        if follower.done is not None:
            await stream.aclose()
            await stream.notify_end()

    @abstractmethod
    def _receive(self, applied: Applied, *, merge: bool = False) -> None:
        """Convert an applied event to changes of this job's items, and store them in `_ready` or with `_merge`.

        Args:
            applied: The event.
            merge: Whether to merge the changes with earlier changes, because no iterator is consuming them. Changes
                that change no value are then dropped.
        """

    def _merge(self, change: ItemChange[Any]) -> None:
        """Merge a change with the earlier changes of its item."""
        base = self._latest
        if change.index in self._merged:
            base, earlier = self._merged[change.index]
            change.first_seq = earlier.first_seq
            change.snapshot = change.snapshot or earlier.snapshot
        # Do not keep the change of the text, because it may be as long as the text itself. `_take_merged` computes the
        # change again from the text before and the text after the merged changes.
        change.deleted, change.text = 0, ""
        self._merged[change.index] = base, change

    def _take_merged(self) -> list[ItemChange[Any]]:
        """Remove the merged changes and return them as one update for each item, ordered by position."""
        merged = sorted(self._merged.values(), key=lambda each: each[1].cursor)
        self._merged.clear()
        for base, update in merged:
            update.first_seq = min(update.first_seq, update.cursor.seq)
            update.deleted, update.text = self._texts.between(update.index, base, update.position)
            # Only the position of the last of these updates may be in a checkpoint. The position of an earlier one can
            # be after changes that are delivered later, and before changes that were already delivered.
            update.settles = update is merged[-1][1]
        return [update for _, update in merged]

    async def _notify(self, message: Queue | Progress) -> None:
        if isinstance(message, Queue):
            self.queue = message
        else:
            self.progress = message
        await tell(self.listener, message)

    def _items(self) -> list[Any]:
        """Return the items of the job's current state."""
        document = self._stream.follower.document
        items: Any = [] if document is None else document.value("/items")
        return items  # type: ignore[no-any-return]

    # ---- timeouts ----------------------------------------------------------------------------------------------

    def deadline(self, timeout: float | None = None) -> float | None:
        """Convert a timeout to a time on the event loop's clock. The default is the client's timeout. Returns None if
        there is no limit.
        """
        timeout = timeout or self._options.timeout
        return None if timeout is None else anyio.current_time() + timeout

    def queue_deadline(self) -> float | None:
        """Convert the client's `queue_timeout` to a time on the event loop's clock. Returns None if there is no
        limit.
        """
        timeout = self._options.queue_timeout
        return None if timeout is None else anyio.current_time() + timeout

    @property
    def _queued(self) -> bool:
        document = self._stream.follower.document
        return document is not None and document.value("/status") == "queued"

    async def _block_of_queued(self, queue_until: float | None) -> list[Applied | Notice]:
        """Wait for the next events. If the job is queued, log its position once, and apply the limit `queue_until`."""
        if not self._queued:
            # Once the job has left the queue, do not check its status before each block.
            self._queue_warning_due = self._queue_warning_due and self._stream.follower.document is None
            return await self._stream.next_outcomes(BLOCK)
        if self._queue_warning_due and not self._session.transport.in_process:
            self._queue_warning_at = self._queue_warning_at or anyio.current_time() + QUEUE_WARNING_AFTER
            if block := await self._block_until(queue_until, self._queue_warning_at):
                return block
            if self.listener is None:
                self._queue_warnings.log(self.id, self.queue, self.base)
            self._queue_warning_due = False
        return await self._block_until(queue_until)

    async def _block_until(
        self, queue_until: float | None, warning_at: float | None = None
    ) -> list[Applied | Notice]:
        if queue_until is None:
            return await self._stream.next_outcomes(BLOCK, warning_at)
        with anyio.CancelScope(deadline=queue_until):
            return await self._stream.next_outcomes(BLOCK, warning_at)
        raise self.timed_out(f"the queue_timeout of {self._options.queue_timeout:g} s")

    def bounded(self, deadline: float | None, timeout: float | None = None) -> AbstractContextManager[None]:
        """Return a context manager that cancels its block at a deadline.

        Args:
            deadline: Time on the event loop's clock. None: no limit.
            timeout: The timeout in seconds, for the error message. The default is the client's timeout.

        Raises:
            TotalTimeoutError: The deadline passed.
        """
        return nullcontext() if deadline is None else self._bounded(deadline, timeout)

    @contextmanager
    def _bounded(self, deadline: float, timeout: float | None) -> Iterator[None]:
        with anyio.CancelScope(deadline=deadline) as scope:
            yield
        if scope.cancelled_caught:
            raise self.timed_out(f"the timeout of {timeout or self._options.timeout:g} s")

    def timed_out(self, which: str) -> TidewireError:
        """Create the error for a timeout that has passed: a QueueTimeoutError if the job is still queued, otherwise a
        TotalTimeoutError.
        """
        queued = self._queued
        kind = QueueTimeoutError if queued else TotalTimeoutError
        what = f"{which} passed"
        if queued:
            what += " while the job waited in the server's queue"
            if self.queue is not None:
                what += f" at position {self.queue.position}"
        advice = f"The job continues on the server: read it later with client.job({self.id!r}), or cancel it."
        return kind(what, where=self.where, advice=advice)

    @property
    def where(self) -> Where:
        """The job's URL, id and cursor, for error messages."""
        cursor = self._stream.follower.cursor
        return Where("GET", self._stream.job_url, self.id, None if cursor is None else str(cursor))
