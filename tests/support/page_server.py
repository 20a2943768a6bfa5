"""Server whose endpoints show each view of the page at `/`, for its tests and its pictures."""

import asyncio
import base64
import math
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema
from starlette.requests import HTTPConnection

from tidewire_server import Append, Context, ItemError, Server, Stream

WORDS = ("the", "tide", "comes", "in", "and", "né", "😀", "goes", "out", "while", "a", "job", "runs", "on")

Png = Annotated[
    str, WithJsonSchema({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"})
]


def sentence(words: int) -> str:
    """Return the text that the endpoint `talk` produces."""
    return "".join(WORDS[at % len(WORDS)] + (".\n" if at % 14 == 13 else " ") for at in range(words))


def png(width: int, height: int, pixels: bytes) -> str:
    """Return an RGB picture as base64."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + pixels[at : at + 3 * width] for at in range(0, 3 * width * height, 3 * width))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def picture(step: int, steps: int, size: int = 192) -> str:
    """Return a picture of waves, which has less noise with each step."""
    noise, seed = 1 - step / steps, 1
    pixels = bytearray()
    for y in range(size):
        for x in range(size):
            seed = (1103515245 * seed + 12345) % 2**31
            wave = 0.5 + 0.5 * math.sin(x / 19 + 2.2 * math.sin(y / 31)) * math.cos(y / 23)
            value = (1 - noise) * wave + noise * seed / 2**31
            pixels += bytes((int(20 + 60 * value), int(70 + 120 * value), int(110 + 130 * value)))
    return png(size, size, bytes(pixels))


class Model(BaseModel):
    layers: int = Field(12, ge=1, le=96, description="Number of layers.")
    optimizer: Literal["adamw", "sgd", "lion"] = Field("adamw", description="Rule for the updates.")
    learning_rate: float = Field(0.003, gt=0, description="Step size at the beginning.")
    resume: bool = Field(False, description="Continue from the last checkpoint.")


class Given(BaseModel):
    prompt: str = Field(max_length=2000)
    note: str = "two\r\nlines"
    flag: bool | None = None
    n: Annotated[int | None, WithJsonSchema({"type": ["integer", "null"], "maximum": 1000, "default": 5})] = (
        Field(5, le=1000)
    )
    s: str | None = "x"
    big: int = 1
    f: float = 1.0


class Labels(BaseModel):
    model_config = ConfigDict(extra="allow")


def page_server(**settings: Any) -> Server:
    """Return the server."""
    server = Server(**settings)

    @server.endpoint(concurrency_limit=None, examples=[{"words": 300}, {"words": 40, "pause": 0.2}])
    async def talk(words: int = 120, pause: float = 0.03, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        """Write a text, word by word."""
        text = sentence(words)
        start = 0
        for at, word in enumerate(text.replace("\n", " ").split(" ")[:words]):
            end = start + len(word) + 1
            stream.append(text[start:end])
            start = end
            stream.progress(at + 1, words, unit="word")
            await asyncio.sleep(pause)

    @server.endpoint(concurrency_limit=None, examples=[{}, {"optimizer": "lion", "layers": 24}])
    async def train(model: Model) -> AsyncIterator[dict[str, Any]]:
        """Pretend to train a model, and report what changes."""
        value: dict[str, Any] = {
            "epoch": 0,
            "best": {"loss": None, "step": None},
            "losses": [],
            "config": model.model_dump(),
        }
        for step in range(60):
            loss = round(2.5 / (1 + step / 9) + 0.05 * math.sin(step), 4)
            value["epoch"] = step // 10
            value["losses"].append(loss)
            if step % 4 == 0:
                value["best"] = {"loss": loss, "step": step}
            yield value
            await asyncio.sleep(0.25)

    @server.endpoint(concurrency_limit=None, examples=[{"prompt": "waves, seen from above", "steps": 8}])
    async def draw(prompt: str, steps: int = 8, pause: float = 0.5, stream: Stream[Png] = None) -> None:  # type: ignore[assignment]
        """Draw a picture that refines itself step by step."""
        for step in range(1, steps + 1):
            stream.set("", picture(step, steps))
            stream.progress(step, steps, unit="step")
            await asyncio.sleep(pause)

    @server.endpoint(concurrency_limit=None)
    async def invert(image: Png = "") -> int:
        """Take a picture, and return the size of its base64."""
        return len(image)

    @server.endpoint(concurrency_limit=None)
    async def caption(scored: bool = True) -> dict[str, Any]:
        """Describe a picture."""
        return {"text": "a cat"} | ({"score": 0.4} if scored else {})

    @server.endpoint(concurrency_limit=1)
    async def wait_in_line(seconds: float = 3.0) -> AsyncIterator[Append[str]]:
        """One at a time, so that others wait in the queue."""
        for at in range(int(seconds * 10)):
            yield Append(f"{at} ")
            await asyncio.sleep(0.1)

    @server.endpoint(concurrency_limit=None)
    async def fail(after: int = 3) -> AsyncIterator[Append[str]]:
        """Fail after some words."""
        for at in range(after):
            yield Append(f"word {at} ")
            await asyncio.sleep(0.05)
        raise ItemError("the picture of the cat has no cat in it", code="example.no_cat")

    @server.endpoint(concurrency_limit=None, on_restart="continue")
    async def count_up(n: int, ctx: Context, pause: float = 0.05) -> AsyncIterator[Append[list[int]]]:
        """Count, and continue after a restart."""
        for number in range(len(ctx.previous or ()), n):
            yield Append([number])
            await asyncio.sleep(pause)

    @server.endpoint(
        concurrency_limit=None, examples=[{"flag": False, "n": None, "s": "", "prompt": "one\ntwo"}]
    )
    async def echo(given: Given) -> dict[str, Any]:
        """Return the input."""
        return given.model_dump()

    @server.endpoint(concurrency_limit=None)
    async def label(labels: Labels) -> dict[str, Any]:
        """Return members of any name."""
        return labels.model_dump()

    @server.endpoint(concurrency_limit=None)
    async def note(count: int, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        """Write notes."""
        for number in range(count):
            stream.note(f"note {number}")

    @server.endpoint(batch=True, max_batch_size=8, batch_timeout=0.02)
    def lengths(text: list[str]) -> list[int]:
        """Measure texts, many in one call."""
        return [len(each) for each in text]

    _add_floods(server)
    return server


def application_server(**settings: Any) -> Server:
    """Return the server as a part of an application whose session cookie contains the name of the account."""
    return page_server(principal=lambda scope: HTTPConnection(scope).cookies.get("session"), **settings)


VOCABULARY = [*(f" {word}" for word in WORDS), ".\n", "é", "<end>"]
"""Texts of the tokens of `flood_tokens`."""


def _add_floods(server: Server) -> None:
    """Add endpoints that change their value very often: as a text, as an object, and as tokens with candidates."""

    async def paced(messages: int, rate: float) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for at in range(messages):
            yield at
            await asyncio.sleep(max(0.0, begun + (at + 1) / rate - loop.time()))

    @server.endpoint(concurrency_limit=None)
    async def flood_text(messages: int = 1000, rate: float = 200, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        async for at in paced(messages, rate):
            stream.append(VOCABULARY[at % len(WORDS)] + ("\n" if at % 20 == 19 else ""))

    @server.endpoint(
        concurrency_limit=None,
        columns=["/rows"],
        initial=lambda given: {
            "step": 0,
            "rate": 0.0,
            "best": {"loss": 9.0, "note": ""},
            "rows": [],
            "names": {},
        },
    )
    async def flood_tree(messages: int = 1000, rate: float = 200, stream: Stream[Any] = None) -> None:  # type: ignore[assignment]
        async for at in paced(messages, rate):
            match at % 4:
                case 0:
                    stream.set("/step", at)
                case 1:
                    stream.set("/best", {"loss": 9 / (at + 1), "note": sentence(at % 9)})
                case 2:
                    stream.append([{"at": at, "values": [at, at / 2]}], at="/rows")
                case _:
                    stream.set(f"/names/n{at % 50}", at)

    names = ("token_ids", "logprobs", "top_ids", "top_logprobs")

    @server.endpoint(
        concurrency_limit=None,
        columns=["/text", *(f"/{name}" for name in names)],
        initial=lambda given: {"text": given.prompt, **{name: [] for name in names}},
        capabilities={"logprobs": {"max_top": 5}},
        links={
            "vocabulary": {
                "hash": "1",
                "tokens": [base64.b64encode(one.encode()).decode() for one in VOCABULARY],
                "special": [16],
            }
        },
    )
    async def flood_tokens(
        messages: int = 1000,
        rate: float = 200,
        prompt: str = "",
        stream: Stream[Any] = None,  # type: ignore[assignment]
    ) -> None:
        async for at in paced(messages, rate):
            chosen = at % 15
            others = [(chosen + each - at % 5) % 15 for each in range(5)]
            logprobs = [round(-0.1 - each - (at * 7 % 13) / 3, 4) for each in range(5)]
            stream.row(VOCABULARY[chosen], chosen, logprobs[at % 5], others, logprobs)
