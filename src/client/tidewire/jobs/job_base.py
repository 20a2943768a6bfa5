"""`JobBase`: the members that `AsyncJob` and `AsyncBatchJob` share."""

from collections.abc import Callable
from typing import Final, Generic, NoReturn, TypeVar

from tidewire.checkpoint import Checkpoint
from tidewire.jobs.job_reader import JobReader
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource

R = TypeVar("R", bound=JobReader)

NO_COPY: Final = (
    "a job can be neither copied nor pickled: another reader takes client.job(job.id), and one that continues where "
    "this one is client.job(checkpoint=job.checkpoint())"
)


class JobBase(Generic[R]):
    """Holds a job's reader, and shows of it what every job has."""

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
        """Whether the job's end was received. Asks the server nothing."""
        return self._reader.ended

    @property
    def item_count(self) -> int:
        """How many items the job has; 0 until something of it was received."""
        return self._reader.item_count

    @property
    def queue(self) -> Queue | None:
        """The last report of the job's position in the server's queue."""
        return self._reader.queue

    @property
    def progress(self) -> Progress | None:
        """The last report of the job's progress."""
        return self._reader.progress

    @property
    def listener(self) -> Callable[[Queue | Progress], None] | None:
        """Called with each queue position and each progress report while a call waits for the job.

        The blocking client calls it on a thread of its own.
        """
        return self._reader.listener

    @listener.setter
    def listener(self, listener: Callable[[Queue | Progress], None] | None) -> None:
        self._reader.listener = listener

    async def status(self) -> JobStatus:
        """Ask the server for the job's status."""
        return (await self._reader.read()).status

    async def read(self) -> JobResource:
        """Ask the server for the whole job: status, state, times, attempt."""
        return await self._reader.read()

    async def wait(self, *, timeout: float | None = None) -> None:
        """Wait for the job's end, whatever its status is. Delivers nothing: a loop before or after gets every update.

        Args:
            timeout: Seconds for this call, instead of the client's `timeout`. The job continues when they pass.

        Raises:
            TotalTimeoutError: The timeout passed.
            TidewireError: The stream is over without the job's end.
        """
        await self._reader.wait(timeout)

    def checkpoint(self) -> Checkpoint:
        """The position up to which updates were delivered: store it to continue there with `client.job(checkpoint=…)`."""
        return self._reader.checkpoint()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self._reader.base}>"
