"""Computation of diffs between the whole values that a generator yields.

A generator may mutate one object and yield it repeatedly, so the differ must keep a copy of the previous value
(`ShadowCopy`). The copy shares strings, numbers and other immutable values with the yielded object. Each step therefore
copies and writes only the changed parts.

Every step compares the whole value, so that the same yields give the same events. Comparing each element in Python would take
4 ms for a list of 10,000 rows. Long lists are therefore divided into blocks, and the JSON of each block is compared. Only in
blocks that differ, each element is compared. JSON also distinguishes values that `==` does not (`1`, `1.0` and `true`). For a
list of 100,000 rows, each yield still takes milliseconds, even if few elements have changed. An `Append` takes a microsecond
(docs/reference/server.md).
"""

from collections.abc import Iterable
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol.diff import Op, diff
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH, common_prefix, same
from tidewire.protocol.strict_json import StrictJsonError

_BLOCK: Final = 64
"""Number of list elements in a block. The JSON of a block is compared at once."""

_STRICT: Final = (
    orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
)
"""Options that make orjson refuse types that it would otherwise convert."""

_MISSING: Final = object()

PLAIN: Final = frozenset({str, int, float, bool, type(None)})
"""Immutable Python types that need no conversion to JSON."""


class NotPlainError(StrictJsonError):
    """A value contains a Python type that is not plain JSON, such as a tuple or a model. The value must be converted
    first.
    """


