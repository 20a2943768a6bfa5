"""A document as it was at one moment."""

from typing import Any

from pydantic import JsonValue

from tidewire.protocol.document.apply_ops import ARRAYS, TEXTS, Tokens, find
from tidewire.protocol.document.json_pointer import parse
from tidewire.protocol.document.rope import GrowingText, plain


class View:
    """A document as it was when the view was taken, whatever is applied later. Nothing is copied until it is read."""

    __slots__ = ("_stamp", "_top")

    def __init__(self, top: list[Any], stamp: int) -> None:
        self._top = top
        self._stamp = stamp

    def value(self, pointer: str = "") -> JsonValue:
        """The JSON at a place, made anew for the caller at each call.

        Raises:
            LookupError: There was no such place.
            PointerError: The pointer is malformed.
        """
        value: JsonValue = plain(find(self._top, parse(pointer), self._stamp), self._stamp)
        return value

    def length(self, pointer: str) -> int:
        """Elements of the array at a place; 0 where there is none."""
        node = self.node(parse(pointer))
        if type(node) not in ARRAYS:
            return 0
        return len(node) if type(node) is list else node.length_at(self._stamp)

    def elements(self, pointer: str, start: int) -> list[JsonValue]:
        """Elements of the array at a place from `start` on; costs what is returned, not what is there."""
        node = self.node(parse(pointer))
        if type(node) not in ARRAYS:
            return []
        items = node if type(node) is list else node.items
        return [plain(one, self._stamp) for one in items[start : self.length(pointer)]]

    def node(self, tokens: Tokens) -> Any:
        """What the tree holds at a place, None where there is no such place. For the document's own use."""
        try:
            return find(self._top, tokens, self._stamp)
        except LookupError:
            return None

    def begins_alike(self, later: "View", tokens: Tokens, n: int) -> bool:
        """Whether the first n code points of the text at a place stand in a later view as they do here; what both hold as
        the same pieces is not looked at. True where there is no text here. For the document's own use.
        """
        old, new = self.node(tokens), later.node(tokens)
        if old is new or type(old) not in TEXTS:
            return True
        if not (isinstance(old, GrowingText) and isinstance(new, GrowingText)):
            text = later.text(tokens)
            return text is not None and text.startswith(plain(old, self._stamp)[:n])
        n = min(n, old.length_at(self._stamp))
        shared = min(old.shared_with(new), n)
        if new.length_at(later._stamp) < n:
            return False
        return old.text_since(shared)[: n - shared] == new.text_since(shared)[: n - shared]

    def text(self, tokens: Tokens) -> str | None:
        """The text at a place, None where there is none. For the document's own use."""
        node = self.node(tokens)
        return plain(node, self._stamp) if type(node) in TEXTS else None
