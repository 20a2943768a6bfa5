"""Input and value of the `generate` endpoint: the text generation profile of the specification."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_TOP = 64
"""No engine returns more alternatives than this per token, whatever its own cap."""
MIN_TEMPERATURE = 1e-4
"""Below this a temperature means the same as 0: the division would overflow."""

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str = Field(min_length=1, max_length=64, description="Who speaks: `system`, `user` or `assistant`.")
    content: str = Field(description="What is said.")


class Generate(BaseModel):
    """What to generate. Every member has a default; a member that the engine cannot serve is refused, never ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str = Field("def fibonacci(n):", description="The text to continue.")
    messages: list[Message] | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="A conversation, instead of `prompt`; needs a model with a chat template.",
    )
    max_tokens: int = Field(
        64,
        ge=1,
        description="Tokens to generate at most; with the prompt they must fit the context.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Divides the logits before sampling. 0 takes the most probable token.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample among the fewest most probable tokens whose probabilities reach this sum. 1 is off.",
    )
    top_k: int = Field(
        0, ge=0, le=2**31 - 1, description="Sample among this many most probable tokens. 0 is off."
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Sample among tokens at least this many times as probable as the most probable one. 0 is off.",
    )
    typical_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample among the most typical tokens whose probabilities reach this sum. 1 is off.",
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=100, description="Divides the logits of tokens that occurred. 1 is off."
    )
    presence_penalty: float = Field(
        0.0, ge=-100, le=100, description="Taken from the logits of tokens that were generated. 0 is off."
    )
    logit_bias: dict[str, float] = Field(
        default_factory=dict, max_length=1024, description="Added to the logits, by token id (as a string)."
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=2**53 - 1,
        description="The same seed gives the same tokens, whoever shares the batch. Without one, a random seed.",
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list, description="Strings that end the text; they are not part of it."
    )
    n: int = Field(1, ge=1, le=64, description="Samples; each is an item of the job.")
    num_beams: int = Field(1, ge=1, le=64, description="Beams of a beam search. 1 is off.")
    echo: bool = Field(
        False, description="The text begins with the prompt; the prompt's tokens are in no other column."
    )
    logprobs: bool = Field(False, description="The log-probability of each generated token, in nats.")
    top_logprobs: int = Field(
        0,
        ge=0,
        description="The most probable tokens at each position and their log-probabilities: this many. Includes `logprobs`.",
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        description="Log-probabilities of the prompt's tokens, with this many alternatives.",
    )
    logprob_token_ids: list[int] = Field(
        default_factory=list,
        max_length=128,
        description="Further token ids whose log-probabilities are wanted at each position.",
    )
    ranks: bool = Field(
        False, description="The rank of each generated token: 1 + the number of tokens with a higher logit."
    )
    ties: Literal["cut", "count", "all"] = Field(
        "cut",
        description="Tokens that tie with the last of the top: cut them off (lowest ids stay), count them, or return all.",
    )
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw",
        description="Of the model's own distribution (`raw`), or of the one that was sampled from (`processed`).",
    )
    logprob_decimals: int = Field(4, ge=0, le=9, description="Decimals of log-probabilities.")
    token_text: bool = Field(
        False,
        description="The text of each token and alternative beside its id; bytes that are no whole character show as U+FFFD.",
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.messages is not None and "prompt" in self.model_fields_set:
            raise ValueError("give prompt or messages, not both")
        if self.messages is not None and self.echo:
            raise ValueError("echo needs prompt: messages have no text to begin with")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def columns(self) -> list[str]:
        """The members of the value that grow by one element per token: only what was asked for."""
        wanted = {
            "text": True,
            "token_ids": self.logprobs or self.top_logprobs > 0 or self.ranks or self.token_text,
            "logprobs": self.logprobs or self.top_logprobs > 0,
            "top_ids": self.top_logprobs > 0,
            "top_logprobs": self.top_logprobs > 0,
            "ranks": self.ranks,
            "token_text": self.token_text,
            "top_text": self.token_text and self.top_logprobs > 0,
        }
        return [name for name, is_wanted in wanted.items() if is_wanted]


class Generated(BaseModel):
    """What was generated. What was not asked for is absent.

    A list has one element per generated token; one whose name begins with `prompt` one per token of the prompt.
    """

    model_config = ConfigDict(extra="forbid")

    text: str = Field(
        description="The text. Characters that the tokens left unfinished, and a stop string, are not in it."
    )
    token_ids: list[int] | None = Field(
        None, description="The generated tokens, an end-of-text token included."
    )
    logprobs: list[float | None] | None = Field(
        None, description="Of each token, in nats; null where the probability is 0."
    )
    top_ids: list[list[int]] | None = Field(
        None, description="The most probable tokens: log-probability descending, then id ascending."
    )
    top_logprobs: list[list[float | None]] | None = Field(
        None, description="Of the tokens in `top_ids`, in nats."
    )
    ranks: list[int] | None = Field(
        None, description="Of each token: 1 + the number of tokens with a higher logit."
    )
    tie_counts: list[int] | None = Field(
        None, description="Of each token: how many tokens beyond the top tie with its last one."
    )
    scored_logprobs: list[list[float | None]] | None = Field(
        None, description="Of the ids in `logprob_token_ids`, in their order, in nats."
    )
    token_text: list[str] | None = Field(None, description="The text of each token.")
    top_text: list[list[str]] | None = Field(None, description="The text of the tokens in `top_ids`.")
    prompt_token_ids: list[int] | None = Field(None, description="The tokens of the prompt.")
    prompt_logprobs: list[float | None] | None = Field(
        None, description="Of each token of the prompt, in nats; null for the first."
    )
    prompt_top_ids: list[list[int]] | None = Field(
        None, description="The most probable tokens at each place of the prompt; none for the first."
    )
    prompt_top_logprobs: list[list[float | None]] | None = Field(
        None, description="Of the tokens in `prompt_top_ids`, in nats."
    )
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        None, description="Of which distribution the log-probabilities of generated tokens are."
    )
    finish_reason: Literal["stop", "length", "cancelled"] | None = Field(
        None,
        description="`stop`: the model ended the text, or a stop string came; `length`: `max_tokens` are there.",
    )
