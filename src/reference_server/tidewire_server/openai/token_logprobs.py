"""Conversion of generated tokens and their log-probabilities to the format of OpenAI's API."""

import base64
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

MIN_LOGPROB: Final = -9999.0
"""Log-probability that OpenAI's API shows for a probability of 0."""


def _number(logprob: float | None) -> float:
    return MIN_LOGPROB if logprob is None else logprob


class TokenRow(NamedTuple):
    """A generated token with its log-probabilities, as read from the columns of a job of `generate`."""

    token_id: int
    logprob: float | None
    """None for a probability of 0."""
    top_ids: Sequence[int]
    top_logprobs: Sequence[float | None]
    offset: int
    """Length of the item's text before this token, in code points, without an incomplete last character."""


class TokenBytes:
    """Table of the bytes of each token, read from the vocabulary that `generate` publishes."""

    def __init__(self, vocabulary: bytes) -> None:
        """Parse a vocabulary in the form in which the server sends it to clients."""
        body = orjson.loads(vocabulary)
        self._tokens = [base64.b64decode(token) for token in body["tokens"]]
        self._special = frozenset(body["special"])

    def adds_text(self, token_id: int) -> bool:
        """Return whether a token adds text. Special tokens, such as the end-of-text token, add none."""
        return token_id not in self._special

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a token adds to a text. For a special token, return the bytes of its name."""
        return self._tokens[token_id] if 0 <= token_id < len(self._tokens) else b""

    def chat_logprob(self, row: TokenRow) -> dict[str, Any]:
        """Convert a token to an element of a chat completion's `logprobs.content`, or of a response's `logprobs`."""
        top = [self._entry(one, logprob) for one, logprob in zip(row.top_ids, row.top_logprobs, strict=True)]
        return {**self._entry(row.token_id, row.logprob), "top_logprobs": top}

    def completion_logprobs(self, rows: Sequence[TokenRow]) -> dict[str, Any]:
        """Return the member `logprobs` of a completion for the tokens `rows`."""
        found: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        for row in rows:
            found["tokens"].append(self._label(row.token_id))
            found["token_logprobs"].append(_number(row.logprob))
            top = zip((*row.top_ids, row.token_id), (*row.top_logprobs, row.logprob), strict=True)
            found["top_logprobs"].append({self._label(one): _number(logprob) for one, logprob in top})
            found["text_offset"].append(row.offset)
        if not any(row.top_ids for row in rows):
            found["top_logprobs"] = None
        return found

    def _entry(self, token_id: int, logprob: float | None) -> dict[str, Any]:
        token = self.bytes_of(token_id)
        return {
            "token": token.decode("utf-8", "replace"),
            "logprob": _number(logprob),
            "bytes": [*token] if self.adds_text(token_id) else None,
        }

    def _label(self, token_id: int) -> str:
        """Return the text of a token. If the token ends within a character, return its bytes, so that labels stay unique."""
        token = self.bytes_of(token_id)
        try:
            return token.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
