"""Members of the requests of each endpoint of the OpenAI surface: which are served, accepted without effect, or refused.

A member whose value is null, or one of its neutral values, counts as absent. Every other member that is not in the table of
its endpoint is refused, so that no member is silently ignored. The documentation shows these tables.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from tidewire_server.openai.api_errors import ApiError, invalid


class Member(NamedTuple):
    """One member of a request."""

    generate: str = ""
    """Member of the input of `generate` that it sets. Empty for a member that concerns only the request, or has no effect."""
    neutral: tuple[JsonValue, ...] = ()
    """Values that count as absent, in addition to null."""
    refused: str = ""
    """Reason for which all other values are refused. Empty for a member that is not refused."""
    ignored: bool = False
    """Whether all values are accepted without effect."""
    note: str = ""
    """Restriction of the served values, for the documentation."""


Members = Mapping[str, Member]

_IGNORED: Final = Member(ignored=True)
_TEXT_ONLY: Final = "the model only generates text"

_COMMON: Final[Members] = {
    "model": Member(note="required"),
    "stream": Member(neutral=(False,)),
    "temperature": Member("temperature"),
    "top_p": Member("top_p"),
    "user": _IGNORED,
}

_SAMPLED: Final[Members] = {
    "n": Member("n"),
    "stop": Member("stop"),
    "seed": Member("seed"),
    "logit_bias": Member("logit_bias"),
    "presence_penalty": Member("presence_penalty"),
    "frequency_penalty": Member("frequency_penalty"),
    "stream_options": Member(note="`include_usage`, only with `stream`; `include_obfuscation` has no effect"),
}

_CONVERSED: Final[Members] = {
    "metadata": _IGNORED,
    "service_tier": Member(neutral=("auto",), refused="this server has one tier"),
    "safety_identifier": _IGNORED,
    "prompt_cache_key": _IGNORED,
    "parallel_tool_calls": _IGNORED,
    "tools": Member(neutral=([],), refused=_TEXT_ONLY),
    "tool_choice": Member(neutral=("none", "auto"), refused=_TEXT_ONLY),
}

COMPLETIONS: Final[Members] = {
    **_COMMON,
    **_SAMPLED,
    "prompt": Member("prompt", note="a text, or a list of texts"),
    "max_tokens": Member("max_tokens", note="16 if absent"),
    "logprobs": Member("top_logprobs", neutral=(False,)),
    "best_of": Member(neutral=(1,), refused="only n texts are generated"),
    "echo": Member(neutral=(False,), refused="prepend the prompt yourself"),
    "suffix": Member(neutral=("",), refused="the model only continues a text"),
}

CHAT: Final[Members] = {
    **_COMMON,
    **_SAMPLED,
    **_CONVERSED,
    "messages": Member("messages", note="texts of the roles `system`, `developer`, `user` and `assistant`"),
    "max_completion_tokens": Member("max_tokens", note="the rest of the context if absent"),
    "max_tokens": Member("max_tokens", note="as `max_completion_tokens`"),
    "logprobs": Member("logprobs", neutral=(False,)),
    "top_logprobs": Member("top_logprobs", neutral=(0,), note="only with `logprobs`"),
    "response_format": Member(
        "json_schema", neutral=({"type": "text"},), note="`text`, `json_object` or `json_schema`"
    ),
    "store": Member(neutral=(False,), refused="a chat completion cannot be retrieved later"),
    "modalities": Member(neutral=(["text"],), refused=_TEXT_ONLY),
    "audio": Member(refused=_TEXT_ONLY),
    "functions": Member(neutral=([],), refused=_TEXT_ONLY),
    "function_call": Member(neutral=("none", "auto"), refused=_TEXT_ONLY),
    "prediction": Member(refused="predicted outputs are not supported"),
    "reasoning_effort": Member(refused="the effort of the model cannot be set"),
    "verbosity": Member(neutral=("medium",), refused="the verbosity of the model cannot be set"),
    "web_search_options": Member(refused=_TEXT_ONLY),
}

RESPONSES: Final[Members] = {
    **_COMMON,
    **_CONVERSED,
    "input": Member("messages", note="a text, or messages as in chat completions"),
    "instructions": Member("messages", note="becomes the first message"),
    "max_output_tokens": Member("max_tokens", note="the rest of the context if absent"),
    "top_logprobs": Member("top_logprobs", neutral=(0,)),
    "include": Member("logprobs", neutral=([],), note="`message.output_text.logprobs`"),
    "text": Member("json_schema", neutral=({},), note="`format`: `text`, `json_object` or `json_schema`"),
    "background": Member(neutral=(False,)),
    "store": Member(neutral=(True,), note="with false, the job is deleted when the request ends; not with `background`"),
    "stream_options": Member(note="`include_obfuscation` has no effect"),
    "previous_response_id": Member(refused="send the earlier messages as part of `input`"),
    "conversation": Member(refused="send the earlier messages as part of `input`"),
    "prompt": Member(refused="prompt templates are not supported"),
    "reasoning": Member(neutral=({},), refused="the effort of the model cannot be set"),
    "truncation": Member(neutral=("disabled",), refused="shorten `input` yourself"),
    "max_tool_calls": Member(refused=_TEXT_ONLY),
}

ENDPOINTS: Final[Mapping[str, Members]] = {
    "completions": COMPLETIONS,
    "chat/completions": CHAT,
    "responses": RESPONSES,
}
"""Members of the requests to each endpoint, by the endpoint's path below `/openai/v1`."""

_MAX_SHOWN: Final = 80
"""Maximum length of a member name in an error message, in characters."""


def served_members(members: Members, body: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Return the members of a request that have an effect.

    Raises:
        ApiError: A member is refused.
    """
    given: dict[str, Any] = {}
    for name, value in body.items():
        member = members.get(name)
        if value is None or (member is not None and (member.ignored or _is_neutral(value, member))):
            continue
        if member is None or member.refused:
            shown = name[:_MAX_SHOWN]
            reason = f": {member.refused}" if member else ""
            neutral = [repr(each) for each in member.neutral] if member else []
            but = f" with another value than {' or '.join(neutral)}" if neutral else ""
            raise ApiError(
                400, f"{shown} is not supported{but}{reason}; remove it", param=shown, code="unsupported_parameter"
            )
        given[name] = value
    return given


def _is_neutral(value: JsonValue, member: Member) -> bool:
    # In Python, 0 == False and 1 == True.
    return any(value == each and type(value) is type(each) for each in member.neutral)


def boolean(given: Mapping[str, Any], name: str) -> bool:
    """Return a member that must be a boolean, or False if it is absent.

    Raises:
        ApiError: The value is not a boolean.
    """
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, "must be true or false")
    return value


def count(given: Mapping[str, Any], name: str, default: int) -> int:
    """Return a member that must be an integer of at least 0, or the default if it is absent.

    Raises:
        ApiError: The value is not such an integer.
    """
    value = given.get(name, default)
    if type(value) is not int or value < 0:
        raise invalid(name, "must be an integer of at least 0")
    return value
