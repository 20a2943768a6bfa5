"""Text that can be written down as it comes: only what can no longer become void.

Where the endpoint has no rollback, text is final as it comes. Elsewhere the server promises by `stable` how many code
points at the start stay within an epoch; the rest is final when the job has ended. A restart may break either: then
nothing that was handed over can be taken back, and the reader is told by an error.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from tidewire.errors import VoidTextError, Where
from tidewire.types import Update

_VALUE = "/items/0/value"


class FinalText:
    """Holds back the end of a job's text while it may become void.

    Args:
        rollback: Asks whether the endpoint may take text back.
        handed: Code points of the text that were handed over before.
        column: Tells the pointer of the text, once there is one.
        job_id: For errors.
    """

    silent = True

    def __init__(
        self,
        rollback: Callable[[], Awaitable[bool]],
        *,
        handed: int,
        column: Callable[[], str | None],
        job_id: str | None,
    ) -> None:
        self._ask = rollback
        self._rollback = True
        self._handed = handed
        self._column = column
        self._job_id = job_id
        self._held = ""
        self._last: Update[Any] | None = None

    @property
    def settled(self) -> bool:
        return not self._held

    async def prepare(self) -> None:
        self._rollback = await self._ask()

    def give(self, update: Update[Any]) -> Iterable[str]:
        self._last = update
        deleted = update.deleted
        if deleted > len(self._held):
            void = deleted - len(self._held)
            what = f"{void} code points of text that were handed over as final have become void: the job started over"
            raise VoidTextError(what, where=Where(job_id=self._job_id, last_event_id=update.id))
        if deleted:
            self._held = self._held[:-deleted]
        self._held += update.text
        if not self._rollback:
            return self.finish()
        return self._release(max(0, self._stable(update) - self._handed))

    def finish(self) -> Iterable[str]:
        return self._release(len(self._held))

    def rest(self) -> Iterable[Update[Any]]:
        return () if self._last is None or not self._held else (self._last.with_text(self._held),)

    def _release(self, count: int) -> Iterable[str]:
        text, self._held = self._held[:count], self._held[count:]
        self._handed += len(text)
        return (text,) if text else ()

    def _stable(self, update: Update[Any]) -> int:
        column = self._column()
        promised = update.member("stable")
        if column is None or not isinstance(promised, dict):
            return 0
        length = promised.get(column.removeprefix(_VALUE), 0)
        return length if isinstance(length, int) else 0
