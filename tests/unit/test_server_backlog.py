"""Bound of the changes that wait in memory while the store refuses writes."""

import asyncio
from typing import Any

import pytest

from support.stream_harness import StreamHarness
from tidewire_server.errors import LogUnavailableError
from tidewire_server.job_log import append_retries, backlog_limit, pending_events
from tidewire_server.store.log_interface import Block
from tidewire_server.store.store_errors import StoreError


class UnwritableLog:
    """A log that refuses all writes while `full` is set."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self.full = True

    async def append(self, after: Any, block: Block) -> None:
        if self.full:
            raise StoreError("the disk is full")
        await self._log.append(after, block)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def churn(harness: StreamHarness) -> None:
    harness.stream.append("x" * 1000)
    harness.stream.truncate(1000)


async def test_a_function_on_the_event_loop_fails_above_the_limit_while_the_store_refuses_writes(monkeypatch):
    monkeypatch.setattr(append_retries, "RETRY_INTERVAL", 0.001)
    for module in (backlog_limit, pending_events):
        monkeypatch.setattr(module, "MAX_PENDING_BYTES", 20_000)
    harness = StreamHarness("")
    writer = harness.log_writer
    writer._log, writer._append_at_once = (log := UnwritableLog(harness.log)), None
    for _ in range(40):  # No write was refused yet, so the limit does not apply.
        churn(harness)
    assert writer.backlog > 20_000
    commit = asyncio.ensure_future(writer.commit())
    await asyncio.sleep(0)
    assert writer.backlog == 0  # the refused block does not count, because it was taken before
    writer.pending.backlog.size = 20_000
    harness.stream.append("x")  # exactly at the limit, so accepted
    assert writer.backlog > 20_000
    with pytest.raises(LogUnavailableError, match="submit the job again"):
        churn(harness)
    assert isinstance(harness.writer.failure, LogUnavailableError)
    log.full = False
    await commit
    assert await harness.read() == "x"
