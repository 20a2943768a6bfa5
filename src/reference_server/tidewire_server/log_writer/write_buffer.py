"""Changes of one job that are made but not yet logged: merged, proved, and in their wire form.

Rules. Adjacent appends become one event, and so do adjacent rows; every other change is an event of its own, in the
order in which they were made. No event passes `max_event_bytes`; a larger change becomes several. An event carries the
checks that are due in it (see `check_schedule`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol.diff import Op
from tidewire.protocol.document import Document
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, common_prefix
from tidewire_server.errors import StateTooLargeError
from tidewire_server.log_writer.append_buffer import MAX_RUN, NO_ROWS, NO_TEXTS, RowBuffer, TextBuffer
from tidewire_server.log_writer.event_encoding import Appends, Rows, shape, to_json
from tidewire_server.log_writer.op_splitting import split_op, split_text
from tidewire_server.log_writer.text_check_schedule import CheckSchedule, is_array, is_text

_ROOM_FOR_CHECKS: Final = 512
"""Bytes of an event that are left free for its checks and its framing."""


_AROUND_STATE: Final = 48
"""Bytes of a snapshot's data beside its state and its columns."""


class WriteBuffer:
    """What is made and not yet logged. Not safe for threads: whoever holds it holds a lock."""

    __slots__ = (
        "_closed",
        "_columns",
        "_depth",
        "_envelope",
        "_kinds",
        "_lent",
        "_max_state_bytes",
        "_merge",
        "_open",
        "_owed",
        "_reserve",
        "_room",
        "_row_run",
        "_sole",
        "_standing",
        "_text_runs",
        "size",
        "state_bytes",
        "ungathered",
    )

    def __init__(
        self,
        document: Document,
        *,
        merge: bool,
        max_event_bytes: int,
        max_state_bytes: int,
        state_bytes: int,
        reserve: int = 0,
    ) -> None:
        """Begin with nothing pending.

        Args:
            document: The job's state; each change is applied to it at once.
            merge: Whether appends become one event.
            max_event_bytes: Largest event, its framing included.
            max_state_bytes: Largest state, as a snapshot carries it.
            state_bytes: What the state takes now, at most.
            reserve: Bytes of `max_state_bytes` that are kept for the ends of the items.
        """
        self.ungathered = document
        """The state without what waits in runs: nothing does after `take`. See `document`."""
        self.size = 0
        """Bytes that wait."""
        self._merge = merge
        self._room = max_event_bytes - _ROOM_FOR_CHECKS
        self._max_state_bytes = max_state_bytes
        self._reserve = reserve
        self.state_bytes = state_bytes
        """What the state takes as JSON, at most."""
        self._columns = document.columns
        self._envelope = len(to_json(self._columns)) + _AROUND_STATE
        self._depth = MAX_STATE_DEPTH - 1 - max((column.count("/") for column in self._columns), default=0)
        self._kinds: tuple[bool, ...] | None = None
        """Of each column, whether it is a text."""
        self._sole = self._columns[0] if len(self._columns) == 1 else None
        self._closed: list[bytes] = []
        self._open: Appends | Rows | None = None
        self._owed = CheckSchedule()
        self._text_runs: dict[str, TextBuffer] = {}
        self._row_run = NO_ROWS
        self._standing = NO_TEXTS
        """The run that has outlived the last commit, while all that waits is in it."""
        self._lent = 0
        """Bytes that the runs may still grow by, or grew by already."""

    @property
    def document(self) -> Document:
        """The state with all changes."""
        self.gather()
        return self.ungathered

    # ---- changes -----------------------------------------------------------------------------------------------

    def append(self, additions: Sequence[tuple[str, str | list[Any]]]) -> None:
        """Append to some places, as one event.

        Raises:
            DiffError: A place cannot grow by what it shall grow by.
            StateTooLargeError: The state would pass its limit.
        """
        additions = [(path, x) for path, x in additions if x]
        encoded = [to_json(x)[1:-1] for _, x in additions]
        size = sum(map(len, encoded))
        if size > self._room // 2:
            self._append_in_parts(additions)
            return
        if not additions:
            return
        if self._text_runs:
            for path, _ in additions:
                self._gather_text(path)
        # The event under way is ended before the document moves: its checks are of the state that it leads to.
        entry = self._open
        if type(entry) is not Appends or not self._merge or entry.size + self._lent + size > self._room:
            self._close()
            entry = Appends()
        path, x = additions[0]
        if len(additions) == 1 and path == self._sole and type(x) is str:
            self._apply(x, size)
        else:
            self._apply([["a", path, x] for path, x in additions], size)
        self._open = entry
        for (path, x), part in zip(additions, encoded, strict=True):
            entry.add(path, part, text=type(x) is str)
        self._grew(size)

    def row(self, members: Sequence[Any]) -> None:
        """Grow each column by one member.

        Raises:
            DiffError: The row does not fit the columns.
            StateTooLargeError: The state would pass its limit.
        """
        op: list[Any] = ["r", *members]
        encoded = to_json(op)
        if len(encoded) > self._room and len(members) == len(self._columns):
            for path, x in zip(self._columns, members, strict=True):
                self.append([(path, x if type(x) is str and self.is_text(path) else [x])])
            return
        self._gather_rows()
        entry = self._open
        if type(entry) is not Rows or not self._merge or entry.size + len(encoded) > self._room:
            self._close()
            entry = Rows()
        self._apply([op], len(encoded))
        self._open = entry
        entry.add([encoded])
        self._grew(len(encoded))

    def change(self, ops: Sequence[Op], *, settle: str | None = None, ends: bool = False) -> None:
        """Make any change, as an event of its own.

        Args:
            ops: What to do.
            settle: Prove every text at or below this place that owes a check.
            ends: It ends an item, and may use what is kept for that.

        Raises:
            DiffError: An op does not fit.
            StateTooLargeError: The state would pass its limit.
        """
        self._close()
        encoded = to_json(ops)
        if len(encoded) > self._room:
            *others, last = ops
            for op in others:
                for part in self._split(op):
                    self._change_one([part], to_json([part]), None, ends=ends)
            *parts, final = self._split(last)
            for part in parts:
                self._change_one([part], to_json([part]), None, ends=ends)
            ops, encoded = [final], to_json([final])
        self._change_one(ops, encoded, settle, ends=ends)

    def text_run(self, path: str, signal: Callable[[], None] = lambda: None) -> TextBuffer:
        """A run for the text that the last append grew; `signal` is called when something waits in it."""
        entry = self._open
        if type(entry) is not Appends or path not in entry.texts or path in self._text_runs:
            return NO_TEXTS
        if not self._merge and path != self._sole:
            return NO_TEXTS
        lent = self._lend(entry.size)
        if lent <= 0:
            return NO_TEXTS
        self._text_runs[path] = run = TextBuffer(path, lent, signal)
        return run

    def row_run(self) -> RowBuffer:
        """A run for the columns that the last row grew."""
        entry = self._open
        if type(entry) is not Rows or not self._merge:
            return NO_ROWS
        self._gather_rows()
        lent = self._lend(entry.size)
        if lent <= 0:
            return NO_ROWS
        if self._kinds is None:
            self._kinds = tuple(map(self.is_text, self._columns))
        self._row_run = run = RowBuffer(self._kinds, self._depth, lent)
        return run

    def gather(self) -> None:
        """Bring in what runs have taken, and end them."""
        if not self._lent:
            return
        for path in tuple(self._text_runs):
            self._gather_text(path)
        self._gather_rows()

    def take(self) -> list[bytes]:
        """The diffs that wait, each as JSON; nothing waits then."""
        run = self._standing
        if run.lent:
            return self._take_pieces(run) if run.pieces else []
        run = self._text_runs.get(self._sole or "", NO_TEXTS)
        self._close()
        taken, self._closed, self.size = self._closed, [], 0
        if run is not NO_TEXTS:
            self._keep(run)
        return taken

    def checks_owed(self, below: str = "") -> list[JsonValue]:
        """Settle what is owed at or below a place: the checks, true for the document as it is now."""
        self.gather()
        return self._checks(self._owed.below(below))

    # ---- inside ------------------------------------------------------------------------------------------------

    def _lend(self, filled: int) -> int:
        """Bytes for a run: less than would bring the event under way or the state to a bound."""
        spare = self._max_state_bytes - self._reserve - self.state_bytes
        lent = min(MAX_RUN, self._room - filled - self._lent, spare - self._lent)
        self._lent += max(0, lent)
        return lent

    def _gather_text(self, path: str) -> None:
        run = self._text_runs.pop(path, NO_TEXTS)
        self._lent -= run.lent
        run.end()
        self._standing = NO_TEXTS
        pieces = ["".join(run.pieces)] if self._merge and run.pieces else run.pieces
        for text in pieces:
            entry = self._open
            if type(entry) is not Appends or path not in entry.texts or not self._merge:
                self._end_event()
                entry = self._open = Appends()
                entry.texts[path] = []
            part = to_json(text)[1:-1]
            self.ungathered.apply(text if path == self._sole else [["a", path, text]])
            entry.texts[path].append(part)
            entry.size += len(part)
            self._grew(len(part))

    def _keep(self, run: TextBuffer) -> None:
        """Let a run go on that a commit has emptied."""
        lent = 0 if run.closed else self._lend(0)
        if lent > 0:
            run.lent, run.pieces = lent, []
            run.take()
            self._text_runs[run.path] = self._standing = run

    def _take_pieces(self, run: TextBuffer) -> list[bytes]:
        """The diffs of a run that has outlived a commit: the short way, for nothing else waits."""
        pieces = run.take()
        if self._merge and len(pieces) > 1:
            pieces = ["".join(pieces)]
        taken: list[bytes] = []
        for text in pieces:
            diff = orjson.dumps(text)
            self.ungathered.apply(text)
            self.state_bytes += len(diff) - 2
            if self._owed.grew_one(run.path):
                diff = shape(b'[["r",%b]]' % diff, self._checks([run.path]))
            taken.append(diff)
        # Room that is lent counts as taken: what the state may still grow by has become less than that.
        if self.state_bytes + self._lent > self._max_state_bytes - self._reserve:
            self._gather_text(run.path)
        return taken

    def _gather_rows(self) -> None:
        run, self._row_run = self._row_run, NO_ROWS
        self._lent -= run.lent
        run.end()
        entry = self._open
        if run.rows and type(entry) is Rows:
            self.ungathered.grow(run.rows)
            entry.add(run.parts)
            self._grew(sum(map(len, run.parts)))

    def _append_in_parts(self, additions: Iterable[tuple[str, str | list[Any]]]) -> None:
        for path, x in additions:
            if type(x) is str:
                for text in split_text(x, self._room // 2):
                    self.append([(path, text)])
            else:
                for op in self._split(["a", path, x]):
                    self.change([op])

    def _split(self, op: Op) -> Iterable[Op]:
        """The parts of an op, by what the document holds now: no op before it may wait."""
        if len(to_json(op)) <= self._room:
            return [op]
        if op[0] == "s" and type(op[2]) is str and self.is_text(str(op[1])):
            # In parts, what both begin with has to stay: it may be promised (TW-DIF-057).
            old = str(self.ungathered.value(str(op[1])))
            kept = common_prefix(old, op[2])
            dropped = [["t", op[1], len(old) - kept]] if kept < len(old) else []
            added = op[2][kept:]
            return [*dropped, *(split_op(["a", op[1], added], self._room) if added or not dropped else ())]
        grows = op[0] == "a" and is_array(self.ungathered, str(op[1]))
        return split_op(op, self._room, start=self.ungathered.array_length(str(op[1])) if grows else 0)

    def _change_one(self, ops: Sequence[Op], encoded: bytes, settle: str | None, *, ends: bool) -> None:
        self._apply(list(ops), len(encoded), ends=ends)
        self._kinds = None
        checks = self._checks(self._owed.changed(ops, self.ungathered))
        if settle is not None:
            checks += self.checks_owed(settle)
        self._closed.append(shape(encoded, checks))
        self._grew(len(encoded))

    def _close(self) -> None:
        """End the event under way: what comes next is another."""
        self.gather()
        self._end_event()

    def _end_event(self) -> None:
        entry, self._open = self._open, None
        if entry is None:
            return
        if isinstance(entry, Rows):
            grown = [path for path in self._columns if self.is_text(path)]
        else:
            grown = list(entry.texts)
        checks = self._checks(self._owed.grew(grown))
        if isinstance(entry, Appends) and not entry.arrays and grown == [self._sole]:
            text = b'"%b"' % b"".join(entry.texts[grown[0]])
            self._closed.append(shape(b'[["r",%b]]' % text, checks) if checks else text)
        else:
            self._closed.append(shape(entry.ops(), checks))

    def _apply(self, diff: Any, size: int, *, ends: bool = False) -> None:
        """Apply to the document, unless the state would become too large.

        What was written bounds what the state grew by, so the state is measured only when that sum passes the limit.
        """
        limit = self._max_state_bytes if ends else self._max_state_bytes - self._reserve
        if self.state_bytes + self._lent + size > limit:
            self.gather()
        if self.state_bytes + size <= limit:
            self.ungathered.apply(diff)
            return
        before = self.ungathered.view()
        self.ungathered.apply(diff)
        measured = len(to_json(self.ungathered.value())) + self._envelope
        if measured > limit:
            self.ungathered = Document(before.value(), self._columns)
            raise StateTooLargeError(self._max_state_bytes)
        self.state_bytes = measured - size

    def _grew(self, size: int) -> None:
        self.state_bytes += size
        self.size += size

    def _checks(self, paths: Iterable[str]) -> list[JsonValue]:
        document = self.ungathered
        return [[path, document.text_length(path), document.text_crc(path)] for path in paths]

    def is_text(self, path: str) -> bool:
        """Whether there is a text at a place."""
        return is_text(self.ungathered, path)
