"""What each kind of engine accepts (`ENGINE_KINDS`): one table for the request's body, the input's check and the documentation.

Every sampling parameter is sent, because engines have other defaults, partly from the checkpoint. A parameter that
a kind does not have is refused before the job starts, unless it has the value that disables it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidewire_server.generation.generate_input_and_value import Generate

OMIT: Final = object()
"""Value of a member that is left out of the body."""
NULL: Final = object()
"""Value of a member that is sent as null."""
GENERATION_CONFIG: Final = "generation_config"
"""Member of the body of `transformers serve` that contains further parameters as JSON text."""
LOGPROB_MEMBERS: Final = frozenset({"logprobs", "top_logprobs", "token_text", "logprobs_mode"})
"""Input members that need token ids from the engine, and a tokenizer."""


class Sent(NamedTuple):
    """How an input member is sent."""

    name: str
    """Name in the body."""
    neutral: Any = None
    """Value that is sent instead of the one that disables the member. None sends the input's own value."""
    convert: Callable[[Any], Any] = lambda value: value
    """Function from the input's value to the sent value."""
    served: bool = True
    """Whether the input may have the member. If not, only its neutral value is sent."""
    only_messages: bool = False
    """Whether the member is sent only with `messages`."""


def _response_format(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "value", "schema": schema}}


def _first_stops(stop: str | list[str]) -> list[str]:
    """Return the stop strings that OpenAI's API accepts. The server itself ends the text at the others."""
    return ([stop] if isinstance(stop, str) else stop)[:4]


def _own(name: str, neutral: Any = None, convert: Callable[[Any], Any] = lambda value: value) -> Sent:
    return Sent(f"{GENERATION_CONFIG}.{name}", neutral, convert)


