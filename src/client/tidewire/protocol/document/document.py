"""The state of a job (`Document`), with appends in constant time and immutable views of earlier states.

A document is a tree of dicts, lists, strings and other JSON values. The first append to a text or an array replaces this
node of the tree with a versioned node that can grow in place (`versioned_text_and_arrays`). All other ops copy the dicts and
lists on their path (`apply_ops`), so that existing views do not change. A view consists of the root of a tree and a version.

Only `apply`, `append`, `append_each` and `revert` change a document. `apply` validates and copies the values in a diff. All values that a
document returns are copies.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from tidewire.protocol.document import diff_shapes
from tidewire.protocol.document.apply_ops import (
    ARRAYS,
    TEXTS,
    Tokens,
    Tree,
    describe,
    find,
    length_of,
    wrong_addition,
)
from tidewire.protocol.document.check_stable_prefix import check_stable_prefix
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.digests import verify
from tidewire.protocol.document.json_pointer import PointerError, parse
from tidewire.protocol.document.json_values import common_prefix, is_text
from tidewire.protocol.document.state_size import json_bytes
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, materialize
from tidewire.protocol.document.view import View
from tidewire.protocol.strict_json import JsonValue, StrictJsonError

__all__ = ["Document", "TextChange", "View", "apply"]


class TextChange(NamedTuple):
    """Change of one text: first, the last `deleted` code points were removed, and then `text` was appended."""

    pointer: str
    deleted: int
    text: str

    @classmethod
    def between(cls, pointer: str, old: str, new: str) -> Self:
        """Compute the change from an old text to a new text.

        Everything in the old text after the common prefix counts as deleted.
        """
        kept = common_prefix(old, new)
        return cls(pointer, len(old) - kept, new[kept:])


def apply(value: JsonValue, ops: JsonValue, *, columns: Sequence[str] = ()) -> JsonValue:
    """Apply one diff to a value and return the new value.

    The original value is not modified, and the result shares nothing with it. To apply many diffs to a value, use
    `Document`, in which the cost of an append does not depend on the size of the value.

    Args:
        value: Any JSON value.
        ops: A diff of any of the three shapes: a string, an array of ops, or an object with the member `ops`.
        columns: JSON Pointers of the columns. Rows, and diffs that are only a string, append to the texts and arrays at
            these pointers.

    Raises:
        DiffError: The diff is malformed, or it cannot be applied to the value. The message names the op and its path.
        IntegrityError: The result does not match the `check` of the diff.
    """
    document = Document(value, columns, is_state=False)
    document.apply(ops)
    return document.value()


@dataclass(slots=True)
class _Applied:
    """Record of the last applied diff.

    The property `Document.text_changes` is computed from this record when it is read.
    """

    before: View
    touched: Iterable[Tokens]


class Document:
    """The state of a job. Appends take constant time, and a view never changes after it was created.

    Only one thread may change a document. Other threads may read views at the same time. If a diff cannot be applied,
    `apply` raises an error and leaves the document unchanged.
    """

    __slots__ = ("_column_tokens", "_is_state", "_last", "_tree", "columns")

    columns: tuple[str, ...]
    """JSON Pointers of the columns, which are texts and arrays. A diff that is a row or a string appends to them."""

    def __init__(
        self,
        value: JsonValue,
        columns: Sequence[str] = (),
        *,
        keep_values: bool = False,
        is_state: bool = True,
    ) -> None:
        """Create a document from a state.

        Args:
            value: The state, or any other JSON value.
            columns: JSON Pointers of the columns. Rows, and diffs that are only a string, append to the texts and arrays at
                these pointers. The texts and arrays need not exist yet.
            keep_values: Whether the document may keep the value, and the values in diffs, without copies. Nothing else may
                change them.
            is_state: Whether the value is a job's state, in which no diff may change the stable prefix of a text.

        Raises:
            DiffError: A column is not a valid JSON Pointer, or the value is nested too deep or is not I-JSON.
        """
        self.columns = tuple(columns)
        self._column_tokens = {_parse_column(pointer): index for index, pointer in enumerate(self.columns)}
        self._is_state = is_state
        self._last: _Applied | tuple[str | tuple[str, ...], str | Sequence[Any]] | None = None
        """The last diff. After `append` or `append_each`: the pointer or pointers, and the appended content."""
        try:
            self._tree = Tree(value, self.columns, keep_values=keep_values)
        except StrictJsonError as error:
            raise DiffError(str(error)) from None

    def apply(self, diff: JsonValue) -> None:
        """Apply one diff, which may have any of the three shapes. If the diff is invalid, the document does not change.

        Raises:
            DiffError: The diff is malformed, or cannot be applied to the document, or changes a stable prefix
                (`StableError`).
            IntegrityError: The result does not match the `check` of the diff.
        """
        if type(diff) is str and len(self.columns) == 1 and is_text(diff):
            # Fast path: a text append needs no undo. This takes a quarter of the time of the code below
            # (bench/apply.py).
            self.append(self.columns[0], diff)
            return
        tree = self._tree
        shape = diff_shapes.read(diff, self.columns)
        top, before = tree.top, self.view()
        try:
            tree.run(shape.ops)
            if self._is_state and tree.top is not top:
                check_stable_prefix(before, View(tree.top, LATEST), tree.touched)
            verify(self, shape.check)
        except BaseException:
            tree.reset(top, before.version)
            raise
        self._last = _Applied(before, tree.touched)

    def revert(self, before: View) -> None:
        """Undo the last call of `apply`.

        Args:
            before: View of the state before this call. The document must not have changed between the two.
        """
        self._tree.reset(before.top, before.version)
        self._last = None

    def append(self, pointer: str, addition: str | list[Any]) -> None:
        """Append a string to a text, or elements to an array, without validating or copying them.

        Args:
            pointer: JSON Pointer of the text or array.
            addition: A string without lone surrogates, or a list of elements that are I-JSON. Nothing may change the
                elements afterwards.

        Raises:
            DiffError: There is no text (for a string) or array (for a list) at the pointer.
        """
        tree = self._tree
        try:
            target: Any = tree.growing.get(pointer) or tree.growable(pointer)
        except PointerError as error:
            raise DiffError(str(error)) from None
        except DiffError as error:
            raise DiffError(error.reason, path=pointer) from None
        if type(addition) is not (str if type(target) is Rope else list):
            raise DiffError(wrong_addition(target, addition).reason, path=pointer)
        target.extend(addition, tree.version)
        self._last = pointer, addition

    def append_each(self, additions: Sequence[str | list[Any]]) -> None:
        """Append a string or elements to each column, like `append`. Each addition must have the type of its column."""
        tree = self._tree
        growing, version = tree.growing, tree.version
        for pointer, addition in zip(self.columns, additions, strict=True):
            target: Any = growing.get(pointer) or tree.growable(pointer)
            target.extend(addition, version)
        self._last = self.columns, additions

    def view(self) -> View:
        """Return an immutable view of the document's current state."""
        tree = self._tree
        tree.version += 1
        return View(tree.top, tree.version - 1)

    def mark(self) -> tuple[list[Any], int]:
        """Return the arguments with which a `View` of the current state can be made later. Most states are never read, so
        most views need not be made.
        """
        tree = self._tree
        tree.version += 1
        return tree.top, tree.version - 1

    def value(self, pointer: str = "") -> JsonValue:
        """Return a copy of the current value at a pointer.

        Raises:
            LookupError: The pointer does not exist in the document.
            PointerError: The pointer is malformed.
        """
        value: JsonValue = materialize(self.node(pointer), LATEST)
        return value

    def node(self, pointer: str) -> Any:
        """Return the current node at a pointer for `digests.digest`. It is shared with the document."""
        return find(self._tree.top, parse(pointer))

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
        self._measured(pointer, TEXTS, "a text")
        # The text becomes a Rope, which caches its CRC, because most texts are checked repeatedly.
        rope: Rope = self._tree.growable(pointer)
        return rope.crc()

    def array_length(self, pointer: str) -> int:
        """Return the number of elements of the array at a pointer.

        Raises:
            LookupError: There is no array at the pointer.
        """
        return length_of(self._measured(pointer, ARRAYS, "an array"))

    def _measured(self, pointer: str, kinds: frozenset[type], kind: str) -> Any:
        node = self.node(pointer)
        if type(node) not in kinds:
            raise LookupError(f"{pointer[:200]!r} is {describe(node)}, not {kind}")
        return node

    def json_bytes(self) -> int:
        """Return the size of the document as compact JSON, in bytes. This takes time linear in the size."""
        return json_bytes(self._tree.top[0])

    @property
    def text_changes(self) -> tuple[TextChange, ...]:
        """Changes that the last diff made to the columns that are texts. Texts that did not change are omitted."""
        match self._last:
            case _Applied() as applied:
                return tuple(self._changes(applied))
            case (pointer, str(text)) if text and pointer in self.columns:
                return (TextChange(pointer, 0, text),)
            case (tuple(pointers), additions):
                return tuple(
                    TextChange(pointer, 0, x)
                    for pointer, x in zip(pointers, additions, strict=True)
                    if x and type(x) is str
                )
            case _:
                return ()

    def changes_since(self, before: "Document | None") -> tuple[TextChange, ...]:
        """Compare the texts of this document with those of an earlier document that a snapshot has replaced.

        Only texts that are columns are compared. If a text is a column only in the earlier document, the whole text
        counts as deleted.
        """
        changes = []
        for pointer in dict.fromkeys(self.columns + (before.columns if before is not None else ())):
            tokens = parse(pointer)
            new = (self._latest().text(tokens) or "") if pointer in self.columns else ""
            old = ""
            if before is not None and pointer in before.columns:
                old = before._latest().text(tokens) or ""
            changes.append(TextChange.between(pointer, old, new))
        return tuple(change for change in changes if change.deleted or change.text)

    def _latest(self) -> View:
        return View(self._tree.top, LATEST)

    def _changes(self, applied: _Applied) -> Iterator[TextChange]:
        before, now = applied.before, self._latest()
        for index, tokens in self._columns_touched(applied.touched):
            pointer = self.columns[index]
            old, new = before.node(tokens), now.node(tokens)
            if isinstance(new, Rope) and old is new:
                change = TextChange(pointer, 0, new.text_since(new.length_at(before.version)))
            elif isinstance(old, Rope) and isinstance(new, Rope):
                # The new rope was created when the old rope was truncated, so the ropes share their first pieces. These
                # pieces need not be compared. The old rope may also have grown before it was truncated.
                length = old.length_at(before.version)
                shared = min(old.shared_with(new), length)
                was = old.text_since(shared)[: length - shared]
                change = TextChange.between(pointer, was, new.text_since(shared))
            elif type(old) in TEXTS or type(new) in TEXTS:
                change = TextChange.between(pointer, before.text(tokens) or "", now.text(tokens) or "")
            else:
                continue
            if change.deleted or change.text:
                yield change

    def _columns_touched(self, touched: Iterable[Tokens]) -> list[tuple[int, Tokens]]:
        columns = self._column_tokens
        found: set[tuple[int, Tokens]] = set()
        for tokens in {*touched}:
            if tokens in columns:
                found.add((columns[tokens], tokens))
            else:
                found.update(
                    (index, column) for column, index in columns.items() if column[: len(tokens)] == tokens
                )
        return sorted(found)


def _parse_column(column: str) -> Tokens:
    try:
        return parse(column)
    except PointerError as error:
        raise DiffError(f"column {column[:80]!r}: {error}") from None
