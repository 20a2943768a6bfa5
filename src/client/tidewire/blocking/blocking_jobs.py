"""`Job` and `BatchJob`, the blocking counterparts of the async job classes. They run the async classes on the client's
background thread. `map_values` does the same for the jobs of a `map`.

`src/client/generate_signatures.py` generates the signatures and docstrings from the async classes.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, Literal, NoReturn, TypeVar, overload

from tidewire.blocking.event_loop_thread import LoopThread
from tidewire.checkpoint import Checkpoint
from tidewire.errors import ItemFailedError
from tidewire.hooks import Hook, call_hook, finish_hook
from tidewire.jobs.batch_job import AsyncBatchJob
from tidewire.jobs.generated_tokens import Token
from tidewire.jobs.job import NO_COPY, AsyncJob, JobBase
from tidewire.jobs.logprob_arrays import Logprobs
from tidewire.jobs.map.map_work import MapWork
from tidewire.options import check_seconds
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.updates import ItemUpdate, TextDelta, Update

T = TypeVar("T")
J = TypeVar("J", bound=JobBase[Any])


class BlockingJobBase(Generic[J]):
    """Base class of `Job` and `BatchJob`. It has an async job, and the thread that runs the coroutines of this job."""

    def __init__(self, thread: LoopThread, job: J) -> None:
        self._inner = (thread, job)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NO_COPY)

    @property
    def id(self) -> str:
        """The id that the server has assigned to the job."""
        return self._inner[1].id

    @property
    def ended(self) -> bool:
        """Whether the client has received the job's end. Reading this property sends no request."""
        return self._inner[1].ended

    @property
    def item_count(self) -> int:
        """Number of the job's items; 0 until the client has received the job's state."""
        return self._inner[1].item_count

    @property
    def queue(self) -> Queue | None:
        """The job's position in the server's queue, as last received; None if the client has received no position
        yet.
        """
        return self._inner[1].queue

    @property
    def progress(self) -> Progress | None:
        """The last progress report that the client received; None if the client has received no report yet."""
        return self._inner[1].progress

    @property
    def listener(self) -> Hook[Queue | Progress] | None:
        """Function that receives queue positions and progress reports while a call or a loop waits for the job.

        It may be a coroutine function. Its exceptions are logged and otherwise ignored. The blocking client calls the
        function on the client's background thread. On this thread, the function cannot call the client.
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
        """Request the whole job from the server, including its status, its state, its timestamps and the number of the
        current attempt.
        """
        thread, job = self._inner
        return thread.call(job.read)

    def wait(self, *, timeout: float | None = None) -> None:
        """Wait until the job has ended, whether it succeeded, failed or was cancelled. The call consumes no updates, so
        a later loop still yields all updates.

        Args:
            timeout: Maximum duration of this call in seconds. None: the client's `timeout`.

        Raises:
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        _wait(*self._inner, timeout)

    def stream_url(self) -> str:
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
            page = f"/result.html?stream={quote(job.stream_url())}"
        """
        thread, job = self._inner
        return thread.call(job.stream_url)

    def checkpoint(self) -> Checkpoint:
        """Return the position after the last delivered update. `client.job(checkpoint=…)` continues from this position.

        A checkpoint contains the whole state of the job. If the state is large, do not save it after each update, but for
        example every second.

        Example:
            path.write_text(job.checkpoint().to_json())
        """
        return self._inner[1].checkpoint()

    def _ipython_display_(self) -> None:
        from tidewire.notebook.job_display import show_job  # noqa: PLC0415 - only notebooks need it

        thread, job = self._inner
        show_job(job._reader, self, start=partial(thread.call, _call))

    def __repr__(self) -> str:
        return repr(self._inner[1]).replace("Async", "", 1)


class Job(BlockingJobBase[AsyncJob[T]], Generic[T]):
    """A job with one input. The server runs the job even if no client reads its event stream.

    Iterating over the job yields an `Update` for every change of its value. Each update is yielded exactly once, even
    if the client reconnects. Leaving the loop early closes the connection, and a later loop continues after the last
    update that was delivered. If the job failed or was cancelled, the loop raises JobFailedError or JobCancelledError
    after the last update, so a partial value cannot be mistaken for a complete one. If the job has several items, for
    example the samples of a generation with `n=3`, the loop and all other methods that read the value raise
    SeveralItemsError.

    A loop that prints `update.text` survives lost connections and restarts of the server. If the server had to run the
    job again, or the endpoint rolled text back, text that the loop has printed is retracted. `update.text` then raises
    VoidTextError, unless the loop has read `update.deleted`.

    Only one loop at a time may read a job object. To read the same job in a second loop, create another object with
    `client.job(job.id)`. It is possible to wait for `result()` while a loop is running.

    Example:
        job = client.submit("generate", prompt="def fib(", max_tokens=64)
        for update in job:
            print(update.text, end="", flush=True)
    """

    def __iter__(self) -> Iterator[Update[T]]:
        thread, job = self._inner
        return thread.pump(job.updates())

    def iter_text(self) -> Iterator[str]:
        """Iterate over the job's text in pieces, as they arrive, so that each piece can be printed or appended to a
        file.

        If the job's value contains several texts that the server streams, only the first of them is used. Text is held
        back only if the server announces which part of the text is stable, for example in a beam search. In that case,
        text is yielded as soon as it is stable, and the remainder at the job's end. A checkpoint contains the position
        up to which the text was yielded.

        Raises:
            VoidTextError: Raised during iteration if text that was already yielded is retracted, by a rollback or
                because the job restarted. `iter_text_deltas` reports retracted text instead.
            NoTextError: Raised at the first step if the job's value contains no text that the server streams. Iterate
                over the job itself instead.
            JobFailedError: Raised after the last piece if the job failed.
            JobCancelledError: Raised after the last piece if the job was cancelled.

        Example:
            for piece in job.iter_text():
                print(piece, end="", flush=True)
        """
        thread, job = self._inner
        return thread.pump(job.iter_text())

    def iter_text_deltas(self) -> Iterator[TextDelta]:
        """Iterate over the changes of the job's text as they arrive. A change is a number of code points that are
        deleted at the end of the text, and text that is then appended.

        If the job's value contains several texts that the server streams, only the first of them is used. Unlike
        `iter_text`, this iterator holds no text back.
        """
        thread, job = self._inner
        return thread.pump(job.iter_text_deltas())

    def tokens(self) -> Iterator[Token]:
        """Iterate over all generated tokens, from the first one, with the requested log-probabilities, ranks and
        candidates.

        Each call yields all tokens, even if other loops have read the job or the job was created from a checkpoint.
        Like `result`, this iterator consumes no updates, so a loop before or after it still yields all updates.

        The job must have been submitted with an option that requests tokens, for example `logprobs=True`. A token is
        yielded as it arrives. But if the server announces which part of the text is stable, a token is held back until
        text after the token is stable. The client takes the text of a token from the member `token_text` of the job's
        value. If there is no such member, the client takes the text from the endpoint's vocabulary, which it requests
        once and caches.

        Raises:
            VoidTextError: Raised during iteration if tokens that were already yielded are retracted.
            SeveralItemsError: Raised during iteration if the job has several items.
            TidewireError: Raised during iteration if the job's value has no tokens, because they were not requested
                when the job was submitted.

        Example:
            job = client.submit("generate", prompt="def fib(", max_tokens=64, logprobs=True)
            for token in job.tokens():
                print(token.text, token.logprob)
        """
        thread, job = self._inner
        return thread.pump(job.tokens())

    def logprobs(self) -> Logprobs:
        """Wait for the job's end and return its tokens and log-probabilities as numpy arrays. `Logprobs` documents
        their shapes.

        Raises:
            TidewireError: The same errors as those of `result`. An error is also raised if no tokens were requested when
                the job was submitted, because the job's value then contains none.
            ImportError: numpy is not installed.
        """
        thread, job = self._inner
        reader = job._reader
        if not job.ended:
            thread.call(partial(reader.wait, check=reader.check_items))
        return reader.logprobs_outcome()

    def result(self, *, timeout: float | None = None) -> T:
        """Wait for the job's end and return its value, validated against the type that was passed as `returns`.

        The call consumes no updates, so a loop before, after or during the call still yields all updates.

        Args:
            timeout: Maximum duration of this call in seconds. None: the client's `timeout`.

        Raises:
            JobFailedError: The job failed. The error's `problem` contains the reason, and its `value` contains the
                partial value.
            JobCancelledError: The job was cancelled.
            InvalidValueError: The value does not match the `returns` type.
            SeveralItemsError: The job has several items, for example the samples of a generation with `n=3`. The call
                does not wait for their end. Use `client.batch_job(job.id)` instead.
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        thread, job = self._inner
        if job.ended:
            check_seconds("timeout", timeout)
            return job._reader.outcome()
        # Build the value on the thread that has read the stream, because this thread can reuse the memory that reading
        # has just freed.
        return thread.call(partial(job.result, timeout=timeout))

    def cancel(self) -> JobStatus:
        """Cancel the job on the server and return its status. If the job has already ended, it does not change."""
        thread, job = self._inner
        return thread.call(job.cancel)


