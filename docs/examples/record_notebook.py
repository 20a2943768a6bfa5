"""Execute a notebook against a server, and save a picture of its outputs.

python docs/examples/record_notebook.py docs/images

It needs the packages ipykernel, nbclient and nbconvert, and the browser Chromium.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nbclient import NotebookClient
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook

from tidewire_server import Context, ItemError, Server
from tidewire_server.generation import add_generate

CELLS = (
    """
from tidewire import AsyncClient, Client

client = Client({url!r})
job = client.submit("generate", prompt="def read_lines(path):", top_logprobs=5, seed=7)
job
""",
    """
batch = client.submit_batch("measure", [{{"length": 3}}, {{"length": 20}}, {{"length": -1}}])
batch
""",
    """
rulers = list(client.map("measure", [{{"length": n}} for n in range(500)]))
""",
    """
training = await AsyncClient({url!r}).submit("train", epochs=10)
training
""",
    """
import asyncio

await asyncio.sleep(1)
job.result()["finish_reason"], batch.results(return_exceptions=True)[0]
""",
)
SIZE = "900,840"


def measuring_server() -> Server:
    server = Server(default_concurrency_limit=4)
    add_generate(server, device="cpu")

    @server.endpoint
    def measure(length: int) -> str:
        """Draw a ruler."""
        if length < 0:
            raise ItemError("a length is not negative")
        return "|" + "-" * length + "|"

    @server.endpoint
    def train(ctx: Context, epochs: int) -> str:
        """Report progress, and stop before the end, so that the picture shows a running job."""
        ctx.progress(epochs * 0.7, epochs, unit="epochs")
        while not ctx.cancelled:
            time.sleep(0.05)
        return "stopped"

    return server


def executed(url: str) -> NotebookNode:
    """Execute the cells, and return the notebook with its outputs."""
    notebook = new_notebook(cells=[new_code_cell(cell.format(url=url).strip()) for cell in CELLS])
    NotebookClient(notebook, timeout=120).execute()
    for cell in notebook.cells:
        cell.source = cell.source.replace(url, "http://127.0.0.1:8000")
    return notebook


def screenshot(page: str, picture: Path) -> None:
    """Save what Chromium shows of a page."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "page.html").write_text(page, encoding="utf-8")
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        command = [
            browser,
            *flags,
            f"--window-size={SIZE}",
            f"--screenshot={picture}",
            f"file://{folder}/page.html",
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=60)


if __name__ == "__main__":
    with measuring_server().running() as url:
        notebook = executed(url)
    page, _ = HTMLExporter(mathjax_url="", require_js_url="").from_notebook_node(notebook)
    screenshot(page, Path(sys.argv[1], "notebook-light.png"))
