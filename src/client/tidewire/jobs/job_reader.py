"""`JobReader`: reads the stream of one job, and keeps the position up to which its updates were delivered.

The job objects hold a reader: `SingleJobReader` for one input, `BatchJobReader` for many. The caller that waits drives
the stream: a loop over the job, or a `result()`, or both in turn. Changes that a `result()` receives while no loop
takes them are merged into one per item, a state before and a state after, so that memory does not grow with their
number.
"""

import logging
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import anyio

from tidewire.checkpoint import Checkpoint
from tidewire.errors import (
    ConcurrentReadError,
    QueueTimeoutError,
    TidewireError,
    TotalTimeoutError,
    Where,
)
from tidewire.jobs.item_text_changes import TextColumns
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.options import check_seconds
from tidewire.protocol.follower_outcomes import Applied, Notice
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.types import ItemChange, Position

if TYPE_CHECKING:
    from tidewire.http.api_session import ApiSession
    from tidewire.options import Options

BLOCK: Final = 64
"""Updates that are handed to a reader, or across threads, at a time."""

log: Final = logging.getLogger("tidewire")


class ActiveIterator(Protocol):
    """What a job needs of the reading that is under way."""

    closed: bool
    interrupted: bool

    def settle(self) -> None:
        """Report to the job what the reader has taken."""

    def leave(self) -> None:
        """Return to the job what the reader has not taken."""


