"""`JobBase`, the base class of `AsyncJob` and `AsyncBatchJob`."""

from typing import Final, Generic, NoReturn, TypeVar

from tidewire.checkpoint import Checkpoint
from tidewire.hooks import Hook
from tidewire.jobs.job_reader import JobReader
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource

R = TypeVar("R", bound=JobReader)

NO_COPY: Final = (
    "a job cannot be copied or pickled: for a second reader use client.job(job.id), to continue from this position "
    "use client.job(checkpoint=job.checkpoint())"
)


class JobBase(Generic[R]):
    """Base class of `AsyncJob` and `AsyncBatchJob` with their common members, such as the id, the status and the
    checkpoint.
    """

    def __init__(self, reader: R) -> None:
        self._reader = reader

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def id(self) -> str:
        """The id that the server has assigned to the job."""
        return self._reader.id

    @property
    def ended(self) -> bool:
        """Whether the client has received the job's end. Reading this property sends no request."""
        return self._reader.ended

    @property
    def item_count(self) -> int:
        """Number of the job's items; 0 until the client has received the job's state."""
        return self._reader.item_count

    @property
    def queue(self) -> Queue | None:
        """The job's position in the server's queue, as last received; None if the client has received no position
        yet.
        """
        return self._reader.queue

    @property
    def progress(self) -> Progress | None:
        """The last progress report that the client received; None if the client has received no report yet."""
        return self._reader.progress

    @property
    def listener(self) -> Hook[Queue | Progress] | None:
        """Function that receives queue positions and progress reports while a call or a loop waits for the job.

        It may be a coroutine function. Its exceptions are logged and otherwise ignored. The blocking client calls the
        function on the client's background thread. On this thread, the function cannot call the client.
        """
        return self._reader.listener

    @listener.setter
    def listener(self, listener: Hook[Queue | Progress] | None) -> None:
        if listener is not None and not callable(listener):
            raise TypeError(f"listener must be a function with one argument, not {listener!r}")
        self._reader.listener = listener

    async def status(self) -> JobStatus:
        """Request the job's status from the server."""
        return (await self._reader.read()).status

    async def read(self) -> JobResource:
        """Request the whole job from the server, including its status, its state, its timestamps and the number of the
        current attempt.
        """
        return await self._reader.read()

    async def wait(self, *, timeout: float | None = None) -> None:
        """Wait until the job has ended, whether it succeeded, failed or was cancelled. The call consumes no updates, so
        a later loop still yields all updates.

        Args:
            timeout: Maximum duration of this call in seconds. None: the client's `timeout`.

        Raises:
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        await self._reader.wait(timeout)

    async def stream_url(self) -> str:
        """Request a URL of the job's event stream that needs no other credentials, for example for `EventSource` in a
        web page.

        The URL contains a stream token. It opens only the event stream of this job, and it expires after a time that
        the server sets. In the reference server, this is the setting `stream_token_ttl`, by default 5 minutes. When the
        URL expires, the server also ends a stream that was opened with it. To continue, request another URL, and pass the
        id of the last event in its parameter `after`.

        Everyone who has the URL can read the job until the URL expires, so do not log or publish it.

        Raises:
            RequestError: The server does not offer stream tokens, or refused the request.
            TidewireError: The server could not be reached within the `RetryPolicy`.

        Example:
            page = f"/result.html?stream={quote(await job.stream_url())}"
        """
        return await self._reader.stream_url()

    def checkpoint(self) -> Checkpoint:
        """Return the position after the last delivered update. `client.job(checkpoint=…)` continues from this position.

        A checkpoint contains the whole state of the job. If the state is large, do not save it after each update, but for
        example every second.

        Example:
            path.write_text(job.checkpoint().to_json())
        """
        return self._reader.checkpoint()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self._reader.base}>"
