"""Interface between the `generate` endpoint and an inference engine (`Engine`).

An engine rejects a request with an unsupported input member at submit, before the request is queued. It never ignores
such a member. It computes only the columns that a request asks for.
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
"""Input members that every engine supports. `EngineCapabilities.members` lists all other supported members."""


class InputError(ValueError):
    """The engine cannot serve the request.

    Attributes:
        member: Name of the input member at fault.
        code: Problem code from the specification's registry.
    """

    def __init__(self, message: str, *, member: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.member = member
        self.code = code


class EngineError(RuntimeError):
    """The engine failed while it processed a request."""


class EngineFullError(EngineError):
    """The engine's limit on running and waiting requests is reached."""


class EngineClosedError(EngineError):
    """The engine was closed."""


@dataclass(frozen=True)
class EngineCapabilities:
    """Model, limits and supported input members of an engine."""

    model: str
    """Human-readable name of the model."""
    context: int
    """Maximum number of tokens of prompt and generated text together."""
    max_top: int
    """Maximum value of `top_logprobs`."""
    concurrency: int
    """Maximum number of requests that run at the same time. Further requests wait."""
    members: frozenset[str]
    """Supported input members in addition to `CORE_MEMBERS`."""
    vocabulary: Vocabulary | None
    """Vocabulary of the model, or None if the engine does not have it."""


@dataclass
class Delta:
    """A block of generated tokens, stored as columns of equal length. Columns that were not requested stay empty."""

    text: list[str] = field(default_factory=list)
    """Text added by each token. Empty while a character is incomplete or a stop string may follow."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """Log-probabilities in nats, before temperature and filters. None for a probability of 0."""
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float | None]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    token_text: list[str] = field(default_factory=list)
    top_text: list[list[str]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Reason for the end of the generation, set in the last block only."""
    prompt_tokens: int = 0

    def extend(self, later: Delta) -> None:
        """Append the next block to this one."""
        for column in _COLUMNS:
            getattr(self, column).extend(getattr(later, column))
        self.finish_reason = later.finish_reason
        self.prompt_tokens = later.prompt_tokens


_COLUMNS = tuple(f.name for f in fields(Delta) if f.name not in {"finish_reason", "prompt_tokens"})


@dataclass(frozen=True)
class Stats:
    """Counters of an engine."""

    started: int
    """Requests accepted since the engine was created."""
    running: int
    waiting: int
    slots: int
    steps: int
    prompt_tokens: int
    """Prompt tokens processed since the engine was created."""
    generated_tokens: int


class Engine(Protocol):
    """Inference engine that generates text."""

    @property
    def caps(self) -> EngineCapabilities:
        """The engine's capabilities. They never change."""
        ...

    async def check(self, request: Generate) -> None:
        """Validate a request at submit, before it is queued.

        Raises:
            InputError: The engine cannot serve the request. The error names the input member.
        """
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """Generate text. Closing the async iterator cancels the request.

        Raises:
            InputError: The engine cannot serve the request, see `check`.
            EngineError: The engine failed, is full, or is closed.
        """
        ...

    async def stats(self) -> Stats:
        """Return the current counters."""
        ...

    async def close(self) -> None:
        """End all requests with `EngineClosedError`. Idempotent."""
        ...


def check_members(request: Generate, caps: EngineCapabilities) -> None:
    """Check that an engine supports all members of a request and the requested number of alternatives.

    Raises:
        InputError: A member is not supported, or exceeds its limit. The error names the member.
    """
    served = CORE_MEMBERS | caps.members
    for name, member in Generate.model_fields.items():
        value = getattr(request, name)
        if name not in served and value != member.get_default(call_default_factory=True):
            raise InputError(f"{name} is not supported by {caps.model}: leave it out", member=name)
    for name in ("top_logprobs", "prompt_logprobs"):
        count = getattr(request, name)
        if count is not None and count > caps.max_top:
            raise InputError(
                f"{name} is {count}, but the maximum of this server is {caps.max_top}",
                member=name,
                code="top_logprobs_too_large",
            )
