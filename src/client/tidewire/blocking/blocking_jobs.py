"""`Job` and `BatchJob`: blocking counterparts of the async job classes, which do their work on the client's thread.

The signatures and docstrings are generated from those of the async classes by `src/client/generate_signatures.py`.
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
    """Base class of `Job` and `BatchJob`: an async job, and the thread that runs its coroutines."""

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
        """Whether the client has received the job's end. Sends no request."""
        return self._inner[1].ended

    @property
    def item_count(self) -> int:
        """Number of the job's items; 0 until the client has received the job's state."""
        return self._inner[1].item_count

    @property
    def queue(self) -> Queue | None:
        """The last received position in the server's queue; None before the first."""
        return self._inner[1].queue

    @property
    def progress(self) -> Progress | None:
        """The last received progress report; None before the first."""
        return self._inner[1].progress

    @property
    def listener(self) -> Callable[[Queue | Progress], None] | None:
        """Callback for queue positions and progress reports, called while a call or a loop waits for the job.

        The blocking client calls it on its background thread.
        """
        return self._inner[1].listener

    @listener.setter
    def listener(self, listener: Callable[[Queue | Progress], None] | None) -> None:
        self._inner[1].listener = listener

    def status(self) -> JobStatus:
        """Request the job's status from the server."""
        thread, job = self._inner
        return thread.call(job.status)

    def read(self) -> JobResource:
        """Request the whole job from the server: status, state, timestamps, attempt."""
        thread, job = self._inner
        return thread.call(job.read)

    def wait(self, *, timeout: float | None = None) -> None:
        """Wait until the job has ended, with any status. Consumes no updates: a later loop still yields all of them.

        Args:
            timeout: Seconds for this call. None: the client's `timeout`.

        Raises:
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client cannot read the stream to the job's end.
        """
        _wait(*self._inner, timeout)

    def checkpoint(self) -> Checkpoint:
        """Return the position after the last delivered update, to continue there with `client.job(checkpoint=…)`.

        Example:
            path.write_text(job.checkpoint().to_json())
        """
        return self._inner[1].checkpoint()

    def __repr__(self) -> str:
        return repr(self._inner[1]).replace("Async", "", 1)


class Job(BlockingJobBase[AsyncJob[T]], Generic[T]):
    """A job with one input. It runs on the server whether or not anyone reads its stream.

    Iterating yields an `Update` for every change of the job's value, exactly once, across reconnects. Leaving the loop
    early closes the connection; a later loop continues after the last update that was delivered. If the job failed or
    was cancelled, the loop raises JobFailedError or JobCancelledError after the last update, so a partial value cannot
    be mistaken for a complete one.

    Only one loop may read a job object at a time; a second reader needs its own `client.job(job.id)`. A `result()` may
    wait during a loop.

    Example:
        job = client.submit("generate", prompt="def fib(", max_tokens=64)
        for update in job:
            print(update.text, end="", flush=True)
    """

    def __iter__(self) -> Iterator[Update[T]]:
        thread, job = self._inner
        return thread.pump(job.updates())

    def iter_text(self) -> Iterator[str]:
        """Iterate over the job's text in pieces that are final, so they can be printed or appended to a file.

        The text is the value's first text column. If the endpoint has no rollback, each piece is yielded at once.
        Otherwise text is held back until the server marks it as stable, and the remainder is yielded at the job's end.
        A checkpoint advances with the yielded text. A job without text yields nothing; iterate over the job instead.

        Raises:
            VoidTextError: During iteration: the job restarted and retracted text that was already yielded.
            JobFailedError: After the last piece: the job failed.
            JobCancelledError: After the last piece: the job was cancelled.

        Example:
            for piece in job.iter_text():
                print(piece, end="", flush=True)
        """
        thread, job = self._inner
        return thread.pump(job.iter_text())

    def iter_text_deltas(self) -> Iterator[TextDelta]:
        """Iterate over the changes of the job's text as they arrive: code points deleted at its end, and text appended.

        The text is the value's first text column. Unlike `iter_text`, nothing is held back.
        """
        thread, job = self._inner
        return thread.pump(job.iter_text_deltas())

    def tokens(self) -> Iterator[Token]:
        """Iterate over the generated tokens, each once, with the requested log-probabilities, ranks and candidates.

        The submit must request token columns, for example with `logprobs=True`. A token is yielded once it is final: at
        once if the endpoint has no rollback, otherwise when text after it is stable. The text of a token comes from the
        job's `token_text` column if it has one, otherwise from the endpoint's vocabulary, which the client requests once
        and caches. A checkpoint advances with the yielded tokens.

        Raises:
            VoidTextError: During iteration: the job restarted and retracted tokens that were already yielded.
            TidewireError: During iteration: the job has no token columns, because its submit requested none.

        Example:
            job = client.submit("generate", prompt="def fib(", max_tokens=64, logprobs=True)
            for token in job.tokens():
                print(token.text, token.logprob)
        """
        thread, job = self._inner
        return thread.pump(job.tokens())

    def logprobs(self) -> Logprobs:
        """Wait for the job's end and return its token columns as numpy arrays. `Logprobs` documents their shapes.

        Raises:
            TidewireError: An error of `result`, or the job has no token columns, because its submit requested none.
            ImportError: numpy is not installed.
        """
        thread, job = self._inner
        _wait(thread, job)
        return job._reader.logprobs_outcome()

    def result(self, *, timeout: float | None = None) -> T:
        """Wait for the job's end and return its value, validated as the `returns` type of the submit.

        Consumes no updates: a loop before, after or during the call still yields all of them.

        Args:
            timeout: Seconds for this call. None: the client's `timeout`.

        Raises:
            JobFailedError: The job failed. `problem` says why, and `value` holds the partial value.
            JobCancelledError: The job was cancelled.
            InvalidValueError: The value does not match the `returns` type.
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client cannot read the stream to the job's end.
        """
        thread, job = self._inner
        if job.ended:
            check_seconds("timeout", timeout)
            return job._reader.outcome()
        # Build the value on the thread that read the stream: it reuses the memory that reading has just freed.
        return thread.call(partial(job.result, timeout=timeout))

    def cancel(self) -> JobStatus:
        """Cancel the job on the server and return its status. Does not change a job that has ended."""
        thread, job = self._inner
        return thread.call(job.cancel)


