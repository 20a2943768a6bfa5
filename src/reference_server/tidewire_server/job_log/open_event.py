"""The open event of a job (`OpenEvent`): the last pending event, which later appends and rows can extend."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from tidewire.protocol import strict_json
from tidewire.protocol.diff import DiffError

TEXT_END: Final = b'"]'
ARRAY_END: Final = b"]]"
"""Last bytes of an op that appends to a text or to an array."""


class Addition(NamedTuple):
    """An append to one path, with its JSON."""

    path: str
    x: str | list[Any]
    """The string or the elements to append."""
    inner: bytes
    """The JSON of `x` without its quotation marks or brackets."""

    @property
    def head(self) -> bytes:
        """The beginning of the op, up to the quotation mark or bracket."""
        return text_head(self.path) if type(self.x) is str else b'["a",%b,[' % to_json(self.path)


@lru_cache(1024)
def text_head(path: str) -> bytes:
    """Return the beginning of an op that appends to a text, up to the quotation mark."""
    return b'["a",%b,"' % to_json(path)


def addition(path: str, x: str | list[Any]) -> Addition:
    """Encode an append.

    Raises:
        ValueError: A string is not valid Unicode, or an element is not JSON.
    """
    return Addition(path, x, to_json(x)[1:-1])


EncodedRow = tuple[list[Any], bytes]
"""A row, as an op and as the JSON of this op."""


def encoded_row(members: Iterable[Any]) -> EncodedRow:
    """Encode a row. It has one string or element for each column.

    Raises:
        ValueError: A member is not JSON.
    """
    op = ["r", *members]
    return op, to_json(op)


class OpenEvent:
    """The last pending event, as long as appends and rows can extend it. Empty if there is no such event.

    Each job has one object, which is emptied when the event ends. New containers for each event would cost 2 µs of the 17 µs
    that an isolated append takes in the server.

    Attributes:
        ops: The ops as JSON, each as a list of parts. To extend an append, a part is inserted before its last part.
        appends: The ops that later appends extend, by path. An op before a row is not extended, because that would change
            the order of the elements.
        due: Texts whose checks the event must contain.
        texts: Paths of other texts that were counted for the schedule of text checks, because they grow in this event.
        has_row: Whether the texts that are columns of the job were counted.
        size: Size of the ops with their separators, in bytes.
    """

    __slots__ = ("appends", "due", "has_row", "ops", "size", "texts")

    def __init__(self) -> None:
        self.ops: list[list[bytes]] = []
        self.appends: dict[str, list[bytes]] = {}
        self.due: list[str] = []
        self.texts: set[str] = set()
        self.has_row: bool = False
        self.size: int = 0

    def append(self, added: Addition) -> None:
        """Extend the op that appends to the same path, or add an op."""
        op = self.appends.get(added.path)
        is_text = type(added.x) is str
        if op is None:
            op = [added.head, added.inner, TEXT_END if is_text else ARRAY_END]
            self.appends[added.path] = op
            self.ops.append(op)
            self.size += sum(map(len, op)) + 1
        else:
            piece = added.inner if is_text else b",%b" % added.inner
            op.insert(-1, piece)
            self.size += len(piece)

    def counts(self, path: str) -> bool:
        """Whether the schedule of text checks has already counted that the text at a path grows in this event."""
        return path in self.appends or path in self.texts

    def add_row_of(self, texts: Iterable[str]) -> list[str]:
        """Make later appends begin new ops after a row, and return those texts of the row that were not counted yet."""
        self.texts.update(self.appends)
        self.appends.clear()
        self.has_row = True
        grown = [path for path in texts if path not in self.texts]
        self.texts.update(grown)
        return grown


def to_json(value: Any) -> bytes:
    """Encode a value as compact JSON.

    orjson would encode NaN as null. This does not matter here, because the document rejects NaN before the JSON is
    written.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