class BatchJob(BlockingJobBase[AsyncBatchJob[T]], Generic[T]):
    """A job with many inputs. The server runs each input as an item of the job. Items have the order of the inputs.

    Iterating over the job yields an `ItemUpdate` for every change of an item's value. Each update is yielded exactly
    once, even if the client reconnects. Items fail independently of each other, so a loop does not raise an error for a
    failed item, but `results()` does.

    Example:
        job = client.submit_batch("generate", [{"prompt": "a"}, {"prompt": "b"}], max_tokens=64)
        for update in job:
            print(update.index, update.text)
    """

    def __iter__(self) -> Iterator[ItemUpdate[T]]:
        thread, job = self._inner
        return thread.pump(job.updates())

    def as_completed(self) -> Iterator[tuple[int, T | ItemFailedError]]:
        """Iterate over the items in the order in which they end. Each element is a pair: the item's index, and either
        its value or an ItemFailedError.

        Each call starts with the items that have already ended. If the job was created from a checkpoint, items that
        had already ended at the checkpoint are left out.

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
            return_exceptions: Whether to return the error of a failed item in place of its value. Otherwise the call
                raises the error of the first failed item.
            timeout: Maximum duration of this call in seconds. None: the client's `timeout`.

        Raises:
            ItemFailedError: An item failed or was cancelled, and `return_exceptions` is False.
            InvalidValueError: A value does not match the `returns` type.
            TotalTimeoutError: The timeout passed. The job continues on the server.
            TidewireError: The client could not read the event stream up to the job's end.
        """
        thread, job = self._inner
        _wait(thread, job, timeout)
        return job._reader.outcome(return_exceptions=return_exceptions)

    def cancel(self, items: Iterable[int] | None = None) -> JobStatus:
        """Cancel the job, or some of its items, on the server and return the job's status. Items that have already
        ended do not change.

        Args:
            items: Indices of the items to cancel. None: all items.

        Raises:
            TypeError: `items` is not an iterable of indices.
            InvalidInputError: One of the indices does not belong to an item of the job. No item was cancelled.
        """
        thread, job = self._inner
        return thread.call(job.cancel, items)


