"""Apply the ops of a diff to a JSON value (`Tree`).

These rules apply to all ops:

- The object or array that contains the target of a path must exist. For the ops `a`, `t` and `d`, the target itself must
  exist, too, and have the right type.
- An append grows its text or array in place. The first append replaces the text or array by a node that can grow, and of
  which earlier versions stay readable (`versioned_text_and_arrays`).
- All other ops copy the dicts and lists from the root to their target, unless an earlier op of the same diff has copied
  them. Views of earlier states therefore stay unchanged.
- Each op is validated before it changes anything. If an op of a diff fails, the tree is reset to the state before the diff.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tidewire.protocol.document.diff_shapes import DiffError, check_form, is_count
from tidewire.protocol.document.json_pointer import PointerError, array_index, build, parse
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit, is_text
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray
from tidewire.protocol.strict_json import JsonValue, StrictJsonError, check

Tokens = tuple[str, ...]

_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}

TEXTS: Final = frozenset({str, Rope})
ARRAYS: Final = frozenset({list, RopeArray})
"""Types of nodes that represent a text (`TEXTS`) or an array (`ARRAYS`). Only a tree contains nodes of other types than `str`
and `list`."""


def describe(node: object) -> str:
    """Return the name of a node's JSON type with an article, for error messages."""
    if type(node) in TEXTS:
        return "a text"
    return "an array" if type(node) in ARRAYS else _NAMES.get(type(node), type(node).__name__)


def length_of(node: Any) -> int:
    """Return the current length of a text in code points, or of an array in elements."""
    return node.length if isinstance(node, Rope | RopeArray) else len(node)


def place(top: list[Any], tokens: Tokens, version: int = LATEST) -> tuple[Any, Any]:
    """Find the object or array that contains the node at a path, and the name or index of the node in it.

    Args:
        top: A list whose only element is the root.
        tokens: The tokens of the path.
        version: Version of the document. Elements that were appended to a `RopeArray` after this version are ignored.

    Raises:
        DiffError: The path does not exist.
        PointerError: A token for an array is not a valid index.
    """
    container: Any = top
    key: Any = 0
    for token in tokens:
        node = container[key]
        kind = type(node)
        if kind is dict:
            if token not in node:
                raise DiffError(f"there is no member {token[:40]!r}")
            container, key = node, token
        elif kind in ARRAYS:
            length = len(node) if kind is list else node.length_at(version)
            key = array_index(token)
            if key >= length:
                raise DiffError(f"index {key} is out of range in an array of {length}")
            container = node if kind is list else node.items
        else:
            raise DiffError(f"{describe(node)} has no members")
    return container, key


def find(top: list[Any], tokens: Tokens, version: int = LATEST) -> Any:
    """Return the node at a path.

    Raises:
        LookupError: The path does not exist.
    """
    try:
        container, key = place(top, tokens, version)
    except (DiffError, PointerError) as error:
        raise LookupError(f"nothing at {build(tokens)[:200]!r}: {error}") from None
    return container[key]


def wrong_addition(target: object, x: object) -> DiffError:
    """Return the error for an append of `x`, which does not have the type of the text or array `target`."""
    expected = "a string" if type(target) in TEXTS else "an array"
    return DiffError(f"only {expected} can be appended to {describe(target)}, not {describe(x)}")


