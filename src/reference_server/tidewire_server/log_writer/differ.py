"""Computation of diffs between the whole values that a generator yields.

A generator may mutate one object and yield it repeatedly, so the differ must keep a copy of the previous value
(`ShadowCopy`). The copy shares strings, numbers and other immutable values with the yielded object. Each step therefore
copies and writes only the changed parts.

If a value contains a long array, such as the history of a training run, comparing all elements at every yield would be
too expensive. Arrays and objects with more than 64 elements are therefore not compared completely in every step. This
table shows when a change is found:

  change                                            | when it is found
  --------------------------------------------------+----------------------------------------------------------------
  outside long arrays and objects                   | at the next yield
  the length of a long array or object, or one of   | at the next yield
  its first 3 or last 3 elements                    |
  the value of any other element                    | by a full comparison. After a full comparison that took t
                                                    | seconds, the next one runs at the first yield that is at least
                                                    | 50 t seconds later
  only the type of any other element (1, 1.0, true) | by an exact comparison, which takes about ten times as long and
                                                    | is scheduled in the same way
  any of the above                                  | by `catch_up`, at the end of the function. Exception: if an item
                                                    | ends while its function still runs in a thread, the elements
                                                    | that were not compared keep the values of an earlier yield

Full comparisons therefore take at most 2 % of the time. If a function yields every 20 ms, every step finds all changes in
arrays of up to about 10,000 elements. If a function yields in a tight loop, changes in the middle of a long array are
found later. An element is always copied completely, with the content that it has at the time of the comparison. If an
array became shorter, and the first 3 and last 3 of the remaining elements are not equal to the old elements at their
indexes, the step compares the whole array. It also does so if all of the last 3 elements of an array changed.
"""

import time
from collections.abc import Callable, Collection
from itertools import compress, islice
from operator import ne
from typing import Any, Final

from pydantic import JsonValue

from tidewire.protocol.diff import Op, diff
from tidewire.protocol.document.json_pointer import escape
from tidewire.protocol.document.json_values import MAX_VALUE_DEPTH, common_prefix, same
from tidewire.protocol.strict_json import StrictJsonError

LONG: Final = 64
"""Every step compares arrays and objects completely until this number of elements was compared."""

ENDS: Final = 3
"""Every step compares this number of elements at the start and at the end of each array or object that is too long to
be compared completely.
"""

PATIENCE: Final = 50
"""Minimum time between two full comparisons, as a multiple of the duration of the first comparison."""

_MISSING: Final = object()


class NotPlainError(StrictJsonError):
    """A value contains a Python type that is not plain JSON, such as a tuple or a model. The value must be converted
    first.
    """


