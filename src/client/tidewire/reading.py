"""One pass over what a job hands over: an async iterator, which is also read block by block from another thread.

A job has one place up to which it was handed over. It moves when the reader takes a thing, not when the thing
arrives; what a reader leaves behind goes back to the job, and the next reading begins with it.
"""

from collections import deque
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from tidewire.errors import ConcurrentReadError, TidewireError
from tidewire.types import TextDelta, Update

if TYPE_CHECKING:
    from tidewire.following import FollowedJob

U = TypeVar("U", bound=Update[Any])
U_contra = TypeVar("U_contra", bound=Update[Any], contravariant=True)
X = TypeVar("X")
X_co = TypeVar("X_co", covariant=True)


class Hand(Protocol[U_contra, X_co]):
    """What one kind of reader gets for the updates of a job."""

    silent: bool
    """Whether it needs also the updates in which no value changed."""

    def settled(self, update: U_contra | None) -> Any:
        """The last update of which nothing is held back, after `update` was given, or (None) after all were."""

    async def prepare(self) -> None:
        """Ask what must be known before the first update."""

    def give(self, update: U_contra) -> Iterable[X_co]:
        """What the reader gets for an update."""

    def finish(self) -> Iterable[X_co]:
        """What the reader gets when the job has ended, whatever way."""

    def rest(self) -> Iterable[Any]:
        """What was given and not handed over, as updates for the next reading."""


class Updates(Generic[U]):
    """Hands over the updates themselves."""

    silent = False

    async def prepare(self) -> None:
        """Nothing to ask."""

    def settled(self, update: U | None) -> U | None:
        return update

    def give(self, update: U) -> Iterable[U]:
        return (update,) if update.visible else ()

    def finish(self) -> Iterable[U]:
        return ()

    def rest(self) -> Iterable[U]:
        return ()


class Deltas:
    """Hands over how the text changes, at once."""

    silent = False

    async def prepare(self) -> None:
        """Nothing to ask."""

    def settled(self, update: Update[Any] | None) -> Update[Any] | None:
        return update

    def give(self, update: Update[Any]) -> Iterable[TextDelta]:
        text = update.text
        return (TextDelta(update.deleted, text),) if text or update.deleted else ()

    def finish(self) -> Iterable[TextDelta]:
        return ()

    def rest(self) -> Iterable[Update[Any]]:
        return ()


class Reading(AsyncIterator[X], Generic[U, X]):
    """See the top of this file. Leaving it early closes the connection, not the job.

    Attributes:
        finished: Whether all was handed over.
        closed: Whether it was left.
        interrupted: Whether its last wait was cancelled: it may go on, unless another reading begins before.
    """

    def __init__(self, job: "FollowedJob[U]", hand: Hand[U, X]) -> None:
        self.finished = False
        self.closed = False
        self.interrupted = False
        self._job = job
        self._hand = hand
        self._updates: deque[U] = deque()
        self._given: deque[X] = deque()
        self._prepared = False
        self._ended = False
        self._last_given = False
        self._deadline: float | None = None

    # ---- block by block ----------------------------------------------------------------------------------------

    async def fill(self) -> None:
        """Wait for a block of updates, or the job's end.

        Raises:
            TidewireError: The stream is over without the job's end, or another reading is under way.
        """
        if self._ended:
            return
        if self.closed:
            raise ConcurrentReadError("this loop was left, and cannot go on", advice="Begin another.")
        self.interrupted = False
        try:
            if not self._prepared:
                await self._begin()
            with self._job.bounded(self._deadline):
                self._updates.extend(await self._job.take(silent=self._hand.silent))
        except TidewireError:
            self._leave()
            self.finished = True
            raise
        except BaseException:
            self.interrupted = True
            raise
        self._ended = not self._updates

    async def _begin(self) -> None:
        self._job.enter(self)
        self._prepared = True
        self._deadline = self._job.deadline()
        with self._job.bounded(self._deadline):
            await self._hand.prepare()

    def ready(self) -> bool:
        """Whether something can be handed over without waiting.

        Raises:
            TidewireError: All was handed over, and the job's end was no success.
        """
        while not self._given:
            if self._updates:
                update = self._updates.popleft()
                try:
                    self._given.extend(self._hand.give(update))
                except TidewireError:
                    self.finished = True
                    self.abandon()
                    raise
                self._settle(update)
            elif self._ended and not self._last_given:
                self._last_given = True
                self._given.extend(self._hand.finish())
                self._settle(None)
            elif self._ended and not self.finished:
                self.finished = self.closed = True
                self._job.raise_outcome()
            else:
                return False
        return True

    def _settle(self, update: U | None) -> None:
        settled = self._hand.settled(update)
        if settled is not None and settled.settles:
            self._job.took(settled)

    def take(self) -> X:
        """What is ready."""
        return self._given.popleft()

    # ---- one by one --------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> X:
        while not self.ready():
            if self.finished:
                raise StopAsyncIteration
            await self.fill()
        return self.take()

    # ---- leaving -----------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Leave: what was not taken stays with the job, and the connection is closed."""
        if not self.closed:
            self._leave()
            await self._job.pause()

    def abandon(self) -> None:
        """Leave from where nothing can be awaited, such as another thread or a finaliser."""
        if not self.closed:
            self._leave()
            self._job.abandon()

    def _leave(self) -> None:
        self._job.give_back([*self._hand.rest(), *self._updates])
        self._updates.clear()
        # Last: from here on another reading may begin, in another thread, too.
        self.closed = True

    def __del__(self) -> None:
        # `async for` drops its iterator when it is left early, and tells nobody else.
        if self._prepared:
            self.abandon()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