class Tree:
    """A JSON value that ops change. `Document` describes how it is used.

    Attributes:
        top: List whose only element is the root. It makes the root an element of a container like all other nodes.
        version: The current version. Texts and arrays that grow record it with their previous length.
        growing: Cache of the texts and arrays that have grown, by pointer. Every op that does not append clears the cache.
        touched: Paths that the current diff has changed. An op on an element of an array can shift all later elements, so
            the path is then that of the array.
    """

    __slots__ = ("_columns", "_grown", "_keeps_values", "_own", "growing", "top", "touched", "version")

    def __init__(self, value: JsonValue, columns: Sequence[str], *, keep_values: bool) -> None:
        """Create a tree from a value. `Document` describes the arguments.

        Raises:
            StrictJsonError: The value is nested too deep, or is not I-JSON.
        """
        self._columns = columns
        self._keeps_values = keep_values
        self.top: list[Any] = [self._admit(value, 0)]
        self.version: int = 1
        self.touched: list[Tokens] = []
        self.growing: dict[str, Rope | RopeArray] = {}
        self._grown: list[Rope | RopeArray] = []
        """The texts and arrays that the current diff has appended to."""
        self._own: dict[int, Any] = {}
        """Dicts and lists that the current diff has created, by their `id`. The diff may modify them in place."""

    def run(self, ops: Iterable[Any]) -> None:
        """Apply the ops of one diff in order. If an op fails, the caller must call `reset`.

        Raises:
            DiffError: An op is malformed, or cannot be applied. The error contains the index of the op.
        """
        self.touched, self._grown = [], []
        try:
            for index, op in enumerate(ops):
                try:
                    self._apply(op)
                except (DiffError, PointerError, StrictJsonError) as error:
                    kind = type(error) if isinstance(error, DiffError) else DiffError
                    path = op[1] if isinstance(op, list) and len(op) > 1 and op[0] != "r" else None
                    raise kind(str(error), op=index, path=path if isinstance(path, str) else None) from None
        finally:
            # Later diffs must copy the dicts and lists that this diff has created, because new views share them.
            self._own.clear()

    def reset(self, top: list[Any], version: int) -> None:
        """Return to the state before the last diff. `top` and `version` identify this state."""
        self.top = top
        for node in self._grown:
            node.cut(node.length_at(version))
        self.growing.clear()

    def growable(self, pointer: str) -> Any:
        """Return the text or array at a pointer as a node with the method `extend`.

        Raises:
            DiffError: There is neither a text nor an array at the pointer.
            PointerError: The pointer is malformed.
        """
        known = self.growing.get(pointer)
        if known is not None:
            return known
        container, key = place(self.top, parse(pointer))
        node = container[key]
        if type(node) is str:
            node = container[key] = Rope(node)
        elif type(node) is list:
            if id(node) in self._own:
                return node
            # Copy the list, because existing views may contain it.
            node = container[key] = RopeArray(node.copy())
        elif not isinstance(node, Rope | RopeArray):
            raise DiffError(f"cannot append to {describe(node)}, only to a text or an array")
        self.growing[pointer] = node
        return node

    # ---- ops -----------------------------------------------------------------------------------------------------

    def _apply(self, op: Any) -> None:
        check_form(op)
        if op[0] == "r":
            self._row(op[1:])
            return
        letter, path, *value = op
        if letter == "a":
            self._append(path, *value)
        elif letter == "t":
            self._truncate(parse(path), *value)
        elif letter == "s":
            self._set(parse(path), *value)
        elif letter == "i":
            self._insert(parse(path), *value)
        else:
            self._delete(parse(path))

    def _row(self, members: list[Any]) -> None:
        columns = self._columns
        if len(members) != len(columns):
            raise DiffError(f"a row has {len(members)} members, but there are {len(columns)} columns")
        additions = []
        for index, (pointer, x) in enumerate(zip(columns, members, strict=True)):
            try:
                target = self.growable(pointer)
                addition = x if type(target) is Rope else [x]
                additions.append((pointer, target, self._addition(target, addition, pointer)))
            except (DiffError, PointerError, StrictJsonError) as error:
                raise DiffError(f"column {index} ({pointer[:80]!r}): {error}") from None
        for pointer, target, addition in additions:
            self._grow(pointer, target, addition)

    def _append(self, pointer: str, x: Any) -> None:
        target = self.growable(pointer)
        self._grow(pointer, target, self._addition(target, x, pointer))

    def _addition(self, target: Any, x: Any, pointer: str) -> Any:
        """Validate the string or the elements to append to a text or an array, and return them."""
        if type(target) is Rope:
            if type(x) is not str:
                raise wrong_addition(target, x)
            if not is_text(x):
                raise DiffError("the string to append holds a lone surrogate")
            return x
        if type(x) is not list:
            raise wrong_addition(target, x)
        return self._admit(x, pointer.count("/"))

    def _grow(self, pointer: str, target: Any, addition: Any) -> None:
        if type(target) is list:
            target.extend(addition)
        else:
            target.extend(addition, self.version)
            self._grown.append(target)
        self.touched.append(parse(pointer))

    def _truncate(self, tokens: Tokens, n: Any) -> None:
        if not is_count(n):
            raise DiffError("the number of code points or elements to drop is not an integer ≥ 0")
        container, key = place(self.top, tokens)
        target = container[key]
        if type(target) not in TEXTS and type(target) not in ARRAYS:
            raise DiffError(f"{describe(target)} cannot be truncated")
        keep = length_of(target) - n
        if keep < 0:
            raise DiffError(f"cannot drop {n} from a length of {length_of(target)}")
        container, key = self._slot(tokens)
        if type(target) in ARRAYS:
            del self._writable(container, key)[keep:]
        else:
            container[key] = (target if isinstance(target, Rope) else Rope(target)).shortened(keep)

    def _set(self, tokens: Tokens, value: Any) -> None:
        container, key = self._slot(tokens)
        value = self._admit(value, len(tokens))
        if type(container) is dict or key < len(container):
            container[key] = value
        elif key == len(container):
            container.append(value)
        else:
            raise DiffError(f"index {key} is beyond the end of an array of {len(container)}")

    def _insert(self, tokens: Tokens, value: Any) -> None:
        container, key = self._slot(tokens)
        if not tokens or type(container) is dict:
            raise DiffError("an element can only be inserted into an array")
        if key > len(container):
            raise DiffError(f"index {key} is beyond the end of an array of {len(container)}")
        container.insert(key, self._admit(value, len(tokens)))

    def _delete(self, tokens: Tokens) -> None:
        if not tokens:
            raise DiffError("the root cannot be deleted")
        place(self.top, tokens)
        container, key = self._slot(tokens)
        del container[key]

    def _admit(self, value: JsonValue, depth: int) -> Any:
        """Validate a value that becomes a part of the tree. Return a copy, unless the tree may keep the value itself."""
        max_depth = MAX_STATE_DEPTH - depth
        if not self._keeps_values:
            return admit(value, max_depth)
        check(value, max_depth=max_depth)
        return value

    # ---- copy-on-write -------------------------------------------------------------------------------------------

    def _slot(self, tokens: Tokens) -> tuple[Any, Any]:
        """Return a writable copy of the dict or list that contains the target of a path, and the key or index of the target.

        The key need not exist in the dict, and the index need not be in the range of the list.
        """
        if id(self.top) not in self._own:
            self.top = self.top[:]
            self._own[id(self.top)] = self.top
        container: Any = self.top
        key: Any = 0
        for depth, token in enumerate(tokens, 1):
            container = self._writable(container, key)
            if type(container) is dict:
                key = token
                if depth < len(tokens) and token not in container:
                    raise DiffError(f"there is no member {token[:40]!r}")
            else:
                key = array_index(token)
                if depth < len(tokens) and key >= len(container):
                    raise DiffError(f"index {key} is out of range in an array of {len(container)}")
        self.growing.clear()
        self.touched.append(tokens[:-1] if type(container) is list else tokens)
        return container, key

    def _writable(self, container: Any, key: Any) -> Any:
        """Return the dict or list at `container[key]`. Unless this diff has created it, replace it by a copy first."""
        node = container[key]
        if id(node) in self._own:
            return node
        if type(node) is not dict and type(node) not in ARRAYS:
            raise DiffError(f"{describe(node)} has no members")
        copy = node.items_at(LATEST) if type(node) is RopeArray else node.copy()
        container[key] = self._own[id(copy)] = copy
        return copy
