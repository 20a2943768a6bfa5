"""Server whose jobs tests watch in a terminal."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from tidewire_server import Append, Context, ItemError, Server, Stream

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e[bold]x[/bold]\r\t"
"""Text that would act on a terminal, or on the markup of the library rich."""


class Message(BaseModel):
    role: Literal["system", "user", "assistant"]
    content: str


def words(count: int) -> str:
    """Return the text of the endpoint `tell`."""
    return "".join(f"word{number} " for number in range(count))


def terminal_server(**settings: object) -> Server:
    server = Server(**settings)

    @server.endpoint(on_restart="continue", concurrency_limit=None)
    async def tell(count: int, stream: Stream[str], go: str = "", pause_at: int = 0) -> None:
        """Tell a story. After word number `pause_at`, wait for the file `go`."""
        for number in range(len((stream.value or "").split()), count):
            while go and number == pause_at and not Path(go).exists():
                await asyncio.sleep(0.02)
            stream.append(f"word{number} ")
            stream.progress(number + 1, count, unit="word")
            await asyncio.sleep(0.005)

    @server.endpoint(concurrency_limit=1)
    async def forever(stream: Stream[str]) -> None:
        stream.append("on and on ")
        await asyncio.sleep(3600)

    @server.endpoint(concurrency_limit=None)
    async def hostile(stream: Stream[dict[str, str]]) -> None:
        stream.progress(1, 2, unit=HOSTILE, phase=HOSTILE)
        stream.note(HOSTILE)
        stream.set("", {HOSTILE: HOSTILE})
        await asyncio.sleep(0.3)

    @server.endpoint(concurrency_limit=None)
    async def hostile_text(stream: Stream[str]) -> None:
        stream.append(HOSTILE * 20)

    @server.endpoint(concurrency_limit=None, columns=["/text"])
    async def speak(
        go: str = "", logprobs: bool = False, top_logprobs: int = 0, token_text: bool = False
    ) -> AsyncIterator[dict[str, Any]]:
        """Generate a probable, a less probable and an improbable token. Then wait for the file `go`."""
        tokens = (("sure", 0.95), (" maybe", 0.6), (" rare", 0.01))
        value: dict[str, Any] = {name: [] for name in ("token_text", "logprobs", "top_text", "top_logprobs")}
        value["text"] = ""
        for text, probability in tokens:
            value["text"] += text
            value["token_text"].append(text)
            value["logprobs"].append(math.log(probability))
            value["top_text"].append([text, HOSTILE][:top_logprobs])
            value["top_logprobs"].append([math.log(probability), None][:top_logprobs])
            yield value
        while go and not Path(go).exists():
            await asyncio.sleep(0.02)
        yield value | {"finish_reason": "stop"}

    @server.endpoint(batch=True, max_batch_size=4)
    async def square(number: list[int], ctx: Context) -> list[int | ItemError]:
        await asyncio.sleep(0.05)
        return [ItemError(HOSTILE if each == 7 else "odd") if each % 2 else each * each for each in number]

    @server.endpoint(concurrency_limit=None)
    async def generate(messages: list[Message], pause: float = 0.0) -> AsyncIterator[Append[str]]:
        """Answer the last message."""
        yield Append(f"{len(messages)} messages, ")
        await asyncio.sleep(pause)
        yield Append(f"the last is {messages[-1].content!r}")

    return server
