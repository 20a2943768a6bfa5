"""A failed or cancelled item keeps the value that its function yielded last ([TW-JOB-057])."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from support.reference_server import QUICK, Fold, serving
from tidewire_server import Context, Server

LONG = 20_000
"""Number of elements. A full comparison takes so long that the server skips it for the following step."""

KINDS = [
    ("in_thread", "fails"),
    ("in_thread", "is cancelled"),
    ("on_loop", "fails"),
    ("on_loop", "is cancelled"),
    ("rows_in_thread", "fails"),
    ("rows_on_loop", "fails"),
    ("rows_on_loop", "is cancelled"),
]
yielded, overwritten, release = threading.Event(), threading.Event(), threading.Event()


def steps() -> Iterator[list[str]]:
    value = ["as it was"] * LONG
    for _ in range(3):  # The server compares each of these values completely.
        yield value
    value[LONG // 2] = "changed"
    yield value
    yielded.set()


def make_server() -> Server:
    server = Server(**QUICK)

    @server.endpoint
    def in_thread(how: str, ctx: Context) -> Iterator[list[str]]:
        yield from steps()
        if how == "fails":
            raise RuntimeError
        while not ctx.cancelled:
            threading.Event().wait(0.002)

    @server.endpoint
    def one_more_step(how: str, ctx: Context) -> Iterator[list[int]]:
        value = [0] * LONG
        for _ in range(4):
            yield value
        yielded.set()
        while not ctx.cancelled:
            threading.Event().wait(0.002)
        value[:] = [1] * LONG
        yield value

    @server.endpoint
    def keeps_running(how: str) -> Iterator[list[str]]:
        value = None
        for value in steps():
            yield value
        value[:] = ["never yielded"] * LONG
        overwritten.set()
        release.wait(20)

    @server.endpoint
    async def on_loop(how: str) -> AsyncIterator[list[str]]:
        for value in steps():
            yield value
        if how == "fails":
            raise RuntimeError
        await asyncio.Event().wait()

    @server.endpoint(batch=True)
    def rows_in_thread(how: list[str]) -> Iterator[dict[int, list[str]]]:
        for value in steps():
            yield dict.fromkeys(range(len(how)), value)
        raise RuntimeError

    @server.endpoint(batch=True)
    async def rows_on_loop(how: list[str]) -> AsyncIterator[dict[int, list[str]]]:
        for value in steps():
            yield dict.fromkeys(range(len(how)), value)
        if "fails" in how:
            raise RuntimeError
        await asyncio.Event().wait()

    return server


@pytest.fixture(scope="module")
def peer():
    with serving(make_server()) as peer:
        yield peer


@pytest.mark.parametrize(("endpoint", "how"), KINDS)
def test_the_last_yielded_change_in_the_middle_of_a_long_value_is_kept(peer, endpoint, how):
    yielded.clear()
    job = peer.start(endpoint, {"how": how})
    assert yielded.wait(10)
    if how == "is cancelled":
        peer.http.post(f"/v1/jobs/{job}/cancel")
    ended = peer.ended(job)
    (item,) = ended["state"]["items"]
    assert ended["status"] == ("cancelled" if how == "is cancelled" else "failed")
    assert len(item["value"]) == LONG
    assert item["value"][LONG // 2] == "changed"
    assert Fold(keep_states=False).take(peer.events(job, "0-0")).items == [item]


def test_a_yield_after_cancellation_does_not_mix_two_values(peer):
    yielded.clear()
    job = peer.start("one_more_step", {"how": ""})
    assert yielded.wait(10)
    peer.http.post(f"/v1/jobs/{job}/cancel")
    ended = peer.ended(job)
    assert ended["status"] == "cancelled"
    assert len(set(ended["state"]["items"][0]["value"])) == 1


def test_a_value_mutated_after_its_item_ended_is_not_published(peer):
    overwritten.clear()
    job = peer.start("keeps_running", {"how": ""})
    try:
        assert overwritten.wait(10)
        peer.http.post(f"/v1/jobs/{job}/cancel")
        ended = peer.ended(job)
    finally:
        release.set()
    (item,) = ended["state"]["items"]
    assert item["status"] == "cancelled"
    assert Fold(keep_states=False).take(peer.events(job, "0-0")).items == [item]
    middle = item["value"].pop(LONG // 2)
    assert middle in {"as it was", "changed"}
    assert set(item["value"]) == {"as it was"}
