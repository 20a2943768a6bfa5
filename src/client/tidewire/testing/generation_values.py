"""The value of a fake text generation: the columns that an input asks for, as chapter 8 of the specification has them."""

from collections.abc import Sequence
from typing import Any

from tidewire.testing.endpoint_script import FakeToken


class TokenIds:
    """Gives each text of a token an id, which stays."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The id of a token."""
        return self._ids.setdefault(text, len(self._ids))

    def know(self, token: FakeToken) -> None:
        """Give ids to a token and its candidates."""
        for text in (token.text, *(text for text, _ in token.top)):
            self(text)

    @property
    def texts(self) -> list[str]:
        """The texts of all tokens that were given an id, by id."""
        return [*self._ids]


def columns(asked: Any) -> list[str]:
    """The columns that an input asks for, in the order of a row."""
    asked = asked if isinstance(asked, dict) else {}
    top = bool(asked.get("top_logprobs"))
    wanted = {
        "logprobs": bool(asked.get("logprobs")) or top,
        "top_ids": top,
        "top_logprobs": top,
        "ranks": bool(asked.get("ranks")),
        "token_text": bool(asked.get("token_text")),
        "top_text": top and bool(asked.get("token_text")),
    }
    names = [name for name, is_wanted in wanted.items() if is_wanted]
    return ["text", *(["token_ids"] if names else []), *names]


def initial(names: Sequence[str]) -> dict[str, Any]:
    """The value before the first token."""
    mode = {"logprobs_mode": "raw"} if "logprobs" in names else {}
    return {"text": "", **{name: [] for name in names[1:]}, **mode, "finish_reason": None}


def row(names: Sequence[str], token: FakeToken, asked: Any, ids: TokenIds) -> list[Any]:
    """What one token adds to each column."""
    top = token.top[: asked.get("top_logprobs") or 0] if isinstance(asked, dict) else ()
    members: dict[str, Any] = {
        "text": token.text,
        "token_ids": ids(token.text),
        "logprobs": token.logprob,
        "top_ids": [ids(text) for text, _ in top],
        "top_logprobs": [logprob for _, logprob in top],
        "ranks": token.rank,
        "token_text": token.text,
        "top_text": [text for text, _ in top],
    }
    return [members[name] for name in names]
