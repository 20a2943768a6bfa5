"""A document as it was at one moment."""

from typing import Any

from pydantic import JsonValue

from tidewire.protocol.document.apply_ops import ARRAYS, TEXTS, Tokens, find
from tidewire.protocol.document.json_pointer import parse
from tidewire.protocol.document.versioned_text_and_arrays import Rope, materialize


class View:
    """A document as it was when the view was taken, whatever is applied later. Nothing is copied until it is read."""

    __slots__ = ("_top", "_version")

    def __init__(self, top: list[Any], version: int) -> None:
        self._top = top
        self._version = version

    def value(self, pointer: str = "") -> JsonValue:
        """The JSON at a place, made anew for the caller at each call.

        Raises:
            LookupError: There was no such place.
            PointerError: The pointer is malformed.
        """
        value: JsonValue = materialize(find(self._top, parse(pointer), self._version), self._version)
        return value

    def length(self, pointer: str) -> int:
        """Elements of the array at a place; 0 where there is none."""
        node = self.node(parse(pointer))
        if type(node) not in ARRAYS:
            return 0
        return len(node) if type(node) is list else node.length_at(self._version)

    def elements(self, pointer: str, start: int) -> list[JsonValue]:
        """Elements of the array at a place from `start` on; costs what is returned, not what is there."""
        node = self.node(parse(pointer))
        if type(node) not in ARRAYS:
            return []
        items = node if type(node) is list else node.items
        return [materialize(one, self._version) for one in items[start : self.length(pointer)]]

    def node(self, tokens: Tokens) -> Any:
        """What the tree holds at a place, None where there is no such place. For the document's own use."""
        try:
            return find(self._top, tokens, self._version)
        except LookupError:
            return None

    def begins_alike(self, later: "View", tokens: Tokens, n: int) -> bool:
        """Whether the first n code points of the text at a place stand in a later view as they do here; what both hold as
        the same pieces is not looked at. True where there is no text here. For the document's own use.
        """
        old, new = self.node(tokens), later.node(tokens)
        if old is new or type(old) not in TEXTS:
            return True
        if not (isinstance(old, Rope) and isinstance(new, Rope)):
            text = later.text(tokens)
            return text is not None and text.startswith(materialize(old, self._version)[:n])
        n = min(n, old.length_at(self._version))
        shared = min(old.shared_with(new), n)
        if new.length_at(later._version) < n:
            return False
        return old.text_since(shared)[: n - shared] == new.text_since(shared)[: n - shared]

    def text(self, tokens: Tokens) -> str | None:
        """The text at a place, None where there is none. For the document's own use."""
        node = self.node(tokens)
        return materialize(node, self._version) if type(node) in TEXTS else None
