"""`AsyncJob`: a job with one input, to iterate over while it runs or to wait for."""

from typing import Generic, TypeVar

from tidewire.jobs.job_base import JobBase
from tidewire.jobs.logprob_arrays import Logprobs
from tidewire.jobs.single_job_reader import SingleJobReader
from tidewire.jobs.tokens import Token
from tidewire.jobs.update_iterator import UpdateIterator
from tidewire.protocol.messages import JobStatus
from tidewire.types import TextDelta, Update

T = TypeVar("T")


class AsyncJob(JobBase[SingleJobReader[T]], Generic[T]):
    """A job with one input. It runs on the server whether or not anyone reads its stream.

    Iterating yields an `Update` for every change of the job's value, exactly once, across reconnects. Leaving the loop
    early closes the connection; a later loop continues after the last update that was delivered. If the job failed or
    was cancelled, the loop raises JobFailedError or JobCancelledError after the last update, so a partial value cannot
    be mistaken for a complete one.

    Only one loop may read a job object at a time; a second reader needs its own `client.job(job.id)`. A `result()` may
    wait during a loop.

    Example:
        job = await client.submit("generate", prompt="def fib(", max_tokens=64)
        async for update in job:
            print(update.text, end="", flush=True)
    """

    def __aiter__(self) -> UpdateIterator[Update[T]]:
        return self._reader.updates()

    def updates(self) -> UpdateIterator[Update[T]]:
        """Return the iterator that `async for update in job` uses, for deterministic cleanup with `async with`.

        Example:
            async with job.updates() as updates:
                async for update in updates:
                    if update.text.endswith("}"):
                        break
        """
        return self._reader.updates()

    def iter_text(self) -> UpdateIterator[str]:
        """Iterate over the job's text in pieces that are final, so they can be printed or appended to a file.

        The text is the value's first text column. If the endpoint has no rollback, each piece is yielded at once.
        Otherwise text is held back until the server marks it as stable, and the remainder is yielded at the job's end.
        A checkpoint advances with the yielded text. A job without text yields nothing; iterate over the job instead.

        Raises:
            VoidTextError: During iteration: the job restarted and retracted text that was already yielded.
            JobFailedError: After the last piece: the job failed.
            JobCancelledError: After the last piece: the job was cancelled.

        Example:
            async for piece in job.iter_text():
                print(piece, end="", flush=True)
        """
        return self._reader.iter_text()

    def iter_text_deltas(self) -> UpdateIterator[TextDelta]:
        """Iterate over the changes of the job's text as they arrive: code points deleted at its end, and text appended.

        The text is the value's first text column. Unlike `iter_text`, nothing is held back.
        """
        return self._reader.iter_text_deltas()

    def tokens(self) -> UpdateIterator[Token]:
        """Iterate over the generated tokens, each once, with the requested log-probabilities, ranks and candidates.

        The submit must request token columns, for example with `logprobs=True`. A token is yielded once it is final: at
        once if the endpoint has no rollback, otherwise when text after it is stable. The text of a token comes from the
        job's `token_text` column if it has one, otherwise from the endpoint's vocabulary, which the client requests once
        and caches. A checkpoint advances with the yielded tokens.

        Raises:
            VoidTextError: During iteration: the job restarted and retracted tokens that were already yielded.
            TidewireError: During iteration: the job has no token columns, because its submit requested none.

        Example:
            job = await client.submit("generate", prompt="def fib(", max_tokens=64, logprobs=True)
            async for token in job.tokens():
                print(token.text, token.logprob)
        """
        return self._reader.tokens()

    async def logprobs(self) -> Logprobs:
        """Wait for the job's end and return its token columns as numpy arrays. `Logprobs` documents their shapes.

        Raises:
            TidewireError: An error of `result`, or the job has no token columns, because its submit requested none.
            ImportError: numpy is not installed.
        """
        await self._reader.wait()
        return self._reader.logprobs_outcome()

    async def result(self, *, timeout: float | None = None) -> T:
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
        await self._reader.wait(timeout)
        return self._reader.outcome()

    async def cancel(self) -> JobStatus:
        """Cancel the job on the server and return its status. Does not change a job that has ended."""
        return await self._reader.cancel(b"{}")
