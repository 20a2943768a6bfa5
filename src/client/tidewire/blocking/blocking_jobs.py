"""The jobs of the blocking client: those of the async one, whose work runs on the client's thread.

The signatures and docstrings are made from those of the async classes by `src/client/generate_signatures.py`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from tidewire.blocking.event_loop_thread import LoopThread
from tidewire.checkpoint import Checkpoint
from tidewire.errors import ItemFailedError
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.job import AsyncJob
from tidewire.jobs.job_base import NO_COPY, JobBase
from tidewire.jobs.logprob_arrays import Logprobs
from tidewire.jobs.tokens import Token
from tidewire.options import check_seconds
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.types import ItemUpdate, TextDelta, Update

T = TypeVar("T")
J = TypeVar("J", bound=JobBase[Any])


class BlockingJobBase(Generic[J]):
    """Holds an async job and the thread that its work runs on, and shows of it what every job has."""

    def __init__(self, thread: LoopThread, job: J) -> None:
        self._inner = (thread, job)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def id(self) -> str:
        """The job's id on its server."""
        return self._inner[1].id

    @property
    def ended(self) -> bool:
        """Whether the job's end was received. Asks the server nothing."""
        return self._inner[1].ended

    @property
    def item_count(self) -> int:
        """How many items the job has; 0 until something of it was received."""
        return self._inner[1].item_count

    @property
    def queue(self) -> Queue | None:
        """The last report of the job's position in the server's queue."""
        return self._inner[1].queue

    @property
    def progress(self) -> Progress | None:
        """The last report of the job's progress."""
        return self._inner[1].progress

    @property
    def listener(self) -> Callable[[Queue | Progress], None] | None:
        """Called with each queue position and each progress report while a call waits for the job.

        The blocking client calls it on a thread of its own.
        """
        return self._inner[1].listener

    @listener.setter
    def listener(self, listener: Callable[[Queue | Progress], None] | None) -> None:
        self._inner[1].listener = listener

    def status(self) -> JobStatus:
        """Ask the server for the job's status."""
        thread, job = self._inner
        return thread.call(job.status)

    def read(self) -> JobResource:
        """Ask the server for the whole job: status, state, times, attempt."""
        thread, job = self._inner
        return thread.call(job.read)

    def wait(self, *, timeout: float | None = None) -> None:
        """Wait for the job's end, whatever its status is. Delivers nothing: a loop before or after gets every update.

        Args:
            timeout: Seconds for this call, instead of the client's `timeout`. The job continues when they pass.

        Raises:
            TotalTimeoutError: The timeout passed.
            TidewireError: The stream is over without the job's end.
        """
        _wait(*self._inner, timeout)

    def checkpoint(self) -> Checkpoint:
        """The position up to which updates were delivered: store it to continue there with `client.job(checkpoint=…)`."""
        return self._inner[1].checkpoint()

    def __repr__(self) -> str:
        return repr(self._inner[1]).replace("Async", "", 1)


