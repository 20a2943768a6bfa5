"""`AsyncBatchJob`, a job with many inputs, for asyncio and trio."""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, Generic, Literal, TypeVar, overload

import anyio

from tidewire.errors import ItemFailedError, TidewireError
from tidewire.jobs.batch_job_reader import BatchJobReader
from tidewire.jobs.job import JobBase
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.protocol.messages import JobStatus
from tidewire.updates import ItemUpdate

T = TypeVar("T")

CANCEL_TIMEOUT: Final = 2.0
"""Time limit for cancelling all jobs of a `map`, in seconds."""


class AsyncBatchJob(JobBase[BatchJobReader[T]], Generic[T]):
    """A job with many inputs. The server runs each input as an item of the job. Items have the order of the inputs.

    Iterating over the job yields an `ItemUpdate` for every change of an item's value. Each update is yielded exactly
    once, even if the client reconnects. Items fail independently of each other, so a loop does not raise an error for a
    failed item, but `results()` does.

    Example:
        job = await client.submit_batch("generate", [{"prompt": "a"}, {"prompt": "b"}], max_tokens=64)
        async for update in job:
            print(update.index, update.text)
    """

    def __aiter__(self) -> UpdateIterator[ItemUpdate[T]]:
        return self._reader.updates()

    def updates(self) -> UpdateIterator[ItemUpdate[T]]:
        """Return the iterator that `async for update in job` uses. With `async with`, the iterator is closed as soon as
        the block is left.
        """
        return self._reader.updates()

    def as_completed(self) -> UpdateIterator[tuple[int, T | ItemFailedError]]:
        """Iterate over the items in the order in which they end. Each element is a pair: the item's index, and either
        its value or an ItemFailedError.

        Each call starts with the items that have already ended. If the job was created from a checkpoint, items that
        had already ended at the checkpoint are left out.

        Example:
            async for index, outcome in job.as_completed():
                print(index, outcome)
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
        """Wait for the job's end and return the values of all items, in the order of the inputs.

        Args:
            return_exceptions: Whether to return the error of a failed item in place of its value. Otherwise the call
                raises the error of the first failed item.
            timeout: Maximum duration of this call in seconds. None: the client's `timeout`.

        Raises:
            ItemFailedError: An item failed or was cancelled, and `return_exceptions` is False.
            InvalidValueError: A value does not match the `returns` type.
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        await self._reader.wait(timeout)
        return self._reader.outcome(return_exceptions=return_exceptions)

    async def cancel(self, items: Iterable[int] | None = None) -> JobStatus:
        """Cancel the job, or some of its items, on the server and return the job's status. Items that have already
        ended do not change.

        Args:
            items: Indices of the items to cancel. None: all items.

        Raises:
            TypeError: `items` is not an iterable of indices.
            InvalidInputError: One of the indices does not belong to an item of the job. No item was cancelled.
        """
        return await self._reader.cancel_items(items)


async def cancel_all(
    running: set[AsyncBatchJob[Any]], jobs: Iterable[AsyncBatchJob[Any]] | None = None
) -> None:
    """Cancel running jobs, for at most `CANCEL_TIMEOUT` seconds.

    Args:
        running: The running jobs. Cancelled jobs are removed from the set.
        jobs: The jobs to cancel. None: all running jobs.
    """
    with anyio.move_on_after(CANCEL_TIMEOUT, shield=True):
        for job in [*(running if jobs is None else jobs)]:
            if job in running:
                if not job.ended:
                    with suppress(TidewireError):
                        await job.cancel()
                running.discard(job)
