"""`AsyncJob`: one input's job, read as it grows or waited for."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidewire.errors import JobCancelledError, JobFailedError, TidewireError
from tidewire.jobs.final_text import FinalTextReader
from tidewire.jobs.job_reader import JobReader
from tidewire.jobs.job_stream import JobStream
from tidewire.jobs.logprob_arrays import Logprobs, logprobs_of
from tidewire.jobs.tokens import Token, TokenRows, Vocabularies, Vocabulary, texts_told
from tidewire.jobs.update_iterator import TextDeltas, UpdateIterator, WholeUpdates
from tidewire.protocol.follower_outcomes import Applied
from tidewire.protocol.messages import JobStatus
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import EndpointDescription
from tidewire.types import Position, ResultType, TextDelta, Update

if TYPE_CHECKING:
    from tidewire.http.api_session import ApiSession
    from tidewire.options import Options

T = TypeVar("T")


class AsyncJob(JobReader[Update[T]], Generic[T]):
    """A job on a server: it runs there whether anybody reads it or not.

    Looping over it gives an `Update` for every change of its value, each once, whatever breaks between. A loop that
    is left early closes the connection, and the next one goes on where it stopped. A job that ended as failed or
    cancelled raises that at the end of the loop, so that half a text is not taken for a whole one.

    One loop at a time: another reader takes a job object of its own, `client.job(job.id)`. A `result()` may wait
    meanwhile.
    """

    def __init__(
        self,
        exchange: "ApiSession",
        options: "Options",
        stream: JobStream,
        *,
        cancel_url: str,
        taken: Position | None,
        begun: Applied | None,
        vocabularies: Vocabularies,
        endpoint: str | None,
        shape: ResultType[T],
    ) -> None:
        super().__init__(exchange, options, stream, cancel_url=cancel_url, taken=taken)
        self._shape = shape
        self._endpoint = endpoint
        self._vocabularies = vocabularies
        if begun is not None:
            self._receive(begun)

    def __aiter__(self) -> UpdateIterator[Update[T], Update[T]]:
        return self.updates()

    def updates(self) -> UpdateIterator[Update[T], Update[T]]:
        """What a loop over the job loops over. `async with` closes it in good order when it is left early."""
        return UpdateIterator(self, WholeUpdates[Update[T]]())

    def iter_text(self) -> UpdateIterator[Update[T], str]:
        """The text of the value's first text column, as far as it can no longer become void.

        Where the endpoint has no rollback, each piece comes at once. Elsewhere what came up to an event comes when the
        server calls all of it stable, and the rest at the end. A checkpoint moves with the text. A value that holds no
        text gives none: loop over the job itself.

        Raises:
            VoidTextError: On the way: the job started over, and text that was handed over is void.
        """
        return UpdateIterator(self, self._final_text())

    def _final_text(self, *, followed: bool = False) -> FinalTextReader:
        taken = self.taken
        column = None if taken is None else self._texts.column(0, taken)
        handed = "" if taken is None or column is None else taken.text(column)
        return FinalTextReader(
            self._has_rollback,
            handed=len(handed or ""),
            column=lambda: self._texts.known(0),
            job_id=self.id,
            followed=followed,
        )

    def iter_text_deltas(self) -> UpdateIterator[Update[T], TextDelta]:
        """How the text of the value's first text column changes, at once: what becomes void, and what comes."""
        return UpdateIterator(self, TextDeltas())

    def tokens(self) -> UpdateIterator[Update[T], Token]:
        """The tokens of a generation as they come, each once, with what was asked for: log-probability, rank,
        candidates.

        A token comes when it can no longer become void: at once where the endpoint has no rollback, elsewhere when
        text after it is stable. Texts are those of the job's `token_text`, else of the endpoint's vocabulary, which is
        asked for once. A checkpoint moves with the tokens.

        Raises:
            VoidTextError: On the way: the job started over, and tokens that were handed over are void.
            TidewireError: On the way: the job has no columns of tokens, since its submit asked for none.
        """
        taken = self.taken
        handed = 0 if taken is None else taken.view.length("/items/0/value/token_ids")
        text = self._final_text(followed=True)
        return UpdateIterator(
            self, TokenRows(text, handed=handed, vocabulary=self._vocabulary, where=self._where)
        )

    async def logprobs(self) -> Logprobs:
        """Wait for the job's end and return the columns of its tokens as numpy arrays; see `Logprobs` for their shapes.

        Raises:
            TidewireError: As `result`; or the job has no columns of tokens.
            ImportError: numpy is not installed.
        """
        await self.wait()
        return self.logprobs_outcome()

    def logprobs_outcome(self) -> Logprobs:
        """The arrays of a job whose end was received, or the error that `logprobs` raises for it."""
        return logprobs_of(self._final_item().get("value"), self._where)

    async def result(self) -> T:
        """Wait for the job's end and return its value, validated as what the job `returns`.

        It hands nothing over: a loop before, after or meanwhile gets every update.

        Raises:
            JobFailedError: The job failed.
            JobCancelledError: It was cancelled.
            InvalidValueError: The value is not of the type.
            TidewireError: The stream is over without the job's end.
        """
        await self.wait()
        return self.outcome()

    def outcome(self) -> T:
        """The value of a job whose end was received, or the error that `result` raises for it."""
        return self._shape.validate(self._final_item().get("value"), where=self._where)

    def _final_item(self) -> Any:
        self.raise_outcome()
        items = self._items()
        if len(items) > 1:
            advice = f"Read them with client.batch_job({self.id!r})."
            raise TidewireError(f"this job has {len(items)} items", where=self._where, advice=advice)
        return items[0]

    async def cancel(self) -> JobStatus:
        """Ask the server to cancel the job, and return its status then. One that has ended stays as it is."""
        return await self._cancel(b"{}")

    def raise_outcome(self) -> None:
        done = self._stream.follower.done
        if done is None:
            raise TidewireError(
                "the job's end was not received yet", where=self._where, advice="Wait for result()."
            )
        if done.status in {"succeeded", "partially_failed"}:
            return
        item = self._items()[0]
        problem = done.error
        if problem is None and item.get("error") is not None:
            problem = Problem.model_validate(item["error"])
        error: JobFailedError | JobCancelledError
        if done.status == "cancelled":
            error = JobCancelledError("the job was cancelled", where=self._where, problem=problem)
        else:
            why = "" if problem is None else f": {problem.detail or problem.title} [{problem.code}]"
            error = JobFailedError(f"the job failed{why}", where=self._where, problem=problem)
        error.value = item.get("value")
        raise error

    def _updates(self, advance: Applied) -> Iterable[Update[T]]:
        place = self._place(advance)
        deleted, text = self._texts.change(0, place, advance.texts)
        last = advance.done is not None and not self._handed_any and advance.done.status == "succeeded"
        update = Update(
            place,
            self._shape,
            advance.first_seq,
            deleted=deleted,
            text=text,
            visible=advance.visible or last,
        )
        return (update,)

    @property
    def _handed_any(self) -> bool:
        return self._shown

    async def _has_rollback(self) -> bool:
        return (await self._description()).capabilities.rollback

    async def _description(self) -> EndpointDescription:
        if self._endpoint is None:
            self._endpoint = (await self._stream.read_job()).endpoint
        return await self._exchange.describe(self._endpoint, self._options)

    async def _vocabulary(self) -> Vocabulary | None:
        if self._latest is not None and texts_told(self._latest.view):
            return None
        return await self._vocabularies.of(await self._description(), self._options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self._exchange.base}>"