async def _call(work: Callable[[], None]) -> None:
    work()


def _wait(thread: LoopThread, job: JobBase[Any], timeout: float | None = None) -> None:
    # If the job has ended, its outcome needs no request, so it stays available after the client was closed.
    if job.ended:
        check_seconds("timeout", timeout)
    else:
        thread.call(partial(job.wait, timeout=timeout))


def map_values(thread: LoopThread, work: MapWork, inputs: Iterator[Any]) -> Iterator[Any]:
    """Iterate over the values of a map. Inputs are consumed on the caller's thread, requests run on the client's thread."""

    def report_progress() -> None:
        if work.listener is not None and (progress := work.new_progress()) is not None:
            waiting = call_hook(work.listener, progress)
            if waiting is not None:
                thread.call(finish_hook, waiting, progress)

    try:
        work.mark_suspended(suspended=False)
        while not work.finished or work.ready():
            if work.ready():
                report_progress()
                value = work.take()
                work.mark_suspended(suspended=True)
                yield value
                work.mark_suspended(suspended=False)
            elif work.accepts_input:
                try:
                    value = next(inputs)
                except StopIteration:
                    work.end()
                except Exception as error:  # noqa: BLE001 - `take` raises it after the earlier values
                    work.fail(error)
                else:
                    work.feed(value)
            else:
                thread.call(work.fill)
                report_progress()
    finally:
        if work.needs_closing:
            thread.finish(work.aclose)
