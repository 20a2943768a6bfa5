"""What each op does to a value.

The rules, for all ops alike:
- the parent of a path exists; so does the target of `a`, `t` and `d`, and it has the type that the op needs;
- an op copies the containers from the root down to the one that it changes, each once in a diff, so that every
  value from before the diff stays as it was. An appended text or array is new, too; `document` does that in place;
- ops are checked before they change anything, and a fold that failed is thrown away: diffs are atomic.
"""

from collections.abc import Sequence
from typing import Any, Final
from zlib import crc32

from pydantic import JsonValue

from tidewire.protocol.document.diff_shapes import DiffError, is_count, judge, read
from tidewire.protocol.document.digests import verify
from tidewire.protocol.document.json_pointer import PointerError, array_index, build, parse
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit, is_text
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray
from tidewire.protocol.strict_json import StrictJsonError

Tokens = tuple[str, ...]

_NAMES = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", dict: "an object"}

TEXTS: Final = frozenset({str, Rope})
ARRAYS: Final = frozenset({list, RopeArray})
"""What a text and an array may be in a tree. A fold makes plain ones only, a document those that grow as well."""


def describe(node: object) -> str:
    """What a node is, for an error message."""
    if type(node) in TEXTS:
        return "a text"
    return "an array" if type(node) in ARRAYS else _NAMES.get(type(node), type(node).__name__)


def length_of(node: Any) -> int:
    """Code points of a text, elements of an array, at present."""
    return node.length if isinstance(node, Rope | RopeArray) else len(node)


