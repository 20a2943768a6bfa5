"""Append-only texts (`Rope`) and arrays (`RopeArray`) whose earlier versions stay readable.

An append never changes existing content, so the content of a node in an earlier version is a prefix of its current content.
A document numbers its *versions*. When a node grows, it records the version and its previous length. To read the node in an
earlier version, a reader looks up the length in this version, and reads only this prefix.

One thread writes while other threads read. Three rules make this safe without a lock:

- The writer updates `version` before `length`, and a reader reads `length` before `version`. If the version that the reader
  gets is not newer than the version that it wants to read, then the length is not newer either.
- The pieces of a text are joined by a single call that the interpreter does not interrupt. When the writer merges pieces,
  it replaces the whole list, so a reader never sees a partial merge.
- Content that a reader may read is never removed. Truncating a text creates a new node. Only the content from a diff that
  failed is removed in place, and no reader reads a version that includes this content.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

from tidewire.protocol.strict_json import is_number_array

LATEST: Final = 2**62
"""A version number greater than all others. Reading a node in this version returns its current content."""

_SCALARS: Final = frozenset({str, int, float, bool, type(None)})

MAX_LOOSE_PIECES: Final = 512
"""Maximum number of pieces of a text that are not merged. If there are more, they are merged."""

MAX_PIECE: Final = 65_536
"""Maximum length of a merged piece, in code points. It limits how much text is copied when a text is truncated. A longer
string that was appended at once stays one piece until the text is truncated."""


class _RopeNode:
    __slots__ = ("_lengths", "_versions", "length", "version")

    length: int
    """Current length, in code points or elements."""
    version: int
    """Version of the document in which `length` last changed."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.version = 0
        self._versions = array("q")
        self._lengths = array("q")

    def length_at(self, version: int) -> int:
        """Return the length that the node had in a version of the document."""
        length = self.length
        if self.version <= version:
            return length
        return self._lengths[bisect_right(self._versions, version) - 1]

    def _record_length(self, version: int) -> None:
        self._lengths.append(self.length)
        self._versions.append(self.version)
        self.version = version


class Rope(_RopeNode):
    """A text that is stored as a list of pieces.

    The list begins with merged pieces of decreasing length, followed by the pieces that were appended since the last merge.
    Merging many small pieces saves memory. Two pieces are merged only if the first is not longer than the second, so that
    each code point is copied only a few times.
    """

    __slots__ = ("_crcs", "_pieces")

    def __init__(self, text: str) -> None:
        super().__init__(len(text))
        self._pieces = [text] if text else []
        self._crcs: list[int] = []
        """For each merged piece, the CRC-32 of the text up to the end of this piece."""

    def extend(self, piece: str, version: int) -> None:
        """Append one piece. The caller must have checked that the piece contains no lone surrogates."""
        if self.version != version:
            if not piece:
                # Do not record a length for an empty piece, because a stream of empty pieces would fill the memory.
                return
            # This is a copy of `_record_length`, to save a function call for each token of a stream.
            self._lengths.append(self.length)
            self._versions.append(self.version)
            self.version = version
        self.length += len(piece)
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) > MAX_LOOSE_PIECES and len(pieces) - len(self._crcs) > MAX_LOOSE_PIECES:
            self._merge()

    def text_at(self, version: int) -> str:
        """Return the text that the node had in a version of the document."""
        length = self.length_at(version)
        text = "".join(self._pieces)
        return text if len(text) == length else text[:length]

    def text_since(self, length: int) -> str:
        """Return the text after the first `length` code points. The time depends only on the length of the result."""
        pieces = self._pieces
        start, missing = len(pieces), self.length - length
        while missing > 0:
            start -= 1
            missing -= len(pieces[start])
        return "".join(pieces[start:])[-missing:]

    def pieces(self) -> Iterator[str]:
        """Iterate over the pieces of the current text, without copying the text."""
        return iter(self._pieces)

    def shared_with(self, other: "Rope") -> int:
        """Return the total length of the pieces that two ropes share at the beginning, in code points.

        Only pieces that are the same Python object count as shared. Their characters are not compared.
        """
        shared = 0
        for mine, theirs in zip(self._pieces, other._pieces, strict=False):
            if mine is not theirs:
                break
            shared += len(mine)
        return shared

    def crc(self) -> int:
        """Return the CRC-32 of the current text in UTF-8. Only the pieces appended since the last call are read."""
        self._merge()
        return self._crcs[-1] if self._crcs else 0

    def shortened(self, length: int) -> "Rope":
        """Return a new node with the first `length` code points. The two nodes share their pieces."""
        node = Rope("")
        node.length, node._pieces, node._crcs = self.length, self._pieces, self._crcs
        node.cut(length)
        return node

    def cut(self, length: int) -> None:
        """Truncate the text in place to `length` code points."""
        self._merge()
        pieces, crcs = self._pieces[:], self._crcs
        surplus = self.length - length
        while pieces and surplus >= len(pieces[-1]):
            surplus -= len(pieces.pop())
        crcs = crcs[: len(pieces) - bool(surplus)]
        if surplus:
            last = pieces.pop()
            for part in _shrinking_parts(last[: len(last) - surplus]):
                pieces.append(part)
                crcs.append(_crc(part, crcs[-1] if crcs else 0))
        self._pieces, self._crcs = pieces, crcs
        self.length: int = length

    def _merge(self) -> None:
        if len(self._pieces) == len(self._crcs):
            return
        merged, crcs = self._pieces[: len(self._crcs)], self._crcs[:]
        for piece in _blocks(self._pieces[len(crcs) :]):
            block = piece
            crcs.append(_crc(block, crcs[-1] if crcs else 0))
            while merged and len(merged[-1]) <= min(len(block), MAX_PIECE - len(block)):
                block = merged.pop() + block
                del crcs[-2]
            merged.append(block)
        self._pieces, self._crcs = merged, crcs


