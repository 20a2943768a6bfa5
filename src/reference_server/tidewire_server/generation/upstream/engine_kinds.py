"""Table of the parameters that each kind of engine accepts (`ENGINE_KINDS`). The server uses it to validate inputs and to build
requests. The documentation is generated from it.

Every sampling parameter is sent, because the defaults differ between engines and checkpoints. A parameter that a kind
does not have is refused before the job starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tidewire_server.generation.engine_interface import LOGPROB_MEMBERS, InputError, TokenUsage
from tidewire_server.generation.generate_input_and_value import Generate

OMIT: Final = object()
"""Marks a member that is left out of the body."""
GENERATION_CONFIG: Final = "generation_config"
"""Member of the body for `transformers serve` that contains additional parameters as JSON text."""
TRANSFORMERS_MAX_TOKENS: Final = 1024
"""Value of `max_tokens` that is sent to `transformers serve` if a chat has no limit. It is also the default of this engine, but
the engine does not apply its default if the body has a `generation_config`."""


class Sent(NamedTuple):
    """Name and value with which an input member is sent to the engine."""

    name: str
    """Name in the body."""
    neutral: Any = None
    """Value that disables the member at this engine. None if the engine uses the same value as the input."""
    convert: Callable[[Any], Any] = lambda value: value
    """Function that converts the input's value to the value that is sent."""
    only_messages: bool = False
    """Whether the member is sent only with `messages`."""


def _response_format(schema: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "value", "schema": schema}}


def _first_stops(stop: str | list[str]) -> list[str]:
    """Return as many stop strings as OpenAI's API accepts. The server itself ends the text at the other stop strings."""
    return ([stop] if isinstance(stop, str) else stop)[:4]


def _same(*names: str) -> dict[str, Sent]:
    """Return table entries for members that are sent under their own names."""
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
    """A kind of engine, such as vLLM. Members of the input that are missing in `members` are refused."""

    title: str
    members: Mapping[str, Sent]
    always: Mapping[str, Any] = field(default_factory=dict)
    """Members of the body that do not depend on the input."""
    with_ids: Mapping[str, Any] | None = None
    """Members of the body that request token ids with the log-probabilities. None if the engine does not send ids."""
    logprobs_mode: str = "raw"
    """The only `logprobs_mode` that the engine computes."""
    continues: Mapping[str, Any] | None = None
    """Members of the body that make the engine continue the last message. None if the engine does not report token counts in
    each chunk. A lost request then runs again."""
    salt: str = ""
    """Name of the body member that separates the prefix caches of different callers. Empty if the engine has no such member."""
    without_limit: Mapping[str, Any] = field(default_factory=dict)
    """`prompt` or `messages` → value that is sent if `max_tokens` is null. If it is missing, the input is refused."""


_USAGE: Final = {"stream_options": {"include_usage": True}}
_USAGE_IN_CHUNKS: Final = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

ENGINE_KINDS: Final[Mapping[str, EngineKind]] = {
    "openai": EngineKind("any other", _OPENAI, _USAGE, without_limit={"messages": OMIT}),
    "vllm": EngineKind(
        "vLLM",
        _VLLM,
        _USAGE_IN_CHUNKS,
        with_ids={"return_tokens_as_token_ids": True},
        continues={"continue_final_message": True, "add_generation_prompt": False},
        salt="cache_salt",
        without_limit={"prompt": None, "messages": OMIT},
    ),
    "sglang": EngineKind(
        "SGLang",
        _VLLM,
        _USAGE_IN_CHUNKS,
        logprobs_mode="processed",
        continues={"continue_final_message": True},
        without_limit={"messages": OMIT},
    ),
    "tgi": EngineKind("TGI", _TGI, _USAGE, without_limit={"messages": OMIT}),
    "llama.cpp": EngineKind(
        "llama.cpp",
        _LLAMA_CPP,
        {
            **_USAGE,
            "timings_per_token": True,
            # Disable both penalties, because llama.cpp applies them to prompt tokens too, contrary to the specification.
            "presence_penalty": 0,
            "frequency_penalty": 0,
            "repeat_last_n": 1 << 16,  # not -1, which newer versions refuse
            "mirostat": 0,
            "dynatemp_range": 0,
            "dry_multiplier": 0,
            "xtc_probability": 0,
            "top_n_sigma": -1,
        },
        with_ids={},
        continues={},
        without_limit={"prompt": -1, "messages": -1},
    ),
    "transformers": EngineKind(
        "transformers serve",
        _TRANSFORMERS,
        {f"{GENERATION_CONFIG}.do_sample": True},
        without_limit={"messages": TRANSFORMERS_MAX_TOKENS},
    ),
}
"""Name that `--upstream-kind` accepts → kind. `openai` has only the members of OpenAI's API."""


