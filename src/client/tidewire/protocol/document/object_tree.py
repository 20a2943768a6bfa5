"""`ObjectTree`, an object in which setting and deleting a member takes logarithmic time.

The members are in buckets, by the hash of their names, and the buckets are the elements of an `ArrayTree`. No bucket ever
changes: a change of the object replaces one bucket, and the old and the new object share all others. A copy of an object is
therefore only another reference, and a reader on another thread needs no lock.
"""

from collections.abc import Iterable
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from tidewire.protocol.document.array_tree import ArrayTree

MAX_MEMBERS: Final = 16
"""Maximum mean number of members in a bucket. If it is exceeded, the object gets four times as many buckets."""

_Entry = tuple[int, str, Any]
"""Ordinal, name and value of a member. Members have the order of their ordinals, as those of a dict have."""


class ObjectTree:
    """A dict with copies in constant time, and with changes in logarithmic time.

    It has the methods of a dict that ops need. All versions of the document that refer to the same `ObjectTree` see the
    same members.
    """

    __slots__ = ("_buckets", "_length", "_next")

    def __init__(self, members: dict[str, Any]) -> None:
        self._next: int = len(members)
        """Ordinal of the next new member."""
        self._fill([(ordinal, name, value) for ordinal, (name, value) in enumerate(members.items())])

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: str) -> bool:
        return name in self._bucket(name)

    def __getitem__(self, name: str) -> Any:
        return self._bucket(name)[name][2]

    def __setitem__(self, name: str, value: Any) -> None:
        index = hash(name) & (len(self._buckets) - 1)
        bucket = self._buckets[index]
        known = bucket.get(name)
        self._buckets[index] = {**bucket, name: (known[0] if known else self._next, name, value)}
        if not known:
            self._next += 1
            self._length += 1
            if self._length > MAX_MEMBERS * len(self._buckets):
                self._fill(self._entries())

    def __delitem__(self, name: str) -> None:
        index = hash(name) & (len(self._buckets) - 1)
        bucket = self._buckets[index].copy()
        del bucket[name]
        self._buckets[index] = bucket
        self._length -= 1
        if self._length < len(self._buckets) // 2:
            self._fill(self._entries())

    def get(self, name: str, default: Any = None) -> Any:
        entry = self._bucket(name).get(name)
        return entry[2] if entry else default

    def copy(self) -> "ObjectTree":
        copy = ObjectTree.__new__(ObjectTree)
        copy._buckets, copy._length, copy._next = self._buckets.copy(), self._length, self._next
        return copy

    def members(self) -> dict[str, Any]:
        """Return a new dict of the members. A member that was set first is also first in the dict."""
        return {name: value for _, name, value in sorted(self._entries(), key=_ORDINAL)}

    def _bucket(self, name: str) -> dict[str, _Entry]:
        bucket: dict[str, _Entry] = self._buckets[hash(name) & (len(self._buckets) - 1)]
        return bucket

    def _entries(self) -> Iterable[_Entry]:
        return chain.from_iterable(bucket.values() for bucket in self._buckets)

    def _fill(self, entries: Iterable[_Entry]) -> None:
        found = [*entries]
        count = 1
        while len(found) * 2 > MAX_MEMBERS * count:
            count *= 2
        buckets: list[dict[str, _Entry]] = [{} for _ in range(count)]
        for entry in found:
            buckets[hash(entry[1]) & (count - 1)][entry[1]] = entry
        self._buckets, self._length = ArrayTree(buckets), len(found)


_ORDINAL: Final = itemgetter(0)
