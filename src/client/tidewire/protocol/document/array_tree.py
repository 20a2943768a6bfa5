"""`ArrayTree`, an array in which setting, inserting and deleting an element takes logarithmic time.

The elements are in the leaves of a tree. No node of a tree ever changes: a change of the array replaces the nodes on the
path from the root to the element, and the old and the new array share all other nodes. A copy of an array is therefore only
another reference to the root, and a reader on another thread needs no lock.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, chain
from typing import Any, Final

WIDTH: Final = 64
"""Maximum number of elements in a leaf, and of children of a branch."""


class _Branch:
    __slots__ = ("children", "ends")

    def __init__(self, children: "list[_Node]", ends: list[int] | None = None) -> None:
        self.children = children
        self.ends = list(accumulate(map(_size, children))) if ends is None else ends
        """For each child, the number of elements up to the end of this child."""


_Node = list[Any] | _Branch
"""A leaf is a list of elements. All leaves of a tree have the same depth."""


class ArrayTree:
    """A list with copies in constant time, and with changes in logarithmic time.

    It has the methods of a list that ops need, and the attributes `items`, `length_at` and `items_at` of a `RopeArray`. All
    versions of the document that refer to the same `ArrayTree` see the same elements.
    """

    __slots__ = ("_root", "appended")

    def __init__(self, elements: list[Any]) -> None:
        self._root: _Node = []
        self.appended: int = 0
        """Number of elements that were appended since the last change that was not an append."""
        self.extend(elements)
        self.appended = 0

    def __len__(self) -> int:
        return _size(self._root)

    def __iter__(self) -> Iterator[Any]:
        return chain.from_iterable(_leaves(self._root, 0))

    def __getitem__(self, index: Any) -> Any:
        node = self._root
        if type(index) is slice:
            start, stop, _ = index.indices(_size(node))
            return list(chain.from_iterable(_leaves(node, start)))[: max(0, stop - start)]
        while not isinstance(node, list):
            at, index = _child(node, index)
            node = node.children[at]
        return node[index]

    def __setitem__(self, index: int, element: Any) -> None:
        self._root = _with_element(self._root, index, element)

    def __delitem__(self, index: int | slice) -> None:
        """Delete the element at an index, or all elements of a slice that extends to the end of the array."""
        if isinstance(index, slice):
            root = _prefix(self._root, index.indices(len(self))[0])
        else:
            root = _without_element(self._root, index)
        while not isinstance(root, list) and len(root.children) < 2:
            root = root.children[0] if root.children else []
        self._root = root
        self.appended = 0

    def insert(self, index: int, element: Any) -> None:
        self._grow(_with_inserted(self._root, index, element))
        self.appended = 0

    def append(self, element: Any) -> None:
        self.extend([element])

    def extend(self, elements: list[Any]) -> None:
        self._grow(_with_appended(self._root, elements))
        self.appended += len(elements)

    def copy(self) -> "ArrayTree":
        copy = ArrayTree([])
        copy._root, copy.appended = self._root, self.appended
        return copy

    @property
    def items(self) -> "ArrayTree":
        """The elements as a sequence."""
        return self

    def length_at(self, _version: int) -> int:
        """Return the number of elements."""
        return len(self)

    def items_at(self, _version: int) -> list[Any]:
        """Return a new list of the elements."""
        return list(self)

    def _grow(self, nodes: "list[_Node]") -> None:
        while len(nodes) > 1:
            nodes = [_Branch(children) for children in _parts(nodes)]
        self._root = nodes[0]


def _size(node: _Node) -> int:
    if isinstance(node, list):
        return len(node)
    return node.ends[-1] if node.ends else 0


def _child(branch: _Branch, index: int) -> tuple[int, int]:
    """Return the position of the child that contains an element, and the index of the element in this child."""
    at = bisect_right(branch.ends, index)
    return at, index - (branch.ends[at - 1] if at else 0)


def _leaves(node: _Node, start: int) -> Iterable[list[Any]]:
    """Iterate over the leaves. The elements before the index `start` are left out."""
    if isinstance(node, list):
        yield node[start:] if start else node
        return
    at, start = _child(node, start)
    for child in node.children[at:]:
        yield from _leaves(child, start)
        start = 0


def _with_element(node: _Node, index: int, element: Any) -> _Node:
    if isinstance(node, list):
        leaf = node.copy()
        leaf[index] = element
        return leaf
    at, index = _child(node, index)
    children = node.children.copy()
    children[at] = _with_element(children[at], index, element)
    return _Branch(children, node.ends)


def _without_element(node: _Node, index: int) -> _Node:
    if isinstance(node, list):
        return node[:index] + node[index + 1 :]
    at, index = _child(node, index)
    child = _without_element(node.children[at], index)
    return _Branch([*node.children[:at], *((child,) if _size(child) else ()), *node.children[at + 1 :]])


def _prefix(node: _Node, length: int) -> _Node:
    if isinstance(node, list):
        return node[:length]
    at = bisect_left(node.ends, length)
    kept = node.children[:at]
    if missing := length - (node.ends[at - 1] if at else 0):
        kept.append(_prefix(node.children[at], missing))
    return _Branch(kept)


def _with_inserted(node: _Node, index: int, element: Any) -> "list[_Node]":
    """Return the node with one more element. If it becomes too wide, it is split into two nodes."""
    if isinstance(node, list):
        return _parts([*node[:index], element, *node[index:]])  # type: ignore[return-value]
    at = bisect_left(node.ends, index)
    index -= node.ends[at - 1] if at else 0
    children = [
        *node.children[:at],
        *_with_inserted(node.children[at], index, element),
        *node.children[at + 1 :],
    ]
    return [_Branch(part) for part in _parts(children)]


def _with_appended(node: _Node, elements: list[Any]) -> "list[_Node]":
    """Return the node with more elements, split into as many nodes as necessary."""
    if isinstance(node, list):
        return _parts(node + elements)  # type: ignore[return-value]
    children = [*node.children[:-1], *_with_appended(node.children[-1], elements)]
    return [_Branch(part) for part in _parts(children)]


def _parts(members: list[Any]) -> list[list[Any]]:
    """Split a list into parts of nearly equal length, with at most `WIDTH` members each."""
    if len(members) <= WIDTH:
        return [members]
    count = -(-len(members) // WIDTH)
    length = -(-len(members) // count)
    return [members[start : start + length] for start in range(0, len(members), length)]