def _blocks(pieces: Iterable[str]) -> Iterator[str]:
    """Join pieces into blocks of at most `MAX_PIECE` code points.

    A piece that is longer than this becomes a separate block.
    """
    run: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_PIECE and run:
            yield "".join(run)
            run, size = [], len(piece)
        run.append(piece)
    yield "".join(run)


def _shrinking_parts(text: str) -> Iterator[str]:
    """Split text into parts of at most `MAX_PIECE` code points.

    Near the end, each part is half as long as the remaining text. The next truncation then copies only a short part.
    """
    start = 0
    while start < len(text):
        left = len(text) - start
        size = MAX_PIECE if left > MAX_PIECE else left if left <= MAX_LOOSE_PIECES else left // 2
        yield text[start : start + size]
        start += size


def _crc(text: str, crc: int) -> int:
    for start in range(0, len(text), MAX_PIECE):
        crc = crc32(text[start : start + MAX_PIECE].encode(), crc)
    return crc


class RopeArray(_RopeNode):
    """An append-only array. Its elements may be JSON values and versioned nodes."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        """Create an array from a list. The caller must not keep a reference to the list."""
        super().__init__(len(items))
        self.items: list[Any] = items

    def extend(self, elements: list[Any], version: int) -> None:
        """Append elements. The caller must not modify the elements afterwards."""
        if self.version != version:
            if not elements:
                return
            self._record_length(version)
        self.items.extend(elements)
        self.length += len(elements)

    def items_at(self, version: int) -> list[Any]:
        """Return a new list of the elements that the array had in a version of the document."""
        return self.items[: self.length_at(version)]

    def cut(self, length: int) -> None:
        """Truncate the array in place to `length` elements."""
        del self.items[length:]
        self.length: int = length


def materialize(node: Any, version: int) -> Any:
    """Return the content that a node had in a version of the document, as dicts, lists, strings and other JSON types."""
    kind = type(node)
    if kind is dict:
        if _SCALARS.issuperset(map(type, node.values())):  # such as the rows of a table: half of the time
            return node.copy()
        return {name: materialize(member, version) for name, member in node.items()}
    if kind is list:
        return node[:] if is_number_array(node) else [materialize(element, version) for element in node]
    if kind is Rope:
        return node.text_at(version)
    if kind is RopeArray:
        return [materialize(element, version) for element in node.items_at(version)]
    return node
