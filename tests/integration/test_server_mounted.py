"""The server mounted under a path of another ASGI application."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette

from support.reference_server import eventually, serving
from tidewire import Client
from tidewire_server import Server
from tidewire_server.serving.listener import bind, url_of


def test_a_mounted_server_serves_and_closes_with_its_application():
    server, closed = Server(), []

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
            closed.append("function")

    @server.on_close
    async def close() -> None:
        closed.append("server")

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await server.app.start()
        yield
        await server.app.close()

    site = Starlette(lifespan=lifespan)
    site.mount("/ai", server.app)
    listener = bind("127.0.0.1", 0)
    uvicorn_server = uvicorn.Server(uvicorn.Config(site, lifespan="on", ws="none", log_config=None))
    thread = threading.Thread(
        target=lambda: asyncio.run(uvicorn_server.serve(sockets=[listener])), daemon=True
    )
    thread.start()
    try:
        with Client(f"{url_of(listener)}/ai") as client:
            assert client.submit("count").result() == [0, 1, 2]
            running = client.submit("forever")
            eventually(lambda: running.read().status == "running")
    finally:
        uvicorn_server.should_exit = True
        thread.join()
        listener.close()
    assert closed == ["function", "server"]


def test_a_function_that_fails_at_the_end_does_not_keep_the_others_from_being_called(caplog):
    server, closed = Server(), []

    async def fail() -> None:
        raise RuntimeError("the engine hangs")

    async def close() -> None:
        closed.append("server")

    server.on_close(fail)
    server.on_close(close)
    with serving(server):
        pass
    assert closed == ["server"]
    (logged,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "the engine hangs" in str(logged.exc_info)
