"""Compare successive states of a job to find the added text of each item, and to detect retracted text (`TextProgress`).

Clients of OpenAI's API can only append text. If the text that was sent is no longer the beginning of the item's text, the
stream must therefore end with an error.
"""

import codecs
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidewire.protocol.document.view import View
from tidewire.protocol.messages import ENDED
from tidewire_server.openai.token_logprobs import TokenBytes, TokenRow
from tidewire_server.store.log_interface import StateAt


class RetractedError(Exception):
    """Text that was already sent to the client was removed or changed."""


class TextChange(NamedTuple):
    """Text that was added to one item since the last state."""

    index: int  # type: ignore[assignment]  # replaces the method `tuple.index`
    text: str
    rows: list[TokenRow]
    """Tokens of the new text, if log-probabilities were requested."""
    item: dict[str, Any] | None
    """In the last change of the item, its members `status`, `finish_reason` and `error`. In earlier changes, None."""
    reasoning: str = ""
    """Text that was added to the model's reasoning."""

    @property
    def finish_reason(self) -> str | None:
        """Reason why the text ended, if it has ended."""
        found: str | None = None if self.item is None else self.item["finish_reason"]
        return found


class _Item:
    """Lengths up to which the text, the reasoning and the tokens of one item were read."""

    def __init__(self) -> None:
        self.length = self.reasoning_length = self.rows = 0
        self.beginning = ""
        self.ended = False
        self.token_length = 0
        """Length of the text of the read tokens, in code points, without an incomplete last character."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add_token(self, token: bytes) -> None:
        added = self._decoder.decode(token)
        # Some tokenizers begin a text with a space, which engines leave out.
        if not self.token_length and self.beginning[:1] not in {"", " "}:
            added = added.removeprefix(" ")
        self.token_length += len(added)


class TextProgress:
    """Finds the text that each state of a job adds to the state before."""

    def __init__(self, items: int, tokens: TokenBytes | None) -> None:
        """Create a reader of a job with `items` items. If `tokens` is set, each change contains its tokens."""
        self._items = [_Item() for _ in range(items)]
        self._tokens = tokens
        self._last: View | None = None

    def changes(self, at: StateAt) -> Iterator[TextChange]:
        """Yield the changes since the state of the last call, which must be older. Raise a `RetractedError` if text of an
        earlier change was retracted.
        """
        view = at.view
        for index, item in enumerate(self._items):
            change = None if item.ended else self._change(index, item, view)
            if change is not None:
                yield change
        self._last = view

    def _change(self, index: int, item: _Item, view: View) -> TextChange | None:
        at = ("items", str(index))
        text = self._new_text(view, (*at, "value", "text"), item.length)
        reasoning = self._new_text(view, (*at, "value", "reasoning"), item.reasoning_length)
        item.length += len(text)
        item.beginning = item.beginning or text
        item.reasoning_length += len(reasoning)
        found = None
        item.ended = view.node((*at, "status")) in ENDED
        if item.ended:
            found = {name: view.node((*at, name)) for name in ("status", "error")}
            found["finish_reason"] = view.node((*at, "value", "finish_reason"))
        if not (text or reasoning) and found is None:
            return None
        return TextChange(index, text, self._rows_of(view, f"/items/{index}/value", item), found, reasoning)

    def _new_text(self, view: View, path: tuple[str, ...], sent: int) -> str:
        """Return the text at a path without its first `sent` code points, which must be unchanged."""
        if view.text_length(path) < sent or not (self._last or view).same_prefix(view, path, sent):
            raise RetractedError
        return view.text_since(path, sent)

    def _rows_of(self, view: View, at: str, item: _Item) -> list[TokenRow]:
        """Return the tokens of the text that was read, except tokens that earlier changes contained.

        The list ends with the first token that completes the text. A passage of a text therefore has the same tokens in
        every stream. When the item has ended, all remaining tokens are returned.
        """
        if self._tokens is None:
            return []
        names = ("token_ids", "logprobs", "top_ids", "top_logprobs")
        columns: list[list[Any]] = [view.elements(f"{at}/{name}", item.rows) for name in names]
        columns[2:] = [column or [()] * len(columns[0]) for column in columns[2:]]
        rows: list[TokenRow] = []
        for token_id, logprob, top_ids, top_logprobs in zip(*columns, strict=True):
            if item.token_length >= item.length and not item.ended:
                break
            item.rows += 1
            if self._tokens.adds_text(token_id):
                rows.append(TokenRow(token_id, logprob, top_ids, top_logprobs, item.token_length))
                item.add_token(self._tokens.bytes_of(token_id))
        return rows
