"""The interface between the `generate` endpoint and whatever computes tokens.

A member of the input that an engine cannot serve is refused before the request waits in any queue; it is
never ignored. What was not asked for is not computed.
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
"""What every engine serves; all else it names in `EngineCapabilities.members`."""


class InputError(ValueError):
    """A request that this engine cannot serve.

    Attributes:
        member: the member of the input that is wrong.
        code: the code of the problem in the specification's registry.
    """

    def __init__(self, message: str, *, member: str, code: str = "invalid_input") -> None:
        super().__init__(message)
        self.member = member
        self.code = code


class EngineError(RuntimeError):
    """The engine could not go on with a request."""


class EngineFullError(EngineError):
    """More requests wait than the engine keeps."""


class EngineClosedError(EngineError):
    """The engine was closed."""


@dataclass(frozen=True)
class EngineCapabilities:
    """What an engine can do."""

    model: str
    """A name for people."""
    context: int
    """Tokens of prompt and generated text together, at most."""
    max_top: int
    """The largest `top_logprobs`."""
    concurrency: int
    """Requests that run at a time; more wait."""
    members: frozenset[str]
    """Members of the input that are served beyond `CORE_MEMBERS`."""
    vocabulary: Vocabulary | None
    """The tokens, where the engine knows them."""


@dataclass
class Delta:
    """A block of tokens: columns of equal length; a column that was not asked for stays empty."""

    text: list[str] = field(default_factory=list)
    """What each token added to the text: "" where a character, or a possible stop string, is not complete."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    """In nats, of the model's own distribution; None where the probability is 0."""
    top_ids: list[list[int]] = field(default_factory=list)
    top_logprobs: list[list[float | None]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    token_text: list[str] = field(default_factory=list)
    top_text: list[list[str]] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    """Set in the last block."""
    prompt_tokens: int = 0

    def extend(self, later: Delta) -> None:
        """Append the block that follows this one."""
        for column in _COLUMNS:
            getattr(self, column).extend(getattr(later, column))
        self.finish_reason = later.finish_reason
        self.prompt_tokens = later.prompt_tokens


_COLUMNS = tuple(f.name for f in fields(Delta) if f.name not in {"finish_reason", "prompt_tokens"})


@dataclass(frozen=True)
class Stats:
    """What an engine has done and does now."""

    started: int
    """Requests taken since the engine started."""
    running: int
    waiting: int
    slots: int
    steps: int
    prompt_tokens: int
    """Read since the engine started."""
    generated_tokens: int


class Engine(Protocol):
    """A body that generates text."""

    @property
    def caps(self) -> EngineCapabilities:
        """What this engine can do; fixed."""
        ...

    async def check(self, request: Generate) -> None:
        """Refuse what cannot be served, before it waits in a queue.

        Raises:
            InputError: naming the member.
        """
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Delta]:
        """Generate. Closing the iterator cancels the request.

        Raises:
            InputError: as `check`.
            EngineError: the engine failed, is full, or is closed.
        """
        ...

    async def stats(self) -> Stats:
        """Counters."""
        ...

    async def close(self) -> None:
        """End all requests with `EngineClosedError`; idempotent."""
        ...


def check_members(request: Generate, caps: EngineCapabilities) -> None:
    """Refuse members that `caps` does not serve, and more alternatives than its cap.

    Raises:
        InputError: naming the member.
    """
    served = CORE_MEMBERS | caps.members
    for name, member in Generate.model_fields.items():
        value = getattr(request, name)
        if name not in served and value != member.get_default(call_default_factory=True):
            raise InputError(f"{name} is not served by {caps.model}: leave it out", member=name)
    for name in ("top_logprobs", "prompt_logprobs"):
        count = getattr(request, name)
        if count is not None and count > caps.max_top:
            raise InputError(
                f"{name} is {count}, more than the {caps.max_top} of this server",
                member=name,
                code="top_logprobs_too_large",
            )
