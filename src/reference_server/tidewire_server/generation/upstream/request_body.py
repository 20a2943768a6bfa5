"""Body of a request to an engine (`request_body`), and the check of an input against the kind of the engine (`check_kind`)."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final

from tidewire_server.generation.engine_interface import InputError, TokenUsage
from tidewire_server.generation.generate_input_and_value import Generate
from tidewire_server.generation.upstream.engine_kinds import (
    GENERATION_CONFIG,
    NULL,
    OMIT,
    EngineKind,
    sent_members,
)

PROMPT_PATH: Final = "completions"
MESSAGES_PATH: Final = "chat/completions"


def check_kind(request: Generate, kind: EngineKind) -> None:
    """Check what the schema of the endpoint cannot express.

    Raises:
        InputError: The engine cannot serve the combination of members.
    """
    schema = kind.members.get("json_schema")
    if (
        request.json_schema is not None
        and schema is not None
        and schema.only_messages
        and request.messages is None
    ):
        raise InputError(
            f"json_schema works only with messages on this engine ({kind.title}), not with a prompt",
            member="json_schema",
        )
    if request.max_tokens is None and kind.rest_of_context[request.messages is not None] is None:
        raise InputError(
            f"max_tokens must be a number, because this engine ({kind.title}) cannot fill the rest of its context",
            member="max_tokens",
        )
    if "logprobs" in request.columns and request.logprobs_mode != kind.logprobs_mode:
        raise InputError(
            f"logprobs_mode is {request.logprobs_mode!r}, but this engine ({kind.title}) computes only "
            f"{kind.logprobs_mode!r}",
            member="logprobs_mode",
        )


def can_continue_text(request: Generate, kind: EngineKind, usage: TokenUsage | None, reasoning: str) -> bool:
    """Return whether the engine can continue after text that it has generated. Otherwise the request runs again."""
    if usage is None or not kind.counts or request.json_schema is not None or reasoning:
        return False
    if request.messages is None:
        return True
    # With two messages of the assistant at the end, the engine would continue only the second one, or refuse both.
    return kind.continues_messages is not None and request.messages[-1].role != "assistant"


def request_body(
    request: Generate,
    kind: EngineKind,
    model: str,
    *,
    text: str = "",
    generated: int = 0,
    with_ids: bool = False,
) -> tuple[str, dict[str, Any]]:
    """Return the path below the base URL, and the body of the request.

    Args:
        request: The input.
        kind: Kind of the engine.
        model: Name of the model.
        text: Text that was already generated, after which the engine continues.
        generated: Number of its tokens.
        with_ids: Whether the answer needs token ids.
    """
    body: dict[str, Any] = {"model": model, "stream": True, **kind.always, **sent_members(request, kind)}
    most: Any = kind.rest_of_context[request.messages is not None]
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens - generated
    elif most is OMIT:
        del body["max_tokens"]
    else:
        body["max_tokens"] = None if most is NULL else most
    if own := {name: body.pop(name) for name in [*body] if name.startswith(f"{GENERATION_CONFIG}.")}:
        body[GENERATION_CONFIG] = json.dumps({name.partition(".")[2]: value for name, value in own.items()})
    if kind.salt and request.cache_scope:
        body[kind.salt] = hashlib.sha256(request.cache_scope.encode()).hexdigest()
    if with_ids and kind.token_ids:
        body[kind.token_ids] = True
    if request.messages is None:
        body["prompt"] = request.prompt + text
        if with_ids:
            # Without alternatives, one is requested, because 0 means no log-probabilities for some engines.
            body["logprobs"] = max(1, request.top_logprobs)
        return PROMPT_PATH, body
    messages = [message.model_dump() for message in request.messages]
    if text:
        messages.append({"role": "assistant", "content": text})
        body |= kind.continues_messages or {}
    body["messages"] = messages
    if with_ids:
        body |= {"logprobs": True, "top_logprobs": max(1, request.top_logprobs)}
    return MESSAGES_PATH, body
