"""Texts and arrays that grow in place, while each earlier state of them can still be read.

Appending never changes what was there, so an earlier state is a length. A document counts *versions*; a node notes
the length that it had at a version when it grows at a later one, and a reader that holds a version reads only up to it.

One thread writes; others may read meanwhile. Three rules keep that right without a lock on the hot path:
- the writer moves `version` before `length`, a reader reads `length` before `version`: a length read together with a
  version not above the reader's own is not newer than that version;
- the pieces of a text are joined in one call, which nothing interrupts; when the writer merges pieces it puts a new
  list in place of the old one, so that no reader sees half a merge;
- what a reader may read is never taken away: a truncated text is a node of its own. Only appends of an event that
  failed are undone in place, and no reader holds a version that sees them.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, Final
from zlib import crc32

from tidewire.protocol.document.json_values import same

LATEST: Final = 2**62
"""A version above all others: the present."""

MAX_LOOSE_PIECES: Final = 512
"""Pieces of a text that are kept as they came before they are merged."""

MAX_PIECE: Final = 65_536
"""Code points of a piece beyond which it is merged no further, so that a truncation copies little. One that came
longer stays whole until it is truncated: whoever was handed it shares it."""


class _RopeNode:
    __slots__ = ("_lengths", "_versions", "length", "version")

    length: int
    """Code points or elements, at present."""
    version: int
    """The version since which `length` holds."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.version = 0
        self._versions = array("q")
        self._lengths = array("q")

    def length_at(self, version: int) -> int:
        """The length that the node had at the end of a version."""
        length = self.length
        if self.version <= version:
            return length
        return self._lengths[bisect_right(self._versions, version) - 1]

    def _note(self, version: int) -> None:
        self._lengths.append(self.length)
        self._versions.append(self.version)
        self.version = version


class Rope(_RopeNode):
    """A text in pieces: first merged ones, large before small, then loose ones as they came.

    A piece is merged into one that is at least twice as large, so a code point is copied a few times at most, and
    many small pieces cost little more memory than their text.
    """

    __slots__ = ("_crcs", "_pieces")

    def __init__(self, text: str) -> None:
        super().__init__(len(text))
        self._pieces = [text] if text else []
        self._crcs: list[int] = []
        """CRC-32 of the text up to the end of each merged piece."""

    def extend(self, piece: str, version: int) -> None:
        """Grow by one piece. The caller has made sure that it is text."""
        if self.version != version:
            if not piece:
                # It would leave a note, and nothing bounds how often it comes.
                return
            # As `_note`: it is what each token of a stream costs.
            self._lengths.append(self.length)
            self._versions.append(self.version)
            self.version = version
        self.length += len(piece)
        pieces = self._pieces
        pieces.append(piece)
        if len(pieces) > MAX_LOOSE_PIECES and len(pieces) - len(self._crcs) > MAX_LOOSE_PIECES:
            self._merge()

    def text_at(self, version: int) -> str:
        """The text as it was at the end of a version."""
        length = self.length_at(version)
        text = "".join(self._pieces)
        return text if len(text) == length else text[:length]

    def text_since(self, length: int) -> str:
        """The text after its first `length` code points; costs what is returned, not what is there."""
        pieces = self._pieces
        start, missing = len(pieces), self.length - length
        while missing > 0:
            start -= 1
            missing -= len(pieces[start])
        return "".join(pieces[start:])[-missing:]

    def pieces(self) -> Iterator[str]:
        """The text at present, piece by piece: to read it so holds it no second time."""
        return iter(self._pieces)

    def shared_with(self, other: "Rope") -> int:
        """Code points that both texts begin with, as far as they hold the same pieces; costs no look at the text."""
        shared = 0
        for mine, theirs in zip(self._pieces, other._pieces, strict=False):
            if mine is not theirs:
                break
            shared += len(mine)
        return shared

    def crc(self) -> int:
        """CRC-32 of the UTF-8 of the text, carried on from where it was last known."""
        self._merge()
        return self._crcs[-1] if self._crcs else 0

    def shortened(self, length: int) -> "Rope":
        """A new node with the first `length` code points. It shares the pieces."""
        node = Rope("")
        node.length, node._pieces, node._crcs = self.length, self._pieces, self._crcs
        node.cut(length)
        return node

    def cut(self, length: int) -> None:
        """Take back what the text grew by beyond `length`."""
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
    """Pieces joined to at most `MAX_PIECE` code points, or one longer as it is."""
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
    """An array whose elements may themselves be arrays, objects and growing nodes."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        """Take over a list that nobody else holds."""
        super().__init__(len(items))
        self.items: list[Any] = items

    def extend(self, elements: list[Any], version: int) -> None:
        """Grow by some elements, which the node takes over."""
        if self.version != version:
            if not elements:
                return
            self._note(version)
        self.items.extend(elements)
        self.length += len(elements)

    def items_at(self, version: int) -> list[Any]:
        """The elements as they were at the end of a version, in a list of the caller's own."""
        return self.items[: self.length_at(version)]

    def cut(self, length: int) -> None:
        """Take back what the array grew by beyond `length`."""
        del self.items[length:]
        self.length: int = length


def in_pieces(node: Any) -> Any:
    """As `materialize`, at present, but a text of more than `MAX_PIECE` code points stays the growing node that it is."""
    kind = type(node)
    if kind is dict:
        return {name: in_pieces(member) for name, member in node.items()}
    if kind is list:
        return [in_pieces(element) for element in node]
    if kind is RopeArray:
        return [in_pieces(element) for element in node.items_at(LATEST)]
    return materialize(node, LATEST) if kind is not Rope or node.length <= MAX_PIECE else node


def holds(node: Any, value: Any) -> bool:
    """Whether a node is, at present, the same JSON as a plain value; neither is copied. See `json_values.same`."""
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
    """A node and all below it as JSON of the caller's own, as it was at the end of a version."""
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
