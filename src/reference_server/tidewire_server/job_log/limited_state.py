"""The state of a job, with a limit on its size (`LimitedState`).

Measuring the state after each change would be slow. `LimitedState` keeps an upper bound of its size, to which each change adds
the size of its JSON. The state is measured only when this bound reaches the limit.
"""

import threading
from math import isfinite
from typing import Any, Final

import orjson
from pydantic import JsonValue

from tidewire.protocol.document import Document
from tidewire.protocol.document.json_values import MAX_STATE_DEPTH, admit
from tidewire.protocol.document.versioned_text_and_arrays import LATEST, Rope, RopeArray
from tidewire.protocol.strict_json import MAX_INTEGER, StrictJsonError
from tidewire_server.errors import StateTooLargeError
from tidewire_server.job_log.text_check_schedule import is_array, is_text

_AROUND_STATE: Final = 48
"""Upper bound of the size in bytes of all data of a snapshot except the state and the columns."""


class LimitedState:
    """The state of a job, including the changes that are not committed yet.

    Methods that read the state may be called from any thread. For all other methods, the caller must hold the lock.

    Attributes:
        document: The state. The caller must hold the lock to use it.
        lock: Lock of the state and of the job's pending events.
        room: Number of bytes by which the state may grow before it must be measured. Negative if changes that start or end
            items have used a part of the reserve.
    """

    __slots__ = (
        "_column_kinds",
        "_element_depth",
        "_envelope",
        "_max_bytes",
        "_reserve",
        "document",
        "lock",
        "room",
    )

    def __init__(self, document: Document, *, max_bytes: int, size: int, reserve: int) -> None:
        """Create the state of a job.

        Args:
            document: The state. This object applies each change to it.
            max_bytes: Maximum size of a snapshot, in bytes.
            size: Upper bound of the current size of a snapshot, in bytes.
            reserve: Number of bytes of `max_bytes` that are reserved for the changes that start or end an item.
        """
        self.document = document
        self.lock = threading.RLock()
        self.room = max_bytes - reserve - size
        self._max_bytes = max_bytes
        self._reserve = reserve
        self._envelope = len(orjson.dumps(document.columns)) + _AROUND_STATE
        deepest = max([path.count("/") for path in document.columns], default=0)
        self._element_depth = MAX_STATE_DEPTH - deepest - 1
        """Maximum nesting depth of an element of any column."""
        self._column_kinds: list[bool | None] | None = None
        """For each column, whether it is a text (True), an array (False) or neither (None). None if the columns must be
        looked up again."""

    @property
    def size(self) -> int:
        """Upper bound of the size of a snapshot, in bytes."""
        return self._max_bytes - self._reserve - self.room

    def value(self, pointer: str) -> JsonValue:
        """Return a copy of the value at a path.

        Raises:
            LookupError: The path does not exist.
        """
        with self.lock:
            return self.document.value(pointer)

    def is_text(self, pointer: str) -> bool:
        """Whether the value at a path is a string."""
        with self.lock:
            return is_text(self.document, pointer)

    def text_length(self, pointer: str) -> int:
        """Return the length of the text at a path, in code points.

        Raises:
            LookupError: The path does not exist, or its value is not a string.
        """
        with self.lock:
            return self.document.text_length(pointer)

    def apply(self, ops: list[Any], size: int, *, reserved: bool = False) -> None:
        """Apply a diff.

        Args:
            ops: The ops of the diff.
            size: Size of the ops as JSON, in bytes.
            reserved: Whether the change may use the reserve.

        Raises:
            DiffError: An op cannot be applied.
            StateTooLargeError: The state would exceed its limit.
        """
        if any(op[0] != "a" and op[0] != "r" for op in ops):
            self._column_kinds = None
        if size <= self.room + (self._reserve if reserved else 0):
            self.document.apply(ops)
            self.room -= size
            return
        before = self.document.view()
        self.document.apply(ops)
        measured = len(orjson.dumps(self.document.node(""), default=_content)) + self._envelope
        room = self._max_bytes - self._reserve - measured
        if room < (-self._reserve if reserved else 0):
            self.document.revert(before)
            raise StateTooLargeError(self._max_bytes)
        self.room = room

    def append(self, additions: list[tuple[str, Any]], size: int) -> None:
        """Append strings or elements at several paths. Strings must not contain lone surrogates. See `apply` for the errors.

        For a single string, this takes a fifth of the time of `apply` (bench/finding.py).
        """
        path, x = additions[0]
        if len(additions) == 1 and type(x) is str and size <= self.room:
            self.document.append(path, x)
            self.room -= size
        else:
            self.apply([["a", path, x] for path, x in additions], size)

    def append_row(self, op: list[Any], size: int) -> None:
        """Append a row. It takes a third of the time of `apply` with one op (bench/finding.py)."""
        additions = self._additions(op) if size <= self.room else None
        if additions is None:
            self.apply([op], size)
        else:
            self.document.append_each(additions)
            self.room -= size

    def column_kinds(self) -> list[bool | None]:
        """For each column, return whether it is a text (True), an array (False) or neither (None)."""
        if self._column_kinds is None:
            self._column_kinds = [
                is_text(self.document, path) or (False if is_array(self.document, path) else None)
                for path in self.document.columns
            ]
        return self._column_kinds

    def _additions(self, op: list[Any]) -> list[str | list[Any]] | None:
        """Return the string or elements that a row appends to each column, or None if the row is not valid."""
        kinds = self._column_kinds or self.column_kinds()
        if len(op) != len(kinds) + 1:
            return None
        additions: list[str | list[Any]] = []
        for at, kind in enumerate(kinds, 1):
            x = op[at]
            if kind is not False:
                if kind is None or type(x) is not str:
                    return None
                additions.append(x)
            # Validate numbers here. Most elements are numbers, and `admit` would take a third of the time of a row.
            elif (type(x) is float and isfinite(x)) or (type(x) is int and abs(x) <= MAX_INTEGER):
                additions.append([x])
            else:
                try:
                    additions.append([admit(x, self._element_depth)])
                except StrictJsonError:
                    return None
        return additions


def _content(node: Rope | RopeArray) -> str | list[Any]:
    """Return the content of a node for orjson. Copying the whole state first would block the event loop for seconds."""
    return node.text_at(LATEST) if type(node) is Rope else node.items_at(LATEST)  # type: ignore[union-attr]
