"""Interface between the `generate` endpoint and an inference engine (`Engine`).

If a request has an input member that the engine does not support, the engine rejects the request before it is queued. An
engine never ignores an input member.

A *column* is a list in the value of a generation with one element per token, such as `token_ids`. A *row* has the
elements of one token in all columns. An engine computes only the columns that the request asks for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from tidewire_server.generation.generate_input_and_value import LIMITED_BY_MAX_TOP, Generate
from tidewire_server.generation.vocabulary import Vocabulary

FinishReason = Literal["stop", "length"]

CORE_MEMBERS = frozenset(
    {"prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "echo", "logprob_decimals"}
)
"""Input members that an engine supports, except for those in `EngineCapabilities.without`."""

NO_CHAT_TEMPLATE = (
    "messages require a model with a chat template, and this model has none; use `prompt`, or serve a copy of the "
    "checkpoint with a file chat_template.jinja"
)

LOGPROB_MEMBERS = frozenset({"logprobs", "top_logprobs", "token_text", "logprobs_mode"})
"""Input members that need token ids from the engine, and a tokenizer."""

NO_LOGPROBS = (
    "log-probabilities require an engine that sends token ids, such as vLLM, and its tokenizer (`--tokenizer`); this server has "
    "none of them, or only one"
)

NOT_WITH_BEAMS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "json_schema",
    "n",
    "logprobs_mode",
)
"""Input members that must have their defaults in a beam search, except for a temperature of 0."""


_DEFAULTS: Final = vars(Generate())
"""Default of each input member."""


class InputError(ValueError):
    """The engine cannot serve the request.

    Attributes:
        member: Name of the invalid or unsupported input member.
        code: Problem code, as defined by the specification.
        within: JSON Pointer of the invalid part within the member.
    """

    def __init__(self, message: str, *, member: str, code: str = "invalid_input", within: str = "") -> None:
        super().__init__(message)
        self.member = member
        self.code = code
        self.within = within


class EngineError(RuntimeError):
    """The engine failed while it processed a request.

    Attributes:
        code: Problem code of the item, as defined by the specification.
    """

    code = "internal"


class InputTooExpensiveError(EngineError):
    """The engine ended a request, because its input needs too much work."""


class EngineFullError(EngineError):
    """The engine rejected a request, because too many requests are running or waiting."""

    code = "queue_full"


class EngineClosedError(EngineError):
    """The engine was closed."""


class EngineUnavailableError(EngineError):
    """The engine cannot process requests now, for example because the server that runs the model cannot be reached."""

    code = "unavailable"


class EngineBusyError(EngineError):
    """No engine can accept the request now. The item returns to the queue. Its next attempt continues after the logged text."""


class EngineLostError(EngineError):
    """The request failed several times because the response broke off, so the engine does not try again."""

    code = "worker_lost"


class ContinuationError(EngineError):
    """The engine cannot continue a logged text, because its model cannot have generated the logged tokens."""


class TokenUsage(NamedTuple):
    """Numbers of prompt tokens and generated tokens of one request."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True)
class LoggedTokens:
    """Tokens that an earlier attempt of a request has generated and logged.

    They are treated like generated tokens: by `max_tokens`, stop strings, penalties, the usage, and the positions that
    determine the random numbers of a seed.
    """

    token_ids: list[int]
    text: str
    """Text of these tokens, without the prompt."""
    reasoning: str = ""
    """Text of the value's member `reasoning`."""
    usage: TokenUsage | None = None
    """Token counts that the engine had reported, or None if they are not known."""
    counted: int = 0
    """Number of code points at the beginning of `text` that `usage` covers."""


