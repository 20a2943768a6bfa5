"""Immutable view of a document's state at one point in time (`View`)."""

from dataclasses import dataclass
from itertools import islice
from typing import Any

from tidewire.protocol.document.apply_ops import ARRAYS, TEXTS, Tokens, find, place
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.versioned_text_and_arrays import Rope, materialize
from tidewire.protocol.strict_json import JsonValue


@dataclass(slots=True, eq=False)
class View:
    """The state of a document at the time when the view was created. A value is copied only when it is read."""

    top: list[Any]
    """List whose only element is the root. It is shared with the document."""
    version: int
    """Version of the document. Texts and arrays that grew after this version are read in their earlier length."""

    def value(self, pointer: str = "") -> JsonValue:
        """Return a copy of the value at a pointer.

        Raises:
            LookupError: The pointer does not exist in the view.
            PointerError: The pointer is malformed.
        """
        value: JsonValue = materialize(find(self.top, parse(pointer), self.version), self.version)
        return value

    def has_more_nodes_than(self, limit: int) -> bool:
        """Whether the view consists of more than `limit` JSON values. The time depends only on the limit."""
        count = 0
        pending = self.top[:1]
        while pending and count <= limit:
            node = pending.pop()
            count += 1
            if type(node) is dict:
                length = len(node)
            elif type(node) in ARRAYS:
                length = len(node) if type(node) is list else node.length_at(self.version)
            else:
                continue
            if count + len(pending) + length > limit:
                return True
            if type(node) is dict:
                pending.extend(node.values())
            else:
                pending.extend(islice(node if type(node) is list else node.items, length))
        return count > limit

    def length(self, pointer: str) -> int:
        """Return the length of the array at a pointer, or 0 if there is no array at the pointer."""
        node = self.node(parse(pointer))
        if type(node) not in ARRAYS:
            return 0
        return len(node) if type(node) is list else node.length_at(self.version)

    def elements(self, pointer: str, start: int) -> list[JsonValue]:
        """Return copies of an array's elements from index `start` on. The time depends only on the length of the result."""
        node = self.node(parse(pointer))
        if type(node) not in ARRAYS:
            return []
        items = node if type(node) is list else node.items
        return [materialize(one, self.version) for one in items[start : self.length(pointer)]]

    def node(self, tokens: Tokens) -> Any:
        """Return the node at a path, or None.

        This method is for internal use, because the node is shared with the document.
        """
        try:
            container, key = place(self.top, tokens, self.version)
        except (DiffError, PointerError):
            return None
        return container[key]

    def same_prefix(self, later: "View", tokens: Tokens, n: int) -> bool:
        """Whether the text at a path has the same first n code points in this view and a later view. For internal use only.

        If this view has no text at the path, the result is True. Pieces of the text that both views share are not compared.
        """
        old, new = self.node(tokens), later.node(tokens)
        if old is new or type(old) not in TEXTS:
            return True
        if not (isinstance(old, Rope) and isinstance(new, Rope)):
            text = later.text(tokens)
            return text is not None and text.startswith(materialize(old, self.version)[:n])
        n = min(n, old.length_at(self.version))
        shared = min(old.shared_with(new), n)
        if new.length_at(later.version) < n:
            return False
        return old.text_since(shared)[: n - shared] == new.text_since(shared)[: n - shared]

    def text_length(self, tokens: Tokens) -> int:
        """Return the length of the text at a path in code points, or 0 if there is no text. For internal use."""
        node = self.node(tokens)
        return node.length_at(self.version) if type(node) is Rope else len(node) if type(node) is str else 0

    def text_since(self, tokens: Tokens, start: int) -> str:
        """Return the text at a path after its first `start` code points, or an empty text. For internal use."""
        node = self.node(tokens)
        if type(node) is not Rope:
            return node[start:] if type(node) is str else ""
        surplus = node.length_at(self.version) - start
        return node.text_since(start)[:surplus] if surplus > 0 else ""

    def text(self, tokens: Tokens) -> str | None:
        """Return the text at a path, or None if there is no text at the path. For internal use."""
        node = self.node(tokens)
        return materialize(node, self.version) if type(node) in TEXTS else None
