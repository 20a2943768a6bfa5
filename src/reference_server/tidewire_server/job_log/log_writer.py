"""The log writer of a job (`LogWriter`): commits pending events to the job's log, retries while the store fails, and ends the log.

    function ──► PendingEvents ──► commit ──► Log ──► readers
                 (any thread)     (event loop)

Readers read only the log, so the server commits an event before it sends the event. The kind of change decides when it is
committed, together with all earlier changes:

  change                                                 | commit
  -------------------------------------------------------+--------------------------------------
  first append after a pause                             | at once
  later append                                           | at most once in each `merge_window`
  start or result of an item in a job with several items | at most once in each `merge_window`
  any other change                                       | at once

Many large changes are committed in several blocks (`event_blocks.BLOCK_BYTES`). Other jobs wait for at most one block.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire_server.job_log.append_retries import AppendRetries, append
from tidewire_server.job_log.backlog_limit import Backlog
from tidewire_server.job_log.commit_schedule import GroupCommit
from tidewire_server.job_log.limited_state import LimitedState
from tidewire_server.job_log.pending_events import PendingEvents
from tidewire_server.settings import Settings
from tidewire_server.store.log_interface import Block, Log, StateAt
from tidewire_server.store.records import JobRecord
from tidewire_server.store.store_errors import HeadMovedError

_DIGEST_IN_THREAD: Final = 256 * 1024
"""Size of a state in bytes above which a worker thread computes the digest. On the event loop, it would take too long."""


class LogWriter:
    """The only writer of a job's log. The module's docstring describes when it commits.

    Attributes:
        pending: Accepts the changes of the job, from any thread.
        committed_at: See `commit_schedule.Writer`.
        waits_until: See `commit_schedule.Writer`.
    """

    __slots__ = (
        "_append_at_once",
        "_commits",
        "_committing",
        "_head",
        "_log",
        "_loop",
        "_on_lost",
        "_retries",
        "_task",
        "_writes",
        "committed_at",
        "pending",
        "waits_until",
    )

    def __init__(
        self,
        log: Log,
        document: Document,
        settings: Settings,
        *,
        state_bytes: int,
        reserve: int,
        commits: GroupCommit,
        on_lost: Callable[[HeadMovedError | None], None] = lambda _: None,
    ) -> None:
        """Create the writer of a log that already has its first block.

        Args:
            log: The log to write to.
            document: The state after the first block. The writer applies each change to it.
            settings: The server's settings, with the limits of events and states.
            state_bytes: Size of a snapshot of the state, in bytes.
            reserve: Number of bytes of `max_state_bytes` that are reserved for the changes that end an item.
            commits: Schedule of the commits of all jobs of this event loop.
            on_lost: Function that is called when the log has rejected a block. This happens if another process writes the log,
                or if the log was deleted. The argument is the error to log, or None if this process has stopped the job.
        """
        self._retries = AppendRetries()
        state = LimitedState(document, max_bytes=settings.max_state_bytes, size=state_bytes, reserve=reserve)
        self.pending = PendingEvents(
            state,
            Backlog(state.lock, self._retries),
            # Closing the pending events drops this reference, so that no cycle keeps an ended job in memory.
            partial(commits.soon, self),
            merges=settings.merge_window > 0,
            max_event_bytes=settings.max_event_bytes,
            max_event_ops=settings.max_event_ops,
        )
        self._log = log
        self._head = log.extent().head
        self._append_at_once = getattr(log, "append_at_once", None)
        self._loop = asyncio.get_running_loop()
        self._commits = commits
        self._on_lost = on_lost
        self.committed_at = float("-inf")
        self.waits_until: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()
        self._writes: set[asyncio.Future[None]] = set()
        """Running tasks that `commit_shielded` has started."""

    @property
    def urgent(self) -> bool:
        """See `commit_schedule.Writer`."""
        return self.pending.urgent

    @property
    def backlog(self) -> int:
        """Total size of the events that wait for a commit, in bytes."""
        return self.pending.backlog.size

    # ---- commits -------------------------------------------------------------------------------------------------

    def commit_now(self, now: float) -> tuple[int, int]:
        """See `commit_schedule.Writer.commit_now`. If the log is in memory, this method writes to it without a task."""
        self.waits_until = None
        if self._append_at_once is None:
            if self.backlog and (self._task is None or self._task.done()):
                self._task = self._loop.create_task(self._commit_or_stop())
            return 0, 0
        # No other commit is in progress, because a log in memory never waits.
        block = self.pending.take(self._head)
        if block is None:  # `end` has already written the changes of a function that returned at once
            return 0, 0
        self.committed_at = now
        try:
            self._append_at_once(self._head, block)
        except HeadMovedError as error:
            self._stop_writing(error)
            return 0, 0
        self._head = block.state.cursor
        frames = block.frames
        return len(frames), len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    async def _commit_or_stop(self) -> None:
        try:
            await self.commit()
        except HeadMovedError:
            return
        if self.backlog:
            # Clear `_task`. While it is set to this running task, `commit_now` starts no other task. Changes that arrived
            # during the write would then never be committed.
            self._task = None
            self._commits.soon(self)

    def _stop_writing(self, error: HeadMovedError) -> None:
        """Stop writing because the log rejected a block: another process writes the log now, or the log was deleted."""
        self.pending.close()
        self._on_lost(None if self._retries.stopped else error)

    async def commit(self) -> None:
        """Write the pending changes to the log. When this method returns, the changes are as durable as this kind of
        log guarantees.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        async with self._committing:
            # Write only the blocks that exist now. Events that arrive during the writes wait for the next commit, or become
            # part of the last block.
            for _ in range(len(self.pending.blocks.full) + 1):
                block = self.pending.take(self._head)
                if block is not None:
                    await self._append(block)

    async def _append(self, block: Block) -> None:
        self.committed_at = self._loop.time()
        try:
            await append(self._log, self._head, block, self._retries)
        except HeadMovedError as error:
            self._stop_writing(error)
            raise
        self._head = block.state.cursor
        self._commits.logged(len(block.frames), sum(map(len, block.frames)))

    async def commit_shielded(self) -> None:
        """Write the pending changes to the log like `commit`. Call this from tasks that run user code and may be cancelled.

        Cancelling the caller does not interrupt the write. An interrupted write could add events to the log that this writer
        does not count. The log would then reject all later events of the job, including its end.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        write = asyncio.ensure_future(self.commit())
        self._writes.add(write)  # The event loop has only weak references to tasks.
        write.add_done_callback(self._forget_write)
        await asyncio.shield(write)

    def _forget_write(self, write: asyncio.Future[None]) -> None:
        self._writes.discard(write)
        if not write.cancelled():
            write.exception()  # A cancelled caller does not retrieve the exception.

    # ---- the end -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Reject later writes and stop committing. This method is called if the server stops before the job has
        ended.
        """
        self.pending.close()
        self._retries.stop()
        self.waits_until = None

    async def end(self, make_record: Callable[[str, list[JsonValue]], JobRecord]) -> JobRecord:
        """End the log. Reject later writes, then write the pending changes and the event `done`.

        Args:
            make_record: Function that creates the record of the ended job, including the data of the `done` event. Its
                arguments are the digest of the items and the pending checks.

        Returns:
            The record that `make_record` returned.

        Raises:
            HeadMovedError: The log was deleted, or another process writes it.
        """
        pending = self.pending
        pending.close()
        if pending.state.size > _DIGEST_IN_THREAD:
            await self.commit()
        async with self._committing:
            self.waits_until = None
            last = pending.take(self._head)
            while last is not None and self.backlog:
                await self._append(last)
                last = pending.take(self._head)
            found = await self._digest()
            record = make_record(found, pending.pending_checks())
            assert record.done is not None  # noqa: S101 - `make_record` sets it
            if last is None:
                frames, state = [], StateAt(self._head, pending.columns, pending.state.document.mark())
            else:
                frames, state = list(last.frames), last.state
            cursor = Cursor(state.cursor.epoch, state.cursor.seq + 1)
            # Write `done` in the same block as the pending changes, so that the store needs only one write.
            frames.append(messages.done_frame(cursor, record.done))
            block = Block(frames, state, ended=record, state_bytes=pending.state.size)
            await self._append(block)
        return record

    async def _digest(self) -> str:
        """Return the digest of an ended job's items. If the state is large, compute it in a worker thread."""
        items = self.pending.state.document.node("/items")
        if self.pending.state.size > _DIGEST_IN_THREAD:
            return await asyncio.to_thread(digest, items)
        return digest(items)
