"""A document as it was at one moment."""

from typing import Any

from pydantic import JsonValue

from tidewire.protocol.fold import TEXTS, Tokens, find
from tidewire.protocol.growing import plain
from tidewire.protocol.pointer import parse


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

    def node(self, tokens: Tokens) -> Any:
        """What the tree holds at a place, None where there is no such place. For the document's own use."""
        try:
            return find(self._top, tokens, self._stamp)
        except LookupError:
            return None

    def text(self, tokens: Tokens) -> str | None:
        """The text at a place, None where there is none. For the document's own use."""
        node = self.node(tokens)
        return plain(node, self._stamp) if type(node) in TEXTS else None
