"""One job's history as it is written: changes come in from any thread, blocks of events go to the log.

    function ──► append, row, change ──► Pending ──► commit ──► Log ──► readers
                 (lock; any thread)      (merged)    (event loop)

Commit, then send: readers read the log, never what is pending. The first append after a pause is committed at once,
then at most one block in `merge_window`; any other change is committed at once, with all that came before it.
"""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.messages import Done, SnapshotReason
from tidewire.protocol.sse import encode
from tidewire_server.errors import StreamClosedError
from tidewire_server.log_writer.append_buffer import RowBuffer, TextBuffer
from tidewire_server.log_writer.group_commit import GroupCommit
from tidewire_server.log_writer.write_buffer import WriteBuffer
from tidewire_server.settings import Settings
from tidewire_server.store.interfaces import Block, HeadMovedError, Log, StateAt, StoreError

_log = logging.getLogger(__name__)

_DIGEST_IN_THREAD: Final = 256 * 1024
"""Bytes of state above which the digest is computed beside the event loop."""

_EPOCH_STEPS: Final = 10_000

_RETRY: Final = 1.0
"""Seconds between two tries to write a log that cannot be written."""

_new: Final = tuple.__new__

_MAX_PENDING_BYTES: Final = 4 * 1024 * 1024
"""Bytes of uncommitted changes above which a worker thread waits."""


def first_block(state: JsonValue, columns: Sequence[str]) -> tuple[Block, Document, int]:
    """The block that opens a log: a snapshot, with id 1-1.

    Returns:
        The block, the document that the job's changes are applied to, and the bytes of the state.

    Raises:
        DiffError: The state is not JSON as the protocol takes it, or a column is no pointer.
    """
    document = Document(state, columns)
    cursor = Cursor(1, 1)
    frame = snapshot_frame(cursor, state, columns, "start")
    return Block([frame], StateAt(cursor, document.columns, document.view())), document, len(frame)


def epoch_block(
    head: Cursor, state: JsonValue, columns: Sequence[str], reason: SnapshotReason
) -> tuple[Block, Document, int]:
    """The block that opens a new epoch after a head (TW-RES-033); what it returns is as of `first_block`.

    Raises:
        DiffError: The state is not JSON as the protocol takes it, or a column is no pointer.
    """
    document = Document(state, columns)
    # The random step keeps an epoch that was lost whole from being used again with other events.
    cursor = Cursor(head.epoch + 1 + secrets.randbelow(_EPOCH_STEPS), head.seq + 1)
    frame = snapshot_frame(cursor, state, columns, reason)
    return Block([frame], StateAt(cursor, document.columns, document.view())), document, len(frame)


def snapshot_frame(cursor: Cursor, state: JsonValue, columns: Sequence[str], reason: SnapshotReason) -> bytes:
    """A snapshot in its wire form. The state comes from a document, which has checked it already."""
    data = orjson.dumps({"state": state, "columns": list(columns), "reason": reason}).decode()
    return encode(data, id=str(cursor), event="snapshot")


