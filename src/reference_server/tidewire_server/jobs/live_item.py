"""One item of a job while it has not ended: its input, its writer, and what runs for it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, JsonValue

from tidewire_server.endpoints.yieldables import Unset
from tidewire_server.log_writer.item_writer import ItemWriter

ItemEnd = Literal["succeeded", "failed", "cancelled"]


@dataclass(slots=True)
class Item:
    """An item, by the table of `job`."""

    value: BaseModel
    writer: ItemWriter
    status: str = "queued"
    task: asyncio.Task[JsonValue | Unset] | None = None
    """Its function, where that can be cancelled."""
    cancelled: bool = False
    leave: Callable[[], None] | None = None
    """Tells the batch that it runs in that nobody waits for it any more."""
    timer: asyncio.TimerHandle | None = None
    """Gives up a function that was cancelled and does not end."""
    limit: asyncio.TimerHandle | None = None
    """Fires when the function has run too long."""
    raised: BaseException | None = None

    def stop(self) -> None:
        """Let the function know that nobody waits any more, in each way that there is."""
        self.writer.cancel()
        if self.leave is not None:
            self.leave()
        elif self.task is not None:
            self.task.cancel()

    def stop_timers(self) -> None:
        """Have nothing more happen by the clock."""
        for timer in (self.timer, self.limit):
            if timer is not None:
                timer.cancel()
