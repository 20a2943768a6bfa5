"""The digest of a job's items, to which arrays of numbers are added while the job runs."""

import asyncio
from typing import Final

from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import ItemsDigest, digest

LONG_ARRAY: Final = 64
"""Number of elements from which an array is added to the digest of the items as soon as its item has ended."""

MAX_WAITING_BYTES: Final = 256 * 1024
"""Maximum total size of the values that wait for an item with a lower index, in bytes."""


class EndedItems:
    """Computes the digest of a job's items.

    Items whose values are arrays of numbers are added when they end, with the JSON text from their events. Writing these
    arrays again at the end of the job takes a fifth of the CPU time of a job (bench/arrays.py). The digest contains the
    items in the order of their indexes. If an item ends before an item with a lower index, its value waits.
    """

    __slots__ = ("_added", "_waiting", "_waiting_bytes")

    def __init__(self) -> None:
        self._added = ItemsDigest()
        self._waiting: dict[int, bytes] = {}
        """Values as JSON, by the index of their item."""
        self._waiting_bytes = 0

    def add(self, document: Document, index: int, value: bytes) -> None:
        """Add an item that has ended, if its value is an array of numbers. Nothing may change the item afterwards.

        Args:
            document: The state of the job.
            index: Index of the item.
            value: The item's value as JSON.
        """
        added, waiting = self._added, self._waiting
        if index != added.count:
            if index > added.count and self._waiting_bytes + len(value) <= MAX_WAITING_BYTES:
                waiting[index] = value
                self._waiting_bytes += len(value)
            return
        item = document.node(f"/items/{index}")
        while added.add_number_array(item, value) and added.count in waiting:
            item, value = document.node(f"/items/{added.count}"), waiting.pop(added.count)
            self._waiting_bytes -= len(value)

    async def digest(self, document: Document, *, in_thread: bool) -> str:
        """Return the digest of all items of a job that has ended.

        Args:
            document: The state of the job. Nothing may change it anymore.
            in_thread: Whether a worker thread digests the items that were not added.
        """
        if not self._added.count:
            # `elements` would copy the items, which takes as long as the digest.
            items, work = document.node("/items"), digest
            is_long = in_thread
        else:
            items, work = document.view().elements("/items", self._added.count), self._added.finish
            is_long = in_thread and bool(items)
        found: str = await asyncio.to_thread(work, items) if is_long else work(items)
        return found
