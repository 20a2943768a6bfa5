"""Server whose endpoints show what the page at `/` can do: `tidewire serve docs/examples/pictured_server.py`."""

import asyncio
import base64
import math
import random
import struct
import zlib
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from tidewire_server import Append, ItemError, Server, Stream
from tidewire_server.generation import add_generate

SIZE = 256
Png = Annotated[
    str, WithJsonSchema({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"})
]

server = Server(cancel_timeout=0.5, shutdown_timeout=0.5)
add_generate(server)


class Training(BaseModel):
    layers: int = Field(12, ge=1, le=96, description="Number of layers.")
    optimizer: Literal["adamw", "sgd", "lion"] = Field("adamw", description="Rule for the updates.")
    learning_rate: float = Field(0.003, gt=0, description="Step size at the beginning.")
    resume: bool = Field(False, description="Continue from the last checkpoint.")


@server.endpoint(concurrency_limit=None, examples=[{"layers": 24, "optimizer": "lion"}, {}])
async def train(training: Training) -> AsyncIterator[dict[str, Any]]:
    """Train a model, and report its losses."""
    value: dict[str, Any] = {
        "epoch": 0,
        "best": {"step": None, "loss": None, "checkpoint": None},
        "config": training.model_dump(),
        "losses": [],
    }
    for step in range(200):
        loss = round(2.5 / (1 + step / 9) + 0.06 * math.sin(3 * step), 4)
        value["epoch"] = step // 8
        value["losses"].append(loss)
        if step % 3 == 0:
            value["best"] = {"step": step, "loss": loss, "checkpoint": f"runs/7/step-{step:04}.safetensors"}
        yield value
        await asyncio.sleep(0.25)


def picture(clear: float) -> str:
    """Return a picture of a landscape, from noise (0) to clear (1), as a PNG in base64."""
    noise = random.Random(7)
    rows = bytearray()
    for y in range(SIZE):
        rows.append(0)
        for x in range(SIZE):
            hills = [
                140 - 30 * n + 26 * math.sin(x / (23 + 9 * n) + 2 * n) + 9 * math.sin(x / 11 + n)
                for n in range(4)
            ]
            depth = sum(y > hill for hill in hills)
            sun = 255 * max(0.0, 1 - math.hypot(x - 190, y - 52) / 46)
            tone = (
                (250 - y / 1.4 + sun / 6, 178 - y / 2.2 + sun / 3, 150 + y / 4)
                if depth == 0
                else (92 - 19 * depth, 128 - 22 * depth, 150 - 20 * depth)
            )
            rows += bytes(
                int(min(255, max(0, clear * part + (1 - clear) * noise.randrange(256)))) for part in tone
            )

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", SIZE, SIZE, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


@server.endpoint(concurrency_limit=None, examples=[{"prompt": "hills at sunset, low sun", "steps": 8}])
async def paint(prompt: str, steps: int = 8, stream: Stream[Png] = None) -> None:  # type: ignore[assignment]  # noqa: ARG001
    """Paint a picture, which refines itself step by step."""
    for step in range(1, steps + 1):
        stream.set("", await asyncio.to_thread(picture, (step / steps) ** 0.6))
        stream.progress(step, steps, unit="step")
        await asyncio.sleep(0.6)


@server.endpoint(concurrency_limit=1, examples=[{"minutes": 3}])
async def transcribe(minutes: int = 3, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
    """Transcribe a recording. One at a time, so others wait in the queue."""
    words = [
        "so",
        "the",
        "tide",
        "came",
        "in",
        "while",
        "we",
        "were",
        "still",
        "talking",
        "and",
        "nobody",
        "had",
        "noticed",
        "how",
        "late",
        "it",
        "was",
    ]
    for at in range(minutes * 60):
        stream.append(words[at % len(words)] + (".\n" if at % len(words) == len(words) - 1 else " "))
        stream.progress(at + 1, minutes * 60, unit="second")
        await asyncio.sleep(0.08)


@server.endpoint(concurrency_limit=None)
async def caption(image: Png, words: int = 5) -> AsyncIterator[Append[str]]:  # noqa: ARG001
    """Describe a picture."""
    for word in ["a", "picture", "of", "a", "harbor", "at", "low"][:words]:
        yield Append(f"{word} ")
        await asyncio.sleep(0.05)
    raise ItemError("the picture is too dark to describe the rest", code="caption.too_dark")


@server.endpoint(batch=True, max_batch_size=16, batch_timeout=0.05)
def embed(text: list[str]) -> list[list[float]]:
    """Turn texts into vectors, many in one call."""
    return [[round(math.sin(len(each) + at), 4) for at in range(8)] for each in text]
