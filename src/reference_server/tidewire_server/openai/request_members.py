"""Tables of the request members of the OpenAI surface: which are supported, accepted without effect, or refused.

A member counts as absent if its value is null or one of its neutral values. A member that is not in the table of its
endpoint is refused, so that no member is silently ignored. The documentation shows these tables.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import JsonValue

from tidewire_server.openai.api_errors import invalid, unsupported


class Member(NamedTuple):
    """One member of a request."""

    generate: str = ""
    """Input member of `generate` that this member sets. Empty if it sets none."""
    neutral: tuple[JsonValue, ...] = ()
    """Values that are treated as if the member were absent, in addition to null."""
    refused: str = ""
    """Reason, shown to the client, why all values except the neutral ones are refused. Empty if the member is supported."""
    ignored: bool = False
    """Whether all values are accepted without effect."""
    note: str = ""
    """Allowed values or default, as the documentation shows them."""


Members = Mapping[str, Member]

_IGNORED: Final = Member(ignored=True)
_TEXT_ONLY: Final = "the model only generates text"
_REST: Final = "if absent, the rest of the context, or [the limit of the engine](upstream.md)"
_FORMATS: Final = "`text`, `json_object` or `json_schema`"
_SEND_ALL: Final = Member(refused="send the earlier messages again")

_COMMON: Final[Members] = {
    "model": Member(note="required"),
    "stream": Member(neutral=(False,)),
    "user": _IGNORED,
    **{name: Member(name) for name in ("temperature", "top_p")},
}
_SAMPLED: Final[Members] = {
    "stream_options": Member(note="`include_usage`; `include_obfuscation` has no effect"),
    "n": Member("n", neutral=(1,)),
    "stop": Member("stop"),
    "logit_bias": Member("logit_bias", neutral=({},)),
    "seed": Member("seed", note="modulo 2^53"),
    **{name: Member(name, neutral=(0, 0.0)) for name in ("presence_penalty", "frequency_penalty")},
}
_CONVERSED: Final[Members] = {
    **dict.fromkeys(("metadata", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"), _IGNORED),
    "service_tier": Member(neutral=("auto",), refused="this server has one tier"),
    "tools": Member(neutral=([],), refused=_TEXT_ONLY),
    "tool_choice": Member(neutral=("none", "auto"), refused=_TEXT_ONLY),
}
ENDPOINTS: Final[Mapping[str, Members]] = {
    "completions": {
        **_COMMON,
        **_SAMPLED,
        "prompt": Member("prompt", note="a text, or a list of texts"),
        "max_tokens": Member("max_tokens", note="16 if absent"),
        "logprobs": Member("top_logprobs", neutral=(False,)),
        "best_of": Member(neutral=(1,), refused="only n texts are generated"),
        "echo": Member(neutral=(False,), refused="prepend the prompt to the text"),
        "suffix": Member(neutral=("",), refused="the model only continues a text"),
    },
    "chat/completions": {
        **_COMMON,
        **_SAMPLED,
        **_CONVERSED,
        "messages": Member("messages", note="texts of `system`, `developer`, `user` and `assistant`"),
        "max_completion_tokens": Member("max_tokens", note=_REST),
        "max_tokens": Member("max_tokens", note="as `max_completion_tokens`"),
        "logprobs": Member("logprobs", neutral=(False,)),
        "top_logprobs": Member("top_logprobs", neutral=(0,), note="only with `logprobs`"),
        "response_format": Member("json_schema", neutral=({"type": "text"},), note=_FORMATS),
        "store": Member(neutral=(False,), refused="a chat completion cannot be retrieved later"),
        "modalities": Member(neutral=(["text"],), refused=_TEXT_ONLY),
        **dict.fromkeys(("audio", "web_search_options"), Member(refused=_TEXT_ONLY)),
        **dict.fromkeys(
            ("prediction", "reasoning_effort", "verbosity"), Member(refused="it would have no effect")
        ),
    },
    "responses": {
        **_COMMON,
        **_CONVERSED,
        "input": Member("messages", note="a text, or messages as in chat completions"),
        "instructions": Member("messages", note="becomes the first message"),
        "max_output_tokens": Member("max_tokens", note=_REST),
        "top_logprobs": Member("top_logprobs", neutral=(0,)),
        "include": Member("logprobs", neutral=([],), note="`message.output_text.logprobs`"),
        "text": Member("json_schema", neutral=({},), note=f"`format`: {_FORMATS}"),
        "background": Member(neutral=(False,)),
        "store": Member(neutral=(True,), note="false deletes the job at the end; not with `background`"),
        "stream_options": Member(note="`include_obfuscation` has no effect"),
        "truncation": Member(neutral=("disabled",), refused="shorten `input`"),
        "reasoning": Member(neutral=({},), refused="it would have no effect"),
        **dict.fromkeys(("previous_response_id", "conversation"), _SEND_ALL),
        **dict.fromkeys(("prompt", "max_tool_calls"), Member(refused=_TEXT_ONLY)),
    },
}
"""Path below `/openai/v1` → table of the members of its requests."""

MAX_SHOWN: Final = 80
"""Maximum length of a name in an error message, in characters."""


def served_members(members: Members, body: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Return the members of a request that have an effect. Raise an `ApiError` if a member is refused."""
    given: dict[str, Any] = {}
    for name, value in body.items():
        member = members.get(name)
        if value is None or (member is not None and (member.ignored or _is_neutral(value, member))):
            continue
        if member is None or member.refused:
            reason = ""
            if member is not None:
                neutral = " or ".join(map(repr, member.neutral))
                reason = f" with another value than {neutral}" if neutral else ""
                reason += f": {member.refused}"
            raise unsupported(name[:MAX_SHOWN], reason)
        given[name] = value
    return given


def _is_neutral(value: JsonValue, member: Member) -> bool:
    # In Python, 0 == False and 1 == True.
    return any(value == each and type(value) is type(each) for each in member.neutral)


def boolean(given: Mapping[str, Any], name: str, default: bool = False) -> bool:
    """Return a member that must be a boolean, or the default if it is absent. Raise an `ApiError` for another value."""
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise invalid(name, "must be true or false")
    return value


def count(given: Mapping[str, Any], name: str, default: int) -> int:
    """Return a member that must be an integer ≥ 0, or the default if it is absent. Raise an `ApiError` for another value."""
    value = given.get(name, default)
    if type(value) is not int or value < 0:
        raise invalid(name, "must be an integer of at least 0")
    return value
