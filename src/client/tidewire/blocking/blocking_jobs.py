"""The jobs of the blocking client: those of the async one, whose work is done on the client's thread."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from tidewire.blocking.event_loop_thread import LoopThread
from tidewire.checkpoint import Checkpoint
from tidewire.errors import ItemFailedError
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.job import AsyncJob
from tidewire.jobs.job_reader import NO_COPY, JobReader
from tidewire.jobs.logprob_arrays import Logprobs
from tidewire.jobs.tokens import Token
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.types import ItemUpdate, TextDelta, Update

T = TypeVar("T")
_Job = TypeVar("_Job", bound=JobReader[Any])


class _Facade(Generic[_Job]):
    """What the blocking jobs share."""

    def __init__(self, thread: LoopThread, job: _Job) -> None:
        self._thread = thread
        self._job = job

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def id(self) -> str:
        """The job's id on its server."""
        return self._job.id

    @property
    def ended(self) -> bool:
        """Whether the job's end was received: what was handed over until then is all there is."""
        return self._job.ended

    @property
    def item_count(self) -> int:
        """How many items the job has; 0 as long as nothing of it was received."""
        return self._job.item_count

    @property
    def queue(self) -> Queue | None:
        """The last that the server told of the job's place in its queue."""
        return self._job.queue

    @property
    def progress(self) -> Progress | None:
        """The last that the server told of the job's progress."""
        return self._job.progress

    @property
    def listener(self) -> Callable[[Queue | Progress], None] | None:
        """Called with each queue position and each progress report while somebody waits, on a thread of its own."""
        return self._job.listener

    @listener.setter
    def listener(self, listener: Callable[[Queue | Progress], None] | None) -> None:
        self._job.listener = listener

    def status(self) -> JobStatus:
        """Ask the server for the job's status."""
        return self._thread.call(self._job.status)

    def read(self) -> JobResource:
        """Ask the server for the whole job: status, state, times, attempt."""
        return self._thread.call(self._job.read)

    def _wait(self) -> None:
        # What has ended is known here: it can be had also when the client is closed.
        if not self._job.ended:
            self._thread.call(self._job.wait)

    def checkpoint(self) -> Checkpoint:
        """How far the job was handed over: what to save to read on from there with `client.job(checkpoint=…)`."""
        return self._job.checkpoint()

    def __repr__(self) -> str:
        return repr(self._job).replace("Async", "", 1)


class Job(_Facade[AsyncJob[T]], Generic[T]):
    """A job on a server; see `AsyncJob`, of which this is the blocking form."""

    def __iter__(self) -> Iterator[Update[T]]:
        return self._thread.pump(self._job.updates())

    def iter_text(self) -> Iterator[str]:
        """The text as far as it can no longer become void; see `AsyncJob.iter_text`."""
        return self._thread.pump(self._job.iter_text())

    def iter_text_deltas(self) -> Iterator[TextDelta]:
        """How the text changes, at once; see `AsyncJob.iter_text_deltas`."""
        return self._thread.pump(self._job.iter_text_deltas())

    def tokens(self) -> Iterator[Token]:
        """The tokens of a generation, each once, when it can no longer become void; see `AsyncJob.tokens`."""
        return self._thread.pump(self._job.tokens())

    def logprobs(self) -> Logprobs:
        """Wait for the job's end and return the columns of its tokens as numpy arrays; see `AsyncJob.logprobs`."""
        self._wait()
        return self._job.logprobs_outcome()

    def result(self) -> T:
        """Wait for the job's end and return its value; see `AsyncJob.result`."""
        if self._job.ended:
            return self._job.outcome()
        # Made on the thread that has read it: what the reading let go of is used again.
        return self._thread.call(self._job.result)

    def cancel(self) -> JobStatus:
        """Ask the server to cancel the job, and return its status then. One that has ended stays as it is."""
        return self._thread.call(self._job.cancel)


class BatchJob(_Facade[AsyncBatchJob[T]], Generic[T]):
    """A job of many inputs; see `AsyncBatchJob`, of which this is the blocking form."""

    def __iter__(self) -> Iterator[ItemUpdate[T]]:
        return self._thread.pump(self._job.updates())

    def as_completed(self) -> Iterator[tuple[int, T | ItemFailedError]]:
        """Each item when it has ended: its index, and its value or why it has none; see `AsyncBatchJob.as_completed`."""
        return self._thread.pump(self._job.as_completed())

    @overload
    def results(self, *, return_exceptions: Literal[False] = False) -> list[T]: ...

    @overload
    def results(self, *, return_exceptions: Literal[True]) -> list[T | ItemFailedError]: ...

    @overload
    def results(self, *, return_exceptions: bool) -> list[T] | list[T | ItemFailedError]: ...

    def results(self, *, return_exceptions: bool = False) -> list[T] | list[T | ItemFailedError]:
        """Wait for the job's end and return the items' values; see `AsyncBatchJob.results`."""
        self._wait()
        return self._job.outcome(return_exceptions=return_exceptions)

    def cancel(self, items: Iterable[int] | None = None) -> JobStatus:
        """Ask the server to cancel the job, or some of its items; see `AsyncBatchJob.cancel`."""
        return self._thread.call(self._job.cancel, items)
