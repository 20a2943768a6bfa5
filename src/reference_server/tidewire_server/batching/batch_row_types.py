"""Types for the rows of a batched call: queued items, rows, and the interface of a job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.yieldables import Unset
from tidewire_server.log_writer.item_writer import ItemWriter

Outcome = JsonValue | Unset | BaseException
"""Outcome of a row: its final value, `UNSET` to keep its current value, or the exception that failed it."""


class BatchedJob(Protocol):
    """Interface of a job, as a batched call uses it. `index` is the index of an item within the job."""

    @property
    def id(self) -> str:
        """Id of the job, for log messages."""

    def waits(self, index: int) -> bool:
        """Whether the item still waits for a batch. False if it was cancelled or has expired."""

    def input(self, index: int) -> BaseModel:
        """Return the item's validated input."""

    def writer(self, index: int) -> ItemWriter:
        """Return the writer of the item's value."""

    def begin(self, index: int, *, batch: dict[str, int], leave: Callable[[], None]) -> None:
        """Mark the item as running. `batch` is added to its state. `leave` is called if the item is cancelled."""

    async def settle(self, index: int, outcome: Outcome, *, told: bool) -> None:
        """End the item. `told` says whether the error has already been logged for another row of the batch."""


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
    """One item of a batched call."""

    job: BatchedJob
    index: int
    cost: float
    value: BaseModel
    writer: ItemWriter
    place: dict[str, int]
    """The member `batch` of the item's state: the size of the batch, the row number and the waiting time."""
    first: bool = True
    """Whether the function has not produced a value for this row yet."""
    over: bool = False
    """Whether the row has ended or was cancelled. Further results for the row are dropped."""
