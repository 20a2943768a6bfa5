"""Choose which entries a store deletes before they expire, because it holds more than its limit."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

E = TypeVar("E", bound=Hashable)


class FairEviction(Generic[E]):
    """Entries of a store by principal. The next entry to delete is the oldest one of the principal with the most entries.

    Therefore a principal that fills the store deletes its own entries, and not those of other principals. Every method
    takes constant time.
    """

    def __init__(self) -> None:
        self._entries: dict[str, OrderedDict[E, None]] = {}
        self._principals: dict[int, OrderedDict[str, None]] = {}
        """Principals by the number of their entries."""
        self._most = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, principal: str, entry: E) -> None:
        """Add a new entry, which is the principal's newest."""
        entries = self._entries.setdefault(principal, OrderedDict())
        if entry not in entries:
            entries[entry] = None
            self._resized(principal, len(entries) - 1)

    def discard(self, principal: str, entry: E) -> None:
        """Remove an entry that the store has deleted. If the entry is unknown, do nothing."""
        entries = self._entries.get(principal)
        if entries is not None and entry in entries:
            del entries[entry]
            self._resized(principal, len(entries) + 1)

    def evict(self) -> E:
        """Remove and return the entry that the store must delete next.

        If several principals have the most entries, the principal that has had this number of entries for the longest
        time loses its oldest entry.

        Raises:
            LookupError: There is no entry.
        """
        if not self._count:
            raise LookupError("there is no entry to delete")
        principal = next(iter(self._principals[self._most]))
        entries = self._entries[principal]
        entry, _ = entries.popitem(last=False)
        self._resized(principal, len(entries) + 1)
        return entry

    def replace(self, principal: str, entry: E) -> E:
        """Add a new entry, and remove and return the entry that the store must delete to make room.

        The result is the same as after a call of `add` and a call of `evict`. If the principal replaces its own entry,
        as on a server with one principal, this method is faster, because the index does not change.
        """
        entries = self._entries.get(principal)
        if entries is None or len(entries) != self._most or entry in entries:
            self.add(principal, entry)
            return self.evict()
        evicted, _ = entries.popitem(last=False)
        entries[entry] = None
        self._principals[self._most].move_to_end(principal)
        return evicted

    def _resized(self, principal: str, before: int) -> None:
        """Update the index after a principal's number of entries has changed by one."""
        now = len(self._entries[principal])
        self._count += now - before
        if before:
            del self._principals[before][principal]
            if not self._principals[before]:
                del self._principals[before]
        if now:
            self._principals.setdefault(now, OrderedDict())[principal] = None
        else:
            del self._entries[principal]
        if now > self._most or self._most not in self._principals:
            self._most = now
