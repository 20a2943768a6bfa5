"""Apply the ops of a diff to a JSON value (`apply`, `DiffApplier`).

These rules apply to all ops:

- The object or array that contains the target of a path must exist. For the ops `a`, `t` and `d`, the target itself must
  exist, too, and have the right type.
- Objects and arrays are copied on write. An op copies all objects and arrays from the root to its target, unless an earlier
  op of the same diff has already copied them. The value before the diff therefore stays unchanged. An append also creates a
  new text or array. The subclass `Document`, however, appends in place, and so does `_LongDiffApplier`, which applies
  diffs of many ops.
- Each op is validated before it changes anything, and a `DiffApplier` that raised an error is discarded. A diff is
  therefore applied completely or not at all.
"""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from tidewire.protocol.document.array_tree import ArrayTree
from tidewire.protocol.document.diff_shapes import DiffError, check_form, is_count, read
from tidewire.protocol.document.digests import verify
from tidewire.protocol.document.json_pointer import PointerError, array_index, build, parse
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit, is_text, nests_deeper_than
from tidewire.protocol.document.object_tree import ObjectTree
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, EncodedArray, Rope, RopeArray
from tidewire.protocol.strict_json import JsonValue, StrictJsonError

Tokens = tuple[str, ...]

_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number"}

TEXTS: Final = frozenset({str, Rope})
ARRAYS: Final = frozenset({list, RopeArray, EncodedArray, ArrayTree})
OBJECTS: Final = frozenset({dict, ObjectTree})
"""Types of nodes that represent a text (`TEXTS`), an array (`ARRAYS`) or an object (`OBJECTS`). Only a `Document` contains
nodes of other types than `str`, `list` and `dict`, and so does the value while a `_LongDiffApplier` changes it."""

MAX_COPYING_OPS: Final = 64
"""Maximum number of ops of a diff that may each copy the text, or move the elements of the array, that they change. In a
longer diff, each op takes logarithmic time. The time for a diff is therefore at most proportional to n log n, where n is the
size of the value and of the diff."""


def describe(node: object) -> str:
    """Return the name of a node's JSON type with an article, for error messages."""
    if type(node) in TEXTS:
        return "a text"
    if type(node) in OBJECTS:
        return "an object"
    return "an array" if type(node) in ARRAYS else _NAMES.get(type(node), type(node).__name__)


def length_of(node: Any) -> int:
    """Return the current length of a text in code points, or of an array in elements."""
    return node.length if isinstance(node, Rope | RopeArray | EncodedArray) else len(node)


def members_of(node: Any) -> dict[str, Any]:
    """Return the members of an object. The caller must not modify the dict."""
    return node if type(node) is dict else node.members()


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
        if kind is dict or kind is ObjectTree:
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


def apply(value: JsonValue, ops: JsonValue, *, columns: Sequence[str] = ()) -> JsonValue:
    """Apply one diff to a value and return the new value.

    The original value is not modified. The result shares unchanged parts with the original value, but nothing with the diff.
    To apply many diffs to a value, use `Document`, in which the cost of an append does not depend on the size of the value.

    Args:
        value: Any JSON value.
        ops: A diff of any of the three shapes: a string, an array of ops, or an object with the member `ops`.
        columns: JSON Pointers of the columns. Rows, and diffs that are only a string, append to the texts and arrays at
            these pointers.

    Raises:
        DiffError: The diff is malformed, or it cannot be applied to the value. The message names the op and its path.
        IntegrityError: The result does not match the `check` of the diff.
    """
    shape = read(ops, columns)
    applier = (_LongDiffApplier if len(shape.ops) > MAX_COPYING_OPS else DiffApplier)(value, columns)
    applier._run(shape.ops)
    verify(applier, shape.check)
    return applier._result()


