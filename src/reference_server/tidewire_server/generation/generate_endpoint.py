"""The `generate` endpoint, which writes the tokens that an inference engine generates to the stream of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from tidewire.protocol.document.json_values import common_prefix
from tidewire.protocol.document.logprob_columns import initial_value
from tidewire_server.endpoints.endpoint import Endpoint, OnRestart, Options
from tidewire_server.endpoints.stream import Stream, writer_of
from tidewire_server.errors import ItemError, RunLaterError, StreamClosedError
from tidewire_server.generation.engine_interface import (
    LOGPROB_MEMBERS,
    NO_CHAT_TEMPLATE,
    NO_LOGPROBS,
    Delta,
    Engine,
    EngineBusyError,
    EngineCapabilities,
    EngineError,
    InputError,
    InputTooExpensiveError,
    LoggedTokens,
    TokenUsage,
)
from tidewire_server.generation.generate_input_and_value import (
    LIMITED_BY_MAX_TOP,
    Generate,
    served_input,
    served_value,
)
from tidewire_server.generation.repeated_text import without_repetition
from tidewire_server.openai import add_openai
from tidewire_server.server import Server
from tidewire_server.user_paths import MEMORY

PROGRESS_PARTS = 10
"""Maximum number of progress events per generation. Few are enough, because readers also see the text grow."""

MARK_INTERVAL = 0.5
"""Minimum number of seconds between two writes of token counts to a value; see `_UsageMarks`."""

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
    """Return the example inputs, reduced to the members and numbers that the engine accepts."""
    most = {"top_logprobs": caps.max_top}
    if caps.context is not None:
        most["max_tokens"] = caps.context // 2
    return [
        {name: min(value, most.get(name, value)) for name, value in each.items() if name in caps.served}
        for each in EXAMPLES
    ]


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
    start: Callable[[], Awaitable[None]] | None = None,
    unavailable: Callable[[], str | None] = lambda: None,
) -> Callable[[], None]:
    """Add the endpoint `generate` and the OpenAI surface to a server. The server closes the engine when it stops.

    The endpoint runs as many jobs at the same time as the engine supports (`EngineCapabilities.concurrency`). Other jobs wait
    in the server's queue, where clients can see their position and cancel them.

    Args:
        server: The server.
        engine: The engine.
        on_restart: See `add_generate`. With "continue", and if each row is one token, each value has the column `token_ids`,
            because a new attempt continues after the logged ids.
        share_prefixes: See `add_generate`.
        start: Coroutine function that the server calls when it starts, before any job runs.
        unavailable: Function that returns the reason why the engine accepts no new jobs at the moment, or None. While it
            returns a reason, the server rejects new jobs with 503 and is not ready.

    Returns:
        Function that updates the endpoint's description. Call it after the engine's capabilities have changed.

    Raises:
        ValueError: The engine cannot continue, or an option is not valid.
    """
    caps = engine.caps
    if on_restart == "continue" and not caps.continues:
        raise ValueError(f'on_restart is "continue", but the engine of {caps.model} cannot continue a text')
    server.on_close(engine.close)

    def continues(given: Any, value: Any) -> bool:
        try:
            request = Generate.model_validate(given)
        except ValidationError:
            return False  # The input is invalid. The item fails when its input is checked.
        if request.num_beams > 1:
            return False  # The other hypotheses of a beam search are not logged.
        logged = _logged_tokens(value, request, caps)
        return engine.continues(request, logged) if logged else not _generated_text(value, request)

    async def check(request: Generate) -> None:
        try:
            await engine.check(request)
        except EngineError as error:
            raise ItemError(str(error), code=error.code) from error

    async def generate(request: Generate, stream: Stream[Any]) -> None:
        """Generate text, optionally with the log-probabilities of its tokens."""
        request.cache_scope = "" if share_prefixes else writer_of(stream).run.principal
        logged = _logged_tokens(stream.value, request, caps)
        marks = _UsageMarks(stream, "" if logged is None else logged.text)
        try:
            generated = engine.generate(request, logged) if logged else engine.generate(request)
            async with aclosing(without_repetition(generated, logged) if logged else generated) as deltas:
                await _write(
                    deltas,
                    request,
                    stream,
                    logged,
                    marks,
                    caps=engine.caps,
                    endpoint=server.endpoints["generate"],
                )
        except asyncio.CancelledError:
            with suppress(
                StreamClosedError
            ):  # If the deadline caused the cancellation, the item has already ended.
                stream.set("/finish_reason", "cancelled")
            raise
        except InputError as error:
            where = {"pointer": f"/input/{error.member}{error.within}"} if error.member else {}
            raise ItemError(str(error), code=error.code, **where) from error
        except EngineBusyError as error:
            marks.write()
            raise RunLaterError(str(error)) from error
        except InputTooExpensiveError as error:
            raise ItemError(str(error), code="invalid_input", pointer="/input/json_schema") from error
        except EngineError as error:
            raise ItemError(str(error), code=error.code) from error

    def options() -> dict[str, Any]:
        """Derive the endpoint's options from the engine's capabilities, and set the type annotations of its function."""
        caps = engine.caps
        maxima = dict.fromkeys(LIMITED_BY_MAX_TOP, caps.max_top) | {"num_beams": caps.max_num_beams}
        logs_ids = lambda: caps.counts_rows and served.on_restart == "continue"  # noqa: E731
        generate.__annotations__ |= {
            "request": served_input(caps.served, maxima, logs_ids=logs_ids),
            "stream": Stream[served_value(caps.served, counts_rows=caps.counts_rows)],  # type: ignore[misc]
        }
        logprobs = (
            {"logprobs": {"max_top": caps.max_top}} if caps.vocabulary is not None or caps.counts_rows else {}
        )
        return {
            "capabilities": {
                **logprobs,
                "rollback": "num_beams" in caps.served or not caps.counts_rows,
                "model": {
                    "name": caps.model,
                    "architecture": caps.architecture,
                    "dtype": caps.dtype,
                    "device": caps.device,
                    "context": caps.context,
                    "features": sorted(caps.served),
                },
            },
            "examples": examples_of(caps),
            "links": {} if caps.vocabulary is None else {"vocabulary": caps.vocabulary.body},
        }

    server.endpoint(
        name="generate",
        concurrency_limit=caps.concurrency,
        on_restart="rerun" if on_restart == "auto" else on_restart,
        columns=columns_of,
        initial=initial_of,
        validate=check,
        **options(),
    )(generate)
    served = server.endpoints["generate"]
    # Values need no check: the engine computes each element, and the log writer rejects rows that do not match the columns.
    served.checks_value = False
    served.start, served.unavailable = start, unavailable
    served.generated_tokens = 0
    _explain_missing_members(served, caps)
    if "n" in caps.served:
        served.samples = samples_of
    if on_restart == "auto":
        # A function, because the settings can change until the server starts.
        served.on_restart_now = lambda: (
            "continue" if caps.continues and server.settings.log != MEMORY else "rerun"
        )
    served.continues = continues
    add_openai(server)

    def update() -> None:
        served.describe_as(Endpoint(generate, Options(name="generate", **options())))
        _explain_missing_members(served, engine.caps)

    return update


def _explain_missing_members(served: Endpoint, caps: EngineCapabilities) -> None:
    reasons = {"messages": NO_CHAT_TEMPLATE, **dict.fromkeys(LOGPROB_MEMBERS, NO_LOGPROBS)}
    served.input = replace(
        served.input, unsupported={name: reasons[name] for name in reasons.keys() - caps.served}
    )


def _generated_text(value: Any, request: Generate) -> str:
    """Return the text of a value without the prompt."""
    text: str = value["text"]
    return text.removeprefix(request.prompt if request.echo else "")


def _logged_tokens(value: Any, request: Generate, caps: EngineCapabilities) -> LoggedTokens | None:
    """Return the tokens that the earlier attempts have logged, or None if there are none."""
    ids = value.get("token_ids")
    if caps.counts_rows:
        return LoggedTokens(ids, _generated_text(value, request)) if ids else None
    text, reasoning = _generated_text(value, request), value.get("reasoning") or ""
    if not (ids or text or reasoning):
        return None
    mark = dict(value.get("usage") or {})
    counted = mark.pop("characters", len(text))
    usage = TokenUsage(**mark) if mark else None
    if ids and usage is not None:
        # Each element of the columns is a token. The engine checks whether the tokens produce exactly this text.
        usage, counted = usage._replace(completion_tokens=len(ids)), len(text)
    return LoggedTokens(ids or [], text, reasoning, usage, counted)


async def _write(
    deltas: AsyncIterator[Delta],
    request: Generate,
    stream: Stream[Any],
    logged: LoggedTokens | None,
    marks: _UsageMarks,
    *,
    caps: EngineCapabilities,
    endpoint: Endpoint,
) -> None:
    value, writer = stream.value, writer_of(stream)
    # If the job was submitted with another `on_restart`, its value has no column `token_ids`.
    text_only = len(request.columns) == 1 or "token_ids" not in value
    at = None if len(request.columns) == 1 else "/text"
    prompt_columns = [f"/{name}" for name in request.prompt_columns]
    prompt_tokens, scored = len(value[request.prompt_columns[0]]) if prompt_columns else 0, 0
    hypothesis = None
    if request.num_beams > 1:
        hypothesis = HypothesisWriter(stream, request.prompt if request.echo else "", text_only=text_only)
    tokens = reported = 0 if logged is None else len(logged.token_ids)
    async for delta in deltas:
        writer.run.begin()
        if delta.note:
            writer.note_once(delta.note, "info")
        if delta.replaces:
            _replace(delta, request, stream)
        elif delta.reasoning:
            if "reasoning" not in value:
                value["reasoning"] = ""
                stream.set("/reasoning", "")
            stream.append(delta.reasoning, at="/reasoning")
        if delta.prompt_rows:
            # A new attempt reads the prompt and the logged tokens again. Write only prompt rows that are not logged yet.
            end = max(0, delta.prompt_tokens - scored)
            rows = delta.prompt_rows[max(0, prompt_tokens - scored) : end]
            scored += len(delta.prompt_rows)
            for pointer, elements in zip(prompt_columns, zip(*rows, strict=True), strict=False):
                if elements and type(elements[0]) is bytes:
                    writer.append_encoded(elements, at=pointer)
                else:
                    stream.append([*elements], at=pointer)
        if delta.replaces:
            pass
        elif hypothesis is not None:
            hypothesis.write(delta)
        elif not text_only and delta.rows and type(delta.rows[0][1]) is bytes:
            writer.encoded_rows(delta.rows)
        elif not text_only:
            for row in delta.rows:
                stream.row(*row)
        elif text := "".join([row[0] for row in delta.rows]):
            stream.append(text, at=at)
        if delta.text_after and not delta.replaces:
            stream.append(delta.text_after, at="/text")
        # Report the usage with each block, so that clients get it even if the item fails or is cancelled.
        if caps.counts_rows:
            tokens += len(delta.rows) - delta.retracted
            endpoint.generated_tokens = (endpoint.generated_tokens or 0) + len(delta.rows)
            stream.usage(prompt_tokens=delta.prompt_tokens, completion_tokens=tokens)
        elif delta.usage is not None:
            more = max(0, delta.usage.completion_tokens - tokens)
            endpoint.generated_tokens = (endpoint.generated_tokens or 0) + more
            tokens = delta.usage.completion_tokens
            stream.usage(**delta.usage._asdict())
        most = request.max_tokens
        if most is None and caps.context is not None:
            most = caps.context - delta.prompt_tokens
        if most is not None and tokens - reported >= -(-most // PROGRESS_PARTS):
            stream.progress(tokens, most, unit="token")
            reported = tokens
        if not caps.counts_rows:
            marks.add(delta)
        if delta.finish_reason is not None:
            stream.set("/finish_reason", delta.finish_reason)


class _UsageMarks:
    """Writes token counts to the value, so that a new attempt can continue. Used only if rows are not tokens.

    A *mark* consists of token counts and the length of the text that they cover. While text is held back, the counts cover
    more than the written text, so no mark is made. A mark is larger than most blocks, so it is not written after each
    block. A new attempt generates the text after the last mark again, and compares it with the logged text.
    """

    def __init__(self, stream: Stream[Any], text: str) -> None:
        self._stream = stream
        self._length = len(text)
        self._next = 0.0
        self._unwritten: tuple[TokenUsage, int] | None = None
        """The last mark. None if it is already written."""

    def add(self, delta: Delta) -> None:
        """Count the text of a block. Write a mark if `MARK_INTERVAL` has passed, or if the block is the last one."""
        self._length = delta.shown if delta.replaces else self._length + delta.shown
        if delta.mark is not None:
            usage, since = delta.mark
            self._unwritten = usage, self._length - since
        now = asyncio.get_running_loop().time()
        if delta.finish_reason is not None:
            self._unwritten = None
            if delta.usage is not None:
                self._stream.set("/usage", delta.usage._asdict())
        elif now >= self._next and self._unwritten is not None:
            self._next = now + MARK_INTERVAL
            self.write()

    def write(self) -> None:
        """Write the last mark, if it is not written yet."""
        if self._unwritten is not None:
            usage, length = self._unwritten
            self._unwritten = None
            self._stream.set("/usage", {**usage._asdict(), "characters": length})


def _replace(delta: Delta, request: Generate, stream: Stream[Any]) -> None:
    """Replace everything that was generated before. Readers receive only the differences."""
    old = stream.value
    new = initial_of(request) | {name: old[name] for name in request.prompt_columns}
    columns = [*zip(*delta.rows, strict=True)] or [()] * len(request.columns)
    new["text"] += "".join(columns[0]) + delta.text_after
    new |= {name: _values(column) for name, column in zip(request.columns[1:], columns[1:], strict=True)}
    if delta.reasoning or "reasoning" in old:
        new["reasoning"] = delta.reasoning
    writer_of(stream).replace(new)


class HypothesisWriter:
    """Writes the blocks of a beam search to a stream. Each block becomes one event. The event replaces the end of all columns,
    and declares how much of the text is stable.

    Args:
        stream: The stream. Its first column must be the text.
        echoed: Text before the first generated token. It is always stable.
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
        """Write a block. The text is first truncated to the prefix that the old and the new text share."""
        first = len(self._pieces) - delta.retracted
        pieces = [row[0] for row in delta.rows]
        old, new = "".join(self._pieces[first:]), "".join(pieces)
        self._pieces[first:] = pieces
        if delta.stable is not None:
            self._stable += sum(map(len, self._pieces[self._stable_pieces : delta.stable]))
            self._stable_pieces = delta.stable
        # If there are other columns, remove as many whole tokens from the text as from these columns (TW-GEN-013).
        shared = common_prefix(old, new) if self._text_only else 0
        truncated = [len(old) - shared]
        additions: list[str | list[Any]] = [new[shared:]]
        for column in range(1, 1 if self._text_only else self._writer.width):
            truncated.append(delta.retracted)
            additions.append(_values([row[column] for row in delta.rows]))
        self._writer.replace_end(truncated, additions, self._stable)


def _values(elements: Sequence[Any]) -> list[Any]:
    """Return the elements of a column as values. Elements that are JSON (`bytes`) are decoded."""
    if elements and type(elements[0]) is bytes:
        values: list[Any] = orjson.loads(b"[%b]" % b",".join(elements))
        return values
    return [*elements]