class LogWriter:
    """The one writer of a job's log."""

    __slots__ = (
        "_append_at_once",
        "_columns",
        "_commits",
        "_committing",
        "_ended",
        "_head",
        "_lock",
        "_log",
        "_loop",
        "_pending",
        "_room",
        "_signalled",
        "_stopping",
        "_task",
        "_thread",
        "committed_at",
        "urgent",
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
    ) -> None:
        """Go on from the first block.

        Args:
            log: Where blocks go.
            document: The state after the first block.
            settings: The bounds.
            state_bytes: What a snapshot of the state takes.
            reserve: Bytes that are kept for the ends of the items.
            commits: When this job commits, among others.
        """
        self._log = log
        self._head = log.extent().head
        self._columns = document.columns
        self._commits = commits
        self.urgent = False
        self.committed_at = float("-inf")
        self.waits_until: float | None = None
        """See `Writer` for these three."""
        self._pending = WriteBuffer(
            document,
            merge=settings.merge_window > 0,
            max_event_bytes=settings.max_event_bytes,
            max_state_bytes=settings.max_state_bytes,
            state_bytes=state_bytes,
            reserve=reserve,
        )
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._room: threading.Condition | None = None
        """What threads wait for, once one has to."""
        self._ended = False
        self._signalled = False
        self._task: asyncio.Task[None] | None = None
        self._committing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._append_at_once = getattr(log, "append_at_once", None)

    # ---- any thread --------------------------------------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """The places that rows and bare strings grow."""
        return self._columns

    @property
    def lock(self) -> threading.RLock:
        """Held by whoever needs several changes, or a read and a change, to be one."""
        return self._lock

    def value(self, pointer: str) -> JsonValue:
        """The JSON at a place, with all changes, made anew for the caller.

        Raises:
            LookupError: There is no such place.
        """
        with self._lock:
            return self._pending.document.value(pointer)

    def is_text(self, pointer: str) -> bool:
        """Whether there is a text at a place."""
        with self._lock:
            return self._pending.is_text(pointer)

    def text_length(self, pointer: str) -> int:
        """Code points of the text at a place.

        Raises:
            LookupError: There is no text.
        """
        with self._lock:
            return self._pending.document.text_length(pointer)

    def wait_for_room(self) -> None:
        """Wait, in a worker thread, while too much is pending; call with the lock held, before whatever is checked.

        The lock is let go meanwhile: what was true before it may not be true after it.
        """
        # A function on the event loop cannot wait here: it would wait for itself.
        if self._pending.size > _MAX_PENDING_BYTES and threading.get_ident() != self._thread:
            self._room = self._room or threading.Condition(self._lock)
            self._room.wait_for(lambda: self._ended or self._pending.size <= _MAX_PENDING_BYTES)

    def _let_in(self) -> None:
        if self._room is not None:
            self._room.notify_all()

    def append(self, additions: Sequence[tuple[str, str | list[Any]]]) -> None:
        """Append to places, as one; see `WriteBuffer.append`.

        Raises:
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._admit()
            self._pending.append(additions)
            self._signal()

    def row(self, members: Sequence[Any]) -> None:
        """Grow each column by one; see `WriteBuffer.row`.

        Raises:
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._admit()
            self._pending.row(members)
            self._signal()

    def text_run(self, path: str) -> TextBuffer:
        """A run for the text that the last append grew; call with the lock held since then."""
        return self._pending.text_run(path, self._signal)

    def row_run(self) -> RowBuffer:
        """A run for the columns that the last row grew; call with the lock held since then."""
        return self._pending.row_run()

    def change(self, ops: Sequence[Op], *, settle: str | None = None, ends: bool = False) -> None:
        """Make any other change; see `WriteBuffer.change`.

        Raises:
            StreamClosedError: The job has ended.
        """
        with self._lock:
            self._admit()
            self._pending.change(ops, settle=settle, ends=ends)
            self._signal(urgent=True)

    def _admit(self) -> None:
        if self._ended:
            raise StreamClosedError("this job has ended: nothing more can be written to its stream")

    def _signal(self, *, urgent: bool = False) -> None:
        if self._signalled and (self.urgent or not urgent):
            return
        self._signalled = True
        self.urgent = self.urgent or urgent
        if threading.get_ident() == self._thread:
            self._commits.soon(self)
        else:
            self._loop.call_soon_threadsafe(self._commits.soon, self)

    # ---- the event loop ----------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Bytes that wait to be committed."""
        return self._pending.size

    def commit_now(self, now: float) -> tuple[int, int]:
        """See `Writer`. A log that never waits needs no task for it."""
        self.waits_until = None
        if self._append_at_once is None or self._ended:
            if self._task is None or self._task.done():
                self._task = self._loop.create_task(self._commit_or_stop())
            return 0, 0
        block = self._block(now)
        if block is None:
            return 0, 0
        try:
            self._append_at_once(self._head, block)
        except HeadMovedError as error:
            self._stop_writing(error)
            return 0, 0
        frames, state, _ = block
        self._head = state.cursor
        return len(frames), len(frames[0]) if len(frames) == 1 else sum(map(len, frames))

    async def _commit_or_stop(self) -> None:
        try:
            await self.commit()
        except HeadMovedError as error:
            self._stop_writing(error)
            return
        if self._signalled:
            self._task = None  # it is this one: else what came while the log was written would wait for ever
            self._commits.soon(self)

    def _stop_writing(self, error: HeadMovedError) -> None:
        """Another writes, or the log is gone: this one has lost its right to write, and must not try again."""
        with self._lock:
            self._ended = True
            self._pending.gather()
            self._let_in()
        _log.warning("a job's log refused its writer: %s", error)

    async def commit(self) -> None:
        """Log what is pending. Returns when it is as durable as the log makes it.

        Raises:
            HeadMovedError: The log is gone, or another writes it.
        """
        async with self._committing:
            block = self._block(self._loop.time())
            if block is not None:
                await self._append(block)
                self._head = block.state.cursor
                self._commits.logged(len(block.frames), sum(map(len, block.frames)))

    def _block(self, now: float) -> Block | None:
        """What is pending, as events that follow the head; None if nothing is."""
        with self._lock:
            self._signalled = self.urgent = False
            diffs = self._pending.take()
            if not diffs:
                return None
            view = self._pending.ungathered.view()
            if self._room is not None:
                self._room.notify_all()
        self.committed_at = now
        epoch, seq = self._head
        if len(diffs) == 1:
            frames = [b"id:%d-%d\ndata:%b\n\n" % (epoch, seq + 1, diffs[0])]
        else:
            frames = [b"id:%d-%d\ndata:%b\n\n" % (epoch, seq + n, diff) for n, diff in enumerate(diffs, 1)]
        # Without the frame of Python that the constructor of a named tuple costs.
        cursor = _new(Cursor, (epoch, seq + len(diffs)))
        return _new(Block, (frames, _new(StateAt, (cursor, self._columns, view)), False))

    async def _append(self, block: Block) -> None:
        """Log a block, however long the log cannot be written: until then nobody sees it, and writers wait.

        Raises:
            HeadMovedError: The log is gone, or another writes it, or the server stops first.
        """
        told = False
        while True:
            try:
                return await self._log.append(self._head, block)
            except StoreError as error:
                if not told:
                    _log.error("%s; a job waits for it, and tries again each %g s", error, _RETRY)
                told = True
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RETRY):
                        await self._stopping.wait()
                if self._stopping.is_set():
                    raise HeadMovedError(f"the server stops, and {error}") from None

    def stop(self) -> None:
        """Refuse whatever comes later, and log nothing more: the server stops before the job has ended."""
        with self._lock:
            self._ended = True
            self._pending.gather()
            self._let_in()
        self._stopping.set()
        self.waits_until = None

    async def end(self, make_done: Callable[[str, list[JsonValue]], Done]) -> tuple[Cursor, Done]:
        """Log what is pending, then `done`, and refuse whatever comes later.

        Args:
            make_done: Makes the data of `done` of the digest and the checks that are owed.

        Raises:
            HeadMovedError: The log is gone.
        """
        with self._lock:
            self._ended = True
            self._pending.gather()
            self._let_in()
        large = self._pending.state_bytes > _DIGEST_IN_THREAD
        if large:
            await self.commit()
        async with self._committing:
            self.waits_until = None
            last = self._block(self._loop.time())
            document = self._pending.document
            items = document.value("/items")
            found = await asyncio.to_thread(digest, items) if large else digest(items)
            done = make_done(found, self._pending.checks_owed())
            frames, head = ([], self._head) if last is None else (last.frames, last.state.cursor)
            cursor = Cursor(head.epoch, head.seq + 1)
            # With what was pending, so that a reader gets both at once, and a store writes once.
            block = Block(
                [*frames, messages.done_frame(cursor, done)],
                StateAt(head, self._columns, document.view()),
                done=True,
            )
            await self._append(block)
            self._head = cursor
        self._commits.logged(len(block.frames), sum(map(len, block.frames)))
        return cursor, done
