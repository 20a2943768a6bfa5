"""Yields streamed text as it arrives, and holds text back only where the server announces which text is stable.

If an item has the member `stable`, it says how many code points at the beginning of the text the server will not
retract. The remaining text is held back until it is stable or the job has ended. If an item does not have this
member, its text is yielded as it arrives. In both cases the server can retract text that was already yielded: by a
rollback, or because the job restarts. An iterator cannot take back text that it has yielded, so it raises
VoidTextError.

Only whole updates are released. The yielded text therefore always equals the job's text after some event, and a
checkpoint can contain the id of that event. When more than `MAX_HELD` updates are held back, adjacent updates are
merged to limit the memory.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from tidewire.errors import NoTextError, VoidTextError, Where
from tidewire.jobs.update_iterator import Projection
from tidewire.protocol.document.apply_ops import TEXTS
from tidewire.protocol.document.json_pointer import parse
from tidewire.updates import ItemChange, Position

_VALUE = "/items/0/value"

MAX_HELD: Final = 1024
"""Maximum number of updates that are held back. If there are more, adjacent updates are merged."""


class _Held(NamedTuple):
    end: int
    """Length of the item's whole text after this update, in code points."""
    update: ItemChange[Any]


class StreamedText(Projection[str]):
    """Projection for `iter_text`. Converts a job's updates to pieces of text. If the item has the member `stable`, text
    that is not stable yet is held back.

    Args:
        delivered: Length of the text that was already delivered to the caller, in code points.
        column: Function that returns the JSON Pointer of the job's text, or None while the job has no text.
        job_id: Id of the job, for error messages.
        latest: Function that returns the last known position of the job, or None.
    """

    def __init__(
        self,
        *,
        delivered: int,
        column: Callable[[], str | None],
        job_id: str,
        latest: Callable[[], Position | None],
    ) -> None:
        self._delivered = delivered
        self._column = column
        self._job_id = job_id
        self._latest = latest
        self._checked: tuple[str, ...] | None = None
        """The columns of the last event in which `_check_text` found a text."""
        self._last: ItemChange[Any] | None = None
        """The last update."""
        self._length = delivered
        self._held: deque[_Held] = deque()
        self._released: list[ItemChange[Any]] = []

    def settled(self, _update: ItemChange[Any] | None) -> Sequence[ItemChange[Any]]:
        released, self._released = self._released, []
        return released

    async def prepare(self) -> None:
        position = self._latest()
        if position is not None:
            self._check_text(position)

    def project(self, update: ItemChange[Any]) -> Iterable[str]:
        self._last = update
        if update.position.columns != self._checked:
            self._check_text(update.position)
        kept = self._length - update.deleted
        if kept < self._delivered:
            self._held.append(_Held(self._length, update))
            raise self._retraction_error(self._delivered - kept, update)
        self._length = kept + len(update.text)
        self._held.append(_Held(self._length, self._merge_deletion(update, kept)))
        if len(self._held) > MAX_HELD:
            self._compact()
        stable = stable_length(update, self._column())
        return self._release(self._length if stable is None else stable)

    def _retraction_error(self, count: int, update: ItemChange[Any]) -> VoidTextError:
        what = f"the server retracted {count} code points of text that this iterator had already yielded, {update.cause}"
        return VoidTextError(what, where=Where(job_id=self._job_id, last_event_id=str(update.cursor)))

    def _merge_deletion(self, update: ItemChange[Any], kept: int) -> ItemChange[Any]:
        """Merge an update that deletes text with the held-back updates that contain the deleted text.

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
        """Merge adjacent updates that are held back, so that few updates remain. Each piece of text is copied only a
        few times in total.
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

    def _check_text(self, position: Position) -> None:
        """Raise an error if no column of the value is a text or can become a text."""
        if any(_texts(position)):
            self._checked = position.columns
        elif not any(_texts(position, or_null=True)):
            raise self._no_text()

    def _no_text(self) -> NoTextError:
        return NoTextError(
            "the server streams no text in the value of this job", where=Where(job_id=self._job_id)
        )

    def finish(self) -> Iterable[str]:
        texts = self._release(self._length)
        last = self._last
        succeeded = last is not None and last.member("status") == "succeeded"
        if last is not None and succeeded and not any(_texts(last.position)):
            raise self._no_text()
        return texts

    def undelivered(self) -> Iterable[ItemChange[Any]]:
        return [held.update for held in self._held]

    def _release(self, final: int) -> Iterable[str]:
        texts = []
        while self._held and self._held[0].end <= final:
            self._delivered, update = self._held.popleft()
            self._released.append(update)
            texts.append(update.text)
        text = "".join(texts)
        return (text,) if text else ()


def stable_length(change: ItemChange[Any], column: str | None) -> int | None:
    """Return the length of the stable prefix of an item's text, or None if the item has no member `stable`.

    Args:
        change: The item, after an event.
        column: JSON Pointer of the item's text; None if the item has no text.
    """
    promised = change.member("stable")
    if not isinstance(promised, dict):
        return None
    if column is None:
        return 0
    length = promised.get(column.removeprefix(_VALUE), 0)
    return length if isinstance(length, int) else 0


def _texts(position: Position, *, or_null: bool = False) -> Iterable[bool]:
    """For each column in the item's value, return whether the column is a text. With `or_null`, a column that is null
    or missing also counts as a text.
    """
    for column in position.columns:
        if column == _VALUE or column.startswith(f"{_VALUE}/"):
            node = position.view.node(parse(column))
            yield type(node) in TEXTS or (or_null and node is None)


def _merge(run: Sequence[_Held]) -> _Held:
    if len(run) == 1:
        return run[0]
    end, last = run[-1]
    one = last.with_text("".join(held.update.text for held in run))
    one.first_seq = run[0].update.first_seq
    one.visible = any(held.update.visible for held in run)
    return _Held(end, one)
