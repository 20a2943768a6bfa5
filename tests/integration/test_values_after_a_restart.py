"""Values of items after a restart of their server: what `continue` keeps, and what an item has before it runs again."""

import asyncio
from typing import Any

import pytest

from support.reference_server import QUICK, Peer, data, eventually, serving
from tidewire_server import Context, Server, Stream


def make_server(log: str, **settings: Any) -> Server:
    server = Server(**(QUICK | {"log": log, "default_concurrency_limit": 1} | settings))

    @server.endpoint(on_restart="continue", initial="Title: ")
    async def emptied(stream: Stream[str], ctx: Context) -> None:
        if ctx.attempt == 1:
            stream.truncate(len("Title: "))
            await asyncio.sleep(3600)
        stream.append(f"{ctx.previous!r} {stream.value!r}")

    @server.endpoint(on_restart="continue", initial="Title: ")
    async def kept(stream: Stream[str], ctx: Context) -> None:
        stream.append(f"{ctx.attempt}")
        await asyncio.sleep(3600 if ctx.attempt == 1 else 0)

    @server.endpoint(columns=["/text"], initial={"text": "", "n": 0})
    async def long_log(stream: Stream[dict[str, Any]], ctx: Context) -> None:
        for _ in range(30):
            stream.append("x" * 700, at="/text")
            await asyncio.sleep(0.01)
        await asyncio.sleep(3600 if ctx.attempt == 1 else 0)

    return server


def item(peer: Peer, job: str) -> Any:
    return peer.job(job)["state"]["items"][0]


@pytest.fixture
def log(tmp_path):
    return f"sqlite:///{tmp_path / 'log.db'}"


@pytest.mark.parametrize(
    ("endpoint", "before", "after"), [("emptied", "", "'' ''"), ("kept", "Title: 1", "Title: 12")]
)
def test_a_job_that_continues_keeps_its_value_even_if_it_is_empty(log, endpoint, before, after):
    with serving(make_server(log)) as peer:
        job = peer.start(endpoint)
        eventually(lambda: item(peer, job) == {"status": "running", "value": before})
    with serving(make_server(log)) as peer:
        assert peer.ended(job)["state"]["items"][0]["value"] == after


def test_a_job_whose_first_events_are_gone_begins_again_with_the_initial_value(log):
    with serving(make_server(log, max_log_bytes=3000)) as peer:
        job = peer.start("long_log")
        eventually(lambda: len(item(peer, job)["value"]["text"]) == 30 * 700)
        cursor = peer.job(job)["cursor"]
    with serving(make_server(log, max_log_bytes=100_000)) as peer, peer.stream(job, cursor) as reading:
        restart = data(reading.until("snapshot"))
        assert restart["reason"] == "restart"
        assert restart["state"]["items"][0]["value"] == {"text": "", "n": 0}
