"""Progress of the texts of a job (`TextProgress`): the new part of each text, and whether text was retracted.

The clients of OpenAI's API can only append. A reader therefore compares each state of the job with the one before: if the
text that it has sent is no longer the beginning of the item's text, its stream must end with an error.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED
from tidewire_server.openai.token_logprobs import TextLengths, TokenBytes, TokenRow
from tidewire_server.store.interfaces import StateAt


class RetractedError(Exception):
    """Text that was sent is no longer part of the item's text."""


class TextChange(NamedTuple):
    """New part of the text of one item. The last change of an item has its `item` with the status in which it ended."""

    index: int
    text: str
    rows: list[TokenRow]
    """Tokens of the new text, if log-probabilities were requested."""
    item: dict[str, Any] | None
    """The item, if it has ended. Its value has only `finish_reason`."""


class _Item:
    """What a reader has sent of one item."""

    def __init__(self) -> None:
        self.sent = 0
        self.rows = 0
        self.ended = False
        self.lengths = TextLengths()


class TextProgress:
    """Reads the new texts of a job from its states."""

    def __init__(self, items: int, tokens: TokenBytes | None) -> None:
        """Create a reader.

        Args:
            items: Number of items of the job.
            tokens: Bytes of the tokens, if the changes shall have the log-probabilities.
        """
        self._items = [_Item() for _ in range(items)]
        self._tokens = tokens
        self._last: StateAt | None = None

    def changes(self, at: StateAt) -> Iterator[TextChange]:
        """Yield the changes since the last state. Call it only with newer states.

        Raises:
            RetractedError: Text that was sent was retracted.
        """
        for index, item in enumerate(self._items):
            if not item.ended:
                change = self._change(index, item, at)
                if change is not None:
                    yield change
        self._last = at

    def _change(self, index: int, item: _Item, at: StateAt) -> TextChange | None:
        view, text_path = at.view, ("items", str(index), "value", "text")
        length = view.text_length(text_path)
        if length < item.sent:
            raise RetractedError
        if self._last is not None:
            if not self._last.view.same_prefix(view, text_path, item.sent):
                raise RetractedError
            if self._last.cursor.epoch != at.cursor.epoch and item.rows:
                ids = f"/items/{index}/value/token_ids"
                before, now = self._last.view.elements(ids, 0), view.elements(ids, 0)
                if before[: item.rows] != now[: item.rows]:
                    raise RetractedError
        found: Any = None
        status = view.value(f"/items/{index}/status")
        if status in ENDED:
            item.ended = True
            value = {"finish_reason": _optional(view, f"/items/{index}/value/finish_reason")}
            found = {"status": status, "value": value, "error": _optional(view, f"/items/{index}/error")}
        text = view.text_since(text_path, item.sent)
        if not text and found is None:
            return None
        item.sent = length
        return TextChange(index, text, self._rows_of(view, index, item), found)

    def _rows_of(self, view: View, index: int, item: _Item) -> list[TokenRow]:
        """Return the tokens of the sent text that were not returned before.

        The last of them is the first token with which the text of all tokens is as long as the sent text. The same part of a
        text therefore always has the same tokens. When the item has ended, the remaining tokens are returned.
        """
        if self._tokens is None:
            return []
        at, first = f"/items/{index}/value", item.rows
        rows: list[TokenRow] = []
        ids: list[Any] = view.elements(f"{at}/token_ids", first)
        logprobs: list[Any] = view.elements(f"{at}/logprobs", first)
        top_ids: list[Any] = view.elements(f"{at}/top_ids", first) or [()] * len(ids)
        top_logprobs: list[Any] = view.elements(f"{at}/top_logprobs", first) or [()] * len(ids)
        for row in map(TokenRow, ids, logprobs, top_ids, top_logprobs):
            if item.lengths.total >= item.sent and not item.ended:
                break
            if self._tokens.adds_text(row.token_id):
                item.lengths.add(self._tokens.bytes_of(row.token_id))
                rows.append(row)
            item.rows += 1
        return rows


def _optional(view: View, pointer: str) -> Any:
    try:
        return view.value(pointer)
    except LookupError:
        return None