class BatchJob(BlockingJobBase[AsyncBatchJob[T]], Generic[T]):
    """A job with many inputs. The server runs each input as an item; items are in the order of the inputs.

    Iterating yields an `ItemUpdate` for every change of an item's value, exactly once, across reconnects. Items fail
    independently of each other: a loop does not raise for a failed item, but `results()` does.

    Example:
        job = client.submit_batch("generate", [{"prompt": "a"}, {"prompt": "b"}], max_tokens=64)
        for update in job:
            print(update.index, update.text)
    """

    def __iter__(self) -> Iterator[ItemUpdate[T]]:
        thread, job = self._inner
        return thread.pump(job.updates())

    def as_completed(self) -> Iterator[tuple[int, T | ItemFailedError]]:
        """Iterate over the items in the order in which they end, as pairs of index and value or ItemFailedError.

        Each call starts with the items that have already ended. For a job from a checkpoint, items that had ended at
        the checkpoint are left out.

        Example:
            for index, outcome in job.as_completed():
                print(index, outcome)
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
        """Wait for the job's end and return the values of all items, in the order of the inputs.

        Args:
            return_exceptions: Return the error of a failed item in place of its value, instead of raising the first.
            timeout: Seconds for this call. None: the client's `timeout`.

        Raises:
            ItemFailedError: An item failed or was cancelled, and `return_exceptions` is False.
            InvalidValueError: A value does not match the `returns` type.
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client cannot read the stream to the job's end.
        """
        thread, job = self._inner
        _wait(thread, job, timeout)
        return job._reader.outcome(return_exceptions=return_exceptions)

    def cancel(self, items: Iterable[int] | None = None) -> JobStatus:
        """Cancel the job, or some of its items, on the server and return the job's status. Ended items do not change.

        Args:
            items: Indices of the items to cancel. None: all items.

        Raises:
            TypeError: `items` is not an iterable of indices.
            InvalidInputError: The job does not have one of the items. Nothing was cancelled.
        """
        thread, job = self._inner
        return thread.call(job.cancel, items)


def _wait(thread: LoopThread, job: JobBase[Any], timeout: float | None = None) -> None:
    # The outcome of an ended job needs no request, so it stays available after the client is closed.
    if job.ended:
        check_seconds("timeout", timeout)
    else:
        thread.call(partial(job.wait, timeout=timeout))
