"""Pydantic models for the input and the value of the `generate` endpoint, as defined by the specification's profile for
text generation.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_TOP = 64
"""Upper bound of the input member `top_logprobs` for every engine."""
MIN_TEMPERATURE = 1e-4
"""Smallest temperature with which logits are divided. A lower temperature is treated as 0, because the division could
overflow."""

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str = Field(
        min_length=1, max_length=64, description="Role of the speaker: `system`, `user` or `assistant`."
    )
    content: str = Field(description="Text of the message.")


class Generate(BaseModel):
    """Input of a text generation. All members are optional. Members that the engine does not support are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str = Field("def fibonacci(n):", description="Text to continue.")
    messages: list[Message] | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Conversation to continue, as an alternative to `prompt`. It requires a model with a chat template.",
    )
    max_tokens: int = Field(
        64,
        ge=1,
        description="Maximum number of tokens to generate. Together with the prompt, they must fit into the context.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Number by which the logits are divided before sampling. With 0, the most probable token is always "
        "selected.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most probable tokens whose probabilities add up to at least this "
        "value. 1 disables the filter.",
    )
    top_k: int = Field(
        0,
        ge=0,
        le=2**31 - 1,
        description="Sample from this number of most probable tokens. 0 disables the filter.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Sample from the tokens whose probability is at least this fraction of the highest probability. "
        "0 disables the filter.",
    )
    typical_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most typical tokens whose probabilities add up to at least this "
        "value. 1 disables the filter.",
    )
    repetition_penalty: float = Field(
        1.0,
        gt=0,
        le=100,
        description="Number by which the logits of tokens that already occurred are divided. 1 disables the penalty.",
    )
    presence_penalty: float = Field(
        0.0,
        ge=-100,
        le=100,
        description="Number subtracted from the logits of tokens that were already generated. 0 disables the penalty.",
    )
    logit_bias: dict[str, float] = Field(
        default_factory=dict,
        max_length=1024,
        description="Object that maps token ids, written as strings, to numbers that are added to their logits.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=2**53 - 1,
        description="Seed for sampling. The same seed gives the same tokens, even if other requests run in the same batch. "
        "The default is a random seed.",
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list,
        description="Strings at which the generation ends. The text does not include them.",
    )
    n: int = Field(1, ge=1, le=64, description="Number of samples. Each sample is an item of the job.")
    num_beams: int = Field(1, ge=1, le=64, description="Number of beams. 1 disables beam search.")
    echo: bool = Field(
        False,
        description="Whether the text begins with the prompt. This does not affect the lists with one element per "
        "generated token.",
    )
    logprobs: bool = Field(
        False, description="Whether to return the log-probability of each generated token, in nats."
    )
    top_logprobs: int = Field(
        0,
        ge=0,
        description="Number of most probable tokens to return at each position, with their log-probabilities. "
        "A value greater than 0 implies `logprobs`.",
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        description="Number of most probable tokens to return at each position of the prompt, in addition to the "
        "log-probabilities of the prompt's tokens.",
    )
    logprob_token_ids: list[int] = Field(
        default_factory=list,
        max_length=128,
        description="Ids of tokens whose log-probabilities are returned at each position, even if they are not among the "
        "most probable tokens.",
    )
    ranks: bool = Field(
        False,
        description="Whether to return the rank of each generated token, that is 1 + the number of tokens with a higher "
        "logit.",
    )
    ties: Literal["cut", "count", "all"] = Field(
        "cut",
        description="Handling of tokens that are as probable as the last of the top tokens, but exceed the number in "
        "`top_logprobs`: leave them out (`cut`), return their number (`count`), or return all of them (`all`).",
    )
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw",
        description="Distribution from which log-probabilities are computed: the model's output (`raw`), or the "
        "distribution after temperature and filters, from which the token was sampled (`processed`).",
    )
    logprob_decimals: int = Field(
        4, ge=0, le=9, description="Number of decimals to which log-probabilities are rounded."
    )
    token_text: bool = Field(
        False,
        description="Whether to return the texts of the generated tokens and of the most probable tokens. Incomplete "
        "characters are replaced by U+FFFD.",
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.messages is not None and "prompt" in self.model_fields_set:
            raise ValueError("prompt and messages cannot be used together")
        if self.messages is not None and self.echo:
            raise ValueError("echo requires prompt and cannot be used with messages")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def columns(self) -> list[str]:
        """Names of the columns that the request asks for. A column is a member of the value that grows with each
        token.
        """
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
    """Value of a text generation. Members that were not requested are absent.

    Lists whose names begin with `prompt` have one element per token of the prompt. All other lists have one element per
    generated token.
    """

    model_config = ConfigDict(extra="forbid")

    text: str = Field(
        description="The generated text, without stop strings and without incomplete characters at its end."
    )
    token_ids: list[int] | None = Field(
        None, description="Ids of the generated tokens, including an end-of-text token if there is one."
    )
    logprobs: list[float | None] | None = Field(
        None, description="Log-probability of each token, in nats, or null if the probability is 0."
    )
    top_ids: list[list[int]] | None = Field(
        None,
        description="Ids of the most probable tokens, ordered by descending log-probability, then by ascending id.",
    )
    top_logprobs: list[list[float | None]] | None = Field(
        None, description="Log-probabilities of the tokens in `top_ids`, in nats."
    )
    ranks: list[int] | None = Field(
        None, description="Rank of each token, that is 1 + the number of tokens with a higher logit."
    )
    tie_counts: list[int] | None = Field(
        None,
        description="Number of tokens that are as probable as the last of the top tokens, but are not among them.",
    )
    scored_logprobs: list[list[float | None]] | None = Field(
        None, description="Log-probabilities of the ids in `logprob_token_ids`, in the same order, in nats."
    )
    token_text: list[str] | None = Field(None, description="Text of each token.")
    top_text: list[list[str]] | None = Field(None, description="Texts of the tokens in `top_ids`.")
    prompt_token_ids: list[int] | None = Field(None, description="Ids of the prompt's tokens.")
    prompt_logprobs: list[float | None] | None = Field(
        None, description="Log-probability of each token of the prompt, in nats, or null for the first token."
    )
    prompt_top_ids: list[list[int]] | None = Field(
        None,
        description="Ids of the most probable tokens at each position of the prompt. The first list is empty.",
    )
    prompt_top_logprobs: list[list[float | None]] | None = Field(
        None, description="Log-probabilities of the tokens in `prompt_top_ids`, in nats."
    )
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        None,
        description="Distribution from which the log-probabilities of the generated tokens were computed. This is "
        "the value of the input member with the same name.",
    )
    finish_reason: Literal["stop", "length", "cancelled"] | None = Field(
        None,
        description="Reason why the generation ended. With `stop`, the model ended the text, or a stop string occurred. With "
        "`length`, `max_tokens` was reached. With `cancelled`, the job was cancelled.",
    )
