"""Writer for the best hypothesis of a beam search (`HypothesisWriter`), whose end may be retracted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from tidewire.protocol.document.json_values import common_prefix
from tidewire_server.generation.engine import Delta
from tidewire_server.log_writer.stream import Stream, writer_of


class HypothesisWriter:
    """Writes the blocks of a beam search to a stream. One event replaces the end of the text and of all other columns, and
    declares the part of the text that is stable.

    Args:
        stream: The stream, whose first column is the text.
        echoed: Text before the first generated token, which is stable.
        text_only: Whether the text is the only column.
    """

    def __init__(self, stream: Stream[Any], echoed: str, *, text_only: bool) -> None:
        self._writer = writer_of(stream)
        self._text_only = text_only
        self._pieces: list[str] = []
        """Texts of the tokens of the written hypothesis."""
        self._stable_pieces, self._stable = 0, len(echoed)
        # Otherwise `iter_text` of the client would yield text before it is stable.
        stream.stable(self._stable, at="/text")

    def write(self, delta: Delta) -> None:
        """Write a block. Text is truncated to the prefix that the old and the new text share."""
        first = len(self._pieces) - delta.retracted
        pieces = [row[0] for row in delta.rows]
        old, new = "".join(self._pieces[first:]), "".join(pieces)
        self._pieces[first:] = pieces
        if delta.stable is not None:
            self._stable += sum(map(len, self._pieces[self._stable_pieces : delta.stable]))
            self._stable_pieces = delta.stable
        # With other columns, the text loses exactly the texts of the tokens that they lose (TW-GEN-013).
        shared = common_prefix(old, new) if self._text_only else 0
        truncated = [len(old) - shared]
        additions: list[str | list[Any]] = [new[shared:]]
        for column in range(1, 1 if self._text_only else self._writer.width):
            truncated.append(delta.retracted)
            additions.append(_values([row[column] for row in delta.rows]))
        self._writer.replace_end(truncated, additions, self._stable)


def _values(elements: Sequence[Any]) -> list[Any]:
    """Return the elements of a column, which are values or the JSON of values."""
    if elements and type(elements[0]) is bytes:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(elements))
        return values
    return [*elements]
