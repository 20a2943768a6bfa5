"""Append-only texts (`Rope`) and arrays (`RopeArray`) whose earlier versions stay readable.

Appending never changes existing content, so an earlier version of a node is a prefix of it. A document numbers its
*versions*. When a node grows, it records the length that it had before. A reader of a version reads only up to that length.

One thread writes while other threads read. Three rules make that safe without a lock on the hot path:
- The writer updates `version` before `length`, and a reader reads `length` before `version`. If the version that a reader
  read is not newer than its own, then the length is not newer either.
- The pieces of a text are joined by a single call that the interpreter does not interrupt. When the writer merges pieces,
  it replaces the whole list, so a reader never sees a partial merge.
- Content that a reader may read is never removed. Truncating a text creates a new node. The only content removed in place
  belongs to a diff that failed, and no reader has a version that includes it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

from tidewire.protocol.document.json_values import same

LATEST: Final = 2**62
"""Version number above all others. Reading at this version returns the current content."""

MAX_LOOSE_PIECES: Final = 512
"""Number of unmerged pieces after which a text merges them."""

MAX_PIECE: Final = 65_536
"""Maximum length of a merged piece, in code points, which bounds the copying when a text is truncated. A longer piece that
was appended at once is kept as one piece, shared with the caller, until the text is truncated."""


class _RopeNode:
    __slots__ = ("_lengths", "_versions", "length", "version")

    length: int
    """Current length, in code points or elements."""
    version: int
    """Version at which `length` was last changed."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.version = 0
        self._versions = array("q")
        self._lengths = array("q")

    def length_at(self, version: int) -> int:
        """Length of the node at the end of a version."""
        length = self.length
        if self.version <= version:
            return length
        return self._lengths[bisect_right(self._versions, version) - 1]

    def _record_length(self, version: int) -> None:
        self._lengths.append(self.length)
        self._versions.append(self.version)
        self.version = version


class Rope(_RopeNode):
    """A text stored as a list of pieces: merged pieces of decreasing size, then the pieces appended since the last merge.

    Two pieces are merged only if the first is not longer than the second, so each code point is copied only a few times.
    Merging keeps the memory for many small pieces close to the size of their text.
    """

    __slots__ = ("_crcs", "_pieces")

    def __init__(self, text: str) -> None:
        super().__init__(len(text))
        self._pieces = [text] if text else []
        self._crcs: list[int] = []
        """CRC-32 of the text up to the end of each merged piece."""

    def extend(self, piece: str, version: int) -> None:
        """Append one piece. The caller has checked that it holds no lone surrogates."""
        if self.version != version:
            if not piece:
                # An empty piece would still record a length. A stream of empty pieces would fill the memory.
                return
            # Inlined `_record_length`, because this runs for each token of a stream.
            self._lengths.append(self.length)
            self._versions.append(self.version)
            self.version = version
        self.length += len(piece)
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) > MAX_LOOSE_PIECES and len(pieces) - len(self._crcs) > MAX_LOOSE_PIECES:
            self._merge()

    def text_at(self, version: int) -> str:
        """Return the text at the end of a version."""
        length = self.length_at(version)
        text = "".join(self._pieces)
        return text if len(text) == length else text[:length]

    def text_since(self, length: int) -> str:
        """Return the text after its first `length` code points. Takes time linear in the result, not in the whole text."""
        pieces = self._pieces
        start, missing = len(pieces), self.length - length
        while missing > 0:
            start -= 1
            missing -= len(pieces[start])
        return "".join(pieces[start:])[-missing:]

    def pieces(self) -> Iterator[str]:
        """Iterate over the pieces of the current text, which avoids copying it."""
        return iter(self._pieces)

    def shared_with(self, other: "Rope") -> int:
        """Length of the common prefix made of shared pieces, in code points. Compares identities, not characters."""
        shared = 0
        for mine, theirs in zip(self._pieces, other._pieces, strict=False):
            if mine is not theirs:
                break
            shared += len(mine)
        return shared

    def crc(self) -> int:
        """CRC-32 of the UTF-8 encoding of the current text. Only pieces appended since the last call are read."""
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
        whole = len(pieces) - bool(surplus)
        if surplus:
            last = pieces.pop()
            end = len(last) - surplus
            pieces += [last[start : min(end, start + MAX_PIECE)] for start in range(0, end, MAX_PIECE)]
        self._pieces, self._crcs = pieces, crcs[:whole]
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
    """Join pieces into blocks of at most `MAX_PIECE` code points. A longer piece stays a block by itself."""
    run: list[str] = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_PIECE and run:
            yield "".join(run)
            run, size = [], len(piece)
        run.append(piece)
    yield "".join(run)


def _crc(text: str, crc: int) -> int:
    for start in range(0, len(text), MAX_PIECE):
        crc = crc32(text[start : start + MAX_PIECE].encode(), crc)
    return crc


class RopeArray(_RopeNode):
    """An append-only array. Its elements may be arrays, objects, and versioned nodes."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        """Wrap a list. The caller must not keep a reference to it."""
        super().__init__(len(items))
        self.items: list[Any] = items

    def extend(self, elements: list[Any], version: int) -> None:
        """Append elements. The caller must not modify them afterwards."""
        if self.version != version:
            if not elements:
                return
            self._record_length(version)
        self.items.extend(elements)
        self.length += len(elements)

    def items_at(self, version: int) -> list[Any]:
        """Return a new list of the elements at the end of a version."""
        return self.items[: self.length_at(version)]

    def cut(self, length: int) -> None:
        """Truncate the array in place to `length` elements."""
        del self.items[length:]
        self.length: int = length


def in_pieces(node: Any) -> Any:
    """Copy a node like `materialize` at the latest version, but keep texts longer than `MAX_PIECE` as `Rope` nodes."""
    kind = type(node)
    if kind is dict:
        return {name: in_pieces(member) for name, member in node.items()}
    if kind is list:
        return [in_pieces(element) for element in node]
    if kind is RopeArray:
        return [in_pieces(element) for element in node.items_at(LATEST)]
    return materialize(node, LATEST) if kind is not Rope or node.length <= MAX_PIECE else node


def holds(node: Any, value: Any) -> bool:
    """Whether the current content of a node equals a JSON value, compared like `json_values.same` and without copying."""
    kind = type(node)
    if kind is Rope:
        if type(value) is not str or len(value) != node.length:
            return False
        at = 0
        for piece in node.pieces():
            if not value.startswith(piece, at):
                return False
            at += len(piece)
        return True
    if kind is RopeArray:
        node = node.items_at(LATEST)
    if type(node) is list:
        return type(value) is list and len(node) == len(value) and all(map(holds, node, value))
    if kind is dict:
        if type(value) is not dict or len(node) != len(value):
            return False
        return all(name in value and holds(member, value[name]) for name, member in node.items())
    return same(node, value)


def materialize(node: Any, version: int) -> Any:
    """Copy a node and its descendants at the end of a version to dicts, lists, strings and scalars."""
    kind = type(node)
    if kind is dict:
        return {name: materialize(member, version) for name, member in node.items()}
    if kind is list:
        return [materialize(element, version) for element in node]
    if kind is Rope:
        return node.text_at(version)
    if kind is RopeArray:
        return [materialize(element, version) for element in node.items_at(version)]
    return node
