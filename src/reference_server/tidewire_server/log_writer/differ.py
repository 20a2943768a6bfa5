"""From whole values to diffs: what a generator yielded, against what it yielded before.

A generator may mutate one object and yield it again and again, so the old value must be kept apart from the new one.
A shadow copies containers and shares the leaves that did not change, which are immutable: a step copies only what
changed, and what changed is all that it writes.

To look at every place of a long history would cost more than the step itself. What is found when:

  what changed                                      | is found
  --------------------------------------------------+----------------------------------------------------------------
  anything outside long arrays and objects          | in its step
  in a long one (more than 64 elements): its        | in its step
  length, its first 3 elements, its last 3          |
  any other element: a value                        | in the first step after 50 times the time that it takes to
                                                    | compare them all have passed since that was done last
  any other element: a type alone (1, 1.0, true)    | likewise, but that takes about ten times as long
  any of these                                      | by `catch_up`, which is called at the end, whatever it is; not where
                                                    | an item ends before its function in a thread has: then these
                                                    | elements are those of an earlier yield, and never of none

So looking takes a fiftieth of the time at most, and a function that yields every 20 ms is followed exactly through
some 10,000 elements. One that yields in a tight loop is followed exactly at the ends, and between them that much
later. What is found late is found whole: an element is as it was when it was looked at. Where the length shrank, or
all the elements at the end changed, the step looks at everything.
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
"""Elements of an array, or members of an object, that are looked at in every step, exactly."""

ENDS: Final = 3
"""Elements at either end of a longer one that are looked at in every step, exactly."""

PATIENCE: Final = 50
"""Times the time that a look at all elements took, before the next one."""

_MISSING: Final = object()


class NotPlainError(StrictJsonError):
    """A value holds something beyond JSON's own Python types (a tuple, a model, an array); it must be converted."""


class ShadowCopy:
    """The last value of one place, kept apart from the object that its writer goes on changing."""

    def __init__(
        self, value: JsonValue, pointer: str = "", *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Begin with a value.

        Args:
            value: What the place holds now.
            pointer: Where the place stands; the paths of all ops begin with it.
            clock: Tells seconds.
        """
        self._value: Any = _copy(value, MAX_VALUE_DEPTH)
        self._pointer = pointer
        self._clock = clock
        self._skim_due = self._walk_due = float("-inf")

        self._ops: list[Op] = []
        self._skims = self._walks = True
        """How this step looks at long ones: at all elements, and then at their types, too."""
        self._long = False
        """Whether this step looked at all elements of a long one."""
        self._behind: list[tuple[Any, Any, str, int]] = []
        """The long ones that were looked at in part: what is kept, what was yielded, where, and its room."""

    def step(self, value: Any) -> list[Op]:
        """The ops that turn the last value into this one, which is then the last.

        Raises:
            NotPlainError: The value holds something that is not JSON's own. The shadow is of no use any more.
            StrictJsonError: It is nested too deep, perhaps in itself. The shadow is of no use any more.
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
        """Whether there are elements that the last step did not look at."""
        return bool(self._behind)

    def catch_up(self) -> list[Op]:
        """The ops that bring in what the last step did not look at, as it is now.

        What was yielded may have changed since. Where a length has, nothing is taken from there: the value was yielded
        with another.

        Raises:
            NotPlainError: As `step`.
            StrictJsonError: As `step`.
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

    # ---- looking -----------------------------------------------------------------------------------------------

    def _walk(self, old: Any, new: Any, path: str, room: int) -> Any:
        """Write the ops from old to new; return what to keep of new."""
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
        if length <= LONG or len(new) < length or self._walks:
            self._long = self._long or length > LONG
            return self._array_exactly(old, new, path, room)
        if self._skims or len(_differing(old[-ENDS:], new[length - ENDS : length])) == ENDS:
            self._long = True
            places = _differing(old, new)
            if 2 * len(places) > length:
                return self._array_exactly(old, new, path, room)
        else:
            places = [*range(ENDS), *range(length - ENDS, length)]
            self._behind.append((old, new, path, room))
        for index in places:
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
            # Growth at the end, perhaps with a change of what was last, is the common case; all else is for the exact
            # diff.
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
            places = first + last
            self._behind.append((old, new, path, room))
        for name in places:
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
            # What is kept shares nothing with what was yielded but what cannot change.
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


def _differing(old: Collection[Any], new: Collection[Any]) -> list[int]:
    """The places at which two are not equal, as far as the shorter goes; all, where that cannot be told."""
    try:
        return list(compress(range(len(old)), map(ne, old, new)))
    except Exception:  # noqa: BLE001 - something beyond JSON compares in its own way; the exact look tells what
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
