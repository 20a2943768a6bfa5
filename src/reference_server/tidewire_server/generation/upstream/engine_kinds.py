"""What each kind of engine accepts (`ENGINE_KINDS`): one table for the request's body, the input's check and the documentation.

Every sampling parameter is sent, because engines have other defaults, partly from the checkpoint. A parameter that
a kind does not have is refused before the job starts, unless it has the value that disables it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidewire_server.generation.engine_interface import InputError, TokenUsage
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


def _same(*names: str) -> dict[str, Sent]:
    """Return the members that are sent under their own names."""
    return {name: Sent(name) for name in names}


_SAMPLING: Final = _same("max_tokens", "temperature", "top_p")
_SEED_AND_STOP: Final = {"seed": Sent("seed", OMIT), "stop": Sent("stop", OMIT, _first_stops)}
_OPENAI: Final[Mapping[str, Sent]] = {
    **_SAMPLING,
    **_same("presence_penalty", "frequency_penalty"),
    "logit_bias": Sent("logit_bias", OMIT),
    **_SEED_AND_STOP,
    "json_schema": Sent("response_format", OMIT, _response_format, only_messages=True),
}
_VLLM: Final[Mapping[str, Sent]] = {
    **_OPENAI,
    "top_k": Sent("top_k", -1),
    **_same("min_p", "repetition_penalty"),
    "stop": Sent("stop", OMIT),
    "json_schema": Sent("response_format", OMIT, _response_format),
}
_TGI: Final[Mapping[str, Sent]] = {
    **_SAMPLING,
    "top_p": Sent("top_p", OMIT),  # 1 is not allowed
    "frequency_penalty": Sent("frequency_penalty", OMIT),
    **_SEED_AND_STOP,
    "json_schema": Sent(
        "response_format", OMIT, lambda schema: {"type": "json_object", "value": schema}, only_messages=True
    ),
}
_LLAMA_CPP: Final[Mapping[str, Sent]] = {
    **_SAMPLING,
    **_same("top_k", "min_p", "typical_p"),
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
    **_SAMPLING,
    **_SEED_AND_STOP,
    "stop": Sent("stop", OMIT),
    "top_k": Sent(f"{GENERATION_CONFIG}.top_k"),
    "min_p": Sent(f"{GENERATION_CONFIG}.min_p", OMIT),
    "typical_p": Sent(f"{GENERATION_CONFIG}.typical_p"),
    "repetition_penalty": Sent(f"{GENERATION_CONFIG}.repetition_penalty"),
    "logit_bias": Sent(
        f"{GENERATION_CONFIG}.sequence_bias",
        OMIT,
        lambda bias: [[[int(key)], value] for key, value in bias.items()],
    ),
}


@dataclass(frozen=True)
class EngineKind:
    """A kind of engine. Members of the input that are missing in `members` are refused."""

    title: str
    members: Mapping[str, Sent]
    always: Mapping[str, Any] = field(default_factory=dict)
    """Members of the body that do not depend on the input."""
    has_ids: bool = False
    """Whether log-probabilities have token ids."""
    with_ids: Mapping[str, Any] = field(default_factory=dict)
    """Members of the body that make log-probabilities contain token ids."""
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


_USAGE: Final = {"stream_options": {"include_usage": True}}
_USAGE_IN_CHUNKS: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    "openai": EngineKind("any other", _OPENAI, _USAGE, rest_of_context=(None, OMIT)),
    "vllm": EngineKind(
        "vLLM",
        _VLLM,
        _USAGE_IN_CHUNKS,
        has_ids=True,
        with_ids={"return_tokens_as_token_ids": True},
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
        has_ids=True,
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
        found |= LOGPROB_MEMBERS if vocabulary and kind.has_ids else set()
    return frozenset(found)


def check_kind(request: Generate, kind: EngineKind) -> None:
    """Check what the schema of the endpoint cannot express.

    Raises:
        InputError: The engine cannot serve the combination of members.
    """
    chat, schema = request.messages is not None, kind.members.get("json_schema")
    needs_chat = schema is not None and schema.only_messages and request.json_schema is not None
    refused = {
        "json_schema": "works only with messages, and not with a prompt," if needs_chat and not chat else "",
        "max_tokens": "must be a number, because the rest of the context cannot be filled"
        if request.max_tokens is None and kind.rest_of_context[chat] is None
        else "",
        "logprobs_mode": f"must be {kind.logprobs_mode!r}, because only these log-probabilities are computed"
        if "logprobs" in request.columns and request.logprobs_mode != kind.logprobs_mode
        else "",
    }
    for member, reason in refused.items():
        if reason:
            raise InputError(f"{member} {reason} on this engine ({kind.title})", member=member)


def can_continue_text(request: Generate, kind: EngineKind, usage: TokenUsage | None, reasoning: str) -> bool:
    """Return whether the engine can continue after text that it has generated. Otherwise the request runs again."""
    if usage is None or not kind.counts or request.json_schema is not None or reasoning:
        return False
    # After two messages of the assistant, the engine would continue only the second one, or refuse both.
    return request.messages is None or (
        kind.continues_messages is not None and request.messages[-1].role != "assistant"
    )


def request_body(
    request: Generate, kind: EngineKind, model: str, *, text: str = "", generated: int = 0
) -> tuple[str, dict[str, Any]]:
    """Return the path below the base URL, and the body of the request, with neutral values translated.

    Args:
        request: The input.
        kind: Kind of the engine.
        model: Name of the model.
        text: Text that was already generated, after which the engine continues.
        generated: Number of its tokens.
    """
    body: dict[str, Any] = {"model": model, "stream": True, **kind.always}
    for name, sent in kind.members.items():
        value = getattr(request, name)
        default = Generate.model_fields[name].get_default(call_default_factory=True)
        neutral = value == default and sent.neutral is not None
        body[sent.name] = sent.neutral if neutral else sent.convert(value)
    most: Any = kind.rest_of_context[request.messages is not None]
    body["max_tokens"] = most if request.max_tokens is None else request.max_tokens - generated
    body = {name: None if value is NULL else value for name, value in body.items() if value is not OMIT}
    if own := {name: body.pop(name) for name in [*body] if name.startswith(f"{GENERATION_CONFIG}.")}:
        body[GENERATION_CONFIG] = json.dumps({name.partition(".")[2]: value for name, value in own.items()})
    if kind.salt and request.cache_scope:
        body[kind.salt] = hashlib.sha256(request.cache_scope.encode()).hexdigest()
    # Without alternatives, one is requested, because 0 means no log-probabilities for some engines.
    with_ids, top = len(request.columns) > 1, max(1, request.top_logprobs)
    if with_ids:
        body |= kind.with_ids
    if request.messages is None:
        return "completions", body | {"prompt": request.prompt + text} | (
            {"logprobs": top} if with_ids else {}
        )
    body["messages"] = [message.model_dump() for message in request.messages]
    if text:
        body["messages"].append({"role": "assistant", "content": text})
        body |= kind.continues_messages or {}
    return "chat/completions", body | ({"logprobs": True, "top_logprobs": top} if with_ids else {})
