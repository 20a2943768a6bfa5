"""The state of a job (`Document`), with appends in constant time and immutable views of earlier states.

A document is a tree of dicts, lists, strings and other JSON values. The first append to a text or an array replaces this
node of the tree with a versioned node that can grow in place (`versioned_text_and_arrays`). All other ops copy the dicts and
lists on their path (`apply_ops`), so that existing views do not change. An array or object of more than `MAX_COPIED`
elements or members is first converted to an `ArrayTree` or `ObjectTree`, so that an op copies only a logarithmic part of it.
A view consists of the root of a tree and a version.

Only `apply` and `grow` change a document. They validate and copy the values that are passed to them. All values that a
document returns are copies.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

import msgspec

from tidewire.protocol.document import diff_shapes
from tidewire.protocol.document.apply_ops import (
    ARRAYS,
    MAX_COPYING_OPS,
    TEXTS,
    DiffApplier,
    Tokens,
    describe,
    find,
    length_of,
    place,
)
from tidewire.protocol.document.array_tree import ArrayTree
from tidewire.protocol.document.check_stable_prefix import check_stable_prefix
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.digests import verify
from tidewire.protocol.document.json_pointer import array_index, parse
from tidewire.protocol.document.json_values import (
    MAX_STATE_DEPTH,
    admit,
    common_prefix,
    is_text,
    nests_deeper_than,
)
from tidewire.protocol.document.object_tree import ObjectTree
from tidewire.protocol.document.state_size import json_bytes
from tidewire.protocol.document.versioned_text_and_arrays import (
    LATEST,
    EncodedArray,
    Rope,
    RopeArray,
    materialize,
)
from tidewire.protocol.document.view import View
from tidewire.protocol.strict_json import JsonValue, StrictJsonError

__all__ = ["Document", "TextChange", "View"]

MAX_COPIED: Final = 1024
"""Maximum number of elements of an array, and of members of an object, that are copied when an op changes one of them.
Copying so few takes about as long as changing an `ArrayTree` or `ObjectTree`."""

_APPENDS_ONLY: Final = 8
"""If this part (1/8) of the elements of an `ArrayTree` was appended since its last other change, the next append converts
it to a `RopeArray`, to which appending is faster. The conversion takes time linear in the number of these appends."""


_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


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

    @classmethod
    def since(cls, pointer: str, old: Rope, new: str) -> Self:
        """Compute the change from the text in a `Rope` to another text, without joining the pieces of the rope."""
        kept = 0
        for piece in old.pieces():
            if not new.startswith(piece, kept):
                kept += common_prefix(piece, new[kept : kept + len(piece)])
                break
            kept += len(piece)
        return cls(pointer, old.length - kept, new[kept:])


@dataclass(slots=True)
class _Applied:
    """Record of the last applied diff.

    The property `Document.text_changes` is computed from this record when it is read.
    """

    before: View
    touched: list[Tokens]
    row: bool
    """Whether the diff contained a row, which appends to all columns."""


class Document(DiffApplier):
    """The state of a job. Appends take constant time, and a view never changes after it was created.

    Only one thread may apply diffs. Other threads may read views at the same time. If a diff cannot be applied, `apply`
    raises an error and leaves the document unchanged.
    """

    __slots__ = (
        "_clock",
        "_columns_by_item",
        "_growing",
        "_grown",
        "_last",
        "_long",
        "_row_grew",
        "_rows",
        "_sole",
        "_targets",
        "_touched",
    )

    def __init__(self, value: JsonValue, columns: Sequence[str] = (), *, keep_values: bool = False) -> None:
        """Create a document from a state.

        Args:
            value: The state, or any other JSON value.
            columns: JSON Pointers of the columns. Rows, and diffs that are only a string, append to the texts and arrays at
                these pointers. The texts and arrays need not exist yet.
            keep_values: Whether the document may keep the value, and the values in diffs, without copies. They must be
                values that `strict_json.loads` has returned, and that nothing else changes.

        Raises:
            DiffError: A column is not a valid JSON Pointer, or the value is nested too deep or is not I-JSON.
        """
        try:
            may_keep = keep_values and not nests_deeper_than(MAX_STATE_DEPTH, value)
            super().__init__(value if may_keep else admit(value), columns)
        except StrictJsonError as error:
            raise DiffError(str(error)) from None
        self._keeps_values = keep_values
        self._columns_by_item: dict[Tokens, list[int]] = {}
        for index, tokens in enumerate(self._column_tokens):
            self._columns_by_item.setdefault(tokens[:2], []).append(index)
        self._clock = 1
        self._targets: dict[str, Any] = {}
        """The nodes in `_growing` to which `append` has appended, by pointer. The two are cleared together."""
        self._growing: dict[Tokens, Rope | RopeArray | EncodedArray] = {}
        """Cache of versioned nodes by their path. Every op that does not append clears the cache."""
        self._rows: list[Any] | None = None
        """Cache of the nodes of all columns, in order. It is cleared together with `_growing`."""
        self._sole: Rope | None = None
        """If the job has exactly one column, and this column is a text, the node of this text.

        String diffs append to the node directly.
        """
        self._grown: list[Rope | RopeArray | EncodedArray] = []
        self._touched: list[Tokens] = []
        self._row_grew = False
        self._long = False
        """Whether the current diff has more than `MAX_COPYING_OPS` ops. So many ops can make even a
        short array long, so each copied array becomes an `ArrayTree`.
        """
        self._last: str | _Applied | tuple[TextChange, ...] = ()

    def apply(self, diff: JsonValue) -> None:
        """Apply one diff, which may have any of the three shapes. If the diff is invalid, the document does not change.

        Raises:
            DiffError: The diff is malformed, or cannot be applied to the document, or changes a stable prefix
                (`StableError`).
            IntegrityError: The result does not match the `check` of the diff.
        """
        text = self._sole
        if text is not None and type(diff) is str and (diff.isascii() or is_text(diff)):
            text.extend(diff, self._clock)
            self._last = diff
            return
        before = View(self._top, self._clock)
        self._clock += 1
        self._grown, self._touched, self._row_grew = [], [], False
        try:
            shape = diff_shapes.read(diff, self.columns)
            self._long = len(shape.ops) > MAX_COPYING_OPS
            self._run(shape.ops)
            if self._top is not before._top:
                check_stable_prefix(before, View(self._top, LATEST), self._touched)
            if shape.check:
                verify(self, shape.check)
            if self._own:
                # Later diffs must copy the dicts and lists that this diff created, because new views share them.
                self._clear_node_caches()
        except BaseException:
            self._top = before._top
            for node in self._grown:
                node.cut(node.length_at(before._version))
            self._clear_node_caches()
            raise
        finally:
            self._own.clear()
        self._last = _Applied(before, self._touched, self._row_grew)

    def append(self, pointer: str, addition: str | list[Any]) -> None:
        """Append a string to a text, or elements to an array, without validating or copying them.

        Args:
            pointer: JSON Pointer of the text or array.
            addition: A string without lone surrogates, or a list of elements that are I-JSON. Nothing may change the
                elements afterwards.

        Raises:
            DiffError: There is no text (for a string) or array (for a list) at the pointer.
        """
        target = self._targets.get(pointer)
        if target is None:
            target = self._growable(parse(pointer))
            if type(target) is not Rope and type(target) is not RopeArray:
                self.apply([["a", pointer, addition]])
                return
            self._targets[pointer] = target
        if type(addition) is not (str if type(target) is Rope else list):
            raise DiffError(f"cannot append {describe(addition)} to {describe(target)}")
        target.extend(addition, self._clock)
        self._last = (TextChange(pointer, 0, addition),) if type(addition) is str and addition else ()

    def grow(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows without validating them. The caller must have validated the values and their types.

        Args:
            rows: The rows. Each row has one value for each column: a string for a text, or one new element for an array.

        Raises:
            DiffError: A column does not exist, or is neither a text nor an array.
        """
        before = View(self._top, self._clock)
        self._clock += 1
        columns = zip(self._column_tokens, self._column_targets(), zip(*rows, strict=True), strict=True)
        for tokens, target, members in columns:
            if type(target) is ArrayTree:
                super()._grow(tokens, target, list(members))
            else:
                target.extend("".join(members) if type(target) in TEXTS else list(members), self._clock)
        self._end_growth(before)

    def grow_encoded(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows whose elements are JSON texts, without parsing or validating them.

        Args:
            rows: The rows. Each row has one value for each column: a string for a text, or the JSON of one new element for
                an array, as in an `EncodedArray`. An element is a scalar or an array of scalars.

        Raises:
            DiffError: A column does not exist, or is neither a text nor an array.
        """
        before = View(self._top, self._clock)
        self._clock += 1
        targets = self._column_targets()
        for index, members in enumerate(zip(*rows, strict=True)):
            target = targets[index]
            if type(target) is EncodedArray:
                target.extend_encoded(members, self._clock)
            elif type(target) is Rope:
                target.extend("".join(members), self._clock)
            else:
                self._grow_encoded(self._column_tokens[index], target, members)
        self._end_growth(before)

    def append_encoded(self, pointer: str, elements: Sequence[bytes]) -> None:
        """Append elements to an array. They are JSON texts, as in `grow_encoded`.

        Raises:
            DiffError: There is no array at the pointer.
        """
        before = View(self._top, self._clock)
        self._clock += 1
        tokens = parse(pointer)
        target = self._growable(tokens)
        if type(target) not in ARRAYS:
            raise DiffError(f"cannot append elements to {describe(target)}")
        self._grow_encoded(tokens, target, elements)
        self._end_growth(before)

    def _grow_encoded(self, tokens: Tokens, target: Any, elements: Sequence[bytes]) -> None:
        """Append elements to an array, which keeps its elements as JSON if possible."""
        if type(target) is RopeArray and _has_plain_elements(target):
            container, key = place(self._top, tokens)
            # Existing views can read the new node in their versions, too.
            target = container[key] = self._growing[tokens] = EncodedArray(target)
            self._rows = None
        if type(target) is EncodedArray:
            target.extend_encoded(elements, self._clock)
        elif type(target) is RopeArray:
            target.extend([*map(msgspec.json.decode, elements)], self._clock)
        else:
            super()._grow(tokens, target, [*map(msgspec.json.decode, elements)])

    def _end_growth(self, before: View) -> None:
        if self._own:
            self._own.clear()
            self._touched = []
            self._clear_node_caches()
        self._last = _Applied(before, [], row=True)

    def view(self) -> View:
        """Return an immutable view of the document's current state."""
        view = View(self._top, self._clock)
        self._clock += 1
        return view

    def value(self, pointer: str = "") -> JsonValue:
        """Return a copy of the current value at a pointer.

        Raises:
            LookupError: The pointer does not exist in the document.
            PointerError: The pointer is malformed.
        """
        value: JsonValue = materialize(find(self._top, parse(pointer)), LATEST)
        return value

    def node(self, pointer: str) -> Any:
        """Return the current node at a pointer for `digests.digest`. It is shared with the document."""
        return find(self._top, parse(pointer))

    def json_bytes(self) -> int:
        """Return the size of the document as compact JSON, in bytes. This takes time linear in the size."""
        return json_bytes(self._top[0])

    @property
    def text_changes(self) -> tuple[TextChange, ...]:
        """Changes that the last diff made to the columns that are texts. Texts that did not change are omitted."""
        last = self._last
        if isinstance(last, tuple):
            return last
        if isinstance(last, str):
            changes: tuple[TextChange, ...] = (TextChange(self.columns[0], 0, last),) if last else ()
        else:
            changes = tuple(self._changes(last.before, self._columns_touched(last)))
        self._last = changes
        return changes

    def changes_since(self, before: "Document | None") -> tuple[TextChange, ...]:
        """Compare the texts of this document with those of an earlier document that a snapshot has replaced.

        Only texts that are columns are compared. If a text is a column only in the earlier document, the whole text
        counts as deleted.
        """
        changes = []
        for pointer in dict.fromkeys(self.columns + (before.columns if before is not None else ())):
            tokens = parse(pointer)
            new = self._text(tokens) if pointer in self.columns else ""
            old = None
            if before is not None and pointer in before.columns:
                old = View(before._top, LATEST).node(tokens)
            if isinstance(old, Rope):
                changes.append(TextChange.since(pointer, old, new))
            else:
                changes.append(TextChange.between(pointer, old if type(old) is str else "", new))
        return tuple(change for change in changes if change.deleted or change.text)

    def _text(self, tokens: Tokens) -> str:
        return View(self._top, LATEST).text(tokens) or ""

    def _changes(self, before: View, columns: Iterable[int]) -> Iterator[TextChange]:
        now = View(self._top, LATEST)
        for index in columns:
            pointer, tokens = self.columns[index], self._column_tokens[index]
            if self._top is before._top and (known := self._growing.get(tokens)):
                old = new = known
            else:
                old, new = before.node(tokens), now.node(tokens)
            if isinstance(new, Rope) and old is new:
                change = TextChange(pointer, 0, new.text_since(new.length_at(before._version)))
            elif isinstance(old, Rope) and isinstance(new, Rope):
                # The new rope was created when the old rope was truncated, so the ropes share their first pieces. These
                # pieces need not be compared. The old rope may also have grown before it was truncated.
                length = old.length_at(before._version)
                shared = min(old.shared_with(new), length)
                was = old.text_since(shared)[: length - shared]
                change = TextChange.between(pointer, was, new.text_since(shared))
            elif type(old) in TEXTS or type(new) in TEXTS:
                change = TextChange.between(pointer, before.text(tokens) or "", now.text(tokens) or "")
            else:
                continue
            if change.deleted or change.text:
                yield change

    def _columns_touched(self, applied: _Applied) -> Iterable[int]:
        everywhere = range(len(self.columns))
        if applied.row:
            return everywhere
        found: set[int] = set()
        for tokens in applied.touched:
            near = self._columns_by_item.get(tokens[:2], ()) if len(tokens) > 1 else everywhere
            found.update(index for index in near if self._column_tokens[index][: len(tokens)] == tokens)
        return sorted(found)

    # ---- overrides of methods of `DiffApplier`, to append in place -----------------------------------------------

    def _row(self, op: list[Any]) -> None:
        super()._row(op)
        self._row_grew = True

    def _append(self, tokens: Tokens, x: Any) -> None:
        super()._append(tokens, x)
        self._touched.append(tokens)

    def _set(self, tokens: Tokens, value: Any) -> None:
        if tokens and tokens[-1][:1].isdigit():
            parent = self._target(tokens[:-1])
            if type(parent) in ARRAYS and array_index(tokens[-1]) == length_of(parent):
                self._append(tokens[:-1], [value])
                return
        super()._set(tokens, value)

    def _column_targets(self) -> list[Any]:
        if self._rows is None:
            self._rows = super()._column_targets()
        return self._rows

    def _growable(self, tokens: Tokens) -> Any:
        known = self._growing.get(tokens)
        if known is not None:
            return known
        container, key = place(self._top, tokens)
        node = container[key]
        if type(node) is str:
            node = container[key] = Rope(node)
        elif type(node) is list and id(node) not in self._own:
            # Copy the list, because existing views may contain it. A list that this diff has created need not be copied.
            node = container[key] = RopeArray(node.copy())
        elif (
            type(node) is ArrayTree
            and id(node) not in self._own
            and node.appended * _APPENDS_ONLY > len(node)
        ):
            node = container[key] = RopeArray(list(node))
        elif not isinstance(node, Rope | RopeArray | EncodedArray):
            return node
        self._growing[tokens] = node
        if isinstance(node, Rope) and self._column_tokens == (tokens,):
            self._sole = node
        return node

    def _grow(self, tokens: Tokens, target: Any, addition: str | list[Any]) -> None:
        if type(target) is list:
            target.extend(addition)
        elif type(target) is ArrayTree:
            super()._grow(tokens, target, addition)
        else:
            target.extend(addition, self._clock)
            self._grown.append(target)

    def _shortened(self, text: Any, length: int) -> Rope:
        node = text if isinstance(text, Rope) else Rope(text)
        return node.shortened(length)

    def _measured(self, pointer: str, kinds: frozenset[type], kind: str) -> Any:
        node = super()._measured(pointer, kinds, kind)
        # Convert the text to a Rope, which caches its CRC, because most texts are checked repeatedly.
        return self._growable(parse(pointer)) if type(node) is str else node

    def _slot(self, tokens: Tokens) -> tuple[Any, Any]:
        container, key = super()._slot(tokens)
        # An op on an element of an array can shift all later elements. The whole array therefore counts as changed.
        self._touched.append(tokens[:-1] if type(container) in ARRAYS else tokens)
        if self._growing or self._rows is not None:
            self._clear_node_caches()
        return container, key

    def _copy_object(self, node: Any) -> Any:
        return ObjectTree(node) if type(node) is dict and len(node) > MAX_COPIED else node.copy()

    def _copy_array(self, node: Any) -> Any:
        if type(node) is ArrayTree:
            return node.copy()
        elements = node.copy() if type(node) is list else node.items_at(LATEST)
        return elements if len(elements) <= MAX_COPIED and not self._long else ArrayTree(elements)

    def _clear_node_caches(self) -> None:
        self._growing.clear()
        self._targets.clear()
        self._rows = self._sole = None


def _has_plain_elements(array: RopeArray) -> bool:
    """Whether the elements of an array are scalars and arrays of scalars. Other elements may be versioned nodes."""
    return all(
        type(element) in _SCALARS or (type(element) is list and _SCALARS.issuperset(map(type, element)))
        for element in array.items
    )
