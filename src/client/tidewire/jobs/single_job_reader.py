"""`SingleJobReader`, which reads the event stream of a job with one input."""

from typing import Any, Generic, TypeVar

from tidewire.errors import JobCancelledError, JobFailedError, SeveralItemsError, TidewireError, advice_for
from tidewire.following.follower_outcomes import Applied
from tidewire.jobs.generated_tokens import Token, TokenRows, Vocabularies, Vocabulary, has_token_texts
from tidewire.jobs.job_reader import JobReader, QueueWarnings
from tidewire.jobs.logprob_arrays import Logprobs, logprobs_of
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.jobs.streamed_text import StreamedText
from tidewire.jobs.update_iterator import StateIterator, TextDeltas, UpdateIterator, WholeUpdates
from tidewire.protocol.problems import Problem
from tidewire.protocol.resources import EndpointDescription
from tidewire.result_type import ResultType
from tidewire.updates import ItemChange, Position, TextDelta, Update

T = TypeVar("T")


class SingleJobReader(JobReader, Generic[T]):
    """Reads the updates, text, tokens and result of a job with one input, and thus with one item."""

    def __init__(
        self,
        stream: JobStream,
        delivered: Position | None,
        shape: ResultType[T],
        *,
        queue_warnings: QueueWarnings,
        initial: Applied | None,
        vocabularies: Vocabularies,
        endpoint: str | None,
    ) -> None:
        super().__init__(stream, delivered, queue_warnings=queue_warnings)
        self._shape = shape
        self._endpoint = endpoint
        self._vocabularies = vocabularies
        self._has_updates = delivered is not None
        """Whether there was an update that changed the value. This update may still be waiting for delivery."""
        if initial is not None:
            self._receive(initial)

    def updates(self) -> UpdateIterator[Update[T]]:
        return UpdateIterator(self, WholeUpdates[Update[T]](Update))

    def iter_text(self) -> UpdateIterator[str]:
        delivered = self.delivered
        column = None if delivered is None else self._texts.column(0, delivered)
        text = "" if delivered is None or column is None else delivered.text(column)
        reader = StreamedText(
            delivered=len(text or ""),
            column=lambda: self._texts.columns.get(0),
            job_id=self.id,
            latest=lambda: self._latest,
        )
        return UpdateIterator(self, reader)

    def iter_text_deltas(self) -> UpdateIterator[TextDelta]:
        return UpdateIterator(self, TextDeltas())

    def tokens(self) -> StateIterator[Token]:
        rows = TokenRows(
            text=lambda position: self._texts.column(0, position),
            vocabulary=self._vocabulary,
            where=self.where,
        )
        return StateIterator(self, rows)

    async def token_rows(self) -> TokenRows:
        """Return the projection with which a notebook displays the tokens of a state."""
        rows = TokenRows(text=lambda _: None, vocabulary=self._vocabulary, where=self.where)
        await rows.prepare()
        return rows

    def logprobs_outcome(self) -> Logprobs:
        """Return arrays with the tokens and log-probabilities of a job that has ended. If the job failed or was
        cancelled, raise its error.
        """
        return logprobs_of(self._final_item().get("value"), self.where)

    def outcome(self) -> T:
        """Return the validated value of a job that has ended. If the job failed or was cancelled, raise its error."""
        return self._shape.validate(self._final_item().get("value"), where=self.where)

    def check_items(self) -> None:
        """Raise a SeveralItemsError if the job is known to have several items. The first item would otherwise be
        mistaken for the whole result.
        """
        if self.item_count > 1:
            raise SeveralItemsError(f"this job has {self.item_count} items, not one", where=self.where)

    def _final_item(self) -> Any:
        self.check_items()
        self.raise_outcome()
        return self._items()[0]

    def raise_outcome(self) -> None:
        done = self._stream.follower.done
        if done is None:
            raise TidewireError(
                "the client has not received the job's end yet", where=self.where, advice="Wait for result()."
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
            error = JobFailedError(
                f"the job failed{why}", where=self.where, problem=problem, advice=advice_for(problem)
            )
        error.value = item.get("value")
        raise error

    def _receive(self, applied: Applied, *, merge: bool = False) -> None:
        position = Position(applied.view, applied.columns, applied.cursor)
        texts, columns = applied.texts, applied.columns
        # Most jobs stream one text, which is their only column, and most events append to it.
        if len(texts) == 1 and columns == (texts[0].pointer,) and self._texts.columns.get(0) == columns[0]:
            deleted, text = texts[0].deleted, texts[0].text
        else:
            deleted, text = self._texts.change(0, position, {each.pointer: each for each in texts})
        if type(applied.diff) is not str:
            self._items_may_differ = True
        # If the job had no update before, its end counts as an update.
        done = applied.done
        visible = applied.visible or (
            done is not None and not self._has_updates and done.status == "succeeded"
        )
        if visible or not merge:
            self._has_updates = self._has_updates or visible
            change = ItemChange(
                position,
                self._shape,
                applied.first_seq,
                deleted=deleted,
                text=text,
                visible=visible,
                snapshot=applied.snapshot,
            )
            if merge:
                self._merge(change)
            else:
                self._ready.append(change)
        self._latest = position

    async def _description(self) -> EndpointDescription:
        if self._endpoint is None:
            self._endpoint = (await self._stream.read_job()).endpoint
        return await self._session.describe(self._endpoint, self._options)

    async def _vocabulary(self) -> Vocabulary | None:
        if self._latest is not None and has_token_texts(self._latest.view):
            return None
        return await self._vocabularies.get(await self._description(), self._options)
