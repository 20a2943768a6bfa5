"""Batched generators: rows grow and end independently, and late joiners enter between two steps."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from integration.test_server_batching import item
from support.reference_server import QUICK, Fold, Peer, eventually, serving
from tidewire_server import Append, Context, ItemError, Last, Server
from tidewire_server.job_log.log_writer import LogWriter


def test_rows_of_a_batched_generator_grow_and_end_independently():
    server, released = Server(**QUICK), threading.Event()

    @server.endpoint(batch=True)
    def spell(words: list[str], ctx: Context) -> Iterator[dict[int, Append[str] | Last | ItemError]]:
        left = {row: list(word) for row, word in enumerate(words)}
        while left:
            step: dict[int, Any] = {}
            for row, letters in list(left.items()):
                if letters == ["!"]:
                    step[row] = ItemError("it shouts", code="input_too_long")
                    del left[row]
                elif len(letters) == 1:
                    step[row] = Last(Append(left.pop(row)[0]))
                else:
                    step[row] = Append(letters.pop(0))
            yield step
            assert len(left) > 1 or released.wait(10)

    with serving(server) as peer:
        assert peer.http.get("/v1/endpoints/spell").json()["capabilities"]["rollback"] is True
        job = peer.start("spell", inputs=[{"words": "a"}, {"words": "ab!"}, {"words": "abcdef"}])
        eventually(lambda: item(peer.job(job), 1)["status"] == "failed")
        assert [each["status"] for each in peer.job(job)["state"]["items"]] == [
            "succeeded",
            "failed",
            "running",
        ]
        released.set()
        fold = Fold().take(peer.events(job, "0-0"))
        assert [each["value"] for each in fold.items] == ["a", "ab", "abcdef"]
        assert fold.items == peer.job(job)["state"]["items"]


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_late_joiners_enter_a_running_batch_between_two_steps(kind):
    server, calls, closed = Server(**QUICK), [], []
    steps = threading.Semaphore(0)

    def spell(words: list[str]) -> Generator[dict[int, Append[str] | Last], dict[int, str], None]:
        """Continuous batching in a generator: each row is a slot."""
        slots = dict(enumerate(words))
        calls.append(dict(slots))
        try:
            while True:
                assert steps.acquire(timeout=10)
                out: dict[int, Any] = {}
                for row, word in list(slots.items()):
                    out[row] = Append(word[:1]) if len(word) > 1 else Last(Append(word))
                    slots[row] = word[1:]
                    if not slots[row]:
                        del slots[row]
                new = yield out
                calls.append(new)
                slots |= new
        finally:
            closed.append(len(slots))

    async def async_spell(words: list[str]):
        generator = spell(words)
        new = None
        with contextlib.closing(generator):
            while True:
                new = yield generator.send(new)

    if kind == "async def":
        async_spell.__annotations__["return"] = AsyncGenerator[dict[int, Append[str] | Last], dict[int, str]]
    server.endpoint(batch=True, max_batch_size=2, name="spell")(spell if kind == "def" else async_spell)
    with serving(server) as peer:
        if kind == "async def":
            steps.release(
                100
            )  # Without free steps, the blocking generator would keep the event loop from handling other requests.
        jobs = [peer.start("spell", {"words": "abcd"})]
        if kind == "def":
            eventually(lambda: calls)
            jobs += [peer.start("spell", {"words": word}) for word in ("xy", "z")]
            steps.release(100)
        else:
            jobs += [peer.start("spell", {"words": word}) for word in ("xy", "z")]
        ended = [item(peer.ended(job)) for job in jobs]
        assert [each["value"] for each in ended] == ["abcd", "xy", "z"]
        eventually(lambda: closed)
    assert set(closed) == {0}
    if kind == "def":
        # The third job waits for a free row and takes that row.
        assert calls[:2] == [{0: "abcd"}, {1: "xy"}]
        assert {1: "z"} in calls
        assert ended[2]["batch"] | {"wait_ms": 0} == {"size": 2, "row": 1, "wait_ms": 0}


def test_late_joiners_do_not_keep_the_last_worker_thread_from_another_endpoint():
    server, calls, steps = Server(**QUICK, max_threads=1), [], threading.Semaphore(0)

    @server.endpoint(batch=True)
    def spell(words: list[str]) -> Generator[dict[int, Append[str] | Last], dict[int, str], None]:
        slots = dict(enumerate(words))
        while True:
            calls.extend(slots.values())
            assert steps.acquire(timeout=10)
            slots = yield {row: Last(Append(word)) for row, word in slots.items()}

    @server.endpoint
    def other() -> None:
        calls.append("other")

    with serving(server) as peer:
        jobs = [peer.start("spell", {"words": "first"})]
        eventually(lambda: calls)
        jobs += [peer.start("other"), peer.start("spell", {"words": "second"})]
        steps.release(2)
        assert {peer.ended(job)["status"] for job in jobs} == {"succeeded"}
    assert calls == ["first", "other", "second"]


def test_a_caller_who_may_not_take_a_thread_does_not_keep_late_joiners_out():
    server = Server(
        **QUICK, max_threads=2, max_share=0.5, tokens=("ann:1", "bob:2"), default_concurrency_limit=None
    )
    calls, steps, ended = [], threading.Semaphore(0), threading.Event()

    @server.endpoint(batch=True, concurrency_limit=1)
    def spell(words: list[str]) -> Generator[dict[int, Append[str] | Last], dict[int, str], None]:
        slots, call = dict(enumerate(words)), object()
        while True:
            calls.extend((word, call) for word in slots.values())
            assert steps.acquire(timeout=10)
            slots = yield {row: Last(Append(word)) for row, word in slots.items()}

    @server.endpoint
    def other() -> None:
        assert ended.wait(20)

    with (
        serving(server, Authorization="Bearer 1") as ann,
        Peer(ann.url, Authorization="Bearer 2") as bob,
    ):
        others = [
            ann.start("other") for _ in range(2)
        ]  # the second one waits, because ann's share is one thread
        eventually(lambda: ann.job(others[0])["status"] == "running")
        words = [bob.start("spell", {"words": "first"})]
        eventually(lambda: calls)
        words.append(bob.start("spell", {"words": "second"}))
        steps.release(2)
        assert {bob.ended(job)["status"] for job in words} == {"succeeded"}
        ended.set()
        assert {ann.ended(job)["status"] for job in others} == {"succeeded"}
    (first, its_call), (second, same_call) = calls
    assert (first, second, same_call) == ("first", "second", its_call)


def test_cancel_of_the_last_row_does_not_lose_the_ends_of_the_others(monkeypatch):
    server, ends, written = Server(**QUICK), [], threading.Event()
    end = LogWriter.end

    async def end_slowly(writer, make_record):
        ends.append(writer)
        await asyncio.to_thread(written.wait, 10)
        return await end(writer, make_record)

    monkeypatch.setattr(LogWriter, "end", end_slowly)

    @server.endpoint(batch=True, max_batch_size=3, batch_timeout=10)
    async def echo(words: list[str]) -> AsyncIterator[dict[int, Last[str]]]:
        yield {row: Last(word) for row, word in enumerate(words) if word != "stays"}
        await asyncio.sleep(60)

    with serving(server) as peer, ThreadPoolExecutor() as pool:
        first, second, stays = (peer.start("echo", {"words": word}) for word in ("a", "b", "stays"))
        eventually(lambda: len(ends) == 1)
        cancel = pool.submit(peer.http.post, f"/v1/jobs/{stays}/cancel")
        eventually(lambda: len(ends) == 2)
        written.set()
        assert cancel.result().status_code == 202
        for job, value in ((first, "a"), (second, "b")):
            eventually(lambda job=job: peer.job(job)["done"])
            assert (item(peer.job(job))["status"], item(peer.job(job))["value"]) == ("succeeded", value)
        assert peer.job(stays)["status"] == "cancelled"


@pytest.mark.parametrize(
    ("yielded", "message"),
    [
        ([1], "must yield {row: value}"),
        ({5: 1}, "the generator yielded row 5"),
        ({0: Last(1), 5: 1}, "the generator yielded row 5"),
    ],
)
def test_an_invalid_yield_of_a_batched_generator_fails_with_a_message(yielded, message):
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def wrong(n: list[int]) -> Iterator[dict[int, int]]:
        yield yielded

    with serving(server) as peer:
        error = item(peer.run("wrong", {"n": 1}))["error"]
        assert error["code"] == "invalid_value"
        assert message in error["detail"]


def test_row_numbers_may_be_numpy_integers_also_for_padding():
    server = Server(**QUICK)

    @server.endpoint(batch=True, sizes=(4,))
    def first(words: list[str]) -> Iterator[dict[int, Last]]:
        yield {row: Last(Append(words[row][0])) for row in np.arange(4)}

    with serving(server) as peer:
        assert item(peer.run("first", {"words": "tide"}))["value"] == "t"
