"""Several logged events as one, for a reader that is behind: fewer events, fewer bytes, the same state.

Rules, by section 5.5 of the specification:

- Only diffs of one epoch become one. A snapshot and `done` stay as they are and part what is around them.
- The merged diff has the id of the last event, and `on`, the seq of the last one before the first.
- It carries a check of each text that one of them checked, true for the state that it leads to. A check moves on over
  what is appended after it; an event after which one could not be known begins the next diff.
- It is never larger than `max_event_bytes`, nor than what it stands for.

  op    | with earlier ops
  ------+--------------------------------------------------------------------------------------------------------------
  a, t  | joins that of its place, unless something happened above or below that place since
  s     | takes the place of that of its place; those below it are void and go
  r     | joins none: whether a column is a text or an array is not known here
  i, d  | joins none, and no later op joins any before it: indices have moved
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final
from zlib import crc32

import orjson

from tidewire.protocol.cursor import Cursor

_AROUND: Final = 256
"""Bytes of a merged diff beside its ops: its members, and what the checks grow by."""

_MAX_PLACES: Final = 1024
"""Places whose ops may still be joined."""


class EventMerger:
    """Makes one answer of the events that follow a cursor."""

    def __init__(self, after: Cursor, columns: Sequence[str], max_event_bytes: int) -> None:
        """Begin.

        Args:
            after: What the reader holds.
            columns: The columns of its epoch.
            max_event_bytes: Bound of a diff's data.
        """
        self.last = after
        """The last event that was taken in."""
        self._columns = columns
        self._room = max_event_bytes
        self._done: list[tuple[bytes, Cursor]] = []
        self._raw: list[tuple[bytes, Cursor]] = []
        self._on = after
        self._size = 0
        self._diff = _Diff(columns)

    def take_in(self, frames: bytes) -> None:
        """Take in the events that follow, in their wire form and as this server writes it.

        Raises:
            ValueError: They are none.
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
                self._take_diff(frame, data, cursor)
            self.last = cursor

    def frames(self, max_bytes: int) -> tuple[bytes, Cursor]:
        """What was taken in, in as few events as it goes into. Ends the merging.

        Args:
            max_bytes: Events are given while their sum stays within; the first comes whatever its size.

        Returns:
            The events, and the id of the last of them.
        """
        self._close()
        given, size = 0, 0
        for frame, _ in self._done:
            size += len(frame) + 2
            if given and size > max_bytes:
                break
            given += 1
        if not given:
            return b"", self.last
        return b"\n\n".join([*(frame for frame, _ in self._done[:given]), b""]), self._done[given - 1][1]

    def _take_diff(self, frame: bytes, data: bytes, cursor: Cursor) -> None:
        content = orjson.loads(data)
        if self._raw and (
            self._size + len(data) > self._room - _AROUND or not self._diff.follows_on(content)
        ):
            self._close()
            self._open(self.last)
        self._diff.add(content)
        self._size += len(data)
        self._raw.append((frame, cursor))

    def _open(self, on: Cursor) -> None:
        self._on, self._size = on, 0
        self._diff = _Diff(self._columns)

    def _close(self) -> None:
        raw, self._raw = self._raw, []
        if len(raw) > 1:
            last = raw[-1][1]
            data = self._diff.encoded(self._on.seq)
            merged = b"id:%d-%d\ndata:%b" % (*last, data)
            if len(data) <= self._room and len(merged) < sum(len(frame) + 2 for frame, _ in raw) - 2:
                self._done.append((merged, last))
                return
        self._done += raw


class _Place:
    """What happens to one place: perhaps it is set; then some of its end goes, then something is added."""

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
        self.added = [value] if self.kind is str else value if self.kind is list else []
        self.value = value

    def append(self, x: Any) -> None:
        if type(x) is str:
            self.kind = str
            self.added.append(x)
        else:
            self.kind = list
            self.added += x

    def truncate(self, n: int) -> None:
        if self.kind is str:
            while n and self.added:
                piece = self.added.pop()
                if len(piece) > n:
                    self.added.append(piece[:-n])
                n -= min(n, len(piece))
        elif self.kind is list:
            of_added = min(n, len(self.added))
            del self.added[len(self.added) - of_added :]
            n -= of_added
        self.dropped += n

    def ops(self) -> Iterator[list[Any]]:
        grown = "".join(self.added) if self.kind is str else self.added
        if self.is_set:
            yield ["s", self.path, grown if self.kind in {str, list} else self.value]
            return
        if self.dropped:
            yield ["t", self.path, self.dropped]
        if grown:
            yield ["a", self.path, grown]


