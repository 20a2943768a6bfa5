"""Translation of an OpenAI request to a job of `generate` (`JobRequest`). Members that `generate` also has are passed on
unchanged, and `generate` validates them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter, ValidationError, model_validator

from tidewire.protocol import strict_json
from tidewire.protocol.resources import Limits
from tidewire_server.openai.api_errors import ApiError, invalid, unsupported
from tidewire_server.openai.request_members import ENDPOINTS, MAX_SHOWN, boolean, count, served_members

DEFAULT_COMPLETION_TOKENS: Final = 16
"""Maximum number of tokens of a completion, if the request has no limit."""

MAX_SAMPLES: Final = 64
"""Maximum of `n`, as in the input of `generate`."""

SEEDS: Final = 2**53
"""Number of seeds that `generate` accepts. A larger seed is reduced modulo this number."""

OUTPUT_LOGPROBS: Final = "message.output_text.logprobs"
"""Value of the member `include` that requests log-probabilities for a response."""

_NEEDED: Final = {
    "missing": "must be present, and neither null nor an empty list",
    **dict.fromkeys(("model_type", "dict_type"), "must be an object"),
}
"""Type of a Pydantic error → message. Pydantic's own message would name a class, or say that a null member is missing."""

_T = TypeVar("_T")


@dataclass
class JobRequest:
    """A request that was translated to a job of `generate`."""

    inputs: list[dict[str, Any]]
    stream: bool
    params: dict[str, str]
    """Input member of `generate` → request member from which it was created, for error messages."""
    samples: int = 1
    """Number of texts for each prompt."""
    include_usage: bool = False
    background: bool = False
    store: bool = True

    @property
    def items(self) -> int:
        """Number of items of the job."""
        return self.samples if len(self.inputs) == 1 else len(self.inputs)

    def check_served(self, served: Collection[str], reasons: Mapping[str, str]) -> None:
        """Raise an `ApiError` if an input has a member that the engine does not support. `reasons` maps unsupported members
        to explanations for the error message.
        """
        for name in self.inputs[0]:
            if name in served:
                continue
            param = self.params.get(name, name)
            if name in reasons:
                message = f"{param}: {reasons[name]}"
                raise ApiError(400, message, param=param, code="unsupported_parameter")
            raise unsupported(param, " by the engine of this server")

    def body(self) -> bytes:
        """Return the body that submits the job. Equal requests have equal bodies, as an idempotency key requires."""
        body: dict[str, Any] = {"input": self.inputs[0]} if len(self.inputs) == 1 else {"inputs": self.inputs}
        # OpenAI's clients retry without an idempotency key. The retry starts a second job, so the first job must end.
        end = {} if self.background else {"on_disconnect": "cancel", "grace_ms": 0}
        return strict_json.dumps(body | end).encode()


class _Shape(BaseModel):
    """Object in which a member that is null, or an empty list, counts as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty_members(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {name: each for name, each in value.items() if each is not None and each != []}


class _TextPart(_Shape):
    type: Literal["text", "input_text", "output_text"]
    text: str
    logprobs: list[JsonValue] = []


class _Message(_Shape):
    """Message of a conversation, which may be copied from an earlier response."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]
    id: str = ""
    status: str = ""
    reasoning_content: str = ""
    reasoning: str = ""

    def turn(self) -> dict[str, str]:
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class _Format(_Shape):
    type: Literal["text", "json_object", "json_schema"]
    name: str = ""
    schema_: dict[str, JsonValue] | None = Field(None, alias="schema")
    description: str = ""
    strict: bool = False


class _TextConfig(_Shape):
    format: dict[str, JsonValue] | None = None
    verbosity: Literal["medium"] = "medium"


class _StreamOptions(_Shape):
    include_usage: bool = False
    include_obfuscation: bool = False


_MESSAGES: Final = TypeAdapter(Annotated[list[_Message], Field(min_length=1)])
_FORMAT: Final = TypeAdapter(_Format)
_TEXT_CONFIG: Final = TypeAdapter(_TextConfig)
_STREAM_OPTIONS: Final = TypeAdapter(_StreamOptions)


def completion_request(body: Mapping[str, Any], limits: Limits) -> JobRequest:
    """Translate a request for completions. The job's items are all samples of the first prompt, then all samples of the
    second, and so on. Raise an `ApiError` if a member is not valid, or if the job would exceed the server's limits.
    """
    given, request, common = _request(body, "completions")
    prompt = common.pop("prompt", None)
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(prompts, list) or not prompts or not all(isinstance(each, str) for each in prompts):
        raise invalid("prompt", "must be a text or a list of texts; token ids are not supported")
    common.setdefault("max_tokens", DEFAULT_COMPLETION_TOKENS)
    if "logprobs" in given:
        request.params["logprobs"] = "logprobs"
        common |= {"logprobs": True, "top_logprobs": count(given, "logprobs", 0)}
    n = request.samples
    if len(prompts) == 1:
        request.inputs = [{"prompt": prompts[0], **common}]
    else:
        # A job with several inputs has no samples, so each sample is a separate input with its seed.
        common.pop("n", None)
        _check_copies(prompts, n, common, limits)
        seed = given.get("seed")
        seeds = [{"seed": (seed + i) % SEEDS} if type(seed) is int else {} for i in range(n)]
        request.inputs = [{"prompt": each, **common, **own} for each in prompts for own in seeds]
    return request


