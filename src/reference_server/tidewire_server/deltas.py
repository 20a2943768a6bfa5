"""From whole values to diffs: what a generator yielded, against what it yielded before.

A generator may mutate one object and yield it again and again, so the old value must be kept apart from the new one.
A shadow copies containers and shares the leaves that did not change, which are immutable: a step looks at every
place but copies only what changed, and what changed is all that it writes.
"""

from typing import Any

from pydantic import JsonValue

from tidewire.protocol.diff import Op, diff
from tidewire.protocol.pointer import escape
from tidewire.protocol.strict_json import StrictJsonError
from tidewire.protocol.values import MAX_VALUE_DEPTH, common_prefix, same


class NotPlainError(StrictJsonError):
    """A value holds something beyond JSON's own Python types (a tuple, a model, an array); it must be converted."""


class Shadow:
    """The last value of one place, kept apart from the object that its writer goes on changing."""

    def __init__(self, value: JsonValue, pointer: str = "") -> None:
        """Begin with a value.

        Args:
            value: What the place holds now.
            pointer: Where the place stands; the paths of all ops begin with it.
        """
        self._value: Any = _copy(value, MAX_VALUE_DEPTH)
        self._pointer = pointer

    def step(self, value: Any) -> list[Op]:
        """The ops that turn the last value into this one, which is then the last.

        Raises:
            NotPlainError: The value holds something that is not JSON's own; nothing changed.
            StrictJsonError: It is nested too deep, perhaps in itself; nothing changed.
        """
        ops: list[Op] = []
        self._value = _walk(self._value, value, self._pointer, ops, MAX_VALUE_DEPTH)
        return ops


def _walk(old: Any, new: Any, path: str, ops: list[Op], room: int) -> Any:
    """Write the ops from old to new; return what to keep of new."""
    kind = type(new)
    if kind is str:
        return _text(old, new, path, ops)
    if kind is list and type(old) is list:
        return _array(old, new, path, ops, _deeper(room))
    if kind is dict and type(old) is dict:
        return _object(old, new, path, ops, _deeper(room))
    if kind is list or kind is dict or not same(old, new):
        new = _copy(new, room)
        ops.append(["s", path, new])
    return new


def _text(old: Any, new: str, path: str, ops: list[Op]) -> str:
    if old is new or old == new:
        return new
    if type(old) is str:
        if new.startswith(old):
            ops.append(["a", path, new[len(old) :]])
            return new
        kept = common_prefix(old, new)
        if kept > len(new) // 2:
            ops.append(["t", path, len(old) - kept])
            if kept < len(new):
                ops.append(["a", path, new[kept:]])
            return new
    ops.append(["s", path, new])
    return new


def _array(old: list[Any], new: list[Any], path: str, ops: list[Op], room: int) -> list[Any]:
    if len(old) != len(new):
        alike = 0
        for one, other in zip(old, new, strict=False):
            if one is not other and not same(one, other):
                break
            alike += 1
        if len(new) < len(old) and alike == len(new):
            ops.append(["t", path, len(old) - len(new)])
            return old[: len(new)]
        # Growth at the end, perhaps with a change of what was last, is the common case; all else is for the exact diff.
        if alike < len(old) - 1 or len(new) < len(old):
            kept: list[Any] = _copy(new, room + 1)
            ops.extend([op[0], path + str(op[1]), *op[2:]] for op in diff(old, kept))
            return kept
    kept = [
        _walk(one, other, f"{path}/{index}", ops, room)
        for index, (one, other) in enumerate(zip(old, new, strict=False))
    ]
    if len(new) > len(old):
        more = [_copy(element, room) for element in new[len(old) :]]
        ops.append(["a", path, more])
        kept += more
    return kept


def _object(old: dict[str, Any], new: dict[str, Any], path: str, ops: list[Op], room: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    ops.extend(["d", f"{path}/{escape(name)}"] for name in old if name not in new)
    for name, member in new.items():
        if type(name) is not str:
            raise NotPlainError(f"at {path!r}: member name {name!r} is not a string")
        place = f"{path}/{escape(name)}"
        if name in old:
            kept[name] = _walk(old[name], member, place, ops, room)
        else:
            kept[name] = _copy(member, room)
            ops.append(["s", place, kept[name]])
    return kept


_SCALARS = frozenset({str, int, float, bool, type(None)})


def _copy(value: Any, room: int) -> Any:
    kind = type(value)
    if kind is list:
        room = _deeper(room)
        return [_copy(element, room) for element in value]
    if kind is dict:
        room = _deeper(room)
        for name in value:
            if type(name) is not str:
                raise NotPlainError(f"member name {name!r} is not a string")
        return {name: _copy(member, room) for name, member in value.items()}
    if kind not in _SCALARS:
        raise NotPlainError(kind.__name__)
    return value


def _deeper(room: int) -> int:
    if room <= 0:
        raise StrictJsonError(f"the value is nested deeper than {MAX_VALUE_DEPTH} levels")
    return room - 1