_OPENAI: Final[Mapping[str, Sent]] = {
    "max_tokens": Sent("max_tokens"),
    "temperature": Sent("temperature"),
    "top_p": Sent("top_p"),
    "presence_penalty": Sent("presence_penalty"),
    "frequency_penalty": Sent("frequency_penalty"),
    "logit_bias": Sent("logit_bias", OMIT),
    "seed": Sent("seed", OMIT),
    "stop": Sent("stop", OMIT, _first_stops),
    "json_schema": Sent("response_format", OMIT, _response_format, only_messages=True),
}
_VLLM: Final[Mapping[str, Sent]] = {
    **_OPENAI,
    "top_k": Sent("top_k", -1),
    "min_p": Sent("min_p"),
    "repetition_penalty": Sent("repetition_penalty"),
    "stop": Sent("stop", OMIT),
    "json_schema": Sent("response_format", OMIT, _response_format),
}
_TGI: Final[Mapping[str, Sent]] = {
    "max_tokens": Sent("max_tokens"),
    "temperature": Sent("temperature"),
    "top_p": Sent("top_p", OMIT),  # 1 is not allowed
    "frequency_penalty": Sent("frequency_penalty", OMIT),
    "seed": Sent("seed", OMIT),
    "stop": Sent("stop", OMIT, _first_stops),
    "json_schema": Sent(
        "response_format", OMIT, lambda schema: {"type": "json_object", "value": schema}, only_messages=True
    ),
}
_LLAMA_CPP: Final[Mapping[str, Sent]] = {
    "max_tokens": Sent("max_tokens"),
    "temperature": Sent("temperature"),
    "top_p": Sent("top_p"),
    "top_k": Sent("top_k"),
    "min_p": Sent("min_p"),
    "typical_p": Sent("typical_p"),
    "repetition_penalty": Sent("repeat_penalty"),
    # These two also count the tokens of the prompt, which differs from their definition in the specification.
    "presence_penalty": Sent("presence_penalty", served=False),
    "frequency_penalty": Sent("frequency_penalty", served=False),
    "logit_bias": Sent("logit_bias", OMIT),
    "seed": Sent("seed", -1, lambda seed: seed % (2**32 - 1)),
    "stop": Sent("stop", OMIT),
    "json_schema": Sent("json_schema", OMIT),
}
_TRANSFORMERS: Final[Mapping[str, Sent]] = {
    "max_tokens": Sent("max_tokens"),
    "temperature": Sent("temperature"),
    "top_p": Sent("top_p"),
    "seed": Sent("seed", OMIT),
    "stop": Sent("stop", OMIT),
    "top_k": _own("top_k"),
    "min_p": _own("min_p", OMIT),
    "typical_p": _own("typical_p"),
    "repetition_penalty": _own("repetition_penalty"),
    "logit_bias": _own(
        "sequence_bias", OMIT, lambda bias: [[[int(key)], value] for key, value in bias.items()]
    ),
}


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine. Members of the input that are missing in `members` are refused."""

    title: str
    members: Mapping[str, Sent]
    always: Mapping[str, Any] = field(default_factory=dict)
    """Members of the body that do not depend on the input."""
    token_ids: str = ""
    """Member of the body that makes log-probabilities contain token ids. Empty if the engine does not send ids, or
    always does (`always_ids`)."""
    always_ids: bool = False
    logprobs_mode: str = "raw"
    """The only `logprobs_mode` that the engine computes."""
    counts: bool = False
    """Whether the engine reports the numbers of tokens in each chunk. Without them, a lost request runs again."""
    continues_messages: Mapping[str, Any] | None = None
    """Members of the body with which the engine continues the last message. None if it cannot."""
    salt: str = ""
    """Member of the body that separates the prefix caches of callers."""
    rest_of_context: tuple[Any, Any] = (None, None)
    """What is sent as `max_tokens` with a prompt, and with messages, if the text may fill the context. None if the engine has
    no such value."""

    @property
    def has_ids(self) -> bool:
        """Whether log-probabilities can have token ids."""
        return bool(self.token_ids) or self.always_ids


_USAGE: Final = {"stream_options": {"include_usage": True}}
_USAGE_IN_CHUNKS: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    "openai": EngineKind("any other", _OPENAI, _USAGE, rest_of_context=(None, OMIT)),
    "vllm": EngineKind(
        "vLLM",
        _VLLM,
        _USAGE_IN_CHUNKS,
        token_ids="return_tokens_as_token_ids",  # noqa: S106 - not a password
        counts=True,
        continues_messages={"continue_final_message": True, "add_generation_prompt": False},
        salt="cache_salt",
        rest_of_context=(NULL, OMIT),
    ),
    "sglang": EngineKind(
        "SGLang",
        _VLLM,
        _USAGE_IN_CHUNKS,
        logprobs_mode="processed",
        counts=True,
        continues_messages={"continue_final_message": True},
        rest_of_context=(None, OMIT),
    ),
    "tgi": EngineKind("TGI", _TGI, _USAGE),
    "llama.cpp": EngineKind(
        "llama.cpp",
        _LLAMA_CPP,
        {
            **_USAGE,
            "timings_per_token": True,
            "repeat_last_n": 1 << 16,  # not -1, which newer versions refuse
            "mirostat": 0,
            "dynatemp_range": 0,
            "dry_multiplier": 0,
            "xtc_probability": 0,
            "top_n_sigma": -1,
        },
        always_ids=True,
        counts=True,
        continues_messages={},
        rest_of_context=(-1, -1),
    ),
    "transformers": EngineKind("transformers serve", _TRANSFORMERS, {f"{GENERATION_CONFIG}.do_sample": True}),
}
"""All kinds, by the name that `--upstream-kind` accepts. `openai` has only the members of OpenAI's API."""


def members_of_kinds(kinds: Iterable[EngineKind], *, vocabulary: bool, chat: bool) -> frozenset[str]:
    """Return the input members that at least one of the kinds serves.

    Args:
        kinds: The kinds.
        vocabulary: Whether the bytes of the tokens are known.
        chat: Whether the model has a chat template.
    """
    found = {"prompt", "echo", "n", "logprob_decimals"} | ({"messages"} if chat else set())
    for kind in kinds:
        found |= {name for name, sent in kind.members.items() if sent.served}
        if vocabulary and kind.has_ids:
            found |= LOGPROB_MEMBERS
    return frozenset(found)


def sent_members(request: Generate, kind: EngineKind) -> dict[str, Any]:
    """Return the members of the body for the sampling parameters of a request, with neutral values translated."""
    body: dict[str, Any] = {}
    for name, sent in kind.members.items():
        value = getattr(request, name)
        default = Generate.model_fields[name].get_default(call_default_factory=True)
        neutral = value == default and sent.neutral is not None
        found = sent.neutral if neutral else sent.convert(value)
        if found is not OMIT:
            body[sent.name] = found
    return body
