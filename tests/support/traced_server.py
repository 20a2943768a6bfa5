"""Server in its own process with the SDK of OpenTelemetry, which writes each span to a file as soon as the span ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tidewire_server import Append, Context, ItemError, Server, Stream
from tidewire_server.openai import add_openai
from tidewire_server.tracing import JOB_ID, trace_headers

SECRET = "hunter2"
"""Text that tests put into inputs and values, and that no span may contain."""


def traced_server(spans: str, sdk: bool = True, **settings: Any) -> Server:
    """Return a server with endpoints of all kinds.

    Args:
        spans: File for the spans, one JSON object per line.
        sdk: Whether to set up the SDK. Otherwise the server has only the API of OpenTelemetry.
        settings: Settings of the server.
    """
    if sdk:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

        exporter = ConsoleSpanExporter(
            out=Path(spans).open("a", encoding="utf-8"),  # noqa: SIM115 - open until the server ends
            formatter=lambda span: span.to_json(indent=None) + "\n",
        )
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        trace.set_tracer_provider(provider)
    server = Server(**settings)

    def headers() -> dict[str, Any]:
        return {**trace_headers(), "job": JOB_ID.get()}

    @server.endpoint(concurrency_limit=None)
    async def in_task() -> dict[str, Any]:
        await asyncio.sleep(0)
        return headers()

    @server.endpoint(concurrency_limit=None)
    def in_thread() -> dict[str, Any]:
        return headers()

    @server.endpoint(batch=True, max_batch_size=2, batch_timeout=30.0)
    def in_batch(n: list[int]) -> list[dict[str, Any]]:
        return [headers() for _ in n]

    @server.endpoint(concurrency_limit=1)
    async def one_at_a_time(pause: float) -> dict[str, Any]:
        await asyncio.sleep(pause)
        return headers()

    @server.endpoint(concurrency_limit=None)
    async def talk(words: int, stream: Stream[str], pause: float = 0.01) -> None:
        stream.usage(prompt_tokens=3)
        for _ in range(words):
            stream.append(f"{SECRET} ")
            await asyncio.sleep(pause)
        stream.usage(completion_tokens=words, seconds=0.5)

    @server.endpoint(concurrency_limit=None)
    async def pieces(ctx: Context) -> AsyncIterator[Append[str]]:
        await asyncio.sleep(0.06)
        yield Append(SECRET)
        await asyncio.sleep(0.05)

    @server.endpoint(concurrency_limit=None)
    async def fail(how: str, text: str = SECRET) -> str:
        if how == "item_error":
            raise ItemError(text, code="refused")
        if how == "exception":
            raise RuntimeError(text)
        if how == "value":
            return [text]  # type: ignore[return-value]
        raise ItemError(text, code=f"a.{'x' * 100_000}")

    @server.endpoint(concurrency_limit=None)
    async def much_usage(stream: Stream[str]) -> None:
        stream.usage(**{f"n{number}": number for number in range(1000)})

    @server.endpoint(columns=["/text"], initial={"text": "", "finish_reason": None}, concurrency_limit=None)
    async def generate(chat: Chat, stream: Stream[Any]) -> None:
        for message in chat.messages:
            stream.append(message["content"], at="/text")
        stream.usage(prompt_tokens=1, completion_tokens=2)
        stream.set("/finish_reason", "stop")

    add_openai(server)
    return server


class Chat(BaseModel):
    """Input of `generate`."""

    model_config = ConfigDict(extra="allow")
    messages: list[dict[str, str]]


def read_spans(file: Path) -> list[dict[str, Any]]:
    """Return the spans that ended so far, in the order in which they ended."""
    if not file.exists():
        return []
    # A killed server may have left a part of a line.
    lines = [
        line for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")
    ]
    return [json.loads(line) for line in lines]
