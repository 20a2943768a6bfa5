"""The items of one batched call."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.yieldables import Unset
from tidewire_server.log_writer.item_writer import ItemWriter

Outcome = JsonValue | Unset | BaseException
"""How a row ends: with a value, with the value that it has, or by an error."""


class BatchedJob(Protocol):
    """What a batched call needs of the job of one of its rows; `index` is the item's number within the job."""

    @property
    def id(self) -> str:
        """Its id, for the log."""

    def waits(self, index: int) -> bool:
        """Whether the item still waits for a batch: it was neither cancelled nor has it expired."""

    def input(self, index: int) -> BaseModel:
        """The item's validated input."""

    def writer(self, index: int) -> ItemWriter:
        """The writer of the item's value."""

    def begin(self, index: int, *, batch: dict[str, int], leave: Callable[[], None]) -> None:
        """Mark the item as running; `leave` is called when it is cancelled."""

    async def settle(self, index: int, outcome: Outcome, *, told: bool) -> None:
        """End the item."""


@dataclass(frozen=True, slots=True)
class QueuedItem:
    """An item that was taken out of the queue for a batch."""

    job: BatchedJob
    index: int
    cost: float
    waited: float
    """Seconds since it arrived."""


@dataclass(slots=True, eq=False)
class BatchRow:
    """One item in the call."""

    job: BatchedJob
    index: int
    cost: float
    value: BaseModel
    writer: ItemWriter
    told: dict[str, int]
    """What the item's state says of the batch."""
    first: bool = True
    """No value has come for it yet."""
    over: bool = False
    """It has ended, or nobody waits for it: what comes for it is dropped."""
