"""Streams of the server under uvicorn with TLS: both event loops, both HTTP parsers."""

import asyncio
import os
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from support.sample_server import sentence
from support.server_process import ServerProcess
from tidewire import AsyncClient, Hooks
from tidewire_server.http.uvicorn.uvicorn_internals import unacknowledged_bytes


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trust(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@contextmanager
def served(authority: trustme.CA, folder: Path, **options: Any) -> Iterator[str]:
    """Run the sample server under uvicorn with TLS in a process of its own, and yield its URL."""
    pem = folder / "certificate.pem"
    authority.issue_cert("localhost", "127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    settings = {"shutdown_timeout": 0.1, "cancel_timeout": 0.1, "heartbeat": 1, "retry": 0.1}
    options = {"ssl_certfile": str(pem), **options}
    function = "support.sample_server:sample_server_with_script"
    with ServerProcess(folder, function, uvicorn=options, **settings) as server:
        yield f"https://localhost:{server.port}"
    assert "Traceback" not in server.errors()


@pytest.mark.heavy
@pytest.mark.parametrize("http", ["httptools", "h11"])
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
async def test_streams_arrive_on_their_first_connection(
    authority: trustme.CA, trust: ssl.SSLContext, tmp_path: Path, loop: str, http: str
) -> None:
    with served(authority, tmp_path, loop=loop, http=http) as url:
        cuts: list[object] = []
        hooks = Hooks(on_reconnect=cuts.append)
        async with AsyncClient(url, verify=trust, hooks=hooks) as client:
            for words in (1, 12, 2_000, 20_000):
                job = await client.submit("talk", words=words)
                text = "".join([update.text async for update in job])
                assert text == sentence(words)
            slow = await client.submit("talk", words=40, slow=True)
            assert await slow.result() == sentence(40)
            assert cuts == []
        # The connection of a stream also serves the requests that follow on it.
        with httpx2.Client(base_url=url, verify=trust, timeout=20) as http_client:
            for _ in range(3):
                started = http_client.post("/v1/endpoints/talk/jobs", json={"input": {"words": 500}})
                assert started.status_code == 201
                assert http_client.get(started.json()["links"]["events"]).status_code == 200


async def test_nothing_is_unacknowledged_after_asyncio_closed_the_connection(
    authority: trustme.CA, trust: ssl.SSLContext
) -> None:
    """The writers of a stream and of its response can both close the connection, and asyncio's TLS transport has no
    buffer after the second close.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(
        lambda _, writer: accepted.append(writer), "127.0.0.1", 0, ssl=context
    )
    async with server:
        port = server.sockets[0].getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
        writer.close()
        writer.close()
        assert unacknowledged_bytes(writer.transport) == 0
        for each in accepted:
            each.close()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("loop", "http", "only"),
    [
        ("asyncio", "h11", ("--only", "resume", "--only", "state")),
        pytest.param("asyncio", "h11", (), marks=pytest.mark.slow),
        pytest.param("uvloop", "httptools", (), marks=pytest.mark.slow),
    ],
)
def test_the_suite_passes(
    authority: trustme.CA, tmp_path: Path, loop: str, http: str, only: tuple[str, ...]
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    with served(authority, tmp_path, loop=loop, http=http) as url:
        command = [sys.executable, "-m", "tidewire_conformance", url, "--endpoint", "talk", *only]
        environment = os.environ | {"SSL_CERT_FILE": str(tmp_path / "authority.pem")}
        run = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
    assert run.returncode == 0, run.stdout
    assert " pass " in run.stdout
