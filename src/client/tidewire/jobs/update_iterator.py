"""`UpdateIterator`, the async iterator over a job's updates, text or tokens.

Every job object keeps the position up to which the caller has received items, and a checkpoint contains this position.
The position advances when the caller receives an item, not when the event arrives from the server. If a loop is left
early, its iterator returns the undelivered updates to the job, and the next iterator starts with them.

The async client iterates item by item. The blocking client calls `fill` on the thread of its event loop, and delivers
the items of the block on the caller's thread.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from tidewire.errors import ConcurrentReadError, TidewireError
from tidewire.result_type import ResultType
from tidewire.updates import UNKNOWN, ItemChange, Position, TextDelta, Update

if TYPE_CHECKING:
    from tidewire.jobs.job_reader import JobReader

Change = ItemChange[Any]
U = TypeVar("U", bound=Update[Any])
X = TypeVar("X")

_IS_VISIBLE: Callable[[Change], bool] = attrgetter("visible")


class Projection(ABC, Generic[X]):
    """Converts a job's updates to the items that one kind of iterator yields, such as pieces of text or tokens."""

    async def prepare(self) -> None:
        """Request the information from the server that the projection needs before the first update."""

    @abstractmethod
    def project(self, update: Change) -> Iterable[X]:
        """Return the items to yield for an update. The projection may hold back a part of the update."""

    def finish(self) -> Iterable[X]:
        """Return the last items to yield, after the job has ended."""
        return ()

    def settled(self, update: Change | None) -> Sequence[Change]:
        """Return the updates that count as delivered as soon as the caller has received all items that the last call of
        `project` or `finish` returned.

        Args:
            update: The update that was just passed to `project`; None after `finish`.
        """
        return () if update is None else (update,)

    def undelivered(self) -> Iterable[Change]:
        """Return the updates that this projection still holds back. The next iterator yields them."""
        return ()


class WholeUpdates(Projection[U]):
    """Projection that yields an `Update` or `ItemUpdate` for every change of a value."""

    def __init__(self, show: Callable[[Change], U]) -> None:
        self.show: Callable[[Change], U] = show

    def project(self, update: Change) -> Iterable[U]:
        return (self.show(update),) if update.visible else ()


class TextDeltas(Projection[TextDelta]):
    """Projection for `iter_text_deltas`. Yields every change of the text, without holding text back."""

    def project(self, update: Change) -> Iterable[TextDelta]:
        text = update.text
        return (TextDelta(update.deleted, text),) if text or update.deleted else ()


@dataclass(slots=True, eq=False)
class UpdateBatch(Generic[X]):
    """A block of items that were fetched together, with the number of items that were already delivered.

    Attributes:
        items: The items to yield.
        covered: Lists of changes. Element 0 contains the changes that count as delivered before the first item. Element
            n contains the changes that are delivered with the n-th item.
        following: Changes that were fetched together with those of this block, but that no item delivers.
        at: Number of items that the caller has received.
    """

    items: Sequence[X] = ()
    covered: Sequence[Sequence[Change]] = ((),)
    following: Sequence[Change] = ()
    at: int = 0

    def delivered(self) -> tuple[Position, Sequence[Change]] | None:
        """Return a position up to which changes were delivered, and the changes up to this position that were not
        delivered. Return None if no change was delivered.

        If the last delivered change is not the last one of its event, the position is that after the whole event.
        """
        rest: Sequence[Change] | None = None
        for at in range(self.at, -1, -1):
            for update in reversed(self.covered[at]):
                if update.settles:
                    return update.position, ()
                if rest is None:
                    rest = self._rest_of_event()
                    if rest:
                        return rest[-1].position, rest
        return None

    def _rest_of_event(self) -> Sequence[Change]:
        """Return the undelivered changes up to the next one that settles; nothing if this block has no such change."""
        rest = []
        for update in chain(*islice(self.covered, self.at + 1, None), self.following):
            rest.append(update)
            if update.settles:
                return rest
        return ()

    def undelivered(self) -> list[Change]:
        """Return the updates of this block that are not completely delivered. Updates before the first item of the
        block count as delivered.
        """
        return [update for covered in self.covered[self.at + 1 :] for update in covered]


