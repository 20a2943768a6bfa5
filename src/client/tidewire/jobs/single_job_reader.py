"""`SingleJobReader`: the reader of a job of one input."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tidewire.errors import JobCancelledError, JobFailedError, TidewireError
from tidewire.jobs.final_text import FinalTextReader
from tidewire.jobs.job_reader import JobReader
from tidewire.jobs.logprob_arrays import Logprobs, logprobs_of
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.jobs.tokens import Token, TokenRows, Vocabularies, Vocabulary, texts_told
from tidewire.jobs.update_iterator import TextDeltas, UpdateIterator, WholeUpdates
from tidewire.protocol.follower_outcomes import Applied
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import EndpointDescription
from tidewire.types import ItemChange, Position, ResultType, TextDelta, Update

if TYPE_CHECKING:
    from tidewire.http.api_session import ApiSession
    from tidewire.options import Options

T = TypeVar("T")


class SingleJobReader(JobReader, Generic[T]):
    """Reads the one item of a job: its updates, its text, its tokens, its result."""

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

    def updates(self) -> UpdateIterator[Update[T]]:
        return UpdateIterator(self, WholeUpdates[Update[T]](Update))

    def iter_text(self) -> UpdateIterator[str]:
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

    def iter_text_deltas(self) -> UpdateIterator[TextDelta]:
        return UpdateIterator(self, TextDeltas())

    def tokens(self) -> UpdateIterator[Token]:
        taken = self.taken
        handed = 0 if taken is None else taken.view.length("/items/0/value/token_ids")
        text = self._final_text(followed=True)
        return UpdateIterator(
            self, TokenRows(text, handed=handed, vocabulary=self._vocabulary, where=self.where)
        )

    def logprobs_outcome(self) -> Logprobs:
        """The arrays of a job whose end was received, or the error that `logprobs` raises for it."""
        return logprobs_of(self._final_item().get("value"), self.where)

    def outcome(self) -> T:
        """The value of a job whose end was received, or the error that `result` raises for it."""
        return self._shape.validate(self._final_item().get("value"), where=self.where)

    def _final_item(self) -> Any:
        self.raise_outcome()
        items = self._items()
        if len(items) > 1:
            advice = f"Read them with client.batch_job({self.id!r})."
            raise TidewireError(f"this job has {len(items)} items", where=self.where, advice=advice)
        return items[0]

    def raise_outcome(self) -> None:
        done = self._stream.follower.done
        if done is None:
            raise TidewireError(
                "the job's end was not received yet", where=self.where, advice="Wait for result()."
            )
        if done.status in {"succeeded", "partially_failed"}:
            return
        item = self._items()[0]
        problem = done.error
        if problem is None and item.get("error") is not None:
            problem = Problem.model_validate(item["error"])
        error: JobFailedError | JobCancelledError
        if done.status == "cancelled":
            error = JobCancelledError("the job was cancelled", where=self.where, problem=problem)
        else:
            why = "" if problem is None else f": {problem.detail or problem.title} [{problem.code}]"
            error = JobFailedError(f"the job failed{why}", where=self.where, problem=problem)
        error.value = item.get("value")
        raise error

    def _updates(self, advance: Applied) -> Iterable[ItemChange[T]]:
        place = self._place(advance)
        deleted, text = self._texts.change(0, place, advance.texts)
        last = advance.done is not None and not self._handed_any and advance.done.status == "succeeded"
        change = ItemChange(
            place,
            self._shape,
            advance.first_seq,
            deleted=deleted,
            text=text,
            visible=advance.visible or last,
        )
        return (change,)

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