class _Diff:
    """One diff that grows by the ops of later ones."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._ops: list[_Place | list[Any] | None] = []
        self._places: dict[str, int] = {}
        """Where the op of a place stands, which a later `s` of that place may replace."""
        self._open: set[str] = set()
        """Places whose op a later `a` or `t` may join."""
        self._above: set[str] = set()
        """Every place above one of `places`, and perhaps others."""
        self._lost: set[str] = set()
        """Places at or below which an op stands that is in `places` no more."""
        self._checks: dict[str, list[int]] = {}
        self._after_row = False

    def follows_on(self, content: Any) -> bool:
        """Whether a diff can be added so that each check is known after it."""
        if not self._checks or type(content) is str:
            return True
        ops, renewed = _shape(content)
        renewing = {check[0] for check in renewed}
        return all(self._keeps_checks(op, renewing) for op in ops)

    def add(self, content: Any) -> None:
        """Add a diff that follows on."""
        if type(content) is str:
            self._grow(self._columns[0], content)
            return
        ops, checks = _shape(content)
        for op in ops:
            letter = op[0]
            if letter == "r":
                self._row(op)
                continue
            self._after_row = False
            path, *rest = op[1:]
            if letter == "a":
                self._grow(path, rest[0])
            elif letter == "t":
                self._at(path).truncate(rest[0])
                self._check_truncated(path, rest[0])
            elif letter == "s":
                self._set(path, rest[0])
            else:
                self._forget()
                self._ops.append(op)
        for path, *proof in checks:
            self._checks[path] = proof

    def encoded(self, on: int) -> bytes:
        """The diff as JSON."""
        ops: list[list[Any]] = []
        for op in self._ops:
            if isinstance(op, _Place):
                ops.extend(op.ops())
            elif op is not None:
                ops.append(op)
        checks = [[path, *proof] for path, proof in self._checks.items()]
        return orjson.dumps({"ops": ops, "on": on, "check": checks} if checks else {"ops": ops, "on": on})

    # ---- ops -------------------------------------------------------------------------------------------------------

    def _grow(self, path: str, x: Any) -> None:
        self._after_row = False
        self._at(path).append(x)
        proof = self._checks.get(path)
        if proof is not None:
            self._checks[path] = _grown(proof, x)

    def _row(self, op: list[Any]) -> None:
        if not self._after_row:
            self._after_row = True
            for path in self._columns:
                for below in self._below(path):
                    self._lose(below)
                self._lose(path)
        self._ops.append(op)
        if self._checks:
            for path, x in zip(self._columns, op[1:], strict=True):
                proof = self._checks.get(path)
                if proof is not None:
                    self._checks[path] = _grown(proof, x if len(proof) > 1 else [x])

    def _set(self, path: str, value: Any) -> None:
        if path in self._lost:
            for below in self._below(path):
                self._lose(below)
            place = self._new(path)
            self._lost.discard(path)
        else:
            for below in self._below(path):
                self._ops[self._places.pop(below)] = None
                self._open.discard(below)
            place = self._place(path) if path in self._places else self._new(path)
            self._open.add(path)
        place.set(value)
        if path in self._checks:
            self._checks[path] = _grown([0, 0], value)

    def _at(self, path: str) -> _Place:
        """What an `a` or a `t` of a place goes into."""
        if path in self._open:
            return self._place(path)
        for below in self._below(path):
            self._lose(below)
        if path in self._places:
            self._lose(path)
        return self._new(path)

    # ---- places ----------------------------------------------------------------------------------------------------

    def _place(self, path: str) -> _Place:
        found = self._ops[self._places[path]]
        assert isinstance(found, _Place)  # noqa: S101 - `_places` names no others
        return found

    def _new(self, path: str) -> _Place:
        if len(self._places) >= _MAX_PLACES:
            self._forget()
        # What is above may not be joined any more: that would come before what happens here.
        for above in _above(path):
            self._above.add(above)
            self._open.discard(above)
        place = _Place(path)
        self._places[path] = len(self._ops)
        self._open.add(path)
        self._ops.append(place)
        return place

    def _lose(self, path: str) -> None:
        """An op stays where it is: what comes to its place later comes after it, and nothing above it makes it void."""
        for each in (path, *_above(path)):
            self._places.pop(each, None)
            self._open.discard(each)
            self._lost.add(each)

    def _below(self, path: str) -> list[str]:
        if path not in self._above:
            return []
        return [place for place in self._places if place.startswith(f"{path}/")]

    def _forget(self) -> None:
        """All that was done stays as it is; what comes later comes after it."""
        self._places.clear()
        self._open.clear()
        self._above.clear()
        self._lost.clear()

    # ---- checks ----------------------------------------------------------------------------------------------------

    def _keeps_checks(self, op: list[Any], renewing: set[str]) -> bool:
        letter, path = op[0], op[1]
        if letter in {"a", "r"}:
            return True
        if letter in {"i", "d"}:
            return False
        proof = self._checks.get(path)
        if letter == "t":
            known = proof is None or len(proof) == 1 or path in renewing
        else:
            # An index equal to the length appends: whether it is one is not known here.
            known = len(self._checks.get(path.rpartition("/")[0], ())) != 1
            known = known and (proof is None or (len(proof) > 1 and type(op[2]) is str))
        return known and not any(each.startswith(f"{path}/") for each in self._checks)

    def _check_truncated(self, path: str, n: int) -> None:
        proof = self._checks.get(path)
        if proof is None:
            return
        if len(proof) > 1:
            del self._checks[path]  # the diff that truncates brings a new one
        else:
            self._checks[path] = [proof[0] - n]


def _shape(content: Any) -> tuple[list[Any], list[Any]]:
    return (content["ops"], content.get("check", [])) if type(content) is dict else (content, [])


def _grown(proof: list[int], x: Any) -> list[int]:
    """A check's numbers after an append: of a text with its CRC, of an array without."""
    if len(proof) == 1:
        return [proof[0] + len(x)]
    return [proof[0] + len(x), crc32(x.encode(), proof[1])]


def _above(path: str) -> Iterator[str]:
    while path:
        path = path.rpartition("/")[0]
        yield path


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")
