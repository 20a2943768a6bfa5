"""The `generate` endpoint: an engine's blocks of tokens become rows of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from tidewire_server.errors import ItemError, StreamClosedError
from tidewire_server.generation.engine import Delta, Engine, EngineError, EngineFullError
from tidewire_server.generation.generate_input_and_value import Generate, Generated
from tidewire_server.log_writer.stream import Stream
from tidewire_server.server import Server

PROGRESS_PARTS = 10
"""A generation says how far it is at most this often: its text shows the rest."""

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
    """Pointers to the members that grow."""
    return [f"/{name}" for name in request.columns]


def initial_of(request: Generate) -> dict[str, Any]:
    """The value before the first token."""
    value: dict[str, Any] = {name: [] for name in request.columns}
    if "logprobs" in value:
        value["logprobs_mode"] = request.logprobs_mode
    return value | {"text": request.prompt if request.echo else "", "finish_reason": None}


def add_engine(server: Server, engine: Engine) -> None:
    """Give a server the endpoint `generate`, served by this engine, which is closed with the server.

    As many jobs run at a time as the engine has slots; the others wait in the server's queue, where they can be
    seen and cancelled.
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
        capabilities={"logprobs": {"max_top": caps.max_top}, "rollback": False},
        examples=EXAMPLES,
        links={} if vocabulary is None else {"vocabulary": vocabulary.body},
    )
    async def generate(request: Generate, stream: Stream[Generated]) -> None:
        """Generate text, with the log-probabilities of its tokens where they are asked for."""
        try:
            async with aclosing(engine.generate(request)) as deltas:
                await _write(deltas, request, stream)
        except asyncio.CancelledError:
            with suppress(StreamClosedError):  # a deadline has ended the item already
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
        # With each block: whatever ends the item, what it took is told.
        stream.usage(prompt_tokens=delta.prompt_tokens, completion_tokens=tokens)
        if tokens - reported >= part:
            stream.progress(tokens, request.max_tokens, unit="token")
            reported = tokens
        if delta.finish_reason is not None:
            stream.set("/finish_reason", delta.finish_reason)