class UpdateIterator(AsyncIterator[X], Generic[X]):
    """Async iterator over a job's updates, text or tokens. With `async with`, its connection is closed when the block
    is left.

    Leaving the iterator early does not end the job, and a later iterator continues after the last delivered item. After
    a cancelled wait, the iterator can continue on the same connection, unless another iterator has started since then.

    Attributes:
        block: The block of items that is being delivered.
        finished: Whether the iterator has delivered all items or has failed.
        closed: Whether the iterator has stopped reading the job.
        interrupted: Whether the last wait was cancelled.
    """

    _prepared = False
    """Whether the iterator has begun. Set in the class, because a KeyboardInterrupt may end `__init__` early."""

    def __init__(self, job: "JobReader", projection: Projection[X]) -> None:
        self.block: UpdateBatch[X] = UpdateBatch()
        self.finished: bool = False
        self.closed: bool = False
        self.interrupted: bool = False
        self._job = job
        self._projection = projection
        self._after_fault: list[Change] = []
        """Updates that follow the update whose conversion to items raised an error."""
        self._fault: TidewireError | None = None
        """Error of the conversion of an update, or of reading ahead. The next call of `fill` raises it."""
        self._ended = False
        """Whether the job has ended, and `block` contains the last items."""
        self._deadline: float | None = None
        self._queue_until: float | None = None

    # ---- item by item ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> X:
        while True:
            block = self.block
            at = block.at
            if at < len(block.items):
                item = block.items[at]
                # The next two lines must not contain anything at which Python can raise a KeyboardInterrupt, such as a
                # call or a loop. An exception between them would deliver the item twice.
                block.at = at + 1
                return item
            if self.finished:
                raise StopAsyncIteration
            await self.fill()

    # ---- several items at once ---------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Wait for the next block of items or for the job's end. If items are ready, return at once.

        Raises:
            TidewireError: The client cannot read the stream to the job's end, or the job failed or was cancelled.
        """
        if self.finished or self.block.at < len(self.block.items):
            return
        self.settle()
        try:
            if self.closed:
                raise ConcurrentReadError(
                    "this iterator was closed and cannot continue", advice="Start a new loop."
                )
            if self._fault is not None:
                raise self._fault
            if self._ended:
                self.finished = self.closed = True
            else:
                self.interrupted = False
                if not self._prepared:
                    await self._begin()
                with self._job.bounded(self._deadline):
                    updates = await self._take()
                if self.closed:
                    # An interrupt has ended the blocking loop, although this call could not be cancelled in time.
                    self.requeue(updates)
                elif updates and isinstance(self._projection, WholeUpdates):
                    # `_project` can do this, too, but takes a quarter of a microsecond longer for each update.
                    visible = [*filter(_IS_VISIBLE, updates)]
                    self.block = UpdateBatch([*map(self._projection.show, visible)], [(), *zip(visible)])
                else:
                    self.block = self._project(updates)
                    self._ended = not updates
        except TidewireError:
            self.fail()
            raise
        except BaseException:
            self.interrupted = True
            raise
        if self.finished:
            self._job.raise_outcome()

    async def read_ahead(self) -> None:
        """Wait until the next `fill` can return at once. Updates stay undelivered, and `fill` raises the errors."""
        if not (self._ended or self.closed or self._fault):
            try:
                with self._job.bounded(self._deadline):
                    await self._wait_for_updates()
            except TidewireError as fault:
                self._fault = fault

    def postpone(self, seconds: float) -> None:
        """Extend the time limits of the iterator by the number of seconds for which it was not read."""
        if self._deadline is not None:
            self._deadline += seconds
        if self._queue_until is not None:
            self._queue_until += seconds

    def _take(self) -> Awaitable[list[Change]]:
        return self._job.take(self._queue_until)

    def _wait_for_updates(self) -> Awaitable[None]:
        return self._job.read_ahead(self._queue_until)

    async def _begin(self) -> None:
        self._job.acquire(self)
        self._deadline, self._queue_until = self._job.deadline(), self._job.queue_deadline()
        self._prepared = True
        with self._job.bounded(self._deadline):
            await self._projection.prepare()

    def _project(self, updates: Sequence[Change]) -> UpdateBatch[X]:
        """Convert updates to a block of items. If there are no updates, the job has ended, and the block contains the
        items that were still held back.
        """
        items: list[X] = []
        covered: list[Sequence[Change]] = [()]
        following: Sequence[Change] = ()
        for at, update in enumerate(updates):
            try:
                items += self._projection.project(update)
            except TidewireError as fault:
                self._fault, self._after_fault, following = fault, [*updates[at + 1 :]], updates[at:]
                break
            _cover(items, covered, self._projection.settled(update))
        if not updates:
            items += self._projection.finish()
            _cover(items, covered, self._projection.settled(None))
        return UpdateBatch(items, covered, following=following)

    def settle(self) -> None:
        """Advance the position of the job's checkpoints to the last item that the caller has received."""
        delivered = self.block.delivered()
        if delivered is not None:
            self._job.commit(*delivered)

    # ---- closing -----------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Stop iterating, return undelivered updates to the job for the next iterator, and close the connection."""
        if not self.closed:
            self.leave()
            await self._job.pause()

    def close_soon(self) -> None:
        """Close the iterator soon, on its event loop. This method may be called on any thread."""
        if not self.closed:
            self._job.start_soon(self.aclose)

    def fail(self) -> None:
        """Close the iterator after an error or in a finalizer. This method may be called on any thread."""
        self.finished = True
        if not self.closed:
            self.leave()
            self._job.pause_soon()

    def leave(self) -> None:
        """Stop reading the job, and return the undelivered updates to the job for the next iterator."""
        self.settle()
        self.requeue([*self.block.undelivered(), *self._projection.undelivered(), *self._after_fault])
        self._after_fault = []
        self.block = UpdateBatch()
        # Set `closed` last. As soon as `closed` is set, another iterator may start, even on another thread.
        self.closed = True

    def requeue(self, updates: Sequence[Change]) -> None:
        """Return undelivered updates to the job, for the next iterator."""
        self._job.requeue(updates)

    def __del__(self) -> None:
        # `async for` does not close its iterator when the loop is left early. It only drops its reference to the
        # iterator.
        if self._prepared and not sys.is_finalizing():
            self.fail()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class StateIterator(UpdateIterator[X]):
    """Async iterator over items that a projection creates from a job's states. It starts with the state that is already
    known. It consumes no updates, so it affects neither checkpoints nor other loops.
    """

    _seen: Position | None = None
    """The last state that was passed to the projection."""

    async def _wait_for_updates(self) -> None:
        """Do nothing, because a newer state may replace a state that was read ahead."""

    async def _take(self) -> list[Change]:
        position = await self._job.state_after(self._seen, self._queue_until)
        if position is None:
            return []
        self._seen = position
        return [ItemChange(position, ResultType(), position.cursor.seq, snapshot=UNKNOWN)]

    def requeue(self, updates: Sequence[Change]) -> None:
        """Do nothing, because the job still has all its updates."""


def _cover(items: Sequence[Any], covered: list[Sequence[Change]], settled: Sequence[Change]) -> None:
    """Record that the updates in `settled` are completely delivered once the caller has received all `items`."""
    covered += [()] * (len(items) + 1 - len(covered))
    if settled:
        covered[-1] = (*covered[-1], *settled)
