"""`AsyncMap`: a `map` as an async iterator."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tidewire.errors import ConcurrentReadError
from tidewire.jobs.map_work import MapWork

X = TypeVar("X")


class AsyncMap(AsyncIterator[X], Generic[X]):
    """The values of a `map`, as an async iterator. `async with` cancels what runs when it is left.

    A loop that is left by `break` or an error without it closes its connection; what runs is cancelled when the client
    is closed.
    """

    def __init__(self, work: MapWork[Any], inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._reader: _MapReader[X] = _MapReader(work, inputs)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> X:
        return await self._reader.next()

    async def aclose(self) -> None:
        """Leave: close the connection, and cancel what runs."""
        await self._reader.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _MapReader(Generic[X]):
    """Feeds the work of a map with inputs, and takes its values."""

    def __init__(self, work: MapWork[Any], inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._work = work
        self._inputs: Iterator[Any] | AsyncIterator[Any] = (
            aiter(inputs) if isinstance(inputs, AsyncIterable) else iter(inputs)
        )
        self._busy = False
        self._inputs_failed = False

    async def next(self) -> X:
        if self._busy:
            raise ConcurrentReadError("this map is being read by another loop", advice="Begin another.")
        if self._inputs_failed:
            what = "the inputs of this map were broken off, by an error or a wait that was cancelled"
            raise ConcurrentReadError(what, advice="Begin another with the inputs that are left.")
        work = self._work
        self._busy = True
        try:
            while not work.ready():
                if work.finished:
                    raise StopAsyncIteration
                while work.accepts_input:
                    await self._feed()
                await work.fill()
            value: X = work.take()
        except Exception:
            await self.aclose()
            raise
        finally:
            self._busy = False
        return value

    async def _feed(self) -> None:
        try:
            value = (
                await anext(self._inputs) if isinstance(self._inputs, AsyncIterator) else next(self._inputs)
            )
        except (StopIteration, StopAsyncIteration):
            self._work.end()
        except BaseException:
            # A generator that was broken off has no more to give: going on would take that for the end of the inputs.
            self._inputs_failed = True
            await self.aclose()
            raise
        else:
            self._work.feed(value)

    async def aclose(self) -> None:
        await self._work.aclose()
