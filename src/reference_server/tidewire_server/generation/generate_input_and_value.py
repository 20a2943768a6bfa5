"""Pydantic models for the input and the value of the `generate` endpoint, as defined by the specification's profile for
text generation.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Mapping
from copy import copy
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, create_model, model_validator

from tidewire.protocol.document.logprob_columns import COLUMNS, requested_columns

MAX_STOPS = 16
MAX_STOP_LENGTH = 256
MAX_TOP = 64
"""Upper bound of the input member `top_logprobs` for every engine."""
MAX_BIAS = 1e6
"""Maximum absolute value of a `logit_bias`. If divided by `MIN_TEMPERATURE`, it is still far below the maximum of float32."""
MAX_NUM_BEAMS = 64
"""Upper bound of the input member `num_beams` for every engine."""
LIMITED_BY_MAX_TOP = ("top_logprobs", "prompt_logprobs")
"""Input members whose maximum is `EngineCapabilities.max_top`."""
MIN_TEMPERATURE = 1e-4
"""Smallest temperature by which logits are divided. A lower one is treated as 0, because the division could overflow."""
MIN_REPETITION_PENALTY = 1e-6
"""Smallest `repetition_penalty` by which logits are divided. A lower one is raised to this number. Otherwise the division
could overflow, and every token would have the probability NaN."""

TokenId = Annotated[str, Field(pattern="^(0|[1-9][0-9]*)$", max_length=10)]
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
    max_tokens: Annotated[int, Field(ge=1)] | None = Field(
        64,
        description="Maximum number of tokens to generate. Together with the prompt, they must fit into the context. With "
        "null, the text may fill the rest of the context.",
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
    frequency_penalty: float = Field(
        0.0,
        ge=-100,
        le=100,
        description="Number subtracted from the logits of a token for each time that it was generated. 0 disables the "
        "penalty.",
    )
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]] = Field(
        default_factory=dict,
        max_length=1024,
        description="Object that maps token ids, written as strings, to numbers that are added to their logits.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        le=2**53 - 1,
        description="Seed for sampling. In float32, the same seed gives the same tokens, even if other requests run in the "
        "same batch. In rare cases, rounding errors exchange two tokens whose random numbers and probabilities are nearly "
        "equally good. The default is a random seed.",
    )
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] = Field(
        default_factory=list,
        description="Strings at which the generation ends. The text does not include them.",
    )
    json_schema: dict[str, JsonValue] | None = Field(
        None,
        description="JSON Schema of the text. Only tokens with which the text remains the beginning of a matching JSON document "
        "are sampled. With the finish reason `length`, the document is incomplete.",
    )
    n: int = Field(1, ge=1, le=64, description="Number of samples. Each sample is an item of the job.")
    num_beams: int = Field(
        1,
        ge=1,
        le=MAX_NUM_BEAMS,
        description="Number of hypotheses of a beam search, which does not sample and returns the most probable text that it "
        "finds. The text shows the best hypothesis so far, so its end may be retracted. 1 disables beam search.",
    )
    length_penalty: float = Field(
        1.0,
        ge=-10,
        le=10,
        allow_inf_nan=False,
        description="Exponent of the length by which a beam search divides the log-probability of a text that has ended. "
        "Greater values favor longer texts.",
    )
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

    _cache_scope: str = PrivateAttr("")
    _lost_answers: int = PrivateAttr(0)

    @model_validator(mode="after")
    def _one_prompt(self) -> Self:
        if self.messages is not None and "prompt" in self.model_fields_set:
            raise ValueError("prompt and messages cannot be used together")
        if self.messages is not None and self.echo:
            raise ValueError("echo requires prompt and cannot be used with messages")
        return self

    @property
    def cache_scope(self) -> str:
        """Opaque name of a group of callers. An engine may reuse the keys and values of a prompt only within this group. The
        name is not a member of the input; the endpoint sets it. By default, all requests are in one group.
        """
        return self._cache_scope

    @cache_scope.setter
    def cache_scope(self, scope: str) -> None:
        self._cache_scope = scope

    @property
    def lost_answers(self) -> int:
        """Number of attempts in which the response broke off. The engine counts them; this is not a member of the input."""
        return self._lost_answers

    @lost_answers.setter
    def lost_answers(self, number: int) -> None:
        self._lost_answers = number

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @staticmethod
    def logs_ids() -> bool:
        """Return whether each value has the column `token_ids`, even if the request did not ask for it. See `served_input`."""
        return False

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the value. A column is a member of the value that grows with each token."""
        names = list(requested_columns(self.__dict__))
        if self.logs_ids() and "token_ids" not in names:
            names.insert(1, "token_ids")
        return names

    @property
    def prompt_columns(self) -> list[str]:
        """Names of the requested columns of the prompt."""
        return list(requested_columns(self.__dict__, of_prompt=True))