@dataclass(frozen=True)
class EngineCapabilities:
    """Description of an engine: its model, its limits, and the input members that it supports."""

    model: str
    """Human-readable name of the model."""
    context: int | None
    """Maximum number of tokens of the prompt and the generated text together, or None if it is not known."""
    max_top: int
    """Maximum value of the input member `top_logprobs`."""
    concurrency: int
    """Maximum number of requests that run at the same time. Additional requests wait."""
    members: frozenset[str]
    """Input members that this engine supports in addition to `CORE_MEMBERS`."""
    vocabulary: Vocabulary | None
    """Vocabulary of the model, or None if it is not available."""
    max_num_beams: int = 1
    """Maximum value of the input member `num_beams`."""
    continues: bool = False
    """Whether the engine can continue after the tokens of an earlier attempt."""
    without: frozenset[str] = frozenset()
    """Members of `CORE_MEMBERS` that this engine does not support."""
    counts_rows: bool = True
    """Whether each row is one token. If not, only `Delta.usage` contains token counts. The engine then continues a text
    without token ids, and may replace text that it has generated."""
    tokens: int | None = None
    """Number of token ids for which the model computes logits, or None if it is not known."""
    architecture: str = ""
    """Type of the model, such as `llama`."""
    dtype: str = ""
    """Type of the weights, such as `bfloat16`."""
    device: str = ""
    """Device that runs the model, such as `cuda:0`."""

    @property
    def served(self) -> frozenset[str]:
        """All input members that this engine supports."""
        return (CORE_MEMBERS | self.members) - self.without


@dataclass
class Delta:
    """A block of consecutive generated tokens or prompt tokens that an engine reports at once."""

    rows: list[Sequence[Any]] = field(default_factory=list)
    """One row per generated token, with one element for each of `Generate.columns`. The first element is the text that the
    token adds. It is empty if a character is still incomplete, or if the text may be the beginning of a stop string. The
    other elements are either plain values in all rows, or JSON from orjson (`bytes`) in all rows. Log-probabilities are in
    nats, rounded, and None for a probability of 0."""
    prompt_rows: list[Sequence[Any]] = field(default_factory=list)
    """One row per prompt token, with one element for each of `Generate.prompt_columns`. The elements are values or JSON."""
    finish_reason: FinishReason | None = None
    """Reason why the generation ended. None in all blocks except the last."""
    prompt_tokens: int = 0
    retracted: int = 0
    """Number of rows that are removed from the end of the earlier blocks before `rows` are appended. Only a beam search
    retracts rows."""
    stable: int | None = None
    """Number of rows at the beginning of the generation that no later block retracts. None if rows are never retracted."""
    usage: TokenUsage | None = None
    """Token counts so far, if `EngineCapabilities.counts_rows` is false and the engine knows them."""
    mark: tuple[TokenUsage, int] | None = None
    """The last position in this block at which no text was held back, so that a new attempt can continue there. The tuple
    contains the token counts at this position, and the number of code points that follow it in this block. None if text was
    held back everywhere."""
    text_after: str = ""
    """Text that follows the text of the rows, and does not belong to a row."""
    reasoning: str = ""
    """Text of the model's reasoning that is appended to the value's member `reasoning`."""
    replaces: bool = False
    """Whether this block replaces everything that was generated before, because the request ran again."""
    note: str = ""
    """Note for the readers of the job."""

    @property
    def shown(self) -> int:
        """Number of code points that this block adds to the text."""
        return sum(len(row[0]) for row in self.rows) + len(self.text_after)

    def extend(self, later: Delta) -> None:
        """Append the tokens of the next block to this block."""
        if later.mark is not None:
            self.mark = later.mark
        elif self.mark is not None:
            self.mark = self.mark[0], self.mark[1] + later.shown
        if self.text_after and later.rows:
            first, *rest = later.rows[0]
            later.rows[0], self.text_after = (self.text_after + first, *rest), ""
        kept = max(0, len(self.rows) - later.retracted)
        self.retracted += later.retracted - (len(self.rows) - kept)
        self.rows[kept:] = later.rows
        self.stable = later.stable
        self.prompt_rows.extend(later.prompt_rows)
        self.finish_reason = later.finish_reason
        self.prompt_tokens = later.prompt_tokens
        self.text_after += later.text_after
        self.reasoning += later.reasoning
        self.usage = later.usage or self.usage
        self.note = self.note or later.note


@dataclass(frozen=True)
class Stats:
    """Counters that describe the load of an engine."""

    started: int
    """Number of requests that the engine has accepted since it was created."""
    running: int
    waiting: int
    steps: int
    prompt_tokens: int
    """Number of prompt tokens that the engine has processed since it was created."""
    generated_tokens: int


