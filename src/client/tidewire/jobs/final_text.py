"""Text that can be written down as it comes: only what can no longer become void.

Where the endpoint has no rollback, text is final as it comes. Elsewhere the server promises by `stable` how many code
points at the start stay within an epoch; the rest is final when the job has ended. A restart may break either: then
nothing that was handed over can be taken back, and the reader is told by an error.

Text is released by whole updates: what was handed over is then the text at one event, from which another reader can
go on. Where much is held back, neighbours become one: nothing grows beside the text but its own pieces.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidewire.errors import VoidTextError, Where
from tidewire.types import ItemChange

_VALUE = "/items/0/value"

MAX_HELD: Final = 1024
"""Updates that are held back one by one; beyond that, neighbours become one."""


class _Held(NamedTuple):
    end: int
    """Code points of the whole text at this update."""
    update: ItemChange[Any]


class FinalTextReader:
    """Holds back the end of a job's text while it may become void.

    Args:
        rollback: Asks whether the endpoint may take text back.
        handed: Code points of the text that were handed over before.
        column: Tells the pointer of the text, once there is one.
        job_id: For errors.
        followed: Whether an update is final only when text after it is: what came with its last code point beside
            the text may become void though the text stays.

    Attributes:
        final: The last update of which nothing is held back.
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
        """The error for something that was handed over and did not stay."""
        text = f"{what} that were handed over as final have become void: the job started over"
        return VoidTextError(text, where=Where(job_id=self._job_id, last_event_id=str(update.cursor)))

    def _merge_deletion(self, update: ItemChange[Any], kept: int) -> ItemChange[Any]:
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

    def _compact(self) -> None:
        """Make neighbours one, so that few are left and each piece of text is copied a few times in all."""
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