def served_input(
    members: Collection[str], maxima: Mapping[str, int], *, logs_ids: Callable[[], bool] = Generate.logs_ids
) -> type[Generate]:
    """Create an input model that accepts only the members that an engine supports.

    All other members become constants with their default value. An input with one of them is therefore invalid.

    Args:
        members: Names of the members that the engine supports.
        maxima: Member → maximum that the schema shows. The engine itself rejects larger numbers, with its own error code.
        logs_ids: Function that returns whether each value has the column `token_ids`. Engines that continue a text after a
            restart need the logged ids.
    """
    namespace: dict[str, Any] = {
        "__module__": __name__,
        "__doc__": Generate.__doc__,
        "__annotations__": {},
        "logs_ids": staticmethod(logs_ids),
    }
    for name, member in Generate.model_fields.items():
        if name not in members:
            namespace["__annotations__"][name] = ClassVar[Any]
            namespace[name] = member.get_default(call_default_factory=True)
        elif name in maxima:
            limited = copy(member)
            limited.json_schema_extra = {"maximum": maxima[name]}
            namespace["__annotations__"][name] = member.annotation
            namespace[name] = limited
    return types.new_class("Generate", (Generate,), {}, lambda body: body.update(namespace))


def served_value(members: Collection[str], *, counts_rows: bool = True) -> type[BaseModel]:
    """Create a value model that contains only the columns that an engine computes.

    Args:
        members: Names of the input members that the engine supports.
        counts_rows: See `EngineCapabilities.counts_rows`.
    """
    fields: dict[str, Any] = {
        column.name: (list[column.element] | None, Field(None, description=column.description))  # type: ignore[name-defined]
        for column in COLUMNS
        if column.member is None or column.member in members
    }
    fields["text"] = (str, Field(description=COLUMNS[0].description))
    fields["logprobs_mode"] = (Literal["raw", "processed"] | None, Field(None, description=MODE_DESCRIPTION))
    if not counts_rows:
        fields["reasoning"] = (str | None, Field(None, description=REASONING_DESCRIPTION))
        fields["usage"] = (dict[str, int] | None, Field(None, description=USAGE_DESCRIPTION))
    fields["finish_reason"] = (
        Literal["stop", "length", "cancelled"] | None,
        Field(None, description=FINISH_DESCRIPTION),
    )
    return create_model(
        "Generated", __config__=ConfigDict(extra="forbid"), __doc__=VALUE_DESCRIPTION, **fields
    )


VALUE_DESCRIPTION = """Value of a text generation. Members that were not requested are absent.

Lists whose names begin with `prompt` have one element per token of the prompt. All other lists have one element per
generated token.
"""
MODE_DESCRIPTION = (
    "Distribution from which the log-probabilities of the generated tokens were computed. This is the value of the input "
    "member with the same name."
)
FINISH_DESCRIPTION = (
    "Reason why the generation ended. With `stop`, the model ended the text, or a stop string occurred. With `length`, "
    "`max_tokens` was reached. With `cancelled`, the job was cancelled."
)
REASONING_DESCRIPTION = "Text that the model generated before its answer, if the engine separates the two."
USAGE_DESCRIPTION = (
    "Token counts that the engine reports: `prompt_tokens` and `completion_tokens`. While the text grows, they cover its first "
    "`characters` code points. Absent if the engine reports none."
)