class DiffApplier:
    """Applies ops to a copy of a JSON value. It copies only the parts that change, and never modifies the original value."""

    __slots__ = ("_column_tokens", "_keeps_values", "_last_object", "_last_path", "_own", "_top", "columns")

    columns: tuple[str, ...]
    """JSON Pointers of the columns, which are texts and arrays. A diff that is a row or a string appends to them."""

    def __init__(self, value: JsonValue, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._column_tokens = tuple(map(_parse_column, self.columns))
        self._top: list[Any] = [value]
        """List whose only element is the root. It makes the root an element of a container like all other nodes."""
        self._keeps_values = False
        """Whether `strict_json` has parsed the values in the diffs for this document, which can keep them."""
        self._own: dict[int, Any] = {}
        """Dicts and lists that the current diff has created, by their `id`. The diff may modify them in place."""
        self._last_path: Tokens = ()
        self._last_object: Any = None
        """The object that the last op has changed, if it was an object, and its path. Many diffs set several members of one
        object, such as the value and the status of an item, one after the other."""

    def text_length(self, pointer: str) -> int:
        """Return the length of the text at a pointer, in code points.

        Raises:
            LookupError: There is no text at the pointer.
        """
        return length_of(self._measured(pointer, TEXTS, "a text"))

    def text_crc(self, pointer: str) -> int:
        """Return the CRC-32 of the text at a pointer in UTF-8.

        Raises:
            LookupError: There is no text at the pointer.
        """
        node = self._measured(pointer, TEXTS, "a text")
        return node.crc() if isinstance(node, Rope) else crc32(node.encode())

    def array_length(self, pointer: str) -> int:
        """Return the number of elements of the array at a pointer.

        Raises:
            LookupError: There is no array at the pointer.
        """
        return length_of(self._measured(pointer, ARRAYS, "an array"))

    def _measured(self, pointer: str, kinds: frozenset[type], kind: str) -> Any:
        node = find(self._top, parse(pointer))
        if type(node) not in kinds:
            raise LookupError(f"{pointer[:200]!r} is {describe(node)}, not {kind}")
        return node

    def _result(self) -> JsonValue:
        root: JsonValue = self._top[0]
        return root

    def _run(self, ops: list[Any]) -> None:
        for index, op in enumerate(ops):
            try:
                # Fast path for the op `s`, the most frequent op after appends. It saves half of the function calls.
                if type(op) is list and len(op) == 3 and op[0] == "s" and type(op[1]) is str:
                    self._set(parse(op[1]), op[2])
                else:
                    check_form(op)
                    self._perform(op)
            except (DiffError, PointerError, StrictJsonError) as error:
                kind = type(error) if isinstance(error, DiffError) else DiffError
                path = op[1] if isinstance(op, list) and len(op) > 1 and op[0] != "r" else None
                raise kind(str(error), op=index, path=path if isinstance(path, str) else None) from None

    def _perform(self, op: list[Any]) -> None:
        letter = op[0]
        if letter == "r":
            self._row(op)
            return
        tokens = parse(op[1])
        if letter == "s":
            self._set(tokens, op[2])
        elif letter == "a":
            self._append(tokens, op[2])
        elif letter == "t":
            self._truncate(tokens, op[2])
        elif letter == "i":
            self._insert(tokens, op[2])
        else:
            self._delete(tokens)

    def _row(self, op: list[Any]) -> None:
        columns = self._column_tokens
        if len(op) - 1 != len(columns):
            raise DiffError(f"a row has {len(op) - 1} members, but there are {len(columns)} columns")
        targets = self._column_targets()
        additions: list[Any] = []
        for index, target in enumerate(targets):
            x = op[index + 1]
            depth = len(columns[index])
            try:
                if type(target) in ARRAYS:
                    additions.append([self._admit(x, depth + 1)])
                else:
                    additions.append(self._addition(target, x, depth))
            except (DiffError, StrictJsonError) as error:
                raise self._column_error(index, error) from None
        for tokens, target, addition in zip(columns, targets, additions, strict=True):
            self._grow(tokens, target, addition)

    def _column_targets(self) -> list[Any]:
        targets = []
        for index, tokens in enumerate(self._column_tokens):
            try:
                targets.append(self._growable(tokens))
            except (DiffError, PointerError) as error:
                raise self._column_error(index, error) from None
        return targets

    def _column_error(self, index: int, error: ValueError) -> DiffError:
        return DiffError(f"column {index} ({self.columns[index][:80]!r}): {error}")

    def _append(self, tokens: Tokens, x: Any) -> None:
        target = self._growable(tokens)
        self._grow(tokens, target, self._addition(target, x, len(tokens)))

    def _addition(self, target: Any, x: Any, depth: int) -> str | list[Any]:
        """Validate the argument of an append op.

        Return the string to append, or a copy of the list of elements to append.
        """
        if type(target) in TEXTS:
            if type(x) is not str:
                raise DiffError(f"only a string can be appended to a text, not {describe(x)}")
            if not is_text(x):
                raise DiffError("the string to append holds a lone surrogate")
            return x
        if type(target) in ARRAYS:
            if type(x) is not list:
                raise DiffError(f"only an array can be appended to an array, not {describe(x)}")
            return self._admit(x, depth)  # type: ignore[return-value]
        raise DiffError(f"cannot append to {describe(target)}, only to a text or an array")

    def _growable(self, tokens: Tokens) -> Any:
        return self._target(tokens)

    def _grow(self, tokens: Tokens, target: Any, addition: str | list[Any]) -> None:
        container, key = self._slot(tokens)
        if type(addition) is list:
            self._open(container, key).extend(addition)
        else:
            container[key] += addition

    def _truncate(self, tokens: Tokens, n: Any) -> None:
        if not is_count(n):
            raise DiffError("the number of code points or elements to drop is not an integer ≥ 0")
        target = self._target(tokens)
        if type(target) not in TEXTS and type(target) not in ARRAYS:
            raise DiffError(f"{describe(target)} cannot be truncated")
        keep = length_of(target) - n
        if keep < 0:
            raise DiffError(f"cannot drop {n} from a length of {length_of(target)}")
        container, key = self._slot(tokens)
        if type(target) in ARRAYS:
            del self._open(container, key)[keep:]
        else:
            container[key] = self._shortened(target, keep)

    def _shortened(self, text: Any, length: int) -> Any:
        return text[:length]

    def _set(self, tokens: Tokens, value: Any) -> None:
        container, key = self._slot(tokens)
        value = self._admit(value, len(tokens))
        if type(container) in OBJECTS or key < len(container):
            container[key] = value
        elif key == len(container):
            container.append(value)
        else:
            raise DiffError(f"index {key} is beyond the end of an array of {len(container)}")

    def _insert(self, tokens: Tokens, value: Any) -> None:
        container, key = self._slot(tokens)
        if not tokens or type(container) in OBJECTS:
            raise DiffError("an element can only be inserted into an array")
        if key > len(container):
            raise DiffError(f"index {key} is beyond the end of an array of {len(container)}")
        container.insert(key, self._admit(value, len(tokens)))

    def _delete(self, tokens: Tokens) -> None:
        if not tokens:
            raise DiffError("the root cannot be deleted")
        place(self._top, tokens)
        container, key = self._slot(tokens)
        del container[key]

    def _target(self, tokens: Tokens) -> Any:
        container, key = place(self._top, tokens)
        return container[key]

    def _admit(self, value: Any, depth: int) -> JsonValue:
        if self._keeps_values and not nests_deeper_than(MAX_STATE_DEPTH - depth, value):
            return value  # type: ignore[no-any-return]
        return admit(value, MAX_STATE_DEPTH - depth)

    def _slot(self, tokens: Tokens) -> tuple[Any, Any]:
        """Return a writable copy of the dict or list that contains the target of a path, and the key or index of the target.

        The key need not exist in the dict, and the index need not be in the range of the list.
        """
        own, top, path = self._own, self._top, tokens[:-1]
        # An op on an object or array that contains this object would have replaced `_last_object`.
        if tokens and path == self._last_path and id(self._last_object) in own:
            return self._last_object, tokens[-1]
        if id(top) not in own:
            self._top = top = top[:]
            own[id(top)] = top
        container: Any = top
        key: Any = 0
        last = len(tokens) - 1
        for depth, token in enumerate(tokens):
            node = container[key]
            container = node if id(node) in own else self._copied(container, key, node)
            if type(container) in OBJECTS:
                key = token
                if depth < last and token not in container:
                    raise DiffError(f"there is no member {token[:40]!r}")
            else:
                key = array_index(token)
                if depth < last and key >= len(container):
                    raise DiffError(f"index {key} is out of range in an array of {len(container)}")
        self._last_path, self._last_object = path, container if type(container) in OBJECTS else None
        return container, key

    def _open(self, container: Any, key: Any) -> Any:
        """Return the dict or list at `container[key]` for writing.

        Unless the current diff has created it, replace it by a copy first.
        """
        node = container[key]
        return node if id(node) in self._own else self._copied(container, key, node)

    def _copied(self, container: Any, key: Any, node: Any) -> Any:
        if type(node) in OBJECTS:
            copy = self._copy_object(node)
        elif type(node) in ARRAYS:
            copy = self._copy_array(node)
        else:
            raise DiffError(f"{describe(node)} has no members")
        container[key] = self._own[id(copy)] = copy
        return copy

    def _copy_object(self, node: Any) -> Any:
        """Return a copy of an object that ops may modify in place."""
        return node.copy()

    def _copy_array(self, node: Any) -> Any:
        """Return a copy of an array that ops may modify in place."""
        return node.copy()


class _LongDiffApplier(DiffApplier):
    """Applies a diff of many ops to a copy of a JSON value.

    A text or an array that an op changes is replaced by a node in which further changes take logarithmic time. `_result`
    converts these nodes back.
    """

    __slots__ = ()

    def _result(self) -> JsonValue:
        root: JsonValue = self._converted(super()._result())
        return root

    def _converted(self, node: Any) -> Any:
        if type(node) is Rope:
            return node.text_at(LATEST)
        if id(node) not in self._own:
            return node
        if type(node) is dict:
            return {name: self._converted(member) for name, member in node.items()}
        return [self._converted(element) for element in node]

    def _grow(self, tokens: Tokens, target: Any, addition: str | list[Any]) -> None:
        if type(addition) is list:
            super()._grow(tokens, target, addition)
            return
        container, key = self._slot(tokens)
        if type(container[key]) is str:
            container[key] = Rope(container[key])
        container[key].extend(addition, container[key].version)

    def _shortened(self, text: Any, length: int) -> Rope:
        return (text if isinstance(text, Rope) else Rope(text)).shortened(length)

    def _copy_array(self, node: Any) -> Any:
        return ArrayTree(node)


def _parse_column(column: str) -> Tokens:
    try:
        return parse(column)
    except PointerError as error:
        raise DiffError(f"column {column[:80]!r}: {error}") from None
