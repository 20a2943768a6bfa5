"""The server inside an application of somebody else's, under a path of it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from support.reference_server import eventually
from tidewire import Client
from tidewire_server import Server
from tidewire_server.serving.serve import bind, url_of


def test_mounted_under_a_path_it_serves_and_ends_with_its_application():
    server, ends = Server(), []

    @server.endpoint
    async def count(n: int = 3) -> AsyncIterator[list[int]]:
        counted: list[int] = []
        for number in range(n):
            counted.append(number)
            yield counted

    @server.endpoint
    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("function")

    @server.on_close
    async def close() -> None:
        ends.append("server")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await server.app.start()
        yield
        await server.app.close()

    site = Starlette(lifespan=lifespan)
    site.mount("/ai", server.app)
    listener = bind("127.0.0.1", 0)
    body = uvicorn.Server(uvicorn.Config(site, lifespan="on", ws="none", log_config=None))
    thread = threading.Thread(target=lambda: asyncio.run(body.serve(sockets=[listener])), daemon=True)
    thread.start()
    try:
        with Client(f"{url_of(listener)}/ai") as client:
            assert client.submit("count").result() == [0, 1, 2]
            running = client.submit("forever")
            eventually(lambda: running.read().status == "running")
    finally:
        body.should_exit = True
        thread.join()
        listener.close()
    assert ends == ["function", "server"]
