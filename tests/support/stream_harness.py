"""One job's log writer and item stream over a memory log, and a reader that applies the log; no server."""

import json
from collections.abc import Sequence
from typing import Any

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.sse import Decoder
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.endpoints.stream import Stream
from tidewire_server.endpoints.user_values import plain
from tidewire_server.job_log.append_retries import AppendRetries
from tidewire_server.job_log.backlog_limit import Backlog
from tidewire_server.job_log.commit_schedule import GroupCommit
from tidewire_server.job_log.limited_state import LimitedState
from tidewire_server.job_log.log_writer import LogWriter
from tidewire_server.job_log.pending_events import PendingEvents
from tidewire_server.job_log.snapshot_events import first_block
from tidewire_server.settings import Settings
from tidewire_server.store.memory.memory_store import MemoryLog


def pending_events(
    value: Any,
    columns: Sequence[str] = (),
    *,
    merge: bool = True,
    max_event_bytes: int = 4096,
    max_state_bytes: int = 100_000,
    reserve: int = 0,
) -> PendingEvents:
    """Return the pending events of a job with `value` as its state. Nothing commits them."""
    state = LimitedState(Document(value, columns), max_bytes=max_state_bytes, size=50, reserve=reserve)
    return PendingEvents(
        state,
        Backlog(state.lock, AppendRetries()),
        lambda: None,
        merges=merge,
        max_event_bytes=max_event_bytes,
        max_event_ops=10_000,
    )


def take_diffs(pending: PendingEvents) -> list[bytes]:
    """Remove the pending events, and return the data of each event."""
    frames: list[bytes] = []
    while (block := pending.take(Cursor(1, 1))) is not None:
        frames += block.frames
    return [frame.partition(b"data:")[2][:-2] for frame in frames]


class StreamHarness:
    """The stream and log writer of one job over a memory log, and a reader that applies the log from its start."""

    def __init__(
        self,
        value: Any,
        columns: tuple[str, ...] = ("",),
        **settings: Any,
    ) -> None:
        kept = Settings(**settings)
        item = {"status": "running", "value": value}
        state: Any = {"status": "running", "items": [item], "usage": {}, "notes": []}
        block, document, size = first_block(state, [f"/items/0/value{column}" for column in columns])
        self.log = MemoryLog(block, kept.max_log_bytes)
        self.log_writer = LogWriter(
            self.log,
            document,
            kept,
            state_bytes=size,
            reserve=0,
            commits=GroupCommit(lambda _events, _bytes: None, kept.merge_window),
        )
        self.writer = ItemWriter(
            self.log_writer.pending,
            0,
            columns=columns,
            rollback=True,
            report=lambda _key, _message: None,
            to_json=plain,
        )
        self.stream: Stream[Any] = Stream(self.writer)

    async def frames(self) -> list[Any]:
        await self.log_writer.commit()
        first = await self.log.state(oldest=True)
        chunk = await self.log.read(first.cursor, 2**30)
        assert chunk is not None
        return Decoder().feed(chunk.frames)

    async def events(self) -> list[Any]:
        return [json.loads(event.data) for event in await self.frames()]

    async def read(self) -> Any:
        """Return the item's value as a reader computes it, with all checks verified."""
        first = await self.log.state(oldest=True)
        document = Document(first.view.value(), first.columns)
        for event in await self.frames():
            content = json.loads(event.data)
            if event.type == "snapshot":
                document = Document(content["state"], content["columns"])
            else:
                document.apply(content)
        return document.value("/items/0/value")
