"""`BatchJobReader`, which reads the event stream of a job with many inputs."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from tidewire.checkpoint import UndeliveredUpdate
from tidewire.errors import ItemFailedError, advice_for
from tidewire.following.follower_outcomes import Applied
from tidewire.jobs.job_reader import JobReader, QueueWarnings
from tidewire.jobs.reconnecting_stream import JobStream
from tidewire.jobs.update_iterator import Projection, UpdateIterator, WholeUpdates
from tidewire.protocol.document.json_values import same
from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED, JobStatus
from tidewire.protocol.problems import Problem
from tidewire.protocol.strict_json import JsonValue, dumps
from tidewire.result_type import ResultType
from tidewire.updates import UNKNOWN, ItemChange, ItemUpdate, Position

T = TypeVar("T")

_ITEMS: Final = "/items/"


class BatchJobReader(JobReader, Generic[T]):
    """Reads the updates and results of the items of a batch job."""

    def __init__(
        self,
        stream: JobStream,
        delivered: Position | None,
        shape: ResultType[T],
        *,
        queue_warnings: QueueWarnings,
        initial: Applied | None = None,
        undelivered: Sequence[UndeliveredUpdate] = (),
    ) -> None:
        super().__init__(stream, delivered, queue_warnings=queue_warnings)
        self._shape = shape
        self._ended_before: frozenset[int] = frozenset()
        """Indices of the items that had already ended at the checkpoint. Empty if the job was not created from a
        checkpoint."""
        if delivered is not None:
            self._ended_before = _ended_in(delivered.view) - {update.index for update in undelivered}
            self._restore(delivered, undelivered)
        if initial is not None:
            self._receive(initial)

    def _restore(self, delivered: Position, undelivered: Sequence[UndeliveredUpdate]) -> None:
        """Deliver first the updates that were received, but not delivered before the checkpoint was taken."""
        changes = [
            ItemChange(
                delivered,
                self._shape,
                update.first_seq,
                deleted=update.deleted,
                text=update.text,
                index=update.index,
                visible=update.visible,
                settles=update is undelivered[-1],
                snapshot=UNKNOWN,
            )
            for update in undelivered
        ]
        self.commit(delivered, changes)
        self.requeue(changes)

    def updates(self) -> UpdateIterator[ItemUpdate[T]]:
        return UpdateIterator(self, WholeUpdates[ItemUpdate[T]](ItemUpdate))

    def as_completed(self) -> UpdateIterator[tuple[int, T | ItemFailedError]]:
        return UpdateIterator(self, _EndedItems(self._item_result, self._final_items, self._ended_before))

    def outcome(self, *, return_exceptions: bool) -> list[T] | list[T | ItemFailedError]:
        """Return the validated values of all items of a job that has ended. If an item failed and `return_exceptions`
        is False, raise the error of the first failed item.
        """
        results = [self._item_result(index, item) for index, item in enumerate(self._items())]
        if not return_exceptions:
            for result in results:
                if isinstance(result, ItemFailedError):
                    raise result
        return results

    async def cancel_items(self, items: Iterable[int] | None) -> JobStatus:
        if items is None:
            return await self.cancel(b"{}")
        if isinstance(items, str | bytes) or not isinstance(items, Iterable):
            raise TypeError(f"items must be indices such as [1, 3], not {items!r}")
        return await self.cancel(dumps({"items": [*items]}).encode())

    def raise_outcome(self) -> None:
        """Do nothing, because a loop over a batch job does not raise an error when the job or an item has failed."""

    def _receive(self, applied: Applied, *, merge: bool = False) -> None:
        position = Position(applied.view, applied.columns, applied.cursor)
        diff = applied.diff
        changed = self._changed(position) if diff is None else sorted(_items_in_diff(diff, position))
        texts = {each.pointer: each for each in applied.texts}
        for index in changed:
            deleted, text = self._texts.change(index, position, texts)
            change = ItemChange(
                position,
                self._shape,
                applied.first_seq,
                deleted=deleted,
                text=text,
                index=index,
                visible=applied.visible,
                settles=index == changed[-1],
                snapshot=applied.snapshot,
            )
            if not merge:
                self._ready.append(change)
            elif applied.visible:
                self._merge(change)
        self._latest = position

    def _changed(self, position: Position) -> list[int]:
        """Return the indices of the items that an event without a diff has changed. The state after the event is
        compared with the previous state.
        """
        now = position.view
        count = now.length("/items")
        if self._latest is None:
            return [*range(count)]
        before = self._latest.view
        if before.node(("items",)) is now.node(("items",)):
            return []  # a `done` event, after which all items are still the same
        known = before.length("/items")
        return [
            index
            for index, item in enumerate(now.elements("/items", 0))
            if index >= known or not same(item, before.value(f"/items/{index}"))
        ]

    def _final_items(self, delivered: Container[int]) -> Iterator[tuple[int, Any]]:
        """Return the final items of a job that has ended, except those that were already delivered."""
        document = self._stream.follower.document
        if document is not None:
            view = document.view()
            for index in range(view.length("/items")):
                if index not in delivered:
                    yield index, view.value(f"/items/{index}")

    def _item_result(self, index: int, item: Any) -> T | ItemFailedError:
        status = item.get("status")
        if status == "succeeded":
            return self._shape.validate(item.get("value"), where=self.where)
        problem = None if item.get("error") is None else Problem.model_validate(item["error"])
        what = f"item {index} was cancelled" if status == "cancelled" else f"item {index} failed"
        if problem is not None:
            what += f": {problem.detail or problem.title} [{problem.code}]"
        failed = ItemFailedError(what, where=self.where, problem=problem, advice=advice_for(problem))
        failed.index, failed.status, failed.value = index, status, item.get("value")
        return failed


class _EndedItems(Projection[tuple[int, T | ItemFailedError]]):
    """Projection for `as_completed`. Converts a job's updates to the items that have ended, and yields each item
    once.
    """

    def __init__(
        self,
        result: Callable[[int, Any], T | ItemFailedError],
        final_items: Callable[[Container[int]], Iterable[tuple[int, Any]]],
        ended_before: frozenset[int],
    ) -> None:
        self._result = result
        self._final_items = final_items
        self._started = False
        self._delivered: set[int] = {*ended_before}

    def project(self, update: ItemChange[T]) -> Iterator[tuple[int, T | ItemFailedError]]:
        view = update.position.view
        # Yield the items that had already ended, but only with the last update of an event. A checkpoint between two
        # updates of the event would otherwise repeat items whose own update is not delivered yet.
        if update.settles and not self._started:
            self._started = True
            for index in range(view.length("/items")):
                if index != update.index:
                    yield from self._ended(index, view)
        yield from self._ended(update.index, view)

    def finish(self) -> Iterator[tuple[int, T | ItemFailedError]]:
        for index, item in self._final_items(self._delivered):
            self._delivered.add(index)
            yield index, self._result(index, item)

    def _ended(self, index: int, view: View) -> Iterator[tuple[int, T | ItemFailedError]]:
        if index in self._delivered:
            return
        # Look at the status in the document before copying the item, because its value can be long.
        item = view.node(("items", str(index)))
        if type(item) is dict and item.get("status") in ENDED:
            self._delivered.add(index)
            yield index, self._result(index, view.value(f"/items/{index}"))


def _ended_in(view: View) -> frozenset[int]:
    """Return the indices of the items that have ended in a state of the job."""
    return frozenset(
        index for index in range(view.length("/items")) if view.value(f"/items/{index}/status") in ENDED
    )


def _items_in_diff(diff: JsonValue, position: Position) -> set[int]:
    """Return the indices of the items that a diff changes."""
    columns = position.columns
    if isinstance(diff, str):
        return _items_at(columns)
    ops: Any = diff["ops"] if isinstance(diff, dict) else diff
    others = [op for op in ops if op[0] != "r"]
    if any(op[1] in ("", "/items") for op in others):
        return {*range(position.view.length("/items"))}
    found = _items_at(op[1] for op in others)
    if len(others) < len(ops):
        found |= _items_at(columns)
    return found


def _items_at(pointers: Iterable[str]) -> set[int]:
    found = set()
    for pointer in pointers:
        if pointer.startswith(_ITEMS):
            index = pointer[len(_ITEMS) :].partition("/")[0]
            if index.isdigit():
                found.add(int(index))
    return found