def members_of_kinds(kinds: Iterable[EngineKind], *, vocabulary: bool, chat: bool) -> frozenset[str]:
    """Return the input members that at least one of the kinds supports, with or without a vocabulary and a chat template."""
    found = {"prompt", "echo", "n", "logprob_decimals"} | ({"messages"} if chat else set())
    for kind in kinds:
        found |= kind.members.keys() | (
            LOGPROB_MEMBERS if vocabulary and kind.with_ids is not None else set()
        )
    return frozenset(found)


def check_kind(request: Generate, kind: EngineKind) -> None:
    """Raise an `InputError` for a combination of members that the endpoint's schema allows, but the engine does not support."""
    source, schema = "prompt" if request.messages is None else "messages", kind.members.get("json_schema")
    member = reason = ""
    if request.json_schema is not None and schema is not None and schema.only_messages and source == "prompt":
        member, reason = "json_schema", "works only with messages, and not with a prompt"
    elif request.max_tokens is None and source not in kind.without_limit:
        member = "max_tokens"
        reason = "must be a number, because the engine cannot fill the rest of its context"
    elif "logprobs" in request.columns and request.logprobs_mode != kind.logprobs_mode:
        member = "logprobs_mode"
        reason = f"must be {kind.logprobs_mode!r}, because the engine computes only these"
    if member:
        raise InputError(f"with {kind.title}, {member} {reason}", member=member)


def can_continue_text(request: Generate, kind: EngineKind, usage: TokenUsage | None, reasoning: str) -> bool:
    """Return whether the engine can continue text that it has generated. If not, the request runs again."""
    if usage is None or kind.continues is None or request.json_schema is not None or reasoning:
        return False
    # The text is sent as a message of the assistant. If the conversation itself ends with such a message, the engine would
    # ignore it or refuse the request.
    return request.messages is None or request.messages[-1].role != "assistant"


_DEFAULTS: Final = {
    name: field.get_default(call_default_factory=True) for name, field in Generate.model_fields.items()
}


def request_body(
    request: Generate, kind: EngineKind, model: str, *, text: str = "", generated: int = 0
) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request. The engine continues after `text`, which consists of `generated` tokens."""
    body: dict[str, Any] = {"model": model, "stream": True, **kind.always}
    for name, sent in kind.members.items():
        value = getattr(request, name)
        neutral = value == _DEFAULTS[name] and sent.neutral is not None
        body[sent.name] = sent.neutral if neutral else sent.convert(value)
    if request.max_tokens is None:
        body["max_tokens"] = kind.without_limit["prompt" if request.messages is None else "messages"]
    else:
        body["max_tokens"] = request.max_tokens - generated
    body = {name: value for name, value in body.items() if value is not OMIT}
    if own := {name: body.pop(name) for name in [*body] if name.startswith(f"{GENERATION_CONFIG}.")}:
        body[GENERATION_CONFIG] = json.dumps({name.partition(".")[2]: value for name, value in own.items()})
    if kind.salt and request.cache_scope:
        body[kind.salt] = hashlib.sha256(request.cache_scope.encode()).hexdigest()
    chosen: dict[str, Any] = {}
    if len(request.columns) > 1:
        # Request at least one alternative, because some engines send no log-probabilities if the number is 0.
        top = max(1, request.top_logprobs)
        chosen = {"logprobs": top} if request.messages is None else {"logprobs": True, "top_logprobs": top}
        chosen |= kind.with_ids or {}
    if request.messages is None:
        return "completions", {**body, **chosen, "prompt": request.prompt + text}
    messages = [message.model_dump() for message in request.messages]
    if text:
        messages.append({"role": "assistant", "content": text})
        chosen |= kind.continues or {}
    return "chat/completions", {**body, **chosen, "messages": messages}
