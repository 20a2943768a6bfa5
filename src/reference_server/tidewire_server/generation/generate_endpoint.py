"""The `generate` endpoint, which writes the tokens that an inference engine generates to the stream of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from tidewire_server.endpoints.endpoint import OnRestart
from tidewire_server.errors import ItemError, StreamClosedError
from tidewire_server.generation.engine import (
    ContinuationError,
    Delta,
    Engine,
    EngineError,
    EngineFullError,
    LoggedTokens,
)
from tidewire_server.generation.generate_input_and_value import ContinuedGenerate, Generate, Generated
from tidewire_server.log_writer.stream import Stream
from tidewire_server.server import Server

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


def columns_of(request: Generate) -> list[str]:
    """Return the JSON Pointers of the lists (columns) that the request asks for. Each list gets one element per
    token.
    """
    return [f"/{name}" for name in request.columns]


def initial_of(request: Generate) -> dict[str, Any]:
    """Return the value of a generation before its first token."""
    value: dict[str, Any] = {name: [] for name in request.columns}
    if "logprobs" in value:
        value["logprobs_mode"] = request.logprobs_mode
    return value | {"text": request.prompt if request.echo else "", "finish_reason": None}


def add_engine(server: Server, engine: Engine, *, on_restart: OnRestart = "rerun") -> None:
    """Add the endpoint `generate` to a server. The engine is closed together with the server.

    The endpoint runs as many jobs at the same time as the engine has slots. Further jobs wait in the server's queue, where
    clients can see their position and cancel them.

    Args:
        server: The server.
        engine: The engine, which the server closes.
        on_restart: See `add_generate`. With "continue", each value has the column `token_ids`, because a new attempt
            continues after the logged tokens.
    """
    server.on_close(engine.close)
    caps = engine.caps
    vocabulary = caps.vocabulary

    async def generate(request: Generate, stream: Stream[Generated]) -> None:
        """Generate text, optionally with the log-probabilities of its tokens."""
        logged = _logged_tokens(stream.value, request) if on_restart == "continue" else None
        try:
            async with aclosing(
                engine.generate(request, logged) if logged else engine.generate(request)
            ) as deltas:
                await _write(deltas, request, stream, logged)
        except asyncio.CancelledError:
            with suppress(
                StreamClosedError
            ):  # If the deadline caused the cancellation, the item has already ended.
                stream.set("/finish_reason", "cancelled")
            raise
        except ContinuationError as error:
            raise ItemError(str(error), code="worker_lost") from error
        except EngineFullError as error:
            raise ItemError(str(error), code="queue_full") from error
        except EngineError as error:
            raise ItemError(str(error), code="internal") from error

    if on_restart == "continue":
        generate.__annotations__["request"] = ContinuedGenerate
    server.endpoint(
        name="generate",
        concurrency_limit=caps.concurrency,
        on_restart=on_restart,
        columns=columns_of,
        initial=initial_of,
        validate=engine.check,
        capabilities={"logprobs": {"max_top": caps.max_top}, "rollback": False},
        examples=EXAMPLES,
        links={} if vocabulary is None else {"vocabulary": vocabulary.body},
    )(generate)


def _logged_tokens(value: Any, request: Generate) -> LoggedTokens | None:
    """Return the tokens that the earlier attempts have logged, or None if there are none.

    Raises:
        ItemError: The text has no token ids.
    """
    text = value["text"].removeprefix(request.prompt if request.echo else "")
    if "token_ids" not in value and text:
        raise ItemError(
            "the text cannot be continued after the restart of the server, because its token ids were not logged: the "
            'endpoint did not have on_restart="continue" yet',
            code="worker_lost",
        )
    return LoggedTokens(value["token_ids"], text) if value.get("token_ids") else None


async def _write(
    deltas: AsyncIterator[Delta], request: Generate, stream: Stream[Generated], logged: LoggedTokens | None
) -> None:
    names, at = request.columns, None
    value: Any = stream.value
    if "token_ids" in names and "token_ids" not in value:
        # The job was submitted before the endpoint had `on_restart="continue"`.
        names, at = ["text"], "/text"
    part = -(-request.max_tokens // PROGRESS_PARTS)
    tokens = reported = 0 if logged is None else len(logged.token_ids)
    async for delta in deltas:
        if len(names) == 1:
            text = "".join(delta.text)
            if text:
                stream.append(text, at=at)
        else:
            for row in zip(*(getattr(delta, name) for name in names), strict=True):
                stream.row(*row)
        tokens += len(delta.text)
        # Report the usage with each block, so that clients get it even if the item fails or is cancelled.
        stream.usage(prompt_tokens=delta.prompt_tokens, completion_tokens=tokens)
        if tokens - reported >= part:
            stream.progress(tokens, request.max_tokens, unit="token")
            reported = tokens
        if delta.finish_reason is not None:
            stream.set("/finish_reason", delta.finish_reason)
