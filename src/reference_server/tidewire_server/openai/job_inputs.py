"""Translation of the served members of a request to the input of `generate` (`JobRequest`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from tidewire.protocol import strict_json
from tidewire_server.openai.api_errors import ApiError, invalid
from tidewire_server.openai.request_members import Members, boolean, count

DEFAULT_COMPLETION_TOKENS: Final = 16
"""Maximum number of tokens of a completion, if the request has no limit."""

MAX_SEED: Final = 2**53
"""Seeds of `generate` are less than this."""

MAX_SAMPLES: Final = 64
"""Maximum of `n`, as in the input of `generate`."""

OUTPUT_LOGPROBS: Final = "message.output_text.logprobs"
"""Value of `include` with which a response has log-probabilities."""

_Role = Literal["system", "developer", "user", "assistant"]
_M = TypeVar("_M", bound=BaseModel)


@dataclass
class JobRequest:
    """A request, as a job of `generate`."""

    inputs: list[dict[str, Any]]
    stream: bool
    params: dict[str, str]
    """Name of the request's member by the member of the input that it has set, for errors."""
    samples: int = 1
    """Number of texts for each prompt."""
    has_logprobs: bool = False
    include_usage: bool = False
    background: bool = False
    store: bool = True
    model: str = ""

    def body(self) -> bytes:
        """Return the body with which the job is submitted. Equal requests have equal bodies, as an idempotency key
        requires.
        """
        what: dict[str, JsonValue] = {"input": self.inputs[0]}
        if len(self.inputs) > 1:
            what = {"inputs": [*self.inputs]}
        # The clients of OpenAI repeat a request without an idempotency key, so the job of the lost request must end.
        end: dict[str, JsonValue] = {} if self.background else {"on_disconnect": "cancel", "grace_ms": 0}
        return strict_json.dumps(what | end).encode()


