"""Holds back streamed text until the text is final, that is until the server can no longer retract it.

If the endpoint cannot roll back text, all text is final at once. Otherwise the member `stable` of an item says how many
code points at the beginning of the text the server will not retract. The remaining text is final when the job
has ended. A restart of the job begins a new epoch, in which even stable text may be retracted. An iterator cannot
withdraw text that it has already yielded, so it raises VoidTextError in this case.

The text of an update is released as a whole. The yielded text therefore always equals the job's text after some event,
and a checkpoint can contain the id of this event. When more than `MAX_HELD` updates are held back, adjacent updates are
merged to limit the memory.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidewire.errors import VoidTextError, Where
from tidewire.types import ItemChange

_VALUE = "/items/0/value"

MAX_HELD: Final = 1024
"""Maximum number of updates that are held back. If there are more, adjacent updates are merged."""


class _Held(NamedTuple):
    end: int
    """Length of the item's whole text after this update, in code points."""
    update: ItemChange[Any]


class FinalTextReader:
    """Projection for `iter_text`. Converts a job's updates to pieces of text, and holds back the end of the text while
    the server may still retract it.

    Args:
        rollback: Coroutine function that returns whether the endpoint has the rollback capability.
        delivered: Length of the text that was already delivered to the caller, in code points.
        column: Function that returns the JSON Pointer of the job's text, or None while the job has no text.
        job_id: Id of the job, for error messages.
        wait_for_next: Whether to hold back an update until text after this update is stable. The iterator over tokens
            needs this, because a rollback may still retract the tokens that arrived with the last stable code point.

    Attributes:
        final: The last update that was released completely.
    """

    silent = True

    def __init__(
        self,
        rollback: Callable[[], Awaitable[bool]],
        *,
        delivered: int,
        column: Callable[[], str | None],
        job_id: str | None,
        wait_for_next: bool = False,
    ) -> None:
        self._fetch_rollback = rollback
        self._rollback = True
        self._delivered = delivered
        self._column = column
        self._job_id = job_id
        self._wait_for_next = wait_for_next
        self._length = delivered
        self._held: deque[_Held] = deque()
        self.final: ItemChange[Any] | None = None
        self._released: list[ItemChange[Any]] = []

    def settled(self, _update: ItemChange[Any] | None) -> Sequence[ItemChange[Any]]:
        released, self._released = self._released, []
        return released

    async def prepare(self) -> None:
        self._rollback = await self._fetch_rollback()

    def project(self, update: ItemChange[Any]) -> Iterable[str]:
        kept = self._length - update.deleted
        if kept < self._delivered:
            self._held.append(_Held(self._length, update))
            raise self.retraction_error(f"{self._delivered - kept} code points of text", update)
        self._length = kept + len(update.text)
        self._held.append(_Held(self._length, self._merge_deletion(update, kept)))
        if len(self._held) > MAX_HELD:
            self._compact()
        return self._release(
            max(self._delivered, self._stable(update) - self._wait_for_next)
            if self._rollback
            else self._length
        )

    def retraction_error(self, what: str, update: ItemChange[Any]) -> VoidTextError:
        """Create the error for the case that a job has retracted text or tokens that were already delivered."""
        text = f"the job restarted and retracted {what} that were already delivered as final"
        return VoidTextError(text, where=Where(job_id=self._job_id, last_event_id=str(update.cursor)))

    def _merge_deletion(self, update: ItemChange[Any], kept: int) -> ItemChange[Any]:
        """Merge an update that deletes text with the updates that are held back and contain this text.

        Args:
            update: The update.
            kept: Length of the text that remains after the deletion, in code points.
        """
        text, first_seq = update.text, update.first_seq
        while self._held and self._held[-1].end > kept:
            end, cut = self._held.pop()
            text = cut.text[: max(0, len(cut.text) - (end - kept))] + text
            first_seq = min(first_seq, cut.first_seq)
        if not update.deleted:
            return update
        whole = update.with_text(text)
        whole.first_seq = first_seq
        return whole

    def _compact(self) -> None:
        """Merge adjacent updates that are held back. Few updates remain, and each piece of text is copied only a few
        times in total.
        """
        size_limit = (self._length - self._delivered) // (MAX_HELD // 4) + 1
        gathered: deque[_Held] = deque()
        run: list[_Held] = []
        size = 0
        for held in self._held:
            size += len(held.update.text)
            if run and size > size_limit:
                gathered.append(_merge(run))
                run, size = [], len(held.update.text)
            run.append(held)
        self._held = gathered
        self._held.append(_merge(run))

    def finish(self) -> Iterable[str]:
        return self._release(self._length)

    def undelivered(self) -> Iterable[ItemChange[Any]]:
        return [held.update for held in self._held]

    def _release(self, final: int) -> Iterable[str]:
        texts = []
        while self._held and self._held[0].end <= final:
            self._delivered, update = self._held.popleft()
            self.final = update
            self._released.append(update)
            texts.append(update.text)
        text = "".join(texts)
        return (text,) if text else ()

    def _stable(self, update: ItemChange[Any]) -> int:
        column = self._column()
        promised = update.member("stable")
        if column is None or not isinstance(promised, dict):
            return 0
        length = promised.get(column.removeprefix(_VALUE), 0)
        return length if isinstance(length, int) else 0


def _merge(run: Sequence[_Held]) -> _Held:
    if len(run) == 1:
        return run[0]
    end, last = run[-1]
    one = last.with_text("".join(held.update.text for held in run))
    one.first_seq = run[0].update.first_seq
    one.visible = any(held.update.visible for held in run)
    return _Held(end, one)
