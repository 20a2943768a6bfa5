"""`AsyncJob`, a job with one input, and `JobBase`, the base class of `AsyncJob` and `AsyncBatchJob`."""

from typing import Final, Generic, NoReturn, TypeVar

from tidewire.checkpoint import Checkpoint
from tidewire.hooks import Hook
from tidewire.jobs.generated_tokens import Token
from tidewire.jobs.job_reader import JobReader
from tidewire.jobs.logprob_arrays import Logprobs
from tidewire.jobs.single_job_reader import SingleJobReader
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.protocol.messages import JobStatus, Progress, Queue
from tidewire.protocol.resources import JobResource
from tidewire.updates import TextDelta, Update

T = TypeVar("T")
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

    def _ipython_display_(self) -> None:
        from tidewire.notebook.job_display import show_job  # noqa: PLC0415 - only notebooks need it

        show_job(self._reader, self, start=lambda work: work())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self._reader.base}>"


class AsyncJob(JobBase[SingleJobReader[T]], Generic[T]):
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
        job = await client.submit("generate", prompt="def fib(", max_tokens=64)
        async for update in job:
            print(update.text, end="", flush=True)
    """

    def __aiter__(self) -> UpdateIterator[Update[T]]:
        return self._reader.updates()

    def updates(self) -> UpdateIterator[Update[T]]:
        """Return the iterator that `async for update in job` uses. With `async with`, the iterator is closed as soon as
        the block is left.

        Example:
            async with job.updates() as updates:
                async for update in updates:
                    if update.text.endswith("}"):
                        break
        """
        return self._reader.updates()

    def iter_text(self) -> UpdateIterator[str]:
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
            async for piece in job.iter_text():
                print(piece, end="", flush=True)
        """
        return self._reader.iter_text()

    def iter_text_deltas(self) -> UpdateIterator[TextDelta]:
        """Iterate over the changes of the job's text as they arrive. A change is a number of code points that are
        deleted at the end of the text, and text that is then appended.

        If the job's value contains several texts that the server streams, only the first of them is used. Unlike
        `iter_text`, this iterator holds no text back.
        """
        return self._reader.iter_text_deltas()

    def tokens(self) -> UpdateIterator[Token]:
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
            job = await client.submit("generate", prompt="def fib(", max_tokens=64, logprobs=True)
            async for token in job.tokens():
                print(token.text, token.logprob)
        """
        return self._reader.tokens()

    async def logprobs(self) -> Logprobs:
        """Wait for the job's end and return its tokens and log-probabilities as numpy arrays. `Logprobs` documents
        their shapes.

        Raises:
            TidewireError: The same errors as those of `result`. An error is also raised if no tokens were requested when
                the job was submitted, because the job's value then contains none.
            ImportError: numpy is not installed.
        """
        await self._reader.wait(check=self._reader.check_items)
        return self._reader.logprobs_outcome()

    async def result(self, *, timeout: float | None = None) -> T:
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
        await self._reader.wait(timeout, check=self._reader.check_items)
        return self._reader.outcome()

    async def cancel(self) -> JobStatus:
        """Cancel the job on the server and return its status. If the job has already ended, it does not change."""
        return await self._reader.cancel(b"{}")
