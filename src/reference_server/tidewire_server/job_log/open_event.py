"""The open event of a job (`OpenEvent`). It is the last event that waits for a commit, and appends and rows can extend it."""

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
    """An append to a text or an array, together with its JSON."""

    path: str
    x: str | list[Any]
    """The string or the elements to append."""
    inner: bytes
    """The JSON of `x` without its quotation marks or brackets."""

    @property
    def head(self) -> bytes:
        """First part of the op's JSON, which ends with the opening quotation mark or bracket of the appended value."""
        return text_head(self.path) if type(self.x) is str else b'["a",%b,[' % to_json(self.path)


@lru_cache(1024)
def text_head(path: str) -> bytes:
    """Return the first part of the JSON of an op that appends to a text. It ends with the text's opening quotation mark."""
    return b'["a",%b,"' % to_json(path)


def addition(path: str, x: str | list[Any]) -> Addition:
    """Encode an append.

    Raises:
        ValueError: A string is not valid Unicode, or an element is not JSON.
    """
    return Addition(path, x, to_json(x)[1:-1])


EncodedRow = tuple[list[Any], bytes]
"""An op that appends a row, and the JSON of this op."""


def encoded_row(members: Iterable[Any]) -> EncodedRow:
    """Encode an op that appends a row. The row has one string or element for each column.

    Raises:
        ValueError: A member is not JSON.
    """
    op = ["r", *members]
    return op, to_json(op)


class OpenEvent:
    """The last pending event, if appends and rows can still extend it. Otherwise the object is empty.

    Each job has one object, which is emptied when the event ends. Creating a new object for each event would add 2 µs to the
    15 µs that an isolated append takes in the server.

    Attributes:
        ops: The JSON of each op as a list of parts. To extend an append, a part is inserted before its last part.
        appends: Path → op that a later append to this path extends. An op before a row is not extended, because that would
            change the order of the elements.
        due: Paths of texts whose checks the event must contain.
        texts: Paths of other texts that grow in this event, and that the schedule of text checks has counted.
        has_row: Whether the schedule has counted the texts that are columns of the job.
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
        """Whether this event was already counted as a change of the text at a path. A text needs a check after some changes."""
        return path in self.appends or path in self.texts

    def add_row_of(self, texts: Iterable[str]) -> list[str]:
        """Record that a row was added, after which appends begin new ops. Return the texts that were not counted yet."""
        self.texts.update(self.appends)
        self.appends.clear()
        self.has_row = True
        grown = [path for path in texts if path not in self.texts]
        self.texts.update(grown)
        return grown


def to_json(value: Any) -> bytes:
    """Encode a value as compact JSON.

    orjson encodes NaN as null. This does no harm, because the document rejects NaN before the JSON is written.
    """
    try:
        return orjson.dumps(value)
    except TypeError as error:
        strict_json.check(value)
        raise DiffError(str(error)) from None
