"""`AsyncMap`, the async iterator that `AsyncClient.map` returns."""

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio.lowlevel

from tidewire.errors import ConcurrentReadError
from tidewire.hooks import tell
from tidewire.jobs.map.map_work import MapWork

X = TypeVar("X")


class AsyncMap(AsyncIterator[X], Generic[X]):
    """Async iterator over the values of a `map`. With `async with`, the running jobs are cancelled when the block is
    left.

    Without `async with`, the running jobs continue when the loop is left early. They are cancelled when the client is
    closed.

    Example:
        async with client.map("generate", inputs) as values:
            async for value in values:
                if value == "enough":
                    break
    """

    def __init__(self, work: MapWork, inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._reader: _MapReader[X] = _MapReader(work, inputs)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> X:
        return await self._reader.next()

    async def aclose(self) -> None:
        """Stop iterating. Closes the connection and cancels the running jobs."""
        await self._reader.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class _MapReader(Generic[X]):
    """Passes the caller's inputs to a `MapWork` and takes the values from the `MapWork`."""

    def __init__(self, work: MapWork, inputs: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._work = work
        self._inputs: Iterator[Any] | AsyncIterator[Any] = (
            aiter(inputs) if isinstance(inputs, AsyncIterable) else iter(inputs)
        )
        self._busy = False
        self._inputs_failed = False
        self._failure: Exception | None = None
        """Error that `next` raises after closing the map. At the normal end, it is a StopAsyncIteration."""

    def __del__(self) -> None:
        # An `async for` loop that is left early does not close the map, but only drops its reference. Close the resume
        # file, so that another map can use it at once.
        self._work.close_file()

    async def next(self) -> X:
        if self._busy:
            raise ConcurrentReadError("another loop is reading this map", advice="Call map() again.")
        if self._inputs_failed and self._work.finished and self._failure is None:
            what = "this map has no more inputs, because their iterator raised an error or was cancelled"
            raise ConcurrentReadError(what, advice="Call map() again with the remaining inputs.")
        self._work.mark_task()
        self._busy = True
        self._work.mark_suspended(suspended=False)
        try:
            failure = self._failure
            if failure is None:
                try:
                    return await self._next()
                except Exception as error:  # noqa: BLE001 - raised below
                    failure = self._failure = error
            # If the caller is cancelled during this close, the next call raises the error.
            await self.aclose()
            self._failure = None
            raise failure
        finally:
            self._busy = False
            self._work.mark_suspended(suspended=True)

    async def _next(self) -> X:
        work = self._work
        if work.has_file:
            # Let other tasks run. Values from the file are returned without waiting, and there may be millions of them.
            await anyio.lowlevel.checkpoint()
        while not work.ready():
            if work.finished:
                raise StopAsyncIteration
            if work.accepts_input:
                await self._feed()
            else:
                await work.fill()
                await self._report_progress()
        await self._report_progress()
        value: X = work.take()
        return value

    async def _report_progress(self) -> None:
        if (progress := self._work.new_progress()) is not None:
            await tell(self._work.listener, progress)

    async def _feed(self) -> None:
        try:
            value = (
                await anext(self._inputs) if isinstance(self._inputs, AsyncIterator) else next(self._inputs)
            )
        except (StopIteration, StopAsyncIteration):
            self._work.end()
        except BaseException as error:
            # A generator that raised an error or was cancelled has ended. Another `next` on this generator would look
            # like the normal end of the inputs, and the remaining inputs would be lost.
            self._inputs_failed = True
            if not isinstance(error, Exception):
                await self.aclose()
                raise
            self._work.fail(error)
        else:
            self._work.feed(value)

    async def aclose(self) -> None:
        await self._work.aclose()
