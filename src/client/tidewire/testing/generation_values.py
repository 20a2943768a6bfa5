"""Values with which a fake server simulates text generation.

They have the members that chapter 8 of the specification defines.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from tidewire.protocol.document.logprob_columns import requested_columns
from tidewire.testing.endpoint_script import FakeToken


class TokenIds:
    """Assigns an id to the text of each token. Ids are assigned in the order of first use, and never change."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """Return the id for the text of a token. On first use of the text, assign a new id."""
        return self._ids.setdefault(text, len(self._ids))

    def assign(self, token: FakeToken) -> None:
        """Assign ids to the text of a token and to the texts of its most probable alternatives."""
        for text in (token.text, *(text for text, _ in token.top)):
            self(text)

    @property
    def texts(self) -> list[str]:
        """The texts of all tokens, indexed by id."""
        return [*self._ids]


def columns(input_value: Any) -> list[str]:
    """Return the names of the lists that the input of a generation requests, in the order in which a diff appends to
    them.
    """
    found = [*requested_columns(input_value if isinstance(input_value, dict) else {})]
    return [name for name in found if name in _SIMULATED]


def initial(names: Sequence[str]) -> dict[str, Any]:
    """Return the value of a text generation before its first token."""
    mode = {"logprobs_mode": "raw"} if "logprobs" in names else {}
    return {"text": "", **{name: [] for name in names[1:]}, **mode, "finish_reason": None}


def row(names: Sequence[str], token: FakeToken, input_value: Any, ids: TokenIds) -> list[Any]:
    """Return the elements that one token appends to the columns, in the order of `names`."""
    top = token.top[: input_value.get("top_logprobs") or 0] if isinstance(input_value, dict) else ()
    return [_SIMULATED[name](token, top, ids) for name in names]


_SIMULATED: Final[dict[str, Callable[[FakeToken, Sequence[tuple[str, float | None]], TokenIds], Any]]] = {
    "text": lambda token, _top, _ids: token.text,
    "token_ids": lambda token, _top, ids: ids(token.text),
    "logprobs": lambda token, _top, _ids: token.logprob,
    "top_ids": lambda _token, top, ids: [ids(text) for text, _ in top],
    "top_logprobs": lambda _token, top, _ids: [logprob for _, logprob in top],
    "ranks": lambda token, _top, _ids: token.rank,
    "token_text": lambda token, _top, _ids: token.text,
    "top_text": lambda _token, top, _ids: [text for text, _ in top],
}
"""Columns of the value of `generate` that the fake server can simulate. Each function returns what one token adds to the
column."""
