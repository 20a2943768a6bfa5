"""Merge consecutive logged events into one diff for a slow reader, so that fewer events and bytes are sent.

The rules come from section 5.5 of the specification:

- Only diffs of the same epoch are merged. Snapshots and `done` are sent unchanged. A diff before such an event is not
  merged with a diff after it.
- The merged diff has the id of the last event that it replaces. The member `on` of the merged diff is the sequence
  number of the event before the first replaced event.
- If one of the replaced events contains the length and the CRC-32 of a text, the merged diff contains both for the same
  text in the resulting state. They are computed from the original values and the text that was appended afterwards. If
  the
  new check cannot be computed, the next event starts a new merged diff.
- The merged diff is never larger than `max_event_bytes`, and never larger than the events that it replaces.

  op    | how it is merged with the earlier ops
  ------+--------------------------------------------------------------------------------------------------------------
  a, t  | combined with the op of the same path, unless a path above or below it has changed since
  s     | replaces the op of the same path, and removes the ops of all paths below
  r     | never combined, because the types of the columns (text or array) are unknown here
  i, d  | never combined, and ops after it are not combined with ops before it, because array indices have shifted
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from zlib import crc32

import orjson

from tidewire.protocol.cursor import Cursor

_OVERHEAD: Final = 256
"""Number of bytes of a merged diff that are not available for ops.

They are reserved for the other members of the diff, and for numbers in them that can become longer.
"""

_MAX_PATHS: Final = 1024
"""Maximum number of paths for which the merger remembers an op that later ops can be combined with."""

_SETS: Final = b'[["s","'
"""Start of a diff whose first op sets a value."""

_LONG_DIFF: Final = 1024
"""Size in bytes from which the arrays of numbers in a diff are not parsed. Parsing and writing them again took a tenth of
the server's CPU time (bench/arrays.py)."""

_PIECE: Final = 4096
"""Maximum number of code points of a text that are copied when a truncation is combined with an append."""


_LONG_EVENT: Final = 4096
"""Mean size in bytes from which events may be sent without merging."""

_MAX_PATH: Final = 256
"""Number of bytes at the start of an event in which `sets_different_long_values` looks for the path of its first op."""


def sets_different_long_values(frames: bytes) -> bool:
    """Whether merging would hardly make events smaller, because they are long, and each of them sets another value.

    The events with the results of many items are an example. Merging them would take a tenth of the server's CPU time
    (`bench/arrays.py`). They are recognized by the paths of their first ops.
    """
    events = frames.split(b"\n\n")[:-1]
    if not events or len(frames) < _LONG_EVENT * len(events):
        return False
    paths = set()
    for event in events:
        start = event.find(_SETS, 0, _MAX_PATH)
        end = event.find(b'"', start + len(_SETS), _MAX_PATH)
        if start < 0 or end < 0:
            return False
        paths.add(event[start:end])
    return len(paths) == len(events)


