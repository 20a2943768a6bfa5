"""Serve a page of one's own that uses the JavaScript package, and the endpoint that it calls.

$ python docs/examples/own_page.py 8000                                  # then open http://127.0.0.1:8000/
"""

import asyncio
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tidewire_server import Server, Stream

HERE = Path(__file__).parent
server = Server()


@server.endpoint
async def poem(stream: Stream[str], topic: str = "rivers") -> None:
    """Write a poem, word by word."""
    for word in f"All {topic} run into the sea; yet the sea is not full.".split():
        stream.append(f"{word} ")
        await asyncio.sleep(0.2)


routes = [
    Route("/", lambda _: FileResponse(HERE / "own_page.html")),
    Mount("/tidewire", StaticFiles(directory=HERE.parents[1] / "clients/javascript/src")),
    Mount("/ai", server.app),
]
if __name__ == "__main__":
    uvicorn.run(Starlette(routes=routes), port=int(sys.argv[1]))