class JobReader(ABC):
    """See the top of this file.

    Attributes:
        listener: Called with each queue position and each progress report while somebody waits; in the blocking
            client from a thread of its own.
    """

    def __init__(
        self,
        session: "ApiSession",
        options: "Options",
        stream: JobStream,
        *,
        cancel_url: str,
        delivered: Position | None,
    ) -> None:
        self.listener: Callable[[Queue | Progress], None] | None = None
        self.queue: Queue | None = None
        """The last that the server told of the job's place in its queue."""
        self.progress: Progress | None = None
        """The last that the server told of the job's progress."""
        self._session = session
        self._options = options
        self._stream = stream
        self._cancel_url = cancel_url
        self._lock: anyio.Lock | None = None
        self._ready: deque[ItemChange[Any]] = deque()
        self._merged: dict[int, _MergedChange] = {}
        self._delivered = delivered
        self._has_updates = delivered is not None
        """Whether anything was, or will be, handed over."""
        self._latest = delivered
        """Where the stream is."""
        self._iterator: weakref.ref[ActiveIterator] | None = None
        self._texts = TextColumns(delivered)

    @property
    def base(self) -> str:
        """The server's URL."""
        return self._session.base

    @property
    def id(self) -> str:
        """The job's id on its server."""
        job_id = self._stream.follower.job_id
        if job_id is None:
            raise RuntimeError("a job is followed by its id")
        return job_id

    @property
    def ended(self) -> bool:
        """Whether the job's end was received: what was handed over until then is all there is."""
        return self._stream.ended

    @property
    def item_count(self) -> int:
        """How many items the job has; 0 as long as nothing of it was received."""
        document = self._stream.follower.document
        return 0 if document is None else document.array_length("/items")

    async def read(self) -> JobResource:
        """Ask the server for the whole job: status, state, times, attempt."""
        with self.bounded(self.deadline()):
            return await self._stream.read_job()

    async def wait(self, timeout: float | None = None) -> None:
        """Wait for the job's end, whatever it is, without delivering anything.

        Args:
            timeout: Seconds for this call, instead of the client's `timeout`.
        """
        check_seconds("timeout", timeout)
        queue_until = self.queue_deadline()
        try:
            with self.bounded(self.deadline(timeout), timeout):
                while not self.ended:
                    async with self._reading_lock():
                        await self._advance(queue_until, merge=True)
        finally:
            if self._active is None:
                await self.pause()

    def checkpoint(self) -> Checkpoint:
        """How far the job was handed over: what to save to read on from there with `client.job(checkpoint=…)`."""
        delivered = self.delivered
        if delivered is None:
            return Checkpoint(job=self.id, url=self._session.base)
        state: Any = delivered.view.value()
        return Checkpoint(
            job=self.id,
            url=self._session.base,
            state=state,
            columns=delivered.columns,
            cursor=str(delivered.cursor),
        )

    @property
    def received(self) -> int:
        """Bytes of the job's stream that were read."""
        return self._stream.received

    @property
    def delivered(self) -> Position | None:
        """Up to where the job was handed over."""
        iterator = self._active
        if iterator is not None:
            iterator.settle()
        return self._delivered

    @property
    def _active(self) -> ActiveIterator | None:
        """The reading that was begun and not left."""
        iterator = None if self._iterator is None else self._iterator()
        return None if iterator is None or iterator.closed else iterator

    async def cancel(self, body: bytes) -> JobStatus:
        with self.bounded(self.deadline()):
            answer = await self._session.ask(
                "POST", self._cancel_url, self._options, body=body, job_id=self.id
            )
        return self._session.read(JobResource, answer, what="job", job_id=self.id).status

    # ---- for a reading -----------------------------------------------------------------------------------------

    def acquire(self, iterator: ActiveIterator) -> None:
        """Let one reading begin.

        Raises:
            ConcurrentReadError: Another one is under way.
        """
        other = self._active
        if other is not None and other is not iterator:
            if not other.interrupted:
                raise ConcurrentReadError("this job is being read by another loop", where=self.where)
            # A traceback may hold a loop that a cancellation ended. This one continues on its connection.
            other.leave()
        self._iterator = weakref.ref(iterator)

    async def take(self, queue_until: float | None = None, *, silent: bool) -> list[ItemChange[Any]]:
        """Wait for updates and return those that are there, oldest first; none when the job has ended.

        Args:
            queue_until: When the job must have left the server's queue, by the event loop's clock.
            silent: Whether also those that changed no value.

        Raises:
            QueueTimeoutError: It has not.
            TidewireError: The stream is over without the job's end.
        """
        async with self._reading_lock():
            while not self._ready and not self._merged and not self.ended:
                await self._advance(queue_until, silent=silent)
            updates = [*self._ready, *self._take_merged()]
            self._ready.clear()
            return updates

    def commit(self, place: Position) -> None:
        """The reader has taken what leads up to here: the checkpoint moves."""
        self._delivered = place

    def requeue(self, updates: Sequence[ItemChange[Any]]) -> None:
        """Keep what a reading did not take for the next one."""
        self._ready.extendleft(reversed(updates))

    async def pause(self) -> None:
        """Close the connection, unless a `result()` waits on it."""
        if not self._stream_in_use:
            await self._stream.aclose()

    def pause_soon(self) -> None:
        """The same, from where nothing can be awaited."""
        if not self._stream_in_use:
            self._stream.close_soon()

    @abstractmethod
    def raise_outcome(self) -> None:
        """Raise what the job's end means to a reader that came to it, if it is no success."""

    # ---- driving -----------------------------------------------------------------------------------------------

    @property
    def _stream_in_use(self) -> bool:
        return self._lock is not None and self._lock.locked()

    def _reading_lock(self) -> anyio.Lock:
        """Held by the task that reads the stream."""
        self._session.transport.loop.check()
        if self._lock is None:
            self._lock = anyio.Lock(fast_acquire=True)
        return self._lock

    async def _advance(self, queue_until: float | None, *, silent: bool = False, merge: bool = False) -> None:
        """Wait for what comes next, and take with it what can be had without waiting."""
        if self.ended:
            return
        if queue_until is not None and self._queued:
            block = await self._block_until(queue_until)
        else:
            block = await self._stream.next_outcomes(BLOCK)
        for outcome in block:
            self._receive(outcome, silent=silent, merge=merge)
        if self.ended:
            await self._stream.aclose()
            await self._stream.notify_end()

    def _receive(self, outcome: Applied | Notice, *, silent: bool = False, merge: bool = False) -> None:
        if isinstance(outcome, Notice):
            self._notify(outcome.message)
            return
        place: Position | None = None
        for update in self._updates(outcome):
            place = update.place
            if not update.visible and (merge or not silent):
                continue
            if update.visible:
                self._has_updates = True
            if merge or self._merged:
                earlier = self._merged.get(update.index)
                first_seq, base = (update.first_seq, self._latest) if earlier is None else earlier[:2]
                # How the text changed is found between the two places: the change itself may be as long as the text.
                update.deleted, update.text = 0, ""
                self._merged[update.index] = _MergedChange(first_seq, base, update)
            else:
                self._ready.append(update)
        self._latest = place or self._place(outcome)

    def _take_merged(self) -> list[ItemChange[Any]]:
        """What was folded, as one update per item."""
        merged = sorted(self._merged.values(), key=lambda each: each.latest.cursor)
        self._merged.clear()
        for first_seq, base, update in merged:
            update.first_seq = min(first_seq, update.cursor.seq)
            update.deleted, update.text = self._texts.between(update.index, base, update.place)
            # The last one has the latest place: with it, all is handed over up to there.
            update.settles = update is merged[-1].latest
        return [each.latest for each in merged]

    def _notify(self, message: Queue | Progress) -> None:
        if isinstance(message, Queue):
            self.queue = message
        else:
            self.progress = message
        if self.listener is not None:
            self.listener(message)

    @abstractmethod
    def _updates(self, applied: Applied) -> Iterable[ItemChange[Any]]:
        """What an advance of the stream is to the items of this job."""

    def _items(self) -> list[Any]:
        """The items as they stand."""
        document = self._stream.follower.document
        items: Any = [] if document is None else document.value("/items")
        return items  # type: ignore[no-any-return]

    def _place(self, applied: Applied) -> Position:
        return Position(applied.view, applied.columns, applied.cursor)

    # ---- time --------------------------------------------------------------------------------------------------

    def deadline(self, timeout: float | None = None) -> float | None:
        """When a call that begins now must be over, by the event loop's clock; without a timeout, the client's."""
        timeout = timeout or self._options.timeout
        return None if timeout is None else anyio.current_time() + timeout

    def queue_deadline(self) -> float | None:
        """When a job must have left the server's queue in a call that begins now."""
        timeout = self._options.queue_timeout
        return None if timeout is None else anyio.current_time() + timeout

    @property
    def _queued(self) -> bool:
        document = self._stream.follower.document
        return document is not None and document.value("/status") == "queued"

    async def _block_until(self, deadline: float) -> list[Applied | Notice]:
        with anyio.CancelScope(deadline=deadline):
            return await self._stream.next_outcomes(BLOCK)
        raise self.timed_out(f"the queue_timeout of {self._options.queue_timeout:g} s")

    def bounded(self, deadline: float | None, timeout: float | None = None) -> AbstractContextManager[None]:
        """End what takes longer.

        Args:
            deadline: By the event loop's clock.
            timeout: The seconds that led to it, for the error; by default the client's.

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
        """The error for a wait that its caller's timeout ended."""
        queued = self._queued
        kind = QueueTimeoutError if queued else TotalTimeoutError
        what = f"{which} passed"
        if queued:
            what += " while the job waited in the server's queue"
            if self.queue is not None:
                what += f" at position {self.queue.position}"
        advice = f"The job goes on: read it later with client.job({self.id!r}), or cancel it."
        return kind(what, where=self.where, advice=advice)

    @property
    def where(self) -> Where:
        """The job and the cursor, for errors."""
        cursor = self._stream.follower.cursor
        return Where("GET", self._stream.job_url, self.id, None if cursor is None else str(cursor))


class _MergedChange(NamedTuple):
    """Changes of one item as one: from a place to the latest of them."""

    first_seq: int
    base: Position | None
    latest: ItemChange[Any]