class Job(BlockingJobBase[AsyncJob[T]], Generic[T]):
    """A job on a server: it runs there whether anybody reads it or not.

    Looping over it yields an `Update` for every change of its value, each once, whatever connections break meanwhile. A
    loop that is left early closes the connection, and the next one continues where it stopped. If the job failed or was
    cancelled, the loop raises that at its end, so that half a text is not taken for a whole one.

    One loop at a time: another reader takes a job object of its own, `client.job(job.id)`. A `result()` may wait
    meanwhile.
    """

    def __iter__(self) -> Iterator[Update[T]]:
        thread, job = self._inner
        return thread.pump(job.updates())

    def iter_text(self) -> Iterator[str]:
        """The text of the value's first text column, as far as it can no longer be retracted.

        Where the endpoint has no rollback, each piece comes at once. Elsewhere the text up to an event comes when the
        server calls all of it stable, and the rest at the end. A checkpoint moves with the text. A value without a text
        yields nothing: loop over the job itself.

        Raises:
            VoidTextError: In the loop: the job started over, and text that was delivered is retracted.
        """
        thread, job = self._inner
        return thread.pump(job.iter_text())

    def iter_text_deltas(self) -> Iterator[TextDelta]:
        """How the text of the value's first text column changes, at once: what is retracted, and what is added."""
        thread, job = self._inner
        return thread.pump(job.iter_text_deltas())

    def tokens(self) -> Iterator[Token]:
        """The tokens of a generation as they come, each once, with what was requested: log-probability, rank,
        candidates.

        A token comes when it can no longer be retracted: at once where the endpoint has no rollback, elsewhere when
        text after it is stable. Texts are those of the job's `token_text`, else of the endpoint's vocabulary, which is
        requested once. A checkpoint moves with the tokens.

        Raises:
            VoidTextError: In the loop: the job started over, and tokens that were delivered are retracted.
            TidewireError: In the loop: the job has no columns of tokens, since its submit asked for none.
        """
        thread, job = self._inner
        return thread.pump(job.tokens())

    def logprobs(self) -> Logprobs:
        """Wait for the job's end and return the columns of its tokens as numpy arrays; see `Logprobs` for their shapes.

        Raises:
            TidewireError: As `result`; or the job has no columns of tokens.
            ImportError: numpy is not installed.
        """
        thread, job = self._inner
        _wait(thread, job)
        return job._reader.logprobs_outcome()

    def result(self, *, timeout: float | None = None) -> T:
        """Wait for the job's end and return its value, validated as the type that the job `returns`.

        It delivers nothing: a loop before, after or meanwhile gets every update.

        Args:
            timeout: Seconds for this call, instead of the client's `timeout`. The job continues when they pass.

        Raises:
            JobFailedError: The job failed.
            JobCancelledError: It was cancelled.
            InvalidValueError: The value is not of the type.
            TotalTimeoutError: The timeout passed.
            TidewireError: The stream is over without the job's end.
        """
        thread, job = self._inner
        if job.ended:
            check_seconds("timeout", timeout)
            return job._reader.outcome()
        # Made on the thread that read it, which reuses the memory that the reading released.
        return thread.call(partial(job.result, timeout=timeout))

    def cancel(self) -> JobStatus:
        """Ask the server to cancel the job, and return its status then. One that has ended stays as it is."""
        thread, job = self._inner
        return thread.call(job.cancel)


class BatchJob(BlockingJobBase[AsyncBatchJob[T]], Generic[T]):
    """A job of many inputs; its items are in the order of the inputs.

    Looping over it yields an `ItemUpdate` for every change of an item's value. Items fail each for itself: a loop does
    not raise for them, `results()` does.
    """

    def __iter__(self) -> Iterator[ItemUpdate[T]]:
        thread, job = self._inner
        return thread.pump(job.updates())

    def as_completed(self) -> Iterator[tuple[int, T | ItemFailedError]]:
        """Each item when it has ended, in that order: its index, and its value or why it has none.

        Each call begins with the items that have ended already; of a job from a checkpoint, with those that had not
        ended there.
        """
        thread, job = self._inner
        return thread.pump(job.as_completed())

    @overload
    def results(
        self, *, return_exceptions: Literal[False] = False, timeout: float | None = None
    ) -> list[T]: ...

    @overload
    def results(
        self, *, return_exceptions: Literal[True], timeout: float | None = None
    ) -> list[T | ItemFailedError]: ...

    @overload
    def results(
        self, *, return_exceptions: bool, timeout: float | None = None
    ) -> list[T] | list[T | ItemFailedError]: ...

    def results(
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
        thread, job = self._inner
        _wait(thread, job, timeout)
        return job._reader.outcome(return_exceptions=return_exceptions)

    def cancel(self, items: Iterable[int] | None = None) -> JobStatus:
        """Ask the server to cancel the job, or some of its items; those that have ended stay as they are.

        Args:
            items: Their indices; None means all.

        Raises:
            TypeError: They are not indices.
            InvalidInputError: The job has no such item; then none is cancelled.
        """
        thread, job = self._inner
        return thread.call(job.cancel, items)


def _wait(thread: LoopThread, job: JobBase[Any], timeout: float | None = None) -> None:
    # The outcome of a job that has ended is known here, so it is available also when the client is closed.
    if job.ended:
        check_seconds("timeout", timeout)
    else:
        thread.call(partial(job.wait, timeout=timeout))
