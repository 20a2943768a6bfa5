"""`AsyncBatchJob`: one job of many inputs."""

from collections.abc import Iterable
from typing import Generic, Literal, TypeVar, overload

from tidewire.errors import ItemFailedError
from tidewire.jobs.batch_job_reader import BatchJobReader
from tidewire.jobs.job_base import JobBase
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.protocol.messages import JobStatus
from tidewire.types import ItemUpdate

T = TypeVar("T")


class AsyncBatchJob(JobBase[BatchJobReader[T]], Generic[T]):
    """A job of many inputs; its items are in the order of the inputs.

    Looping over it yields an `ItemUpdate` for every change of an item's value. Items fail each for itself: a loop does
    not raise for them, `results()` does.
    """

    def __aiter__(self) -> UpdateIterator[ItemUpdate[T]]:
        return self._reader.updates()

    def updates(self) -> UpdateIterator[ItemUpdate[T]]:
        """The iterator that a loop over the job uses. `async with` closes it in good order when the loop is left early."""
        return self._reader.updates()

    def as_completed(self) -> UpdateIterator[tuple[int, T | ItemFailedError]]:
        """Each item when it has ended, in that order: its index, and its value or why it has none.

        Each call begins with the items that have ended already; of a job from a checkpoint, with those that had not
        ended there.
        """
        return self._reader.as_completed()

    @overload
    async def results(
        self, *, return_exceptions: Literal[False] = False, timeout: float | None = None
    ) -> list[T]: ...

    @overload
    async def results(
        self, *, return_exceptions: Literal[True], timeout: float | None = None
    ) -> list[T | ItemFailedError]: ...

    @overload
    async def results(
        self, *, return_exceptions: bool, timeout: float | None = None
    ) -> list[T] | list[T | ItemFailedError]: ...

    async def results(
        self, *, return_exceptions: bool = False, timeout: float | None = None
    ) -> list[T] | list[T | ItemFailedError]:
        """Wait for the job's end and return the items' values, in the order of the inputs.

        Args:
            return_exceptions: Put the error of a failed item in its place, instead of raising the first.
            timeout: Seconds for this call, instead of the client's `timeout`. The job continues when they pass.

        Raises:
            ItemFailedError: An item failed or was cancelled.
            InvalidValueError: A value is not of the type.
            TotalTimeoutError: The timeout passed.
            TidewireError: The stream is over without the job's end.
        """
        await self._reader.wait(timeout)
        return self._reader.outcome(return_exceptions=return_exceptions)

    async def cancel(self, items: Iterable[int] | None = None) -> JobStatus:
        """Ask the server to cancel the job, or some of its items; those that have ended stay as they are.

        Args:
            items: Their indices; None means all.

        Raises:
            TypeError: They are not indices.
            InvalidInputError: The job has no such item; then none is cancelled.
        """
        return await self._reader.cancel_items(items)
