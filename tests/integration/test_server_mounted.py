"""The server mounted under a path of another ASGI application."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

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


def test_functions_of_a_server_that_starts_at_its_first_request_do_not_inherit_the_context_of_this_request():
    server, user = Server(), ContextVar("user", default="nobody")

    @server.endpoint
    async def user_on_loop() -> str:
        return user.get()

    @server.endpoint
    def user_in_thread() -> str:
        return user.get()

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        user.set(dict(scope["headers"])[b"x-user"].decode())
        await server.app(scope, receive, send)

    async def values() -> list[str]:
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(application), base_url="http://test"
        ) as client:
            found = []
            for name in ("user_on_loop", "user_in_thread"):
                response = await client.post(
                    f"/v1/endpoints/{name}/jobs", json={"input": {}}, headers={"x-user": "ann"}
                )
                events = await client.get(response.headers["location"] + "/events", headers={"x-user": "bob"})
                assert events.status_code == 200
                job = await client.get(response.headers["location"], headers={"x-user": "bob"})
                found.append(job.json()["state"]["items"][0]["value"])
            await server.app.close()
            return found

    assert asyncio.run(values()) == ["nobody", "nobody"]


def test_a_mounted_server_is_found_if_the_asgi_server_does_not_add_the_root_path_to_the_path():
    server = Server()

    @server.endpoint
    async def one() -> int:
        return 1

    site = Starlette()
    site.mount("/ai", server.app)

    async def link(root_path: str, path: str) -> str:
        transport = httpx2.ASGITransport(site, root_path=root_path)
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            response = await client.get(f"{path}/v1/endpoints/one")
        await server.app.close()
        assert response.status_code == 200, response.text
        return response.json()["links"]["self"]

    # uvicorn adds `root_path` to the path, as ASGI requires. hypercorn, granian and FastAPI(root_path=…) do not.
    for path in ("/ai", "/proxy/ai"):
        assert asyncio.run(link("/proxy", path)) == "/proxy/ai/v1/endpoints/one"
    assert asyncio.run(link("/ai", "/ai/ai")) == "/ai/ai/v1/endpoints/one"
