"""Types for batched calls: queued items, rows of a call, and the interface with which a call reads and changes jobs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.invocation import YieldedSteps
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.endpoints.yieldables import Unset
from tidewire_server.errors import WorkerLostError

Outcome = JsonValue | Unset | BaseException
"""Outcome of a row: the row's final value, or `UNSET` if the row keeps its current value, or the exception that makes
the row fail.
"""


class BatchedJob(Protocol):
    """Interface through which a batched call uses a job. The argument `index` is the index of an item within the
    job.
    """

    @property
    def id(self) -> str:
        """Id of the job, for log messages."""

    def waits(self, index: int) -> bool:
        """Whether the item is still waiting for a batch. The result is False if the item was cancelled or its deadline
        has passed.
        """

    def input(self, index: int) -> BaseModel:
        """Return the item's validated input."""

    def writer(self, index: int) -> ItemWriter:
        """Return the writer of the item's value."""

    def begin_rows(self, rows: Iterable[tuple[int, dict[str, int], Callable[[], None]]]) -> None:
        """Mark items as running, in one event.

        Args:
            rows: A tuple for each item: its index, the member `batch` of its state, and a function to call if the item
                is cancelled. The member `batch` contains the size of the batch, the row number and the waiting time.
        """

    @property
    def commits_starts(self) -> bool:
        """Whether the start of an item must be committed before the function is called for it."""

    async def commit(self) -> None:
        """Write the changes of the job to the log, such as the start of an item."""

    async def lose_worker(self, indexes: Sequence[int], error: WorkerLostError) -> None:
        """Handle the loss of the worker that ran these items. Depending on the endpoint's `on_restart`, either fail the items,
        or begin a new attempt of the job.
        """

    async def settle(self, index: int, outcome: Outcome, *, logged: bool) -> None:
        """End the item with its outcome.

        Args:
            index: Index of the item.
            outcome: Value or error of the item.
            logged: Whether the error was already logged for another row of the batch. If so, it is not logged again.
        """


@dataclass(frozen=True, slots=True)
class QueuedItem:
    """An item that was taken from the queue to run in a batch."""

    job: BatchedJob
    index: int
    cost: float
    waited: float
    """Time that the item spent in the queue, in seconds."""


@dataclass(slots=True, eq=False)
class BatchRow:
    """A row of a batch: one of the items that a batched call processes."""

    job: BatchedJob
    index: int
    cost: float
    value: BaseModel
    writer: ItemWriter
    place: dict[str, int]
    """Value of the member `batch` in the item's state: the size of the batch, the number of the row, and the waiting
    time.
    """
    steps: YieldedSteps
    """Applies the objects that a generator yields for this row."""
    over: bool = False
    """Whether the row has ended or was cancelled. If so, later results for the row are dropped."""
