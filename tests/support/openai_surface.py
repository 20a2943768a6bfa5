"""Servers for tests of the OpenAI surface: the bundled model with a chat template, and a generation in steps of a test."""

import asyncio
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from openai import OpenAI, OpenAIError
from pydantic import BaseModel, ConfigDict

from tidewire_server import ItemError, Server, Stream
from tidewire_server.default_model import default_model
from tidewire_server.openai import add_openai

ALIAS = "gpt-5.5"
"""Model name in the examples of the package `openai`."""

CONTEXT = 256
"""Tokens of the prompt and the text together in the model of `chat_model`."""

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def chat_model(folder: Path) -> Path:
    """Copy the bundled model into a folder, and add a chat template. Its context is short, because many requests fill it."""
    copied = folder / "chat"
    shutil.copytree(default_model(), copied, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (copied / "chat_template.jinja").write_text(TEMPLATE)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return copied


def openai_client(url: str, **options: Any) -> OpenAI:
    options = {"api_key": "any", "max_retries": 0, "timeout": 30} | options
    return OpenAI(base_url=f"{url}/openai/v1", **options)


def read_until_error(stream: Iterable[Any]) -> tuple[list[Any], OpenAIError]:
    """Read a stream that ends with an error. Return what was read before, and the error."""
    found: list[Any] = []
    try:
        found.extend(stream)  # It keeps what it got before an exception.
    except OpenAIError as error:
        return found, error
    raise AssertionError(f"the stream ended without an error, after {found[-1:]}")


class Steps(BaseModel):
    """Input of the generation in steps. Each line of the prompt, or of the last message, is one step."""

    model_config = ConfigDict(extra="allow")
    prompt: str = ""
    messages: list[dict[str, str]] = []


class Text(BaseModel):
    text: str = ""
    finish_reason: str | None = None


def stepwise_server(**settings: Any) -> Server:
    """Return a server whose `generate` executes the lines of its prompt: `+TEXT` appends, `-N` removes the last N code points, `=TEXT` replaces
    the whole text, `sleep S` waits, `wait FILE` waits until a file exists, `read FILE` appends its text, and `fail` fails.
    """
    server = Server(**settings)

    @server.endpoint(columns=["/text"], initial={"text": "", "finish_reason": None}, concurrency_limit=None)
    async def generate(steps: Steps, stream: Stream[Text]) -> None:
        text = steps.messages[-1]["content"] if steps.messages else steps.prompt
        for line in text.split("\n"):
            kind, rest = line[:1], line[1:]
            if kind == "+":
                stream.append(rest, at="/text")
            elif kind == "-":
                stream.truncate(int(rest), at="/text")
            elif kind == "=":
                stream.truncate(len(stream.value["text"]), at="/text")
                stream.append(rest, at="/text")
            elif line.startswith("sleep "):
                await asyncio.sleep(float(line.removeprefix("sleep ")))
            elif line.startswith("wait "):
                async with asyncio.timeout(30):
                    while not Path(line.removeprefix("wait ")).exists():
                        await asyncio.sleep(0.01)
            elif line.startswith("read "):
                stream.append(Path(line.removeprefix("read ")).read_text(), at="/text")
            elif line == "fail":
                raise ItemError("the step failed on purpose", code="internal")
            await asyncio.sleep(0)
        stream.usage(prompt_tokens=1, completion_tokens=2)
        stream.set("/finish_reason", "stop")

    add_openai(server)
    return server