class EventMerger:
    """Merges the logged events that follow a reader's cursor. Call `add` for each chunk of events, and then `frames`
    once.
    """

    def __init__(
        self, after: Cursor, columns: Sequence[str], max_event_bytes: int, max_event_ops: int = 10_000
    ) -> None:
        """Create a merger for the events after the reader's cursor.

        Args:
            after: Id of the last event that the reader has received.
            columns: JSON Pointers of the columns in the epoch of `after`.
            max_event_bytes: Maximum size of a diff's data.
            max_event_ops: Maximum number of ops of a diff.
        """
        self.last = after
        """Id of the last event added."""
        self._columns = columns
        self._max_event_bytes = max_event_bytes
        self._max_event_ops = max_event_ops
        self._done: list[tuple[bytes, Cursor]] = []
        self._raw: list[tuple[bytes, Cursor]] = []
        self._on = after
        self._size = self._ops = 0
        self._diff = _MergedDiff(columns)

    def add(self, frames: bytes) -> None:
        """Add the next events. They must have the encoding that this server uses for events.

        Raises:
            ValueError: The bytes are not encoded events.
        """
        for frame in frames.split(b"\n\n")[:-1]:
            head, _, data = frame.partition(b"\ndata:")
            name, _, kind = head.partition(b"\n")
            cursor = Cursor.parse(name[3:].decode())
            if kind or cursor.epoch != self.last.epoch:
                self._close()
                self._done.append((frame, cursor))
                if kind == b"event:snapshot":
                    self._columns = orjson.loads(data)["columns"]
                self._open(cursor)
            else:
                self._add_diff(frame, data, cursor)
            self.last = cursor

    def frames(self, max_bytes: int) -> tuple[bytes, Cursor]:
        """Finish merging and return the merged events.

        Args:
            max_bytes: Maximum size of the returned events. The first event is returned even if it alone is larger.

        Returns:
            The encoded events, and the id of the last of them.
        """
        self._close()
        count, size = 0, 0
        for frame, _ in self._done:
            size += len(frame) + 2
            if count and size > max_bytes:
                break
            count += 1
        if not count:
            return b"", self.last
        return b"\n\n".join([*(frame for frame, _ in self._done[:count]), b""]), self._done[count - 1][1]

    def _add_diff(self, frame: bytes, data: bytes, cursor: Cursor) -> None:
        content = _content(data)
        ops = 1 if type(content) is str else len(_ops_and_checks(content)[0])
        if self._raw and (
            self._size + len(data) > self._max_event_bytes - _OVERHEAD
            or self._ops + ops > self._max_event_ops
            or not self._diff.follows_on(content)
        ):
            self._close()
            self._open(self.last)
        self._diff.add(content)
        self._size += len(data)
        self._ops += ops
        self._raw.append((frame, cursor))

    def _open(self, on: Cursor) -> None:
        self._on, self._size, self._ops = on, 0, 0
        self._diff = _MergedDiff(self._columns)

    def _close(self) -> None:
        raw, self._raw = self._raw, []
        if len(raw) > 1:
            last = raw[-1][1]
            data = self._diff.encoded(self._on.seq)
            merged = b"id:%d-%d\ndata:%b" % (*last, data)
            if (
                len(data) <= self._max_event_bytes
                and len(merged) < sum(len(frame) + 2 for frame, _ in raw) - 2
            ):
                self._done.append((merged, last))
                return
        self._done += raw