class ShadowCopy:
    """A copy of the last yielded value. The copy does not change when the function mutates the yielded object."""

    def __init__(self, value: JsonValue, pointer: str = "") -> None:
        """Copy the current value.

        Args:
            value: The current value at the path.
            pointer: JSON Pointer of the value in the document. The paths of all ops begin with it.
        """
        self._value: Any = _copy(value, MAX_VALUE_DEPTH)
        self._pointer = pointer
        self._ops: list[Op] = []
        self._blocks: dict[str, tuple[list[bytes], set[int]]] = {}
        """Path of each long list that the current step has compared → JSON of its blocks, and indexes of the blocks that are
        known to contain no null."""
        self._last_blocks: dict[str, tuple[list[bytes], set[int]]] = {}
        """Value of `_blocks` in the previous step, so that the old lists need not be encoded again."""

    def step(self, value: Any) -> list[Op]:
        """Compare a value with the previous value, return the ops for the differences, and keep a copy of the new value.

        Raises:
            NotPlainError: The value contains a type that is not plain JSON. The copy must not be used afterwards.
            StrictJsonError: The value is nested too deep, or contains itself. The copy must not be used afterwards.
        """
        self._ops = []
        self._last_blocks, self._blocks = self._blocks, {}
        self._value = self._walk(self._value, value, self._pointer, MAX_VALUE_DEPTH)
        return self._ops

    def _walk(self, old: Any, new: Any, path: str, room: int) -> Any:
        """Add the ops that change `old` to `new`, and return a copy of `new` for the next comparison."""
        kind = type(new)
        if kind is str:
            return self._text(old, new, path)
        if kind is dict and type(old) is dict:
            return self._object(old, new, path, room)
        if kind is list and type(old) is list:
            return self._array(old, new, path, room)
        if kind is list or kind is dict or not same(old, new):
            new = _copy(new, room)
            self._ops.append(["s", path, new])
        return new

    def _text(self, old: Any, new: str, path: str) -> str:
        if old is new or old == new:
            return new
        if type(old) is str:
            if new.startswith(old):
                self._ops.append(["a", path, new[len(old) :]])
                return new
            kept = common_prefix(old, new)
            if kept > len(new) // 2:
                self._ops.append(["t", path, len(old) - kept])
                if kept < len(new):
                    self._ops.append(["a", path, new[kept:]])
                return new
        self._ops.append(["s", path, new])
        return new

    def _array(self, old: list[Any], new: list[Any], path: str, room: int) -> list[Any]:
        if room <= 0:
            raise _nested_too_deep()
        if len(old) == len(new) <= _BLOCK:
            for at, element in enumerate(new):
                # If both are the same object, the element is immutable; see `_object`.
                if old[at] is not element:
                    old[at] = self._walk(old[at], element, f"{path}/{at}", room - 1)
            return old
        changed = self._changed(old, new, path)
        if len(new) < len(old) and not changed:
            self._ops.append(["t", path, len(old) - len(new)])
            return old[: len(new)]
        # In most cases, the array only grew at its end, and at most the last of its old elements changed. If elements were
        # inserted or deleted elsewhere, most later elements differ, and the arrays must be aligned first.
        moved = changed and changed[0] < len(old) - 1 and 2 * len(changed) > len(old) - changed[0]
        if len(new) < len(old) or (len(new) > len(old) and moved):
            kept: list[Any] = _copy(new, room)
            self._ops.extend([op[0], path + str(op[1]), *op[2:]] for op in diff(old, kept))
            return kept
        for index in changed:
            old[index] = self._walk(old[index], new[index], f"{path}/{index}", room - 1)
        if len(new) > len(old):
            copies = [_copy(element, room - 1) for element in new[len(old) :]]
            self._ops.append(["a", path, copies])
            old += copies
        return old

    def _changed(self, old: list[Any], new: list[Any], path: str) -> list[int]:
        """Return the indexes at which two lists differ, up to the end of the shorter list."""
        shorter = min(len(old), len(new))
        if shorter <= _BLOCK:
            return [at for at in range(shorter) if not same(old[at], new[at])]
        before, without_null = self._last_blocks.get(path) or (_blocks(old), set())
        now = _blocks(new)
        self._blocks[path] = now, {at for at in without_null if at < len(now) and now[at] == before[at]}
        changed: list[int] = []
        for at, (text, other) in enumerate(zip(before, now, strict=False)):
            if text == other and at in without_null:
                continue
            start = at * _BLOCK
            end = min(start + _BLOCK, shorter)
            # Also compare with `==`, because orjson writes both NaN and None as null.
            if text != other or not text or old[start:end] != new[start:end]:
                changed += [place for place in range(start, end) if not same(old[place], new[place])]
            if other and b"null" not in other:
                self._blocks[path][1].add(at)
        return changed

    def _object(self, old: dict[str, Any], new: dict[str, Any], path: str, room: int) -> dict[str, Any]:
        if room <= 0:
            raise _nested_too_deep()
        members: Iterable[tuple[str, Any]] = new.items()
        kept: dict[str, Any] = {}
        if len(old) > _BLOCK and (names := [*new])[: len(old)] == [*old]:
            kept = old
            changed = self._changed([*old.values()], [*new.values()], path)
            members = [(name, new[name]) for name in (*map(names.__getitem__, changed), *names[len(old) :])]
        elif not old.keys() <= new.keys():
            self._ops.extend(["d", f"{path}/{escape(name)}"] for name in old if name not in new)
        for name, member in members:
            known = old.get(name, _MISSING)
            # If `known is member`, the member is immutable. Otherwise the copy must not share arrays or objects with
            # the yielded value, because the function may still mutate them.
            if known is member:
                kept[name] = member
            elif known is not _MISSING:
                kept[name] = self._walk(known, member, f"{path}/{escape(name)}", room - 1)
            elif type(name) is str:
                kept[name] = _copy(member, room - 1)
                self._ops.append(["s", f"{path}/{escape(name)}", kept[name]])
            else:
                raise NotPlainError(f"at {path!r}: member name {name!r} is not a string")
        return kept


def _blocks(elements: list[Any]) -> list[bytes]:
    """Return the JSON of each block of a list. If a block is not plain JSON, its result is empty."""
    texts = []
    for start in range(0, len(elements), _BLOCK):
        try:
            texts.append(orjson.dumps(elements[start : start + _BLOCK], option=_STRICT))
        except TypeError:  # the comparison of each element raises an error with the reason
            texts.append(b"")
    return texts


def _copy(value: Any, room: int) -> Any:
    kind = type(value)
    if room <= 0 and (kind is list or kind is dict):
        raise _nested_too_deep()
    if kind is list:
        return [_copy(element, room - 1) for element in value]
    if kind is dict:
        for name in value:
            if type(name) is not str:
                raise NotPlainError(f"member name {name!r} is not a string")
        return {name: _copy(member, room - 1) for name, member in value.items()}
    if kind not in PLAIN:
        raise NotPlainError(kind.__name__)
    return value


def _nested_too_deep() -> StrictJsonError:
    return StrictJsonError(f"the value is nested deeper than {MAX_VALUE_DEPTH} levels")
