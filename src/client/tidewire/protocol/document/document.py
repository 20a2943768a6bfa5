"""A job's state as it grows: appends cost the same at any size, and a kept view stays right.

The tree holds plain dicts, lists and scalars. A text or an array that was appended to becomes a growing node, which
replaces the plain one where it stands and reads the same for every view (see `versioned_text_and_arrays`). All other ops copy the
containers on their path (see `apply_ops`), so that a view's root stays what it was. A view is a root and a version.

What comes in is checked and copied, what goes out is the caller's own: only a diff changes a document.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from pydantic import JsonValue

from tidewire.protocol.document import check_stable_prefix, diff_shapes
from tidewire.protocol.document.apply_ops import ARRAYS, TEXTS, DiffApplier, Tokens, find, length_of, place
from tidewire.protocol.document.diff_shapes import DiffError
from tidewire.protocol.document.digests import verify
from tidewire.protocol.document.json_pointer import array_index, parse
from tidewire.protocol.document.json_values import admit, common_prefix, is_text
from tidewire.protocol.document.state_size import json_bytes
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray, in_pieces
from tidewire.protocol.document.view import View
from tidewire.protocol.strict_json import StrictJsonError

__all__ = ["Document", "TextChange", "View"]


class TextChange(NamedTuple):
    """What happened to one text: its last `deleted` code points are void, `text` came after what is left."""

    pointer: str
    deleted: int
    text: str

    @classmethod
    def between(cls, pointer: str, old: str, new: str) -> Self:
        """The change from one text to another: void is what follows their longest common prefix."""
        kept = common_prefix(old, new)
        return cls(pointer, len(old) - kept, new[kept:])

    @classmethod
    def since(cls, pointer: str, old: Rope, new: str) -> Self:
        """The same, of a text in pieces, which are not joined."""
        kept = 0
        for piece in old.pieces():
            if not new.startswith(piece, kept):
                kept += common_prefix(piece, new[kept : kept + len(piece)])
                break
            kept += len(piece)
        return cls(pointer, old.length - kept, new[kept:])


@dataclass(slots=True)
class _Applied:
    """What is needed to tell how the last diff changed the texts, should someone ask."""

    before: View
    touched: list[Tokens]
    row: bool
    """Whether a row grew all columns."""


class Document(DiffApplier):
    """A job's state that grows: appends cost O(1) at any size, earlier views stay right.

    One thread applies diffs; others may read views that were taken. Diffs are atomic: one that is refused leaves the
    document as it was.
    """

    __slots__ = (
        "_clock",
        "_columns_by_item",
        "_growing",
        "_grown",
        "_last",
        "_row_grew",
        "_rows",
        "_sole",
        "_touched",
    )

    def __init__(self, value: JsonValue, columns: Sequence[str] = ()) -> None:
        """Take in a state.

        Args:
            value: The state, or any JSON value; it is copied.
            columns: JSON Pointers of the places that rows and bare strings grow. They need not exist yet.

        Raises:
            DiffError: A column is no JSON Pointer, or the value is nested too deep or not JSON.
        """
        try:
            super().__init__(admit(value), columns)
        except StrictJsonError as error:
            raise DiffError(str(error)) from None
        self._columns_by_item: dict[Tokens, list[int]] = {}
        for index, tokens in enumerate(self._column_tokens):
            self._columns_by_item.setdefault(tokens[:2], []).append(index)
        self._clock = 1
        self._growing: dict[Tokens, Rope | RopeArray] = {}
        """Growing nodes by their place, until an op changes the tree otherwise than by growing."""
        self._rows: list[Rope | RopeArray] | None = None
        """The nodes of the columns, likewise."""
        self._sole: Rope | None = None
        """The node of the one column, if that is a text: where bare strings go."""
        self._grown: list[Rope | RopeArray] = []
        self._touched: list[Tokens] = []
        self._row_grew = False
        self._last: str | _Applied | tuple[TextChange, ...] = ()

    def apply(self, diff: JsonValue) -> None:
        """Apply one diff, in any of its three shapes, whole or not at all.

        Raises:
            DiffError: It is malformed, does not fit, or breaks a promise of `stable` (`StableError`).
            IntegrityError: The outcome is not what its `check` says.
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
            self._run(shape.ops)
            if self._top is not before._top:
                check_stable_prefix.hold(before, View(self._top, LATEST), self._touched)
            verify(self, shape.check)
            if self._own:
                # What this diff made and could change in place is from now on shared with views.
                self._forget_places()
        except BaseException:
            self._top = before._top
            for node in self._grown:
                node.cut(node.length_at(before._version))
            self._forget_places()
            raise
        finally:
            self._own.clear()
        self._last = _Applied(before, self._touched, self._row_grew)

    def grow(self, rows: Sequence[Sequence[Any]]) -> None:
        """Apply rows whose members were admitted before, and fit: a string for a text, else one new element.

        Raises:
            DiffError: A column is not there, or cannot grow.
        """
        before = View(self._top, self._clock)
        self._clock += 1
        for target, members in zip(self._column_targets(), zip(*rows, strict=True), strict=True):
            target.extend("".join(members) if type(target) in TEXTS else list(members), self._clock)
        self._last = _Applied(before, [], row=True)

    def view(self) -> View:
        """The document as it is now, whatever is applied later."""
        view = View(self._top, self._clock)
        self._clock += 1
        return view

    def value(self, pointer: str = "") -> JsonValue:
        """The JSON at a place at present, made anew for the caller.

        Raises:
            LookupError: There is no such place.
            PointerError: The pointer is malformed.
        """
        return View(self._top, LATEST).value(pointer)

    def in_pieces(self, pointer: str) -> Any:
        """The same, but long texts are not joined: for `digests.digest`."""
        return in_pieces(find(self._top, parse(pointer)))

    def json_bytes(self) -> int:
        """Bytes of the document as compact JSON. Costs a look at the whole."""
        return json_bytes(self._top[0])

    @property
    def text_changes(self) -> tuple[TextChange, ...]:
        """What the last diff did to the texts among the columns, in net effect; those that it left alone are not here."""
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
        """How the texts among the columns differ from those of another document, that of before a snapshot.

        A text that only the other has, or that is none of this one's columns, is void from its first code point.
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
                # One is the other shortened: what they share need not be compared. The old one may have grown first.
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

    # ---- where growing in place differs from a fold ------------------------------------------------------------

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
            # A copy: older roots may hold this very list. One that this diff has made just grows.
            node = container[key] = RopeArray(node.copy())
        elif not isinstance(node, Rope | RopeArray):
            return node
        self._growing[tokens] = node
        if isinstance(node, Rope) and self._column_tokens == (tokens,):
            self._sole = node
        return node

    def _grow(self, tokens: Tokens, target: Any, addition: str | list[Any]) -> None:
        if type(target) is list:
            target.extend(addition)
        else:
            target.extend(addition, self._clock)
            self._grown.append(target)

    def _shortened(self, text: Any, length: int) -> Rope:
        node = text if isinstance(text, Rope) else Rope(text)
        return node.shortened(length)

    def _measured(self, pointer: str, kinds: frozenset[type], kind: str) -> Any:
        node = super()._measured(pointer, kinds, kind)
        # A text that is measured will be again: as a growing node it keeps its CRC.
        return self._growable(parse(pointer)) if type(node) is str else node

    def _slot(self, tokens: Tokens) -> tuple[Any, Any]:
        container, key = super()._slot(tokens)
        # In an array an op may move all that follow.
        self._touched.append(tokens[:-1] if type(container) is list else tokens)
        self._forget_places()
        return container, key

    def _forget_places(self) -> None:
        self._growing.clear()
        self._rows = self._sole = None