class _NumbersText:
    """JSON text of an array of numbers. It is parsed only if a later op changes the array."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


def _content(data: bytes) -> Any:
    """Parse a diff. Long arrays of numbers that an op sets are not parsed: their value is a `_NumbersText`."""
    if len(data) < _LONG_DIFF or not data.startswith(_SETS):
        return orjson.loads(data)
    # In JSON, each quote within a string is escaped. The separator can therefore occur only between two ops or within a
    # value. In the second case, one of the parts is not valid JSON, so the diff is parsed as a whole.
    ops: list[Any] = []
    for part in data[len(_SETS) : -2].split(b'],["s","'):
        path, _, value = part.partition(b'",')
        if len(value) >= _LONG_DIFF and _is_flat(value) and b"\\" not in path:
            ops.append(["s", path.decode(), _NumbersText(value)])
            continue
        try:
            op = orjson.loads(b'["s","%b]' % part)
        except ValueError:
            return orjson.loads(data)
        ops.append(op)
    return ops


def _is_flat(value: bytes) -> bool:
    """Whether the JSON text of a value is an array that contains no strings, arrays or objects."""
    return (
        value.startswith(b"[")
        and value.find(b"]") == len(value) - 1
        and value.find(b"[", 1) < 0
        and b'"' not in value
        and b"{" not in value
    )


class _PathChange:
    """Combined change of the value at one path: an optional new value, followed by a truncation and an append."""

    __slots__ = ("added", "dropped", "is_set", "kind", "path", "value")

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_set = False
        self.kind: type | None = None
        self.value: Any = None
        self.dropped = 0
        self.added: list[Any] = []

    def set(self, value: Any) -> None:
        self.is_set, self.dropped, self.kind = True, 0, type(value)
        self.added = _pieces(value) if self.kind is str else value if self.kind is list else []
        self.value = value

    def _parse(self) -> None:
        if self.kind is _NumbersText:
            self.set(orjson.loads(self.value.text))

    def append(self, x: Any) -> None:
        self._parse()
        if type(x) is str:
            self.kind = str
            self.added += _pieces(x)
        else:
            self.kind = list
            self.added += x

    def truncate(self, n: int) -> None:
        self._parse()
        if self.kind is str:
            while n and self.added:
                piece = self.added.pop()
                if len(piece) > n:
                    self.added.append(piece[:-n])
                n -= min(n, len(piece))
        elif self.kind is list:
            from_added = min(n, len(self.added))
            del self.added[len(self.added) - from_added :]
            n -= from_added
        self.dropped += n

    def ops(self) -> Iterator[list[Any]]:
        grown = "".join(self.added) if self.kind is str else self.added
        if self.kind is _NumbersText:
            yield ["s", self.path, orjson.Fragment(self.value.text)]
            return
        if self.is_set:
            yield ["s", self.path, grown if self.kind in {str, list} else self.value]
            return
        if self.dropped:
            yield ["t", self.path, self.dropped]
        if grown:
            yield ["a", self.path, grown]


class _MergedDiff:
    """Diff to which the ops of later diffs are added one by one."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._ops: list[_PathChange | list[Any] | None] = []
        self._changes: dict[str, int] = {}
        """Maps each path to the index of its op in `_ops`.

        A later op that sets the value at the path can replace this op.
        """
        self._open: set[str] = set()
        """Paths whose op can still be combined with a later `a` or `t` op."""
        self._above: set[str] = set()
        """All parent paths of the paths in `_changes`, and possibly more paths.

        A path that is not in the set has no changes below it.
        """
        self._pinned: set[str] = set()
        """Paths whose ops are complete: `_ops` contains an op at this path or below it, and `_changes` no longer
        contains the op.
        """
        self._checks: dict[str, list[int]] = {}
        self._above_checks: set[str] = set()
        """All parent paths of the paths in `_checks`, and possibly more paths.

        A path that is not in the set has no checks below it.
        """
        self._after_row = False

    def follows_on(self, content: Any) -> bool:
        """Return whether a diff can be merged.

        This is the case if the lengths and CRC-32s of the merged diff can still be computed.
        """
        if not self._checks or type(content) is str:
            return True
        ops, renewed = _ops_and_checks(content)
        renewing = {check[0] for check in renewed}
        return all(self._keeps_checks(op, renewing) for op in ops)

    def add(self, content: Any) -> None:
        """Add the ops of a diff to the merged diff. The caller must check `follows_on` first."""
        if type(content) is str:
            self._grow(self._columns[0], content)
            return
        ops, checks = _ops_and_checks(content)
        for op in ops:
            kind = op[0]
            if kind == "r":
                self._row(op)
                continue
            self._after_row = False
            path, *rest = op[1:]
            if kind == "a":
                self._grow(path, rest[0])
            elif kind == "t":
                self._change_for_growth(path).truncate(rest[0])
                self._check_truncated(path, rest[0])
            elif kind == "s":
                self._set(path, rest[0])
            else:
                self._pin_all()
                self._ops.append(op)
        for path, *proof in checks:
            if path not in self._checks:
                self._above_checks.update(_above(path))
            self._checks[path] = proof

    def encoded(self, on: int) -> bytes:
        """Encode the merged diff as JSON. The argument `on` is the seq of the event before the diff."""
        ops: list[list[Any]] = []
        for op in self._ops:
            if isinstance(op, _PathChange):
                ops.extend(op.ops())
            elif op is not None:
                ops.append(op)
        checks = [[path, *proof] for path, proof in self._checks.items()]
        return orjson.dumps({"ops": ops, "on": on, "check": checks} if checks else {"ops": ops, "on": on})

    # ---- ops -------------------------------------------------------------------------------------------------------

    def _grow(self, path: str, x: Any) -> None:
        self._after_row = False
        self._change_for_growth(path).append(x)
        proof = self._checks.get(path)
        if proof is not None:
            self._checks[path] = _check_after_append(proof, x)

    def _row(self, op: list[Any]) -> None:
        if not self._after_row:
            self._after_row = True
            for path in self._columns:
                for below in self._below(path):
                    self._pin(below)
                self._pin(path)
        self._ops.append(op)
        if self._checks:
            for path, x in zip(self._columns, op[1:], strict=True):
                proof = self._checks.get(path)
                if proof is not None:
                    self._checks[path] = _check_after_append(proof, x if len(proof) > 1 else [x])

    def _set(self, path: str, value: Any) -> None:
        if path in self._pinned:
            for below in self._below(path):
                self._pin(below)
            change = self._new(path)
            self._pinned.discard(path)
        else:
            for below in self._below(path):
                self._ops[self._changes.pop(below)] = None
                self._open.discard(below)
            change = self._change(path) if path in self._changes else self._new(path)
            self._open.add(path)
        change.set(value)
        if path in self._checks:
            self._checks[path] = _check_after_append([0, 0], value)

    def _change_for_growth(self, path: str) -> _PathChange:
        """Return the earlier change of this text or array.

        An append or a truncation at this path is combined with it.
        """
        if path in self._open:
            return self._change(path)
        for below in self._below(path):
            self._pin(below)
        if path in self._changes:
            self._pin(path)
        return self._new(path)

    # ---- paths -----------------------------------------------------------------------------------------------------

    def _change(self, path: str) -> _PathChange:
        found = self._ops[self._changes[path]]
        assert isinstance(found, _PathChange)  # noqa: S101 - `_changes` contains only indices of path changes
        return found

    def _new(self, path: str) -> _PathChange:
        if len(self._changes) >= _MAX_PATHS:
            self._pin_all()
        # A later op on a parent path must be applied after this change, so it cannot be combined with an earlier op.
        for above in _above(path):
            self._above.add(above)
            self._open.discard(above)
        change = _PathChange(path)
        self._changes[path] = len(self._ops)
        self._open.add(path)
        self._ops.append(change)
        return change

    def _pin(self, path: str) -> None:
        """Keep the current op for a path unchanged. Later ops for the path are added as separate ops."""
        for each in (path, *_above(path)):
            self._changes.pop(each, None)
            self._open.discard(each)
            self._pinned.add(each)

    def _below(self, path: str) -> list[str]:
        if path not in self._above:
            return []
        return [each for each in self._changes if each.startswith(f"{path}/")]

    def _pin_all(self) -> None:
        """Keep all ops that were added so far unchanged. Later ops are added as separate ops."""
        self._changes.clear()
        self._open.clear()
        self._above.clear()
        self._pinned.clear()

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _keeps_checks(self, op: list[Any], renewing: set[str]) -> bool:
        kind, path = op[0], op[1]
        if kind in {"a", "r"}:
            return True
        if kind in {"i", "d"}:
            return False
        proof = self._checks.get(path)
        if kind == "t":
            known = proof is None or len(proof) == 1 or path in renewing
        else:
            # If the index in an `s` op equals the array's length, the op appends an element. The length is unknown
            # here.
            known = len(self._checks.get(path.rpartition("/")[0], ())) != 1
            known = known and (proof is None or (len(proof) > 1 and type(op[2]) is str))
        return known and path not in self._above_checks

    def _check_truncated(self, path: str, n: int) -> None:
        proof = self._checks.get(path)
        if proof is None:
            return
        if len(proof) > 1:
            # `follows_on` has made sure that the diff contains the new length and CRC-32 of the text at this path.
            del self._checks[path]
        else:
            self._checks[path] = [proof[0] - n]


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def _ops_and_checks(content: Any) -> tuple[list[Any], list[Any]]:
    return (content["ops"], content.get("check", [])) if type(content) is dict else (content, [])


def _check_after_append(proof: list[int], x: Any) -> list[int]:
    """Return the length and the CRC-32 of a text after an append. For an array, return only the length."""
    if len(proof) == 1:
        return [proof[0] + len(x)]
    return [proof[0] + len(x), crc32(x.encode(), proof[1])]


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path
