"""`JobBase`: the members that `AsyncJob` and `AsyncBatchJob` share."""

from collections.abc import Callable
from typing import Final, Generic, NoReturn, TypeVar

from tidewire.checkpoint import Checkpoint
from tidewire.jobs.job_reader import JobReader
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource

R = TypeVar("R", bound=JobReader)

NO_COPY: Final = (
    "a job cannot be copied or pickled: for a second reader use client.job(job.id), to continue from this position "
    "use client.job(checkpoint=job.checkpoint())"
)


class JobBase(Generic[R]):
    """Base class of `AsyncJob` and `AsyncBatchJob`: id, status, queue position, progress, checkpoint."""

    def __init__(self, reader: R) -> None:
        self._reader = reader

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def id(self) -> str:
        """The job's id on its server."""
        return self._reader.id

    @property
    def ended(self) -> bool:
        """Whether the client has received the job's end. Sends no request."""
        return self._reader.ended

    @property
    def item_count(self) -> int:
        """Number of the job's items; 0 until the client has received the job's state."""
        return self._reader.item_count

    @property
    def queue(self) -> Queue | None:
        """The last received position in the server's queue; None before the first."""
        return self._reader.queue

    @property
    def progress(self) -> Progress | None:
        """The last received progress report; None before the first."""
        return self._reader.progress

    @property
    def listener(self) -> Callable[[Queue | Progress], None] | None:
        """Callback for queue positions and progress reports, called while a call or a loop waits for the job.

        The blocking client calls it on its background thread.
        """
        return self._reader.listener

    @listener.setter
    def listener(self, listener: Callable[[Queue | Progress], None] | None) -> None:
        self._reader.listener = listener

    async def status(self) -> JobStatus:
        """Request the job's status from the server."""
        return (await self._reader.read()).status

    async def read(self) -> JobResource:
        """Request the whole job from the server: status, state, timestamps, attempt."""
        return await self._reader.read()

    async def wait(self, *, timeout: float | None = None) -> None:
        """Wait until the job has ended, with any status. Consumes no updates: a later loop still yields all of them.

        Args:
            timeout: Seconds for this call. None: the client's `timeout`.

        Raises:
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client cannot read the stream to the job's end.
        """
        await self._reader.wait(timeout)

    def checkpoint(self) -> Checkpoint:
        """Return the position after the last delivered update, to continue there with `client.job(checkpoint=…)`.

        Example:
            path.write_text(job.checkpoint().to_json())
        """
        return self._reader.checkpoint()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self._reader.base}>"
