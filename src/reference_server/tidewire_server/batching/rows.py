"""The items of one batched call."""

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, JsonValue

from tidewire_server.jobs.jobs import Job
from tidewire_server.log_writer.stream import Stream
from tidewire_server.unset import Unset

Outcome = JsonValue | Unset | BaseException
"""How a row ends: with a value, with the value that it has, or by an error."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """An item that was taken out of the queue for a batch."""

    job: Job
    index: int
    cost: float
    waited: float
    """Seconds since it arrived."""


@dataclass(slots=True, eq=False)
class Row:
    """One item in the call."""

    job: Job
    index: int
    cost: float
    value: BaseModel
    stream: Stream[Any]
    told: dict[str, int]
    """What the item's state says of the batch."""
    first: bool = True
    """No value has come for it yet."""
    over: bool = False
    """It has ended, or nobody waits for it: what comes for it is dropped."""