class _Shape(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _TextPart(_Shape):
    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: list[JsonValue] | None = Field(None, max_length=0)
    logprobs: list[JsonValue] | None = None


class _Message(_Shape):
    """Message of a conversation, also as an earlier response contained it."""

    type: Literal["message"] = "message"
    role: _Role
    content: str | list[_TextPart]
    id: str | None = None
    status: str | None = None
    phase: None = None
    name: None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[JsonValue] | None = Field(None, max_length=0)
    tool_calls: list[JsonValue] | None = Field(None, max_length=0)

    def turn(self) -> dict[str, str]:
        """Return the message as `generate` takes it."""
        role = "system" if self.role == "developer" else self.role
        content = self.content
        return {
            "role": role,
            "content": content if isinstance(content, str) else "".join(part.text for part in content),
        }


class _Messages(_Shape):
    messages: list[_Message] = Field(min_length=1)


class _Schema(_Shape):
    name: str
    schema_: dict[str, JsonValue] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class _Format(_Shape):
    """Member `response_format`, and `format` of the member `text`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None
    name: str | None = None
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema")
    description: str | None = None
    strict: bool | None = None

    def schema_of_text(self) -> dict[str, JsonValue] | None:
        if self.type == "json_object":
            return {"type": "object"}
        return self.schema_ if self.json_schema is None else self.json_schema.schema_


class _TextConfig(_Shape):
    format: _Format | None = None
    verbosity: Literal["medium"] | None = None


class _StreamOptions(_Shape):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def completion_request(given: Mapping[str, Any], members: Members) -> JobRequest:
    """Translate a request for completions. Its items are the samples of the first prompt, then those of the second.

    Raises:
        ApiError: A member is not valid.
    """
    prompt = given.get("prompt")
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(each, str) for each in prompts):
        raise invalid("prompt", "must be a text or a list of texts; token ids are not supported")
    common = _sampling(given, members, skip=("prompt", "logprobs", "n"))
    common.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
    request = _request(given, members)
    if "logprobs" in given:
        request.has_logprobs = True
        common |= {"logprobs": True, "top_logprobs": count(given, "logprobs", 0)}
    n = request.samples = count(given, "n", 1)
    if not 1 <= n <= MAX_SAMPLES:
        raise invalid("n", f"must be an integer from 1 to {MAX_SAMPLES}")
    if len(prompts) == 1:
        request.inputs = [{"prompt": prompts[0], **common, **({"n": n} if n > 1 else {})}]
        return request
    # A job with several inputs has no samples, so each sample is an input with a seed of its own.
    request.inputs = [{"prompt": each, **common, **_seed(given, i)} for each in prompts for i in range(n)]
    return request


def _seed(given: Mapping[str, Any], sample: int) -> dict[str, int]:
    seed = given.get("seed")
    return {"seed": (seed + sample) % MAX_SEED} if sample and type(seed) is int else {}


def chat_request(given: Mapping[str, Any], members: Members) -> JobRequest:
    """Translate a request for a chat completion.

    Raises:
        ApiError: A member is not valid.
    """
    names = [name for name in ("max_completion_tokens", "max_tokens") if name in given]
    if len(names) > 1 and given[names[0]] != given[names[1]]:
        raise invalid("max_tokens", "must equal max_completion_tokens, or be removed")
    taken = ("messages", "max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "response_format")
    request = _request(given, members)
    request.has_logprobs, request.samples = boolean(given, "logprobs"), count(given, "n", 1)
    generated = _sampling(given, members, skip=taken)
    generated["messages"] = _turns(given.get("messages"), "messages")
    generated["max_tokens"] = given[names[0]] if names else None
    if "top_logprobs" in given and not request.has_logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    if request.has_logprobs:
        generated |= {"logprobs": True, "top_logprobs": count(given, "top_logprobs", 0)}
    if "response_format" in given:
        chosen = _read(_Format, given["response_format"], "response_format")
        generated |= _with_schema(chosen, "response_format")
    request.inputs = [generated]
    return request


def response_request(given: Mapping[str, Any], members: Members) -> JobRequest:
    """Translate a request for a response.

    Raises:
        ApiError: A member is not valid.
    """
    taken = ("input", "instructions", "max_output_tokens", "include", "top_logprobs", "text")
    request = _request(given, members)
    request.background, request.store = boolean(given, "background"), boolean({"store": True, **given}, "store")
    if request.background and not request.store:
        raise invalid("store", "must not be false with background, because the response is retrieved later")
    generated = _sampling(given, members, skip=taken)
    text = given.get("input")
    turns = [{"role": "user", "content": text}] if isinstance(text, str) else _turns(text, "input")
    if "instructions" in given:
        if not isinstance(given["instructions"], str):
            raise invalid("instructions", "must be a text")
        turns.insert(0, {"role": "system", "content": given["instructions"]})
    generated |= {"messages": turns, "max_tokens": given.get("max_output_tokens")}
    include = given.get("include", [])
    if include not in ([], [OUTPUT_LOGPROBS]):
        raise invalid("include", f"may contain only {OUTPUT_LOGPROBS}")
    top = count(given, "top_logprobs", 0)
    request.has_logprobs = bool(include or top)
    if request.has_logprobs:
        generated |= {"logprobs": True, "top_logprobs": top}
    if "text" in given:
        chosen = _read(_TextConfig, given["text"], "text").format
        generated |= {} if chosen is None else _with_schema(chosen, "text")
    request.inputs = [generated]
    return request


def _request(given: Mapping[str, Any], members: Members) -> JobRequest:
    stream = boolean(given, "stream")
    include_usage = False
    if "stream_options" in given:
        if not stream:
            raise invalid("stream_options", "needs stream: true")
        include_usage = bool(_read(_StreamOptions, given["stream_options"], "stream_options").include_usage)
    params = {members[name].generate: name for name in given if members[name].generate}
    if "logprobs" in given and "top_logprobs" not in given:
        params["top_logprobs"] = "logprobs"
    for name, member in members.items():
        params.setdefault(member.generate, name)
    return JobRequest([], stream, params, include_usage=include_usage, model=given["model"])


def _sampling(given: Mapping[str, Any], members: Members, *, skip: tuple[str, ...]) -> dict[str, Any]:
    """Return the members that `generate` checks itself, because they mean the same."""
    return {
        members[name].generate: value
        for name, value in given.items()
        if members[name].generate and name not in skip
    }


def _turns(messages: JsonValue, param: str) -> list[dict[str, str]]:
    read = _read(_Messages, {"messages": messages}, param, hidden=1)
    return [message.turn() for message in read.messages]


def _with_schema(chosen: _Format, param: str) -> dict[str, Any]:
    if chosen.type == "text":
        return {}
    schema = chosen.schema_of_text()
    if schema is None:
        raise invalid(param, "of the type json_schema needs a schema")
    return {"json_schema": schema}


def _read(model: type[_M], value: JsonValue, param: str, *, hidden: int = 0) -> _M:
    """Validate the value of a member with a pydantic model.

    Args:
        model: The model.
        value: The value.
        param: Name of the member.
        hidden: Number of the first parts of an error's path that the client did not send.

    Raises:
        ApiError: The value does not match the model. The error names the part of the value.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        # The type of a part decides which other members it may have.
        first = next((each for each in found if each["loc"][-1:] == ("type",)), found[0])
        path = "".join(
            f"[{part}]" if isinstance(part, int) else f".{part}"
            for part in first["loc"][hidden:]
            if not (isinstance(part, str) and (part == "str" or part.startswith("list[")))
        )
        raise ApiError(
            400, f"{param}{path}: {first['msg']}", param=f"{param}{path}"[:_MAX_PATH], code="invalid_value"
        ) from None


_MAX_PATH: Final = 200
"""Maximum length of the path in the member `param` of an error, in characters."""
