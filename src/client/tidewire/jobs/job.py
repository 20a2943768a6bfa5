"""`AsyncJob`: one input's job, read while it grows or waited for."""

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
    """A job on a server: it runs there whether anybody reads it or not.

    Looping over it yields an `Update` for every change of its value, each once, whatever connections break meanwhile. A
    loop that is left early closes the connection, and the next one continues where it stopped. If the job failed or was
    cancelled, the loop raises that at its end, so that half a text is not taken for a whole one.

    One loop at a time: another reader takes a job object of its own, `client.job(job.id)`. A `result()` may wait
    meanwhile.
    """

    def __aiter__(self) -> UpdateIterator[Update[T]]:
        return self._reader.updates()

    def updates(self) -> UpdateIterator[Update[T]]:
        """The iterator that a loop over the job uses. `async with` closes it in good order when the loop is left early."""
        return self._reader.updates()

    def iter_text(self) -> UpdateIterator[str]:
        """The text of the value's first text column, as far as it can no longer be retracted.

        Where the endpoint has no rollback, each piece comes at once. Elsewhere the text up to an event comes when the
        server calls all of it stable, and the rest at the end. A checkpoint moves with the text. A value without a text
        yields nothing: loop over the job itself.

        Raises:
            VoidTextError: In the loop: the job started over, and text that was delivered is retracted.
        """
        return self._reader.iter_text()

    def iter_text_deltas(self) -> UpdateIterator[TextDelta]:
        """How the text of the value's first text column changes, at once: what is retracted, and what is added."""
        return self._reader.iter_text_deltas()

    def tokens(self) -> UpdateIterator[Token]:
        """The tokens of a generation as they come, each once, with what was requested: log-probability, rank,
        candidates.

        A token comes when it can no longer be retracted: at once where the endpoint has no rollback, elsewhere when
        text after it is stable. Texts are those of the job's `token_text`, else of the endpoint's vocabulary, which is
        requested once. A checkpoint moves with the tokens.

        Raises:
            VoidTextError: In the loop: the job started over, and tokens that were delivered are retracted.
            TidewireError: In the loop: the job has no columns of tokens, since its submit asked for none.
        """
        return self._reader.tokens()

    async def logprobs(self) -> Logprobs:
        """Wait for the job's end and return the columns of its tokens as numpy arrays; see `Logprobs` for their shapes.

        Raises:
            TidewireError: As `result`; or the job has no columns of tokens.
            ImportError: numpy is not installed.
        """
        await self._reader.wait()
        return self._reader.logprobs_outcome()

    async def result(self, *, timeout: float | None = None) -> T:
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
        await self._reader.wait(timeout)
        return self._reader.outcome()

    async def cancel(self) -> JobStatus:
        """Ask the server to cancel the job, and return its status then. One that has ended stays as it is."""
        return await self._reader.cancel(b"{}")
