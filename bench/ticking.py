"""Source code of the servers that bench/streams.py compares. Each sends tokens at fixed times or at full speed.

The placeholder `{window}` in the tidewire server is the merge window in seconds.
"""

import json
from typing import Any

from measured import installed

TICKS = '''
import asyncio, sys, time

async def ticks(n, rate, phase):
    """Yield tokens at fixed times. Each token contains its due time."""
    begin = time.monotonic() + phase
    for i in range(n):
        due = begin + i / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()) if i == 0 or rate < 1e6 else 0)
        yield f"{due:.4f},"
'''

OURS = f"""{TICKS}
from tidewire_server import Server, Stream

server = Server(merge_window={{window}}, default_concurrency_limit=None, max_streams_per_principal=5000, max_queue_size=5000)

@server.endpoint
async def tick(stream: Stream[str], n: int, rate: float, phase: float) -> None:
    async for token in ticks(n, rate, phase):
        stream.append(token)

@server.endpoint
async def hello() -> str:
    return "hello"

server.run(port=0, port_file=sys.argv[1])
"""

STARLETTE = f"""{TICKS}
import pathlib, socket
import uvicorn
from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.routing import Route

async def tick(request):
    query = request.query_params
    numbers = int(query["n"]), float(query["rate"]), float(query["phase"])

    async def events():
        at = 0
        async for token in ticks(*numbers):
            at += 1
            yield {{"id": f"1-{{at}}", "data": token}}

    return EventSourceResponse(events())

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(2048)
pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
app = Starlette(routes=[Route("/tick", tick)])
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
"""

RAW = f"""{TICKS}
import pathlib, socket
import uvicorn
from urllib.parse import parse_qs

async def app(scope, receive, send):
    query = parse_qs(scope["query_string"].decode())
    numbers = int(query["n"][0]), float(query["rate"][0]), float(query["phase"][0])
    headers = [(b"content-type", b"text/event-stream")]
    await send({{"type": "http.response.start", "status": 200, "headers": headers}})
    at = 0
    async for token in ticks(*numbers):
        at += 1
        frame = b'id:1-%d\\ndata:"%b"\\n\\n' % (at, token.encode())
        await send({{"type": "http.response.body", "body": frame, "more_body": True}})
    await send({{"type": "http.response.body", "body": b"", "more_body": False}})

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(2048)
pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
config = uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off")
uvicorn.Server(config).run(sockets=[listener])
"""

FASTAPI = f"""{TICKS}
import pathlib, socket
from collections.abc import AsyncIterator
import uvicorn
from fastapi import FastAPI
from fastapi.sse import EventSourceResponse, ServerSentEvent

app = FastAPI()

@app.get("/tick", response_class=EventSourceResponse)
async def tick(n: int, rate: float, phase: float) -> AsyncIterator[ServerSentEvent]:
    at = 0
    async for token in ticks(n, rate, phase):
        at += 1
        yield ServerSentEvent(id=f"1-{{at}}", data=token)

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen(2048)
pathlib.Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
"""

GRADIO = f"""{TICKS}
import pathlib
import gradio

async def tick(n, rate, phase):
    text = ""
    async for token in ticks(int(n), rate, phase):
        text += token
        yield text

with gradio.Blocks(analytics_enabled=False) as app:
    numbers = [gradio.Number(), gradio.Number(), gradio.Number()]
    gradio.Button().click(tick, numbers, gradio.Textbox(), api_name="tick", concurrency_limit=None)
app.queue(max_size=5000).launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
pathlib.Path(sys.argv[1]).write_text(str(app.server_port))
app.block_thread()
"""


def post(port: int, path: str, body: dict[str, Any], accept: str) -> bytes:
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAccept: {accept}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


def get(port: int, path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()


def ask_ours(port: int, n: int, rate: float, phase: float) -> bytes:
    numbers = {"n": n, "rate": rate, "phase": phase}
    return post(port, "/v1/endpoints/tick/jobs", {"input": numbers}, "text/event-stream")


def ask_starlette(port: int, n: int, rate: float, phase: float) -> bytes:
    return get(port, f"/tick?n={n}&rate={rate}&phase={phase}")


def servers(gradio: bool = False, window: float = 0.005) -> dict[str, tuple[str, Any]]:
    found: dict[str, tuple[str, Any]] = {"tidewire": (OURS.replace("{window}", str(window)), ask_ours)}
    if installed("sse_starlette"):
        found["sse-starlette"] = (STARLETTE, ask_starlette)
    if gradio and installed("gradio"):
        found["gradio"] = (GRADIO, None)
    return found