class Engine(Protocol):
    """An inference engine that generates text for the `generate` endpoint."""

    @property
    def caps(self) -> EngineCapabilities:
        """The engine's capabilities. When they change, the engine must call the function that `add_engine` returned."""
        ...

    async def check(self, request: Generate) -> None:
        """Validate a request before it is queued.

        Raises:
            InputError: The engine cannot serve the request. The error names the invalid or unsupported input member.
            EngineFullError: Too many requests of this caller are being validated.
        """
        ...

    def continues(self, request: Generate, logged: LoggedTokens) -> bool:
        """Return whether the engine can continue after the tokens that an earlier attempt of a request has logged. The endpoint
        calls this method only if `EngineCapabilities.continues` is true.

        The engine cannot continue if the tokens do not match the text, for example because another model has generated
        them.
        """
        ...

    def generate(self, request: Generate, logged: LoggedTokens | None = None) -> AsyncGenerator[Delta]:
        """Generate text. Closing the async iterator cancels the request.

        Args:
            request: The input of the request. An engine may reuse cached keys and values only among requests with the same
                `cache_scope`.
            logged: Tokens after which the engine continues; see `continues`. The deltas contain only later tokens.

        Raises:
            InputError: The engine cannot serve the request; see `check`.
            ContinuationError: The engine's model cannot have generated the logged tokens.
            InputTooExpensiveError: The input needs too much work, for example to match its JSON Schema.
            EngineBusyError: No engine is free. The endpoint calls the method again later.
            EngineError: The engine failed, is full, or is closed.
        """
        ...

    async def close(self) -> None:
        """Close the engine. All its requests fail with `EngineClosedError`. A second call has no effect."""
        ...


def _check_token_ids(name: str, ids: Iterable[int], caps: EngineCapabilities) -> None:
    beyond = [token for token in ids if caps.tokens is not None and not 0 <= token < caps.tokens]
    if beyond and caps.tokens is not None:
        raise InputError(
            f"{name} contains the token id {beyond[0]}, but the vocabulary of {caps.model} has the ids 0 to "
            f"{caps.tokens - 1}",
            member=name,
        )


def _check_beam_search(request: Generate, changed: Collection[str], caps: EngineCapabilities) -> None:
    if request.num_beams > caps.max_num_beams:
        raise InputError(
            f"num_beams is {request.num_beams}, but the maximum on this server is {caps.max_num_beams}",
            member="num_beams",
        )
    if request.num_beams == 1 and "length_penalty" in changed:
        raise InputError(
            "length_penalty has an effect only together with num_beams above 1; remove it",
            member="length_penalty",
        )
    greedy = {"temperature"} if request.temperature == 0 else set()
    conflicts = [name for name in NOT_WITH_BEAMS if name in changed and name not in greedy]
    if request.num_beams > 1 and conflicts:
        raise InputError(
            f"{', '.join(conflicts)} cannot be combined with num_beams above 1, because a beam search does not sample and "
            "uses the model's own distribution; remove one or the other",
            member=conflicts[0],
        )


def check_members(request: Generate, caps: EngineCapabilities) -> None:
    """Check that an engine supports all input members of a request, and that numbers and token ids are within its limits.

    Raises:
        InputError: An input member is not supported, exceeds its limit, or contains an id that is not in the vocabulary. The
            error names the member.
    """
    changed = [name for name, default in _DEFAULTS.items() if getattr(request, name) != default]
    for name in changed:
        if name not in caps.served:
            message = f"{name} is not supported by {caps.model}; remove it from the input"
            raise InputError(NO_CHAT_TEMPLATE if name == "messages" else message, member=name)
    for name in LIMITED_BY_MAX_TOP:
        count = getattr(request, name)
        if count is not None and count > caps.max_top:
            raise InputError(
                f"{name} is {count}, but the maximum on this server is {caps.max_top}",
                member=name,
                code="top_logprobs_too_large",
            )
    _check_beam_search(request, changed, caps)
    _check_token_ids("logit_bias", map(int, request.logit_bias), caps)
    _check_token_ids("logprob_token_ids", request.logprob_token_ids, caps)
