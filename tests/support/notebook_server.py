"""Server whose jobs wait for a file, and a notebook that runs its cells in a real kernel."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tidewire_server import ItemError, Server, Stream

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x1b]0;title\x07\u202egnp.exe"
"""Text that would run a script, change the terminal's title or reverse its own direction where it is not escaped."""


def notebook_server(**settings: Any) -> Server:
    server = Server(default_concurrency_limit=32, **settings)

    async def opened(gate: str) -> None:
        while gate and not Path(gate).exists():
            await asyncio.sleep(0.01)

    @server.endpoint
    async def story(text: str, stream: Stream[str], gate: str = "", steps: int = 1) -> None:
        for step in range(steps):
            stream.append(text)
            stream.progress(step + 1, steps + 1, unit="step")
        await opened(gate)
        stream.append(" The end.")

    @server.endpoint
    async def burst(pieces: int, stream: Stream[str]) -> None:
        for piece in range(pieces):
            stream.append(f"{piece} ")
            await asyncio.sleep(0.001)

    @server.endpoint
    async def refuse(text: str, gate: str = "") -> str:
        await opened(gate)
        raise ItemError(text)

    @server.endpoint
    async def tokens(texts: list[str], gate: str = "", last: float = -2.5) -> dict[str, Any]:
        await opened(gate)
        count = len(texts)
        logprobs = [*[-0.01] * (count - 1), last]
        candidates = [[text, "other"] for text in texts]
        return {
            "text": "".join(texts),
            "token_ids": [*range(count)],
            "token_text": texts,
            "logprobs": logprobs,
            "top_ids": [[at, count] for at in range(count)],
            "top_text": candidates,
            "top_logprobs": [[one, -3.0] for one in logprobs],
        }

    @server.endpoint
    async def repeat(value: Any) -> Any:
        return value

    return server


class Notebook(NotebookClient):
    """A notebook that runs one cell after the other in a kernel of its own, and keeps all messages of the kernel."""

    def __init__(self) -> None:
        super().__init__(new_notebook(), timeout=60, allow_errors=True)
        self.messages: list[dict[str, Any]] = []

    def process_message(self, msg: Any, cell: NotebookNode, cell_index: int) -> Any:
        self.messages.append(msg)
        return super().process_message(msg, cell, cell_index)

    def run(self, source: str) -> int:
        """Run a cell to its end, and return its number."""
        self.nb.cells.append(new_code_cell(source))
        at = len(self.nb.cells) - 1
        self.execute_cell(self.nb.cells[at], at)
        return at

    def outputs(self, at: int) -> list[Any]:
        return list(self.nb.cells[at].outputs)

    def shown(self, at: int) -> dict[str, str]:
        """Return the formats of the first output with formats of a cell."""
        return next(dict(each["data"]) for each in self.outputs(at) if "data" in each)

    def printed(self, at: int) -> str:
        return "".join(each["text"] for each in self.outputs(at) if each["output_type"] == "stream")

    def updates(self) -> list[dict[str, str]]:
        """Return the formats of all updates of outputs that the kernel has sent while cells ran."""
        sent = ("update_display_data", "display_data")
        return [each["content"]["data"] for each in self.messages if each["header"]["msg_type"] in sent]


@contextmanager
def notebook(errors: Path) -> Iterator[Notebook]:
    """Start a kernel, whose error output goes to a file."""
    client = Notebook()
    with errors.open("w") as stream:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with client.setup_kernel(env=env, stderr=stream, stdout=stream):
            yield client
