"""Interface between the `generate` endpoint and an inference engine (`Engine`).

If a request has an input member that the engine does not support, the engine rejects the request before it is queued. An
engine never ignores an input member. It computes only the output lists (columns) that the request asks for.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, fields
from typing import Literal, Protocol

from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.vocabulary import Vocabulary

FinishReason = Literal["stop", "length"]

CORE_MEMBERS = frozenset(
    {"prompt", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "echo", "logprob_decimals"}
)
"""Input members that every engine supports. `EngineCapabilities.members` contains further members of one engine."""


class InputError(ValueError):
    """The engine cannot serve the request.

    Attributes:
        member: Name of the invalid or unsupported input member.
        code: Problem code, as defined by the specification.
    """

    def __init__(self, message: str, *, member: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.member = member
        self.code = code


class EngineError(RuntimeError):
    """The engine failed while it processed a request."""


class EngineFullError(EngineError):
    """The engine rejected a request, because too many requests are running or waiting."""


class EngineClosedError(EngineError):
    """The engine was closed."""


@dataclass(frozen=True)
class EngineCapabilities:
    """Description of an engine: its model, its limits, and the input members that it supports."""

    model: str
    """Human-readable name of the model."""
    context: int
    """Maximum number of tokens of the prompt and the generated text together."""
    max_top: int
    """Maximum value of the input member `top_logprobs`."""
    concurrency: int
    """Maximum number of requests that run at the same time. Further requests wait."""
    members: frozenset[str]
    """Input members that this engine supports in addition to `CORE_MEMBERS`."""
    vocabulary: Vocabulary | None
    """Vocabulary of the model, or None if it is not available."""
    architecture: str = ""
    """Type of the model, such as `llama`."""
    dtype: str = ""
    """Type of the weights, such as `bfloat16`."""
    device: str = ""
    """Device that runs the model, such as `cuda:0`."""


@dataclass
class Delta:
    """A block of generated tokens. Each list has one element per token, or is empty if the request did not ask for
    it.
    """

    text: list[str] = field(default_factory=list)
    """Text that each token adds. A token adds an empty string if a character is still incomplete, or if the text may be the
    beginning of a stop string."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """Log-probability of each token in nats, before temperature and filters are applied. None for a probability of 0."""
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float | None]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    token_text: list[str] = field(default_factory=list)
    top_text: list[list[str]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Reason why the generation ended. None in all blocks except the last."""
    prompt_tokens: int = 0

    def extend(self, later: Delta) -> None:
        """Append the tokens of the next block to this block."""
        for column in _COLUMNS:
            getattr(self, column).extend(getattr(later, column))
        self.finish_reason = later.finish_reason
        self.prompt_tokens = later.prompt_tokens


_COLUMNS = tuple(f.name for f in fields(Delta) if f.name not in {"finish_reason", "prompt_tokens"})


@dataclass(frozen=True)
class Stats:
    """Counters that describe the load of an engine."""

    started: int
    """Number of requests that the engine has accepted since it was created."""
    running: int
    waiting: int
    slots: int
    steps: int
    prompt_tokens: int
    """Number of prompt tokens that the engine has processed since it was created."""
    generated_tokens: int


class Engine(Protocol):
    """An inference engine that generates text for the `generate` endpoint."""

    @property
    def caps(self) -> EngineCapabilities:
        """The engine's capabilities. They never change."""
        ...

    async def check(self, request: Generate) -> None:
        """Validate a request before it is queued.

        Raises:
            InputError: The engine cannot serve the request. The error names the invalid or unsupported input member.
        """
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """Generate text. Closing the async iterator cancels the request.

        Raises:
            InputError: The engine cannot serve the request; see `check`.
            EngineError: The engine failed, is full, or is closed.
        """
        ...

    async def stats(self) -> Stats:
        """Return the current counters of the engine."""
        ...

    async def close(self) -> None:
        """Close the engine. All its requests fail with `EngineClosedError`. Closing it again has no effect."""
        ...


def check_members(request: Generate, caps: EngineCapabilities) -> None:
    """Check that an engine supports all input members of a request, and the requested numbers of top tokens.

    Raises:
        InputError: An input member is not supported, or exceeds its limit. The error names the member.
    """
    served = CORE_MEMBERS | caps.members
    for name, member in Generate.model_fields.items():
        value = getattr(request, name)
        if name not in served and value != member.get_default(call_default_factory=True):
            raise InputError(
                f"{name} is not supported by {caps.model}; remove it from the input", member=name
            )
    for name in ("top_logprobs", "prompt_logprobs"):
        count = getattr(request, name)
        if count is not None and count > caps.max_top:
            raise InputError(
                f"{name} is {count}, but the maximum on this server is {caps.max_top}",
                member=name,
                code="top_logprobs_too_large",
            )
