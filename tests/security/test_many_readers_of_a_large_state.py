"""Readers of a large state: memory does not grow with their number, and the state is encoded once for all of them."""

import asyncio
import contextlib
import gc
import socket
import threading
import tracemalloc

import pytest

from support.openai_surface import stepwise_server
from support.reference_server import QUICK, data, eventually, serving
from support.server_address import address_of
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire_server import Server, Stream
from tidewire_server.errors import ProblemError
from tidewire_server.jobs import shared_texts
from tidewire_server.jobs.shared_texts import MIN_SHARED_BYTES, SharedTexts
from tidewire_server.store.log_interface import StateAt

STATE_BYTES = 4_000_000
READERS = 15
MAX_UNSENT = 10**9


@pytest.fixture(scope="module")
def peer():
    server = Server(**QUICK, default_concurrency_limit=None)

    @server.endpoint
    def texts() -> list[str]:
        return ["x" * 100_000] * (STATE_BYTES // 100_000)

    @server.endpoint
    def numbers() -> list[int]:
        return list(range(shared_texts._MAX_NODES + 10_000))

    @server.endpoint
    async def large_event(stream: Stream[str]) -> None:
        stream.append("x" * 500_000)
        await asyncio.Event().wait()

    with serving(server) as peer:
        yield peer


@pytest.fixture
def encoded(monkeypatch):
    """List of the threads in which states were encoded."""
    threads = []
    encode = shared_texts._encode

    def count(view, changes):
        threads.append(threading.current_thread())
        return encode(view, changes)

    monkeypatch.setattr(shared_texts, "_encode", count)
    return threads


def request_and_stall(peer, path: str, stack: contextlib.ExitStack) -> None:
    """Send a request, wait for the start of its response, and leave the rest unread."""
    stuck = stack.enter_context(socket.socket())
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stuck.connect(address_of(peer.url))
    stuck.settimeout(30)
    stuck.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert stuck.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize("suffix", ["", "/events", "/events?diffs=0"])
def test_stalled_readers_of_a_state_share_one_copy_of_it(peer, suffix):
    job = peer.run("texts")["id"]
    with contextlib.ExitStack() as stack:
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(READERS):
            request_and_stall(peer, f"/v1/jobs/{job}{suffix}", stack)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    assert held < 2 * STATE_BYTES + READERS * 200_000


def test_stalled_readers_of_a_large_logged_event_share_one_copy_of_it(peer):
    job = peer.start("large_event")
    with contextlib.ExitStack() as stack:
        events = iter(stack.enter_context(peer.stream(job, "0-0")))
        while next(events).type != "message" or len(peer.job(job)["state"]["items"][0]["value"]) < 500_000:
            pass
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(READERS):
            request_and_stall(peer, f"/v1/jobs/{job}/events?after=0-0", stack)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    peer.http.post(f"/v1/jobs/{job}/cancel")
    assert held < 2 * 500_000 + READERS * 200_000


LONG = [f"/{number}{'x' * 1000}" for number in range(16)]
INPUTS = 64


def run_with_columns(peer, inputs: int) -> str:
    """Return the path of a job whose list of columns has 16 kB for each input."""
    job = peer.http.post("/v1/endpoints/columns/jobs", json={"inputs": [{}] * inputs}).json()
    peer.events(job["id"])
    return f"/v1/jobs/{job['id']}"


def list_of_jobs(peer) -> tuple[str, int]:
    """Return the path of a large list of jobs, and the memory that its text takes."""
    for _ in range(4):
        run_with_columns(peer, INPUTS // 4)
    return "/v1/jobs?limit=1000", INPUTS * sum(map(len, LONG))


def job_with_many_columns(peer) -> tuple[str, int]:
    """Return the path of a job with many columns, and the memory that its text takes: the state and the list of columns."""
    return run_with_columns(peer, INPUTS), 2 * INPUTS * sum(map(len, LONG))


def stream_with_many_columns(peer) -> tuple[str, int]:
    """Return the path of a stream that begins with a snapshot with many columns, and the memory that its text takes."""
    path, size = job_with_many_columns(peer)
    return f"{path}/events", size


def openai_response(peer) -> tuple[str, int]:
    """Return the path of a large response of the OpenAI surface, and the memory that its text takes."""
    body = {"model": "generate", "input": "+" + "x" * 1_000_000}
    found = peer.http.post("/openai/v1/responses", json=body).json()
    # orjson reserves 8 bytes for each character of a text.
    return f"/openai/v1/responses/{found['id']}", 8 * 1_000_000


@pytest.mark.parametrize(
    "large", [list_of_jobs, job_with_many_columns, stream_with_many_columns, openai_response]
)
def test_stalled_readers_of_a_large_body_share_one_copy_of_it(large):
    server = stepwise_server(**QUICK)

    @server.endpoint(columns=LONG, initial={name[1:]: "" for name in LONG})
    async def columns(stream: Stream[dict[str, str]]) -> None:
        stream.append("", at=LONG[0])

    with serving(server) as peer, contextlib.ExitStack() as stack:
        path, size = large(peer)
        assert len(peer.http.get(path).content) > 1_000_000
        tracemalloc.start()
        stack.callback(tracemalloc.stop)
        for _ in range(READERS):
            request_and_stall(peer, path, stack)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    assert held < 2 * size + READERS * 200_000


def test_unchanged_large_state_is_encoded_once_in_a_worker_thread(peer, encoded):
    job = peer.start("numbers")
    peer.events(job)
    encoded.clear()
    resources = [peer.http.get(f"/v1/jobs/{job}") for _ in range(3)]
    assert peer.http.head(f"/v1/jobs/{job}").headers["content-length"] == str(len(resources[0].content))
    assert len(encoded) <= 2  # The state before `done`, and the state with the members of `done`.
    assert {thread is threading.main_thread() or "to_thread" not in thread.name for thread in encoded} == {
        False
    }
    snapshot = data(next(event for event in peer.events(job) if event.type == "snapshot"))
    assert len(encoded) <= 2
    resource = resources[0].json()
    assert resource == resources[2].json()
    assert resource["status"] == "succeeded"
    assert resource["state"]["items"] == snapshot["state"]["items"]
    assert resource["state"]["usage"] == resource["done"]["usage"]


# ---- SharedTexts -------------------------------------------------------------------------------------------------


def state(size: int, seq: int = 1) -> StateAt:
    """Return a state whose JSON text has `size` bytes."""
    text = "x" * (size - len('{"a":""}'))
    return StateAt(Cursor(1, seq), (), Document({"a": text}, []).mark())


async def test_texts_above_the_limit_are_shared():
    texts = SharedTexts(MAX_UNSENT, MAX_UNSENT)
    small = state(MIN_SHARED_BYTES)
    assert await texts.state("alice", "j", small) is not await texts.state("alice", "j", small)
    large = state(MIN_SHARED_BYTES + 1)
    assert await texts.state("alice", "j", large) is await texts.state("alice", "j", large)
    assert await texts.state("alice", "j", large, {"b": 1}) is not await texts.state("alice", "j", large)
    assert await texts.state("alice", "k", large) is not await texts.state("alice", "j", large)
    assert await texts.state("alice", "j", state(MIN_SHARED_BYTES + 1, seq=2)) is not await texts.state(
        "alice", "j", large
    )


async def test_recent_texts_are_kept_up_to_their_limit(monkeypatch, encoded):
    size = MIN_SHARED_BYTES + 1
    monkeypatch.setattr(shared_texts, "_MAX_RECENT_BYTES", 2 * size)
    texts = SharedTexts(MAX_UNSENT, MAX_UNSENT)
    for job in ("a", "b", "a", "b"):
        await texts.state("alice", job, state(size))
    assert len(encoded) == 2
    await texts.state("alice", "c", state(size))
    await texts.state("alice", "b", state(size))
    assert len(encoded) == 3
    await texts.state("alice", "a", state(size))
    assert len(encoded) == 4


async def test_newer_state_of_a_job_replaces_the_kept_text(monkeypatch):
    monkeypatch.setattr(shared_texts, "_MAX_RECENT_BYTES", 10 * MIN_SHARED_BYTES)
    texts = SharedTexts(MAX_UNSENT, MAX_UNSENT)
    for seq in range(100):
        await texts.state("alice", "j", state(MIN_SHARED_BYTES + 1, seq))
    assert [len(text) for text in texts._in_use.values()] == [MIN_SHARED_BYTES + 1]


async def test_text_in_use_is_shared_after_it_is_no_longer_recent(monkeypatch, encoded):
    monkeypatch.setattr(shared_texts, "_MAX_RECENT_BYTES", 0)
    texts = SharedTexts(MAX_UNSENT, MAX_UNSENT)
    large = state(MIN_SHARED_BYTES + 1)
    used = await texts.state("alice", "j", large)
    assert await texts.state("alice", "j", large) is used
    del used
    await texts.state("alice", "j", large)
    assert len(encoded) == 2


async def test_concurrent_readers_wait_for_one_encoding(encoded):
    many = StateAt(Cursor(1, 1), (), Document({"a": list(range(20_000))}, []).mark())
    texts = SharedTexts(MAX_UNSENT, MAX_UNSENT)
    found = await asyncio.gather(*(texts.state("alice", "j", many) for _ in range(5)))
    assert len(encoded) == 1
    assert len({id(each) for each in found}) == 1


async def test_different_texts_in_use_are_limited_by_their_total_size():
    size = MIN_SHARED_BYTES + 1
    texts = SharedTexts(2 * size, 2 * size)
    used = [await texts.state("alice", "j", state(size, seq)) for seq in (1, 2)]
    for _ in range(2):
        with pytest.raises(ProblemError) as refused:
            await texts.state("alice", "j", state(size, 3))
    with pytest.raises(ProblemError):
        texts.events("alice", "j", Cursor(1, 1), Cursor(1, 2), b"x" * size)
    with pytest.raises(ProblemError):
        texts.body("alice", b"x" * size)
    assert (refused.value.problem.status, refused.value.problem.code) == (503, "unavailable")
    assert f"limit of {2 * size} bytes (max_unsent_bytes)" in str(refused.value)
    assert await texts.state("alice", "j", state(size, 1)) is used[0]
    used.pop()
    assert len(await texts.state("alice", "j", state(size, 3))) == size


async def test_texts_of_one_caller_have_a_share_of_the_limit():
    size = MIN_SHARED_BYTES + 1
    texts = SharedTexts(4 * size, 2 * size)
    used = [await texts.state("alice", "j", state(size, seq)) for seq in (1, 2)]
    for refused_text in (
        lambda: texts.state("alice", "j", state(size, 3)),
        lambda: texts.state("alice", "k", state(size)),
    ):
        with pytest.raises(ProblemError, match=r"of this caller.* \(max_unsent_bytes, max_share\)"):
            await refused_text()
    with pytest.raises(ProblemError):
        texts.body("alice", b"x" * size)
    others = [await texts.state("bob", "b", state(size)), texts.body("bob", b"x" * size)]
    assert texts.body("bob", b"x" * size) is others[1]
    with pytest.raises(ProblemError, match=r" \(max_unsent_bytes\)"):
        texts.body("carol", b"x" * size)
    used.clear()
    assert len(texts.body("carol", b"x" * size)) == size


async def test_single_text_may_exceed_the_limit():
    texts = SharedTexts(1, 1)
    first = await texts.state("alice", "j", state(MIN_SHARED_BYTES + 1))
    assert len(first) > 1
    del first
    assert await texts.state("alice", "j", state(MIN_SHARED_BYTES + 2, 2))


def test_stream_that_exceeds_the_limit_ends_with_goaway_and_a_later_one_succeeds():
    server = Server(**QUICK, max_unsent_bytes=STATE_BYTES)

    @server.endpoint
    def texts(letter: str) -> list[str]:
        return [letter * 100_000] * (STATE_BYTES // 100_000)

    with serving(server) as peer:
        jobs = [peer.start("texts", {"letter": letter}) for letter in "ab"]
        for job in jobs:
            eventually(lambda job=job: peer.http.get(f"/v1/jobs/{job}").json()["status"] == "succeeded")
        with contextlib.ExitStack() as stack:
            request_and_stall(peer, f"/v1/jobs/{jobs[0]}/events", stack)
            (goaway,) = (event for event in peer.events(jobs[1]) if event.type == "goaway")
            assert data(goaway)["reason"] == "restart"
            refused = peer.http.get(f"/v1/jobs/{jobs[1]}")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        eventually(lambda: peer.events(jobs[1])[-1].type == "done")


def test_events_are_shared_by_readers_at_the_same_position():
    texts = SharedTexts(MAX_UNSENT, MAX_UNSENT)
    frames = b"x" * (MIN_SHARED_BYTES + 1)
    first = texts.events("alice", "j", Cursor(1, 1), Cursor(1, 2), frames)
    assert texts.events("alice", "j", Cursor(1, 1), Cursor(1, 2), bytes(bytearray(frames))) is first
    assert texts.events("alice", "j", Cursor(1, 0), Cursor(1, 2), frames) is not first


@pytest.mark.parametrize(
    ("value", "nodes"), [({}, 1), ("x", 1), ([1, [2, {"a": None}]], 6), ({"a": [], "b": {"c": "d"}}, 4)]
)
def test_nodes_of_a_view_are_counted_up_to_a_limit(value, nodes):
    view = Document(value, []).view()
    assert [view.has_more_nodes_than(limit) for limit in (nodes - 1, nodes)] == [True, False]


def test_nodes_of_an_earlier_view_are_counted_as_of_its_version():
    document = Document({"a": [1]}, ["/a"])
    document.apply([["a", "/a", [2]]])
    view = document.view()
    document.apply([["a", "/a", [3, 4, 5]]])
    assert not view.has_more_nodes_than(4)
    assert document.view().has_more_nodes_than(6)