def place(top: list[Any], tokens: Tokens, version: int = LATEST) -> tuple[Any, Any]:
    """Find where a path leads: the container, a dict or list, and the key or index in it.

    Args:
        top: A list whose only element is the root.
        tokens: The path.
        version: How far growing arrays count.

    Raises:
        DiffError: There is no such place.
        PointerError: A token is needed as an index and is none.
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
        elif kind is list or kind is RopeArray:
            length = len(node) if kind is list else node.length_at(version)
            key = array_index(token)
            if key >= length:
                raise DiffError(f"index {key} is out of range in an array of {length}")
            container = node if kind is list else node.items
        else:
            raise DiffError(f"{describe(node)} has no members")
    return container, key


def find(top: list[Any], tokens: Tokens, version: int = LATEST) -> Any:
    """The node at a place.

    Raises:
        LookupError: There is no such place.
    """
    try:
        container, key = place(top, tokens, version)
    except (DiffError, PointerError) as error:
        raise LookupError(f"nothing at {build(tokens)[:200]!r}: {error}") from None
    return container[key]


def apply(value: JsonValue, ops: JsonValue, *, columns: Sequence[str] = ()) -> JsonValue:
    """Apply one diff to a value.

    The value is not changed. The result shares with it what the diff leaves alone, and nothing with `ops`. For a value
    that grows by many diffs, `Document` is the one to use: there an append costs the same at any size.

    Args:
        value: Any JSON value.
        ops: A diff in any of its three shapes: a string, an array of ops, or `{"ops", "on", "check"}`.
        columns: JSON Pointers of the places that a bare string and a row grow.

    Raises:
        DiffError: The diff is malformed or does not fit; names the op, its path and what is wrong.
        IntegrityError: The result is not what the diff's `check` says.
    """
    fold = DiffApplier(value, columns)
    shape = read(ops, fold.columns)
    fold._run(shape.ops)
    verify(fold, shape.check)
    root: JsonValue = fold._top[0]
    return root


class DiffApplier:
    """A value, its columns, and the ops on them. What it holds came from the caller, and is never changed."""

    __slots__ = ("_column_tokens", "_own", "_top", "columns")

    columns: tuple[str, ...]
    """JSON Pointers of the places that rows and bare strings grow."""

    def __init__(self, value: JsonValue, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self._column_tokens = tuple(map(_parse_column, self.columns))
        self._top: list[Any] = [value]
        """The root as the only element of a list, so that it has a container like every other place."""
        self._own: dict[int, Any] = {}
        """Containers made by this diff, by identity: nobody else holds them yet."""

    def text_length(self, pointer: str) -> int:
        """Code points of the text at a place.

        Raises:
            LookupError: There is no text.
        """
        return length_of(self._measured(pointer, TEXTS, "a text"))

    def text_crc(self, pointer: str) -> int:
        """CRC-32 of the UTF-8 of the text at a place.

        Raises:
            LookupError: There is no text.
        """
        node = self._measured(pointer, TEXTS, "a text")
        return node.crc() if isinstance(node, Rope) else crc32(node.encode())

    def array_length(self, pointer: str) -> int:
        """Elements of the array at a place.

        Raises:
            LookupError: There is no array.
        """
        return length_of(self._measured(pointer, ARRAYS, "an array"))

    def _measured(self, pointer: str, kinds: frozenset[type], kind: str) -> Any:
        node = find(self._top, parse(pointer))
        if type(node) not in kinds:
            raise LookupError(f"{pointer[:200]!r} is {describe(node)}, not {kind}")
        return node

    def _run(self, ops: list[Any]) -> None:
        for index, op in enumerate(ops):
            try:
                judge(op)
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
        if letter == "a":
            self._append(tokens, op[2])
        elif letter == "s":
            self._set(tokens, op[2])
        elif letter == "t":
            self._truncate(tokens, op[2])
        elif letter == "i":
            self._insert(tokens, op[2])
        else:
            self._delete(tokens)

    def _row(self, op: list[Any]) -> None:
        columns = self._column_tokens
        if len(op) - 1 != len(columns):
            raise DiffError(f"a row of {len(op) - 1} members for {len(columns)} columns")
        targets = self._column_targets()
        additions = []
        for index, target in enumerate(targets):
            x = op[index + 1]
            depth = len(columns[index])
            try:
                additions.append(self._addition(target, [x] if type(target) in ARRAYS else x, depth))
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
        """What a target grows by: a string, or a list of elements that is the fold's own."""
        if type(target) in TEXTS:
            if type(x) is not str:
                raise DiffError(f"a text grows by a string, not by {describe(x)}")
            if not is_text(x):
                raise DiffError("a lone surrogate is no text")
            return x
        if type(target) in ARRAYS:
            if type(x) is not list:
                raise DiffError(f"an array grows by the elements of an array, not by {describe(x)}")
            return self._admit(x, depth)  # type: ignore[return-value]
        raise DiffError(f"{describe(target)} cannot grow")

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
            raise DiffError("the length to drop is not a whole number ≥ 0")
        target = self._target(tokens)
        if type(target) not in TEXTS and type(target) not in ARRAYS:
            raise DiffError(f"{describe(target)} cannot be truncated")
        keep = length_of(target) - n
        if keep < 0:
            raise DiffError(f"cannot drop {n} of {length_of(target)}")
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
        if type(container) is dict or key < len(container):
            container[key] = value
        elif key == len(container):
            container.append(value)
        else:
            raise DiffError(f"index {key} is beyond the end of an array of {len(container)}")

    def _insert(self, tokens: Tokens, value: Any) -> None:
        container, key = self._slot(tokens)
        if not tokens or type(container) is dict:
            raise DiffError("only into an array can be inserted")
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
        return admit(value, max(0, MAX_STATE_DEPTH - depth))

    def _slot(self, tokens: Tokens) -> tuple[Any, Any]:
        """The container that a path's last token is for, copied so that it may change, and the key or index in it.

        The key need not exist, the index need not be in range.
        """
        top = self._top
        if id(top) not in self._own:
            self._top = top = top[:]
            self._own[id(top)] = top
        container: Any = top
        key: Any = 0
        for depth, token in enumerate(tokens):
            container = self._open(container, key)
            if type(container) is dict:
                key = token
                if token not in container and depth < len(tokens) - 1:
                    raise DiffError(f"there is no member {token[:40]!r}")
            else:
                key = array_index(token)
                if key >= len(container) and depth < len(tokens) - 1:
                    raise DiffError(f"index {key} is out of range in an array of {len(container)}")
        return container, key

    def _open(self, container: Any, key: Any) -> Any:
        """The container that stands in another one, as a dict or list that this diff has made and may change."""
        node = container[key]
        if id(node) in self._own:
            return node
        kind = type(node)
        if kind is dict or kind is list:
            copy = node.copy()
        elif kind is RopeArray:
            copy = node.items_at(LATEST)
        else:
            raise DiffError(f"{describe(node)} has no members")
        container[key] = self._own[id(copy)] = copy
        return copy


def _parse_column(column: str) -> Tokens:
    try:
        return parse(column)
    except PointerError as error:
        raise DiffError(f"column {column[:80]!r}: {error}") from None
