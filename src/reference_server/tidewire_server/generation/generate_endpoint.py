"""The `generate` endpoint, which writes the tokens that an inference engine generates to the stream of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from tidewire.protocol.document.json_values import common_prefix
from tidewire.protocol.document.logprob_columns import initial_value
from tidewire_server.endpoints.endpoint import Endpoint, OnRestart
from tidewire_server.endpoints.stream import Stream, writer_of
from tidewire_server.errors import ItemError, StreamClosedError
from tidewire_server.generation.engine_interface import (
    NO_CHAT_TEMPLATE,
    Delta,
    Engine,
    EngineCapabilities,
    EngineError,
    EngineFullError,
    InputTooExpensiveError,
    LoggedTokens,
)
from tidewire_server.generation.generate_input_and_value import (
    LIMITED_BY_MAX_TOP,
    Generate,
    served_input,
    served_value,
)
from tidewire_server.openai import add_openai
from tidewire_server.server import Server
from tidewire_server.user_paths import MEMORY

PROGRESS_PARTS = 10
"""Maximum number of progress events per generation. Few are enough, because the growing text also shows the progress."""

EXAMPLES: list[dict[str, Any]] = [
    {},
    {"prompt": "import json\n\ndef load(path):", "max_tokens": 64, "temperature": 0.7, "top_logprobs": 5},
    {
        "prompt": "class Stack:\n    def push(self, item):",
        "max_tokens": 128,
        "temperature": 0.0,
        "stop": ["\nclass "],
    },
]


def examples_of(caps: EngineCapabilities) -> list[dict[str, Any]]:
    """Return the examples, with numbers that the engine accepts."""
    most = {"max_tokens": caps.context // 2, "top_logprobs": caps.max_top}
    return [{name: min(value, most.get(name, value)) for name, value in each.items()} for each in EXAMPLES]


def columns_of(request: Generate) -> list[str]:
    """Return the JSON Pointers of the columns of generated tokens that the request asks for."""
    return [f"/{name}" for name in request.columns]


def initial_of(request: Generate) -> dict[str, Any]:
    """Return the value of a generation before its first token."""
    value = {name: [] for name in request.columns} | initial_value(request.__dict__)
    return value | {"text": request.prompt} if request.echo else value


def samples_of(request: Generate) -> list[Generate]:
    """Return the input of each of the `n` samples. They differ in their seeds, so that their texts differ."""
    if request.n == 1:
        return [request]
    seeds = [None if request.seed is None else (request.seed + i) % 2**53 for i in range(request.n)]
    return [request.model_copy(update={"n": 1, "seed": seed}) for seed in seeds]


def add_engine(
    server: Server,
    engine: Engine,
    *,
    on_restart: OnRestart | Literal["auto"] = "auto",
    share_prefixes: bool = False,
) -> None:
    """Add the endpoint `generate` and the OpenAI surface to a server. The engine is closed together with the server.

    The endpoint runs as many jobs at the same time as the engine has slots. Further jobs wait in the server's queue, where
    clients can see their position and cancel them.

    Args:
        server: The server.
        engine: The engine, which the server closes.
        on_restart: See `add_generate`. With "continue", each value has the column `token_ids`, because a new attempt
            continues after the logged tokens.
        share_prefixes: See `add_generate`.

    Raises:
        ValueError: The engine cannot continue, or an option is not valid.
    """
    caps = engine.caps
    vocabulary = caps.vocabulary
    if on_restart == "continue" and not caps.continues:
        raise ValueError(f'on_restart is "continue", but the engine of {caps.model} cannot continue a text')
    server.on_close(engine.close)

    def continues(given: Any, value: Any) -> bool:
        try:
            request = Generate.model_validate(given)
        except ValidationError:
            return False  # The item fails when its input is checked.
        if request.num_beams > 1:
            return False  # The other hypotheses of a beam search are not logged.
        logged = _logged_tokens(value, request)
        return engine.continues(request, logged) if logged else not _generated_text(value, request)

    async def check(request: Generate) -> None:
        try:
            await engine.check(request)
        except EngineFullError as error:
            raise ItemError(str(error), code="queue_full") from error

    async def generate(request: Generate, stream: Stream[Any]) -> None:
        """Generate text, optionally with the log-probabilities of its tokens."""
        request.cache_scope = "" if share_prefixes else writer_of(stream).principal
        logged = _logged_tokens(stream.value, request)
        try:
            async with aclosing(
                engine.generate(request, logged) if logged else engine.generate(request)
            ) as deltas:
                await _write(deltas, request, stream, logged, caps.context, server.endpoints["generate"])
        except asyncio.CancelledError:
            with suppress(
                StreamClosedError
            ):  # If the deadline caused the cancellation, the item has already ended.
                stream.set("/finish_reason", "cancelled")
            raise
        except EngineFullError as error:
            raise ItemError(str(error), code="queue_full") from error
        except InputTooExpensiveError as error:
            raise ItemError(str(error), code="invalid_input", pointer="/input/json_schema") from error
        except EngineError as error:
            raise ItemError(str(error), code="internal") from error

    # The schemas of the endpoint have only what the engine supports.
    maxima = dict.fromkeys(LIMITED_BY_MAX_TOP, caps.max_top) | {"num_beams": caps.max_num_beams}
    generate.__annotations__ |= {
        "request": served_input(caps.served, maxima, logs_ids=lambda: served.on_restart == "continue"),
        "stream": Stream[served_value(caps.served)],  # type: ignore[misc]
    }
    server.endpoint(
        name="generate",
        concurrency_limit=caps.concurrency,
        on_restart="rerun" if on_restart == "auto" else on_restart,
        columns=columns_of,
        initial=initial_of,
        validate=check,
        capabilities={
            "logprobs": {"max_top": caps.max_top},
            "rollback": "num_beams" in caps.served,
            "model": {
                "name": caps.model,
                "architecture": caps.architecture,
                "dtype": caps.dtype,
                "device": caps.device,
                "context": caps.context,
                "features": sorted(caps.served),
            },
        },
        examples=examples_of(caps),
        links={} if vocabulary is None else {"vocabulary": vocabulary.body},
    )(generate)
    served = server.endpoints["generate"]
    # The engine computes each element of the value, and the log writer rejects a row that does not match the columns.
    served.checks_value = False
    served.generated_tokens = 0
    if "messages" not in caps.served:
        served.input = replace(served.input, unsupported={"messages": NO_CHAT_TEMPLATE})
    if "n" in caps.served:
        served.samples = samples_of
    if on_restart == "auto":
        # A function, because the settings can change until the server starts.
        served.on_restart_now = lambda: (
            "continue" if caps.continues and server.settings.log != MEMORY else "rerun"
        )
    served.continues = continues
    add_openai(server)


def _generated_text(value: Any, request: Generate) -> str:
    """Return the text without the prompt."""
    text: str = value["text"]
    return text.removeprefix(request.prompt if request.echo else "")


def _logged_tokens(value: Any, request: Generate) -> LoggedTokens | None:
    """Return the tokens that the earlier attempts have logged, or None if there are none."""
    ids = value.get("token_ids")
    return LoggedTokens(ids, _generated_text(value, request)) if ids else None


async def _write(
    deltas: AsyncIterator[Delta],
    request: Generate,
    stream: Stream[Any],
    logged: LoggedTokens | None,
    context: int,
    endpoint: Endpoint,
) -> None:
    value, writer = stream.value, writer_of(stream)
    # If the job was submitted while the endpoint did not continue, its value has no column `token_ids`.
    text_only = len(request.columns) == 1 or "token_ids" not in value
    at = None if len(request.columns) == 1 else "/text"
    prompt_columns = [f"/{name}" for name in request.prompt_columns]
    prompt_tokens, scored = len(value[request.prompt_columns[0]]) if prompt_columns else 0, 0
    hypothesis = None
    if request.num_beams > 1:
        hypothesis = HypothesisWriter(stream, request.prompt if request.echo else "", text_only=text_only)
    tokens = reported = 0 if logged is None else len(logged.token_ids)
    async for delta in deltas:
        if delta.prompt_rows:
            # A new attempt scores the prompt again, and the logged tokens after it.
            end = max(0, delta.prompt_tokens - scored)
            rows = delta.prompt_rows[max(0, prompt_tokens - scored) : end]
            scored += len(delta.prompt_rows)
            for pointer, elements in zip(prompt_columns, zip(*rows, strict=True), strict=False):
                if elements and type(elements[0]) is bytes:
                    writer.append_encoded(elements, at=pointer)
                else:
                    stream.append([*elements], at=pointer)
        if hypothesis is not None:
            hypothesis.write(delta)
        elif not text_only and delta.rows and type(delta.rows[0][1]) is bytes:
            writer.encoded_rows(delta.rows)
        elif not text_only:
            for row in delta.rows:
                stream.row(*row)
        elif text := "".join([row[0] for row in delta.rows]):
            stream.append(text, at=at)
        tokens += len(delta.rows) - delta.retracted
        endpoint.generated_tokens = (endpoint.generated_tokens or 0) + len(delta.rows)
        # Report the usage with each block, so that clients get it even if the item fails or is cancelled.
        stream.usage(prompt_tokens=delta.prompt_tokens, completion_tokens=tokens)
        most = context - delta.prompt_tokens if request.max_tokens is None else request.max_tokens
        if tokens - reported >= -(-most // PROGRESS_PARTS):
            stream.progress(tokens, most, unit="token")
            reported = tokens
        if delta.finish_reason is not None:
            stream.set("/finish_reason", delta.finish_reason)


class HypothesisWriter:
    """Writes the blocks of a beam search to a stream. One event replaces the end of the text and of all other columns, and
    declares the part of the text that is stable.

    Args:
        stream: The stream, whose first column is the text.
        echoed: Text before the first generated token, which is stable.
        text_only: Whether the text is the only column.
    """

    def __init__(self, stream: Stream[Any], echoed: str, *, text_only: bool) -> None:
        self._writer = writer_of(stream)
        self._text_only = text_only
        self._pieces: list[str] = []
        """Texts of the tokens of the written hypothesis."""
        self._stable_pieces, self._stable = 0, len(echoed)
        # Otherwise `iter_text` of the client would yield text before it is stable.
        stream.stable(self._stable, at="/text")

    def write(self, delta: Delta) -> None:
        """Write a block. Text is truncated to the prefix that the old and the new text share."""
        first = len(self._pieces) - delta.retracted
        pieces = [row[0] for row in delta.rows]
        old, new = "".join(self._pieces[first:]), "".join(pieces)
        self._pieces[first:] = pieces
        if delta.stable is not None:
            self._stable += sum(map(len, self._pieces[self._stable_pieces : delta.stable]))
            self._stable_pieces = delta.stable
        # With other columns, the text loses exactly the texts of the tokens that they lose (TW-GEN-013).
        shared = common_prefix(old, new) if self._text_only else 0
        truncated = [len(old) - shared]
        additions: list[str | list[Any]] = [new[shared:]]
        for column in range(1, 1 if self._text_only else self._writer.width):
            truncated.append(delta.retracted)
            additions.append(_values([row[column] for row in delta.rows]))
        self._writer.replace_end(truncated, additions, self._stable)


def _values(elements: Sequence[Any]) -> list[Any]:
    """Return the elements of a column, which are values or the JSON of values."""
    if elements and type(elements[0]) is bytes:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(elements))
        return values
    return [*elements]
