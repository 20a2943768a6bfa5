"""One pass over what a job hands over: an async iterator, which is also read block by block from another thread.

A job has one place up to which it was handed over. It moves when the reader takes a thing, not when the thing
arrives; what a reader leaves behind goes back to the job, and the next reading begins with it.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from tidewire.errors import ConcurrentReadError, TidewireError
from tidewire.types import ItemChange, Position, TextDelta, Update

if TYPE_CHECKING:
    from tidewire.jobs.job_reader import JobReader

Change = ItemChange[Any]
U = TypeVar("U", bound=Update[Any])
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)


class Projection(Protocol[X_co]):
    """What one kind of reader gets for the updates of a job."""

    silent: bool
    """Whether it needs also the updates in which no value changed."""

    def settled(self, update: Change | None) -> Sequence[Change]:
        """The updates of which nothing is held back any more, since `update` was given, or (None) since the end."""

    async def prepare(self) -> None:
        """Ask what must be known before the first update."""

    def project(self, update: Change) -> Iterable[X_co]:
        """What the reader gets for an update."""

    def finish(self) -> Iterable[X_co]:
        """What the reader gets when the job has ended, whatever way."""

    def undelivered(self) -> Iterable[Change]:
        """What was given and not handed over, as updates for the next reading."""


class WholeUpdates(Generic[U]):
    """Delivers every visible change, as the class of update that the job yields."""

    silent = False

    def __init__(self, show: Callable[[Change], U]) -> None:
        self.show: Callable[[Change], U] = show

    async def prepare(self) -> None:
        """Nothing to ask."""

    def settled(self, update: Change | None) -> Sequence[Change]:
        return () if update is None else (update,)

    def project(self, update: Change) -> Iterable[U]:
        return (self.show(update),) if update.visible else ()

    def finish(self) -> Iterable[U]:
        return ()

    def undelivered(self) -> Iterable[Change]:
        return ()


class TextDeltas:
    """Hands over how the text changes, at once."""

    silent = False

    async def prepare(self) -> None:
        """Nothing to ask."""

    def settled(self, update: Change | None) -> Sequence[Change]:
        return () if update is None else (update,)

    def project(self, update: Change) -> Iterable[TextDelta]:
        text = update.text
        return (TextDelta(update.deleted, text),) if text or update.deleted else ()

    def finish(self) -> Iterable[TextDelta]:
        return ()

    def undelivered(self) -> Iterable[Change]:
        return ()


class UpdateBatch(Generic[X]):
    """What is handed over at a time, and how much of it was.

    Attributes:
        items: What the reader gets.
        at: How many of them it has got.
        received: Bytes of the stream that had been read when it was made, where somebody counts them.
    """

    __slots__ = ("_changes", "_covered", "at", "items", "received")

    def __init__(
        self,
        items: Sequence[X],
        covered: Sequence[Sequence[Change]] | None = None,
        *,
        changes: Sequence[Change] = (),
    ) -> None:
        """Make a block.

        Args:
            items: What the reader gets.
            covered: The changes that are delivered before the first item, and with each; None: one with each.
            changes: The change of each item, where `covered` is None.
        """
        self.items: Sequence[X] = items
        self.at: int = 0
        self.received: int = 0
        self._covered = covered
        self._changes = changes

    def place(self) -> Position | None:
        """Up to where the job was handed over with what the reader has got; None: as far as before this block."""
        for at in range(self.at, -1, -1):
            covered = self._changes[max(at - 1, 0) : at] if self._covered is None else self._covered[at]
            for update in reversed(covered):
                if update.settles:
                    return update.place
        return None

    def undelivered(self, *, entered: bool) -> list[Change]:
        """The updates of which the reader has not got everything.

        Args:
            entered: Whether the reader has got all before this block.
        """
        if self._covered is None:
            return [*self._changes[self.at :]]
        return [update for covered in self._covered[self.at + entered :] for update in covered]


class UpdateIterator(AsyncIterator[X], Generic[X]):
    """See the top of this file. Leaving it early closes the connection, not the job.

    It is read by `async for`; or block by block: `fetch`, `made_of`, `acquire`, which may run on two threads.

    Attributes:
        block: What is being handed over.
        finished: Whether all was handed over.
        closed: Whether it was left.
        interrupted: Whether its last wait was cancelled: it continues on the same connection, unless another reading
            begins before.
    """

    def __init__(self, job: "JobReader", projection: Projection[X]) -> None:
        self.block: UpdateBatch[X] = UpdateBatch(())
        self.finished: bool = False
        self.closed: bool = False
        self.interrupted: bool = False
        self._job = job
        self._projection = projection
        self._after_fault: list[Change] = []
        """Updates behind one that could not be given."""
        self._fault: TidewireError | None = None
        self._prepared = False
        self._ended = False
        self._final_batch_built = False
        self._deadline: float | None = None
        self._queue_until: float | None = None

    # ---- one by one --------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> X:
        while True:
            block = self.block
            at = block.at
            if at < len(block.items):
                item = block.items[at]
                # Nothing that can be interrupted may stand between these two lines: a call, say, or a loop.
                block.at = at + 1
                return item
            if self.finished:
                raise StopAsyncIteration
            await self.fill()

    # ---- many at once ------------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Wait for more to hand over, or the end, after what is ready was taken.

        Raises:
            TidewireError: The stream is over without the job's end, or the job's end was no success.
        """
        if self.finished or self.ready():
            return
        try:
            following = self.build_batch(await self.fetch())
        except TidewireError:
            self.fail()
            raise
        self.acquire(following)

    def ready(self) -> bool:
        """Whether something can be handed over without waiting."""
        return self.block.at < len(self.block.items)

    def take(self) -> X:
        """What is ready."""
        self.block.at += 1
        return self.block.items[self.block.at - 1]

    # ---- block by block ----------------------------------------------------------------------------------------

    async def fetch(self) -> list[Change]:
        """Wait for updates; none when the job has ended.

        Raises:
            TidewireError: The stream is over without the job's end, or another reading is under way.
        """
        if self.closed:
            raise ConcurrentReadError("this loop was left, and cannot go on", advice="Begin another.")
        if self._fault is not None:
            raise self._fault
        if self._ended:
            return []
        self.interrupted = False
        try:
            if not self._prepared:
                await self._begin()
            with self._job.bounded(self._deadline):
                updates = await self._job.take(self._queue_until, silent=self._projection.silent)
        except TidewireError:
            raise
        except BaseException:
            self.interrupted = True
            raise
        self._ended = not updates
        return updates

    @property
    def received(self) -> int:
        """Bytes of the job's stream that were read."""
        return self._job.received

    async def _begin(self) -> None:
        self._job.acquire(self)
        self._deadline, self._queue_until = self._job.deadline(), self._job.queue_deadline()
        self._prepared = True
        with self._job.bounded(self._deadline):
            await self._projection.prepare()

    def build_batch(self, updates: Sequence[Change]) -> UpdateBatch[X] | None:
        """What the reader gets for updates that were fetched; for none, what is left at the end, and then None.

        Raises:
            TidewireError: There is nothing more to get, and why.
        """
        if isinstance(self._projection, WholeUpdates):
            visible = [update for update in updates if update.visible]
            return UpdateBatch([*map(self._projection.show, visible)], changes=visible) if updates else None
        items: list[X] = []
        covered: list[Sequence[Change]] = [()]
        for at, update in enumerate(updates):
            try:
                items += self._projection.project(update)
            except TidewireError as fault:
                self._fault, self._after_fault = fault, [*updates[at + 1 :]]
                break
            _cover(items, covered, self._projection.settled(update))
        if not updates:
            if self._final_batch_built:
                return None
            self._final_batch_built = True
            items += self._projection.finish()
            _cover(items, covered, self._projection.settled(None))
        return UpdateBatch(items, covered)

    def acquire(self, block: UpdateBatch[X] | None) -> None:
        """Go on with the next block; None ends the reading.

        Raises:
            TidewireError: All was handed over, and the job's end was no success.
        """
        self.settle()
        if block is None:
            self.finished = self.closed = True
            self._job.raise_outcome()
        else:
            self.block = block

    def settle(self) -> None:
        """Tell the job up to where it was handed over."""
        place = self.block.place()
        if place is not None:
            self._job.commit(place)

    # ---- leaving -----------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Leave: what was not taken stays with the job, and the connection is closed."""
        if not self.closed:
            self.leave()
            await self.release()

    async def release(self) -> None:
        """Close the connection, unless another call reads from it."""
        await self._job.pause()

    def fail(self) -> None:
        """Leave it for good: it ended otherwise than the job. Callable in any thread, and in finalizers."""
        self.finished = True
        if not self.closed:
            self.leave()
            self._job.pause_soon()

    def leave(self, ahead: Iterable[UpdateBatch[X]] = ()) -> None:
        """Give back to the job what was not taken.

        Args:
            ahead: Blocks that were made, and not entered.
        """
        self.settle()
        undelivered = self.block.undelivered(entered=True)
        for block in ahead:
            if block is not self.block:
                undelivered += block.undelivered(entered=False)
        self.requeue([*undelivered, *self._projection.undelivered(), *self._after_fault])
        self._after_fault = []
        self.block = UpdateBatch(())
        # Last: from here on another reading may begin, in another thread, too.
        self.closed = True

    def requeue(self, updates: Sequence[Change]) -> None:
        """Keep what was not taken for the next reading."""
        self._job.requeue(updates)

    def __del__(self) -> None:
        # `async for` only drops its iterator when it is left early.
        if self._prepared and not sys.is_finalizing():
            self.fail()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _cover(items: Sequence[Any], covered: list[Sequence[Change]], settled: Sequence[Change]) -> None:
    """Note the updates that are handed over with the last of the items."""
    covered += [()] * (len(items) + 1 - len(covered))
    if settled:
        covered[-1] = (*covered[-1], *settled)