class ShadowCopy:
    """A copy of the last value at one path. The copy does not change when the function mutates the yielded object."""

    def __init__(
        self, value: JsonValue, pointer: str = "", *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Copy the current value.

        Args:
            value: The current value at the path.
            pointer: JSON Pointer of the value in the document. The paths of all ops begin with it.
            clock: Function that returns the time in seconds.
        """
        self._value: Any = _copy(value, MAX_VALUE_DEPTH)
        self._pointer = pointer
        self._clock = clock
        self._skim_due = self._walk_due = float("-inf")

        self._ops: list[Op] = []
        self._skims = self._walks = True
        """Whether the current step compares long arrays and objects completely (`_skims`), and whether it also compares
        the types of their elements (`_walks`)."""
        self._long = False
        """Whether the current step compared a long array or object completely."""
        self._behind: list[tuple[Any, Any, str, int]] = []
        """Arrays and objects that the last step compared only in part. Each tuple contains the copy, the yielded object,
        its path, and the number of nesting levels that its elements may add."""

    def step(self, value: Any) -> list[Op]:
        """Compare a value with the previous value, return the ops for the differences, and keep a copy of the new value.

        Raises:
            NotPlainError: The value contains a type that is not plain JSON. The copy must not be used afterwards.
            StrictJsonError: The value is nested too deep, or contains itself. The copy must not be used afterwards.
        """
        began = self._clock()
        self._walks = began >= self._walk_due
        self._skims = self._walks or began >= self._skim_due
        self._ops, self._behind, self._long = [], [], False
        self._value = self._walk(self._value, value, self._pointer, MAX_VALUE_DEPTH)
        if self._long:
            ended = self._clock()
            due = ended + PATIENCE * (ended - began)
            if self._walks:
                self._walk_due = due
            elif self._skims:
                self._skim_due = due
        return self._ops

    @property
    def behind(self) -> bool:
        """Whether the last step skipped elements. The returned ops then lack any changes of these elements."""
        return bool(self._behind)

    def catch_up(self) -> list[Op]:
        """Compare the elements that the last step left out, and return the ops for their changes.

        The function may have changed the object since it yielded the object. The elements are therefore compared in
        their current state, and arrays and objects whose length has changed since the yield are skipped.

        Raises:
            NotPlainError: See `step`.
            StrictJsonError: See `step`.
        """
        behind, self._behind, self._ops = self._behind, [], []
        self._skims = self._walks = True
        for old, new, path, room in behind:
            if type(old) is list and len(old) == len(new):
                for index in range(ENDS, len(old) - ENDS):
                    old[index] = self._walk(old[index], new[index], f"{path}/{index}", room)
            elif type(old) is dict and old.keys() == new.keys():
                for name in tuple(islice(new, ENDS, len(new) - ENDS)):
                    old[name] = self._walk(old[name], new[name], f"{path}/{escape(name)}", room)
        return self._ops

    # ---- comparing -----------------------------------------------------------------------------------------------

    def _walk(self, old: Any, new: Any, path: str, room: int) -> Any:
        """Add the ops that change `old` to `new`, and return a copy of `new` for the next comparison."""
        kind = type(new)
        if kind is dict and type(old) is dict:
            return self._object(old, new, path, _deeper(room))
        if kind is str:
            return self._text(old, new, path)
        if kind is list and type(old) is list:
            return self._array(old, new, path, _deeper(room))
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
        length = len(old)
        if len(new) < length and not self._skims and _is_start_of(new, old):
            self._ops.append(["t", path, length - len(new)])
            del old[len(new) :]
            length = len(old)
        if length <= LONG or len(new) < length or self._walks:
            self._long = self._long or length > LONG
            return self._array_exactly(old, new, path, room)
        if self._skims or len(_differing(old[-ENDS:], new[length - ENDS : length])) == ENDS:
            self._long = True
            places = _differing(old, new)
            if 2 * len(places) > length:
                return self._array_exactly(old, new, path, room)
        else:
            places = []
            self._behind.append((old, new, path, room))
        # `_differing` compares with `!=`, so it misses a change from 1 to 1.0 or True. Always compare the elements at both
        # ends exactly.
        for index in dict.fromkeys((*range(ENDS), *places, *range(length - ENDS, length))):
            old[index] = self._walk(old[index], new[index], f"{path}/{index}", room)
        self._append(old, new[length:], path, room)
        return old

    def _array_exactly(self, old: list[Any], new: list[Any], path: str, room: int) -> list[Any]:
        if len(old) != len(new):
            alike = 0
            for one, other in zip(old, new, strict=False):
                if one is not other and not same(one, other):
                    break
                alike += 1
            if len(new) < len(old) and alike == len(new):
                self._ops.append(["t", path, len(old) - len(new)])
                return old[: len(new)]
            # In most cases, the array only grew at its end, and of the old elements at most the last one changed. If
            # elements were inserted or deleted elsewhere, the arrays must be aligned first.
            if alike < len(old) - 1 or len(new) < len(old):
                return self._aligned(old, new, path, room)
        kept = [
            one if one is other else self._walk(one, other, f"{path}/{index}", room)
            for index, (one, other) in enumerate(zip(old, new, strict=False))
        ]
        self._append(kept, new[len(old) :], path, room)
        return kept

    def _aligned(self, old: list[Any], new: list[Any], path: str, room: int) -> list[Any]:
        kept: list[Any] = _copy(new, room + 1)
        self._ops.extend([op[0], path + str(op[1]), *op[2:]] for op in diff(old, kept))
        return kept

    def _append(self, kept: list[Any], more: list[Any], path: str, room: int) -> None:
        if more:
            copies = [_copy(element, room) for element in more]
            self._ops.append(["a", path, copies])
            kept += copies

    def _object(self, old: dict[str, Any], new: dict[str, Any], path: str, room: int) -> dict[str, Any]:
        length = len(old)
        if length <= LONG or len(new) < length or self._walks:
            self._long = self._long or length > LONG
            return self._object_exactly(old, new, path, room)
        added = list(islice(reversed(new), len(new) - length))
        last = list(islice(reversed(new), len(added), len(added) + ENDS))
        first = list(islice(new, ENDS))
        if self._skims or last != list(islice(reversed(old), ENDS)) or first != list(islice(old, ENDS)):
            self._long = True
            if list(old) != list(islice(new, length)):
                return self._object_exactly(old, new, path, room)
            places = list(map(list(old).__getitem__, _differing(old.values(), new.values())))
        else:
            places = []
            self._behind.append((old, new, path, room))
        for name in dict.fromkeys((*first, *places, *last)):
            old[name] = self._walk(old[name], new[name], f"{path}/{escape(name)}", room)
        for name in reversed(added):
            self._add(old, name, new[name], path, room)
        return old

    def _object_exactly(
        self, old: dict[str, Any], new: dict[str, Any], path: str, room: int
    ) -> dict[str, Any]:
        if not old.keys() <= new.keys():
            self._ops.extend(["d", f"{path}/{escape(name)}"] for name in old if name not in new)
        kept: dict[str, Any] = {}
        for name, member in new.items():
            known = old.get(name, _MISSING)
            # If `known is member`, the member is immutable. Otherwise the copy must not share arrays or objects with
            # the yielded value, because the function may still mutate them.
            if known is member:
                kept[name] = member
            elif known is _MISSING:
                self._add(kept, name, member, path, room)
            else:
                kept[name] = self._walk(known, member, f"{path}/{escape(name)}", room)
        return kept

    def _add(self, kept: dict[str, Any], name: str, member: Any, path: str, room: int) -> None:
        if type(name) is not str:
            raise NotPlainError(f"at {path!r}: member name {name!r} is not a string")
        kept[name] = _copy(member, room)
        self._ops.append(["s", f"{path}/{escape(name)}", kept[name]])


def _is_start_of(new: list[Any], old: list[Any]) -> bool:
    """Return whether an array is probably the start of a longer one. Only elements at both ends are compared."""
    length = len(new)
    return (
        length > LONG
        and not _differing(new[:ENDS], old[:ENDS])
        and not _differing(new[-ENDS:], old[length - ENDS : length])
    )


def _differing(old: Collection[Any], new: Collection[Any]) -> list[int]:
    """Return the indexes at which two sequences differ, up to the end of the shorter sequence.

    If the elements cannot be compared, return all indexes of `old`.
    """
    try:
        return list(compress(range(len(old)), map(ne, old, new)))
    except Exception:  # noqa: BLE001 - a foreign type may raise anything in a comparison; the walk reports it
        return list(range(len(old)))


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
