"""Input and value models of the `generate` endpoint, as defined by the specification's text generation profile."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_TOP = 64
"""Upper bound of `top_logprobs` for all engines."""
MIN_TEMPERATURE = 1e-4
"""Lower temperatures are treated as 0, because dividing logits by them could overflow."""

StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]


class Message(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)

    role: str = Field(
        min_length=1, max_length=64, description="Role of the speaker: `system`, `user` or `assistant`."
    )
    content: str = Field(description="Text of the message.")


class Generate(BaseModel):
    """Input of a text generation. All members are optional. A member that the engine does not support causes an error."""

    model_config = ConfigDict(extra="forbid", strict=True)

    prompt: str = Field("def fibonacci(n):", description="Text to continue.")
    messages: list[Message] | None = Field(
        None,
        min_length=1,
        max_length=1024,
        description="Conversation to continue, instead of `prompt`. Requires a model with a chat template.",
    )
    max_tokens: int = Field(
        64,
        ge=1,
        description="Maximum number of tokens to generate. Together with the prompt they must fit into the context.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        le=100,
        allow_inf_nan=False,
        description="Divisor of the logits before sampling. 0 always selects the most probable token.",
    )
    top_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most probable tokens whose probabilities sum up to this value. "
        "1 disables it.",
    )
    top_k: int = Field(
        0, ge=0, le=2**31 - 1, description="Sample from this number of most probable tokens. 0 disables it."
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Sample from the tokens whose probability is at least this fraction of the highest probability. "
        "0 disables it.",
    )
    typical_p: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Sample from the smallest set of most typical tokens whose probabilities sum up to this value. "
        "1 disables it.",
    )
    repetition_penalty: float = Field(
        1.0, gt=0, le=100, description="Divisor of the logits of tokens that already occurred. 1 disables it."
    )
    presence_penalty: float = Field(
        0.0,
        ge=-100,
        le=100,
        description="Number subtracted from the logits of tokens that were already generated. 0 disables it.",
    )
    logit_bias: dict[str, float] = Field(
        default_factory=dict,
        max_length=1024,
        description="Numbers added to the logits, by token id. The ids are strings.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=2**53 - 1,
        description="Seed of the sampling. The same seed gives the same tokens, whatever else runs in the batch. "
        "Default: a random seed.",
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list,
        description="Strings that end the generation. They are not included in the text.",
    )
    n: int = Field(1, ge=1, le=64, description="Number of samples. Each sample is an item of the job.")
    num_beams: int = Field(1, ge=1, le=64, description="Number of beams for beam search. 1 disables it.")
    echo: bool = Field(
        False,
        description="Whether the text begins with the prompt. The other columns never include the prompt's tokens.",
    )
    logprobs: bool = Field(
        False, description="Whether to return the log-probability of each generated token, in nats."
    )
    top_logprobs: int = Field(
        0,
        ge=0,
        description="Number of most probable tokens to return at each position, with their log-probabilities. "
        "Includes `logprobs`.",
    )
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        description="Return log-probabilities of the prompt's tokens, with this number of alternatives for each.",
    )
    logprob_token_ids: list[int] = Field(
        default_factory=list,
        max_length=128,
        description="Additional token ids whose log-probabilities are returned at each position.",
    )
    ranks: bool = Field(
        False,
        description="Whether to return the rank of each generated token: 1 + the number of tokens with a higher logit.",
    )
    ties: Literal["cut", "count", "all"] = Field(
        "cut",
        description="Handling of tokens that tie with the last of the top tokens: drop those with higher ids (`cut`), "
        "return their number (`count`), or return all of them (`all`).",
    )
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw",
        description="Distribution of the log-probabilities: the model's output (`raw`), or the distribution after "
        "temperature and filters, from which the token was sampled (`processed`).",
    )
    logprob_decimals: int = Field(
        4, ge=0, le=9, description="Number of decimals to which log-probabilities are rounded."
    )
    token_text: bool = Field(
        False,
        description="Whether to return the text of each token and alternative. Incomplete characters become U+FFFD.",
    )

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.messages is not None and "prompt" in self.model_fields_set:
            raise ValueError("prompt and messages cannot be used together")
        if self.messages is not None and self.echo:
            raise ValueError("echo requires prompt: it cannot be used with messages")
        return self

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def columns(self) -> list[str]:
        """Names of the requested value members that grow by one element per token."""
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

    Lists have one element per generated token, except that lists whose names begin with `prompt` have one element per
    token of the prompt.
    """

    model_config = ConfigDict(extra="forbid")

    text: str = Field(
        description="The generated text, without stop strings and without incomplete characters at its end."
    )
    token_ids: list[int] | None = Field(
        None, description="Ids of the generated tokens, including an end-of-text token."
    )
    logprobs: list[float | None] | None = Field(
        None, description="Log-probability of each token, in nats. Null for a probability of 0."
    )
    top_ids: list[list[int]] | None = Field(
        None,
        description="Ids of the most probable tokens, ordered by descending log-probability, then by ascending id.",
    )
    top_logprobs: list[list[float | None]] | None = Field(
        None, description="Log-probabilities of the tokens in `top_ids`, in nats."
    )
    ranks: list[int] | None = Field(
        None, description="Rank of each token: 1 + the number of tokens with a higher logit."
    )
    tie_counts: list[int] | None = Field(
        None, description="Number of tokens outside of the top tokens that tie with the last of them."
    )
    scored_logprobs: list[list[float | None]] | None = Field(
        None, description="Log-probabilities of the ids in `logprob_token_ids`, in the same order, in nats."
    )
    token_text: list[str] | None = Field(None, description="Text of each token.")
    top_text: list[list[str]] | None = Field(None, description="Texts of the tokens in `top_ids`.")
    prompt_token_ids: list[int] | None = Field(None, description="Ids of the prompt's tokens.")
    prompt_logprobs: list[float | None] | None = Field(
        None, description="Log-probability of each token of the prompt, in nats. Null for the first token."
    )
    prompt_top_ids: list[list[int]] | None = Field(
        None,
        description="Ids of the most probable tokens at each position of the prompt. Empty for the first position.",
    )
    prompt_top_logprobs: list[list[float | None]] | None = Field(
        None, description="Log-probabilities of the tokens in `prompt_top_ids`, in nats."
    )
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        None, description="Distribution of the log-probabilities of generated tokens, as in the input."
    )
    finish_reason: Literal["stop", "length", "cancelled"] | None = Field(
        None,
        description="`stop`: the model ended the text, or a stop string occurred. `length`: `max_tokens` was reached. "
        "`cancelled`: the job was cancelled.",
    )