def _check_copies(prompts: list[str], n: int, common: Mapping[str, Any], limits: Limits) -> None:
    """Limit the inputs before they are created. Otherwise a request of 8 MB could create a job of gigabytes."""
    items = len(prompts) * n
    if items > limits.max_inputs:
        message = f"prompt: {len(prompts)} texts with n={n} make {items} items, but a request makes at most {limits.max_inputs}"
        raise ApiError(400, f"{message} (max_inputs); send fewer", param="prompt", code="batch_too_large")
    copied = (n - 1) * sum(map(len, prompts)) + (items - 1) * len(orjson.dumps(common))
    if copied > limits.max_body_bytes:
        message = f"prompt: the {items} items copy {copied} bytes of the request, but at most {limits.max_body_bytes} bytes"
        advice = "may be copied (max_body_bytes); send fewer texts, or a smaller n"
        raise ApiError(413, f"{message} {advice}", param="prompt", code="body_too_large")


def chat_request(body: Mapping[str, Any]) -> JobRequest:
    """Translate a request for a chat completion. Raise an `ApiError` if a member is not valid."""
    given, request, generated = _request(body, "chat/completions")
    limits = [given[name] for name in ("max_completion_tokens", "max_tokens") if name in given]
    if limits[1:] and limits[0] != limits[1]:
        raise invalid("max_tokens", "must equal max_completion_tokens, or be removed")
    if boolean(given, "logprobs"):
        generated["top_logprobs"] = count(given, "top_logprobs", 0)
    elif "top_logprobs" in given:
        raise invalid("top_logprobs", "needs logprobs: true")
    turns, limit = _turns(given.get("messages"), "messages"), limits[0] if limits else None
    schema = _json_schema(given.get("response_format"), "response_format")
    request.inputs = [{**generated, "messages": turns, "max_tokens": limit, **schema}]
    return request


def response_request(body: Mapping[str, Any]) -> JobRequest:
    """Translate a request for a response. Raise an `ApiError` if a member is not valid."""
    given, request, generated = _request(body, "responses")
    request.background, request.store = boolean(given, "background"), boolean(given, "store", default=True)
    if request.background and not request.store:
        raise invalid("store", "must not be false with background, because the response is retrieved later")
    text = given.get("input")
    turns = [{"role": "user", "content": text}] if isinstance(text, str) else _turns(text, "input")
    if "instructions" in given:
        if not isinstance(given["instructions"], str):
            raise invalid("instructions", "must be a text")
        turns.insert(0, {"role": "system", "content": given["instructions"]})
    include = given.get("include", [])
    if include not in ([], [OUTPUT_LOGPROBS]):
        raise invalid("include", f"may contain only {OUTPUT_LOGPROBS}")
    top = count(given, "top_logprobs", 0)
    if include or top:
        request.params["logprobs"] = "include" if include else "top_logprobs"
        generated |= {"logprobs": True, "top_logprobs": top}
    chosen = _read(_TEXT_CONFIG, given.get("text", {}), "text").format
    limit = {"max_tokens": given.get("max_output_tokens")}
    request.inputs = [{**generated, "messages": turns, **limit, **_json_schema(chosen, "text.format")}]
    return request


def _request(body: Mapping[str, Any], endpoint: str) -> tuple[dict[str, Any], JobRequest, dict[str, Any]]:
    """Return the members of a request that have an effect, a `JobRequest` without inputs, and one input. The input has those
    of the members that have the same name in `generate`, unchanged.
    """
    members = ENDPOINTS[endpoint]
    given = served_members(members, body)
    stream, options = boolean(given, "stream"), given.get("stream_options")
    if options is not None and not stream:
        raise invalid("stream_options", "needs stream: true")
    include_usage = _read(_STREAM_OPTIONS, options or {}, "stream_options").include_usage
    samples = count(given, "n", 1)
    if not 1 <= samples <= MAX_SAMPLES:
        raise invalid("n", f"must be an integer from 1 to {MAX_SAMPLES}")
    params = {members[name].generate: name for name in [*members, *given]}
    generated = {name: value for name, value in given.items() if members[name].generate == name}
    if type(seed := generated.get("seed")) is int and seed >= SEEDS:
        generated["seed"] = seed % SEEDS
    return given, JobRequest([], stream, params, samples, include_usage=include_usage), generated


def _turns(messages: JsonValue, param: str) -> list[dict[str, str]]:
    return [message.turn() for message in _read(_MESSAGES, messages, param)]


def _json_schema(chosen: Any, param: str) -> dict[str, Any]:
    """Return the input member `json_schema` for a `response_format`, or for `text.format`, which has no inner object."""
    if chosen is None:
        return {}
    if isinstance(chosen, dict) and isinstance(chosen.get("json_schema"), dict):
        chosen = {**{name: chosen[name] for name in chosen if name != "json_schema"}, **chosen["json_schema"]}
    read = _read(_FORMAT, chosen, param)
    if read.type == "json_schema" and read.schema_ is None:
        raise invalid(param, "of the type json_schema needs a schema")
    if read.type == "text":
        return {}
    return {"json_schema": {"type": "object"} if read.type == "json_object" else read.schema_}


def _read(shape: TypeAdapter[_T], value: JsonValue, param: str) -> _T:
    """Validate the value of a member. If it is invalid, raise an `ApiError` that names the invalid part of the value."""
    try:
        return shape.validate_python(value)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False, include_context=False)
        # Report an invalid `type` first, because the type decides which other members are allowed.
        first = next((each for each in found if each["loc"][-1:] == ("type",)), found[0])
        for part in first["loc"]:
            if isinstance(part, int):
                param += f"[{part}]"
            elif part != "str" and not part.startswith("list["):  # not a member of the union
                param += f".{part}"
        param = param[:MAX_SHOWN]
        if first["type"] == "extra_forbidden":
            raise unsupported(param) from None
        message = _NEEDED.get(first["type"], first["msg"])
        raise ApiError(400, f"{param}: {message}", param=param, code="invalid_value") from None
