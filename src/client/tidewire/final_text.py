"""Text that can be written down as it comes: only what can no longer become void.

Where the endpoint has no rollback, text is final as it comes. Elsewhere the server promises by `stable` how many code
points at the start stay within an epoch; the rest is final when the job has ended. A restart may break either: then
nothing that was handed over can be taken back, and the reader is told by an error.

Text is released by whole updates: what was handed over is then the text at one event, from which another reader can
go on.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from tidewire.errors import VoidTextError, Where
from tidewire.types import Update

_VALUE = "/items/0/value"


class _Held(NamedTuple):
    end: int
    """Code points of the whole text at this update."""
    update: Update[Any]


class FinalText:
    """Holds back the end of a job's text while it may become void.

    Args:
        rollback: Asks whether the endpoint may take text back.
        handed: Code points of the text that were handed over before.
        column: Tells the pointer of the text, once there is one.
        job_id: For errors.
        followed: Whether an update is final only when text after it is: what came with its last code point beside
            the text may become void though the text stays.
    """

    silent = True

    def __init__(
        self,
        rollback: Callable[[], Awaitable[bool]],
        *,
        handed: int,
        column: Callable[[], str | None],
        job_id: str | None,
        followed: bool = False,
    ) -> None:
        self._ask = rollback
        self._rollback = True
        self._handed = handed
        self._column = column
        self._job_id = job_id
        self._followed = followed
        self._length = handed
        self._held: deque[_Held] = deque()
        self._settled: Update[Any] | None = None

    def settled(self, update: Update[Any] | None) -> Update[Any] | None:
        return self._settled

    async def prepare(self) -> None:
        self._rollback = await self._ask()

    def give(self, update: Update[Any]) -> Iterable[str]:
        kept = self._length - update.deleted
        if kept < self._handed:
            self._held.append(_Held(self._length, update))
            raise self.void(f"{self._handed - kept} code points of text", update)
        self._length = kept + len(update.text)
        self._held.append(_Held(self._length, self._cut(update, kept)))
        return self._release(
            max(self._handed, self._stable(update) - self._followed) if self._rollback else self._length
        )

    def void(self, what: str, update: Update[Any]) -> VoidTextError:
        """The error for something that was handed over and did not stay."""
        text = f"{what} that were handed over as final have become void: the job started over"
        return VoidTextError(text, where=Where(job_id=self._job_id, last_event_id=update.id))

    def _cut(self, update: Update[Any], kept: int) -> Update[Any]:
        """An update that deletes, as one with those that it deletes from."""
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

    def finish(self) -> Iterable[str]:
        return self._release(self._length)

    def rest(self) -> Iterable[Update[Any]]:
        return [held.update for held in self._held]

    def _release(self, final: int) -> Iterable[str]:
        texts = []
        while self._held and self._held[0].end <= final:
            self._handed, self._settled = self._held.popleft()
            texts.append(self._settled.text)
        text = "".join(texts)
        return (text,) if text else ()

    def _stable(self, update: Update[Any]) -> int:
        column = self._column()
        promised = update.member("stable")
        if column is None or not isinstance(promised, dict):
            return 0
        length = promised.get(column.removeprefix(_VALUE), 0)
        return length if isinstance(length, int) else 0
