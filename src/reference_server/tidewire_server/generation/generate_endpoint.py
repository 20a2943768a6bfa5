"""The `generate` endpoint, which writes the tokens that an inference engine generates to the stream of a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from tidewire_server.errors import ItemError, StreamClosedError
from tidewire_server.generation.engine import (
    CORE_MEMBERS,
    Delta,
    Engine,
    EngineCapabilities,
    EngineError,
    EngineFullError,
)
from tidewire_server.generation.generate_input_and_value import Generate, Generated
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


def examples_of(caps: EngineCapabilities) -> list[dict[str, Any]]:
    """Return the examples, with numbers that the engine accepts."""
    most = {"max_tokens": caps.context // 2, "top_logprobs": caps.max_top}
    return [{name: min(value, most.get(name, value)) for name, value in each.items()} for each in EXAMPLES]


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


def add_engine(server: Server, engine: Engine) -> None:
    """Add the endpoint `generate` to a server. The engine is closed together with the server.

    The endpoint runs as many jobs at the same time as the engine has slots. Further jobs wait in the server's queue, where
    clients can see their position and cancel them.
    """
    server.on_close(engine.close)
    caps = engine.caps
    vocabulary = caps.vocabulary

    @server.endpoint(
        name="generate",
        concurrency_limit=caps.concurrency,
        columns=columns_of,
        initial=initial_of,
        validate=engine.check,
        capabilities={
            "logprobs": {"max_top": caps.max_top},
            "rollback": False,
            "model": {
                "name": caps.model,
                "architecture": caps.architecture,
                "dtype": caps.dtype,
                "device": caps.device,
                "context": caps.context,
                "features": sorted(CORE_MEMBERS | caps.members),
            },
        },
        examples=examples_of(caps),
        links={} if vocabulary is None else {"vocabulary": vocabulary.body},
    )
    async def generate(request: Generate, stream: Stream[Generated]) -> None:
        """Generate text, optionally with the log-probabilities of its tokens."""
        try:
            async with aclosing(engine.generate(request)) as deltas:
                await _write(deltas, request, stream)
        except asyncio.CancelledError:
            with suppress(
                StreamClosedError
            ):  # If the deadline caused the cancellation, the item has already ended.
                stream.set("/finish_reason", "cancelled")
            raise
        except EngineFullError as error:
            raise ItemError(str(error), code="queue_full") from error
        except EngineError as error:
            raise ItemError(str(error), code="internal") from error


async def _write(deltas: AsyncIterator[Delta], request: Generate, stream: Stream[Generated]) -> None:
    names = request.columns
    part = -(-request.max_tokens // PROGRESS_PARTS)
    tokens = reported = 0
    async for delta in deltas:
        if len(names) == 1:
            text = "".join(delta.text)
            if text:
                stream.append(text)
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
