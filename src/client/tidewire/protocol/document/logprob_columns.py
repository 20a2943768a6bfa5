"""Table of the columns of a text generation, from which client and server derive schemas, values and fields.

A column is a member of the value that grows by one element per generated token, or per token of the prompt (chapter 8 of
the specification). To add a column, add a row to `COLUMNS`; an engine must then compute its elements.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

Input = Mapping[str, Any]
"""Members of the input. Members that are absent have their defaults."""


class Column(NamedTuple):
    """One column of the value."""

    name: str
    element: Any
    """Type of an element. Log-probabilities are None for probability 0."""
    member: str | None
    """Input member without which the column never exists. None for columns that every engine supports."""
    requested: Callable[[Input], bool]
    """Whether an input asks for the column."""
    description: str

    @property
    def of_prompt(self) -> bool:
        """Whether the column has one element per token of the prompt, instead of one per generated token."""
        return self.name.startswith("prompt_")


def _top(request: Input) -> bool:
    return bool(request.get("top_logprobs"))


def _prompt_top(request: Input) -> bool:
    return bool(request.get("prompt_logprobs"))


def _ties(request: Input) -> bool:
    return bool(request.get("ties", "cut") != "cut")


def _has_tokens(request: Input) -> bool:
    return any(column.requested(request) for column in COLUMNS[2:] if not column.of_prompt)


COLUMNS: Final = (
    Column(
        "text",
        str,
        None,
        lambda _: True,
        "The generated text, without stop strings and without incomplete characters at its end.",
    ),
    Column(
        "token_ids",
        int,
        None,
        _has_tokens,
        "Ids of the generated tokens, including an end-of-text token if there is one.",
    ),
    Column(
        "logprobs",
        float | None,
        "logprobs",
        lambda request: bool(request.get("logprobs")) or _top(request),
        "Log-probability of each token, in nats, or null if the probability is 0.",
    ),
    Column(
        "top_ids",
        list[int],
        "top_logprobs",
        _top,
        "Ids of the most probable tokens, ordered by descending log-probability, then by ascending id.",
    ),
    Column(
        "top_logprobs",
        list[float | None],
        "top_logprobs",
        _top,
        "Log-probabilities of the tokens in `top_ids`, in nats.",
    ),
    Column(
        "ranks",
        int,
        "ranks",
        lambda request: bool(request.get("ranks")),
        "Rank of each token, that is 1 + the number of tokens with a higher logit.",
    ),
    Column(
        "tie_counts",
        int,
        "ties",
        _ties,
        "Number of tokens that are as probable as the last of the top tokens, but are not among them.",
    ),
    Column(
        "scored_logprobs",
        list[float | None],
        "logprob_token_ids",
        lambda request: bool(request.get("logprob_token_ids")),
        "Log-probabilities of the ids in `logprob_token_ids`, in the same order, in nats.",
    ),
    Column(
        "token_text",
        str,
        "token_text",
        lambda request: bool(request.get("token_text")),
        "Text of each token.",
    ),
    Column(
        "top_text",
        list[str],
        "token_text",
        lambda request: bool(request.get("token_text")) and _top(request),
        "Texts of the tokens in `top_ids`.",
    ),
    Column(
        "prompt_token_ids",
        int,
        "prompt_logprobs",
        lambda request: request.get("prompt_logprobs") is not None,
        "Ids of the prompt's tokens.",
    ),
    Column(
        "prompt_logprobs",
        float | None,
        "prompt_logprobs",
        lambda request: request.get("prompt_logprobs") is not None,
        "Log-probability of each token of the prompt, in nats, or null for the first token.",
    ),
    Column(
        "prompt_top_ids",
        list[int],
        "prompt_logprobs",
        _prompt_top,
        "Ids of the most probable tokens at each position of the prompt. The first list is empty.",
    ),
    Column(
        "prompt_top_logprobs",
        list[float | None],
        "prompt_logprobs",
        _prompt_top,
        "Log-probabilities of the tokens in `prompt_top_ids`, in nats.",
    ),
)

_MODED: Final = frozenset({"logprobs", "scored_logprobs", "prompt_logprobs"})


def requested_columns(request: Input, *, of_prompt: bool = False) -> Iterator[str]:
    """Yield the names of the columns that an input asks for, in the order in which a row has their elements.

    Args:
        request: Members of the input.
        of_prompt: Whether to yield the columns of the prompt, instead of those of the generated tokens.
    """
    for column in COLUMNS:
        if column.of_prompt is of_prompt and column.requested(request):
            yield column.name


def initial_value(request: Input) -> dict[str, Any]:
    """Return the value that a generation without `echo` has before its first token."""
    prompt = requested_columns(request, of_prompt=True)
    names = [*requested_columns(request), *prompt]
    value: dict[str, Any] = {name: "" if name == "text" else [] for name in names}
    if not _MODED.isdisjoint(names):
        value["logprobs_mode"] = request.get("logprobs_mode", "raw")
    return {**value, "finish_reason": None}
