"""Request batching, seen from outside: which items share a call, what each gets, and what its neighbours notice."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx
import pytest
import typer.testing
import uvloop
from pydantic import BaseModel, model_serializer

from support.reference_server import JSON, QUICK, STREAM, Fold, Peer, data, eventually, serving
from tidewire import Client
from tidewire.commands import cli
from tidewire.protocol.sse import Decoder
from tidewire_server import Context, ItemError, Server
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.principals import ANONYMOUS
from tidewire_server.store.open_store import memory_of


class TrimWords(BaseModel):
    word: str
    length: int = 3


class Gate:
    """A function's calls, each held until it is let through."""

    def __init__(self):
        self.calls: list[list[Any]] = []
        self._steps = threading.Semaphore(0)

    def enter(self, inputs):
        self.calls.append(list(inputs))
        assert self._steps.acquire(timeout=20)

    def open(self, calls=1):
        self._steps.release(calls)

    @property
    def sizes(self):
        return [len(call) for call in self.calls]


def item(job, index=0):
    return job["state"]["items"][index]


def held(**options):
    """A server whose one endpoint waits at a gate."""
    gate, server = Gate(), Server(**QUICK)

    @server.endpoint(batch=True, **options)
    def shout(words: list[str]) -> list[str]:
        gate.enter(words)
        return [word.upper() for word in words]

    return gate, server


# ---- who shares a call -----------------------------------------------------------------------------------------------


def test_what_waits_while_a_call_runs_is_the_next_call_and_a_cancelled_one_is_not_in_it():
    gate, server = held(max_batch_size=4)
    with serving(server) as peer:
        first = peer.start("shout", {"words": "one"})
        eventually(lambda: gate.calls)
        two, three, four = (peer.start("shout", {"words": word}) for word in ("two", "three", "four"))
        peer.http.post(f"/v1/jobs/{two}/cancel")
        gate.open(2)
        assert item(peer.ended(first))["value"] == "ONE"
        assert [item(peer.ended(job))["value"] for job in (three, four)] == ["THREE", "FOUR"]
        assert peer.ended(two)["status"] == "cancelled"
        told = [item(peer.job(job))["batch"] for job in (first, three, four)]
    assert gate.calls == [["one"], ["three", "four"]]
    assert [(each["size"], each["row"]) for each in told] == [(1, 0), (2, 0), (2, 1)]
    assert all(each["wait_ms"] >= 0 for each in told)


def test_items_of_many_jobs_and_callers_share_calls_and_one_input_is_no_list():
    gate, server = held(max_batch_size=4)
    server.configure(tokens=("ada:1", "bo:2"))
    with (
        serving(server, authorization="Bearer 1") as ada,
        Peer(ada.url, authorization="Bearer 2") as bo,
    ):
        blocker = ada.start("shout", {"words": "first"})
        eventually(lambda: gate.calls)
        many = ada.start("shout", inputs=[{"words": str(n)} for n in range(6)])
        one = bo.start("shout", {"words": "bo"})
        gate.open(3)
        job = bo.ended(one)
        assert (job["batch"], item(job)["value"]) == (False, "BO")
        assert [each["value"] for each in ada.ended(many)["state"]["items"]] == list("012345")
        assert ada.ended(blocker)["status"] == "succeeded"
    # Callers take turns also within a batch.
    assert gate.calls == [["first"], ["0", "bo", "1", "2"], ["3", "4", "5"]]


def test_a_call_begins_only_once_the_values_of_the_last_one_are_json_for_it_may_write_them_anew():
    server, second = Server(**QUICK), threading.Event()

    class InBuffer(BaseModel):
        n: int

        @model_serializer
        def read(self) -> dict[str, bool]:
            return {"written_anew": self.n == 0 and second.wait(0.1)}

    @server.endpoint(batch=True, max_batch_size=1)
    def make(n: list[int]) -> list[Any]:
        if n == [1]:
            second.set()
        return [InBuffer(n=each) for each in n]

    with serving(server) as peer:
        job = peer.run("make", inputs=[{"n": 0}, {"n": 1}])
    assert [each["value"] for each in job["state"]["items"]] == [{"written_anew": False}] * 2


def test_a_batch_that_is_full_does_not_wait():
    gate, server = held(max_batch_size=2, batch_timeout=3600)
    gate.open(9)
    with serving(server) as peer:
        assert peer.run("shout", inputs=[{"words": "a"}, {"words": "b"}])["status"] == "succeeded"
    assert gate.sizes == [2]


def test_a_batch_that_is_not_full_waits_for_its_oldest():
    gate, server = held(max_batch_size=9, batch_timeout=0.1)
    gate.open(9)
    with serving(server) as peer:
        alone = peer.run("shout", {"words": "c"})
        assert item(alone)["batch"]["wait_ms"] >= 99
        assert item(alone)["batch"]["size"] == 1


def test_only_equal_keys_and_what_the_cost_allows_share_a_call():
    gate, server = held(
        max_batch_size=8, key=lambda given: given.words[0], cost=lambda given: len(given.words), max_cost=6
    )
    with serving(server) as peer:
        peer.start("shout", {"words": "x"})
        eventually(lambda: gate.calls)
        job = peer.start("shout", inputs=[{"words": word} for word in ("a1", "bb2", "a22", "b", "aa", "a")])
        answer = peer.submit("shout", inputs=[{"words": "a"}, {"words": "seven77"}])
        assert (answer.status_code, answer.json()["code"]) == (422, "input_too_long")
        assert answer.json()["pointer"] == "/inputs/1"
        assert (
            answer.json()["detail"]
            == "/inputs/1: the input's cost 7 exceeds the maximum cost of a batch, 6 (max_cost)"
        )
        gate.open(9)
        assert peer.ended(job)["status"] == "succeeded"
    assert gate.calls == [["x"], ["a1", "a22"], ["bb2", "b"], ["aa", "a"]]


@pytest.mark.parametrize("pad", [None, {"words": "-"}])
def test_a_call_is_filled_up_to_an_allowed_size_and_the_filling_never_comes_back(pad):
    gate, server = held(sizes=[1, 4], pad=pad)
    gate.open(9)
    with serving(server) as peer:
        job = peer.run("shout", inputs=[{"words": "a"}, {"words": "b"}])
        assert [each["value"] for each in job["state"]["items"]] == ["A", "B"]
        assert item(job)["batch"]["size"] == 2
    # Both come in one submit, and nothing runs: they are one call.
    assert gate.calls == [["a", "b", *["-" if pad else "b"] * 2]]


# ---- what each gets --------------------------------------------------------------------------------------------------


def make_trim(server, **options):
    @server.endpoint(batch=True, **options)
    def trim_words(inputs: list[TrimWords]) -> Sequence[str | ItemError]:
        return [
            each.word[: each.length]
            if each.word
            else ItemError("no word", code="https://example.com/empty", retryable=True, hint="write one")
            for each in inputs
        ]


def test_an_error_in_one_slot_fails_that_item_with_all_that_it_says():
    server = Server(**QUICK)
    make_trim(server)

    @server.endpoint(batch=True)
    async def odd(n: list[int]) -> list[Any]:
        return [ValueError("secret") if each % 2 else each for each in n]

    with serving(server) as peer:
        job = peer.run("trim_words", inputs=[{"word": "hello"}, {"word": ""}, {"word": "sea", "length": 1}])
        good, bad, short = job["state"]["items"]
        assert (job["status"], good["value"], short["value"]) == ("partially_failed", "hel", "s")
        assert bad["error"] | {"title": ""} == {
            "code": "https://example.com/empty",
            "type": "https://example.com/empty",
            "title": "",
            "status": 422,
            "detail": "no word",
            "retryable": True,
            "hint": "write one",
        }
        job = peer.run("odd", inputs=[{"n": 1}, {"n": 2}])
        assert item(job)["error"]["code"] == "internal"
        assert "secret" not in str(job)
        assert item(job, 1)["value"] == 2


def test_lists_of_members_and_of_outputs_as_gradio_has_them():
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def pairs(words: list[str], lengths: list[int]) -> tuple[list[str], list[int]]:
        return [word[:n] for word, n in zip(words, lengths, strict=True)], lengths

    with serving(server) as peer:
        job = peer.run("pairs", inputs=[{"words": "hello", "lengths": 2}, {"words": "sea", "lengths": 1}])
        assert [each["value"] for each in job["state"]["items"]] == [["he", 2], ["s", 1]]


def by_client(url, name, given):
    with Client(url) as client:
        return client.run(name, given)


def by_command(url, name, given):
    members = [f"{member}={json.dumps(value)}" for member, value in given.items()]
    result = typer.testing.CliRunner().invoke(cli.app, ["call", url, name, *members])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if result.stdout.startswith(("[", "{")) else result.stdout


def by_raw_http(url, name, given):
    answer = httpx.post(f"{url}/v1/endpoints/{name}/jobs", json={"input": given}, headers=STREAM)
    return Fold().take(Decoder().feed(answer.content)).items[0]["value"]


@pytest.mark.parametrize("ask", [by_client, by_command, by_raw_http])
def test_one_input_gives_one_value_and_not_a_list_or_the_first_letter_of_one(ask):
    server = Server(**QUICK)
    make_trim(server)

    @server.endpoint(batch=True)
    def lists(words: list[str], lengths: list[int]) -> list[list[str]]:
        return [[word[:n]] for word, n in zip(words, lengths, strict=True)]

    with server.running() as url:
        assert ask(url, "trim_words", {"word": "hello"}) == "hel"
        assert ask(url, "lists", {"words": "hello", "lengths": 2}) == ["he"]


def test_a_wrong_number_of_results_is_one_clear_error_for_all(caplog):
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def lose(n: list[int]) -> list[int]:
        return n[1:]

    with serving(server) as peer:
        job = peer.run("lose", inputs=[{"n": 1}, {"n": 2}, {"n": 3}])
    assert {each["error"]["detail"] for each in job["state"]["items"]} == {
        "the function returned 2 values for 3 inputs"
    }
    assert {each["error"]["code"] for each in job["state"]["items"]} == {"invalid_value"}


@pytest.mark.parametrize("kind", ["def", "async def", "generator"])
def test_where_the_call_raises_all_its_items_fail_and_the_log_tells_once(kind, caplog):
    server = Server(**QUICK)

    if kind == "def":

        @server.endpoint(batch=True, name="fall")
        def fall(n: list[int]) -> list[int]:
            raise LookupError("down")

    elif kind == "async def":

        @server.endpoint(batch=True, name="fall")
        async def async_fall(n: list[int]) -> list[int]:
            raise LookupError("down")

    else:

        @server.endpoint(batch=True, name="fall")
        def generator_fall(n: list[int]) -> Iterator[dict[int, int]]:
            yield {0: 1}
            raise LookupError("down")

    with serving(server) as peer:
        job = peer.run("fall", inputs=[{"n": n} for n in range(3)])
        assert {each["error"]["code"] for each in job["state"]["items"]} == {"internal"}
        assert peer.run("fall", {"n": 1})["status"] == "failed"
    assert caplog.text.count("LookupError: down") == 2


def test_bisecting_leaves_only_what_poisons_the_call():
    server, calls = Server(**QUICK), []

    @server.endpoint(batch=True, bisect=True)
    def divide(n: list[int]) -> list[float]:
        calls.append(n)
        return [60 / each for each in n]

    with serving(server) as peer:
        job = peer.run("divide", inputs=[{"n": n} for n in (1, 2, 3, 0, 5, 6, 4, 3)])
        items = job["state"]["items"]
        assert [each.get("value") for each in items] == [60, 30, 20, None, 12, 10, 15, 20]
        assert [index for index, each in enumerate(items) if each["status"] == "failed"] == [3]
    assert [len(call) for call in calls] == [8, 4, 2, 2, 1, 1, 4]


# ---- cancel and time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["def", "async def", "generator", "async generator"])
def test_a_cancelled_row_is_dropped_its_siblings_go_on_and_when_none_is_left_the_call_ends(kind):
    server, seen, entered = Server(**QUICK), [], threading.Semaphore(0)
    step = threading.Event()

    if kind == "def":

        @server.endpoint(batch=True, name="work")
        def work(n: list[int], ctx: Context) -> list[int]:
            entered.release()
            while not (ctx.cancelled or step.is_set()):
                step.wait(0.005)
            seen.append([ctx.rows[row].cancelled for row in range(len(n))])
            ctx.progress(1, 1)
            ctx.rows[0].note("done")
            return n

    elif kind == "async def":

        @server.endpoint(batch=True, name="work")
        async def async_work(n: list[int], ctx: Context) -> list[int]:
            entered.release()
            try:
                while not step.is_set():
                    await asyncio.sleep(0.005)
                return n
            finally:
                seen.append([ctx.rows[row].cancelled for row in range(len(n))])

    elif kind == "generator":

        @server.endpoint(batch=True, name="work")
        def generate(n: list[int], ctx: Context) -> Iterator[dict[int, int]]:
            entered.release()
            try:
                while not step.wait(0.005):
                    yield {}
                yield dict(enumerate(n))
            finally:
                seen.append([ctx.rows[row].cancelled for row in range(len(n))])

    else:

        @server.endpoint(batch=True, name="work")
        async def async_generate(n: list[int], ctx: Context) -> AsyncIterator[dict[int, int]]:
            entered.release()
            try:
                while not step.is_set():
                    yield {}
                    await asyncio.sleep(0.005)
                yield dict(enumerate(n))
            finally:
                seen.append([ctx.rows[row].cancelled for row in range(len(n))])

    with serving(server) as peer:
        job = peer.start("work", inputs=[{"n": 7}, {"n": 8}])
        assert entered.acquire(timeout=10)
        peer.http.post(f"/v1/jobs/{job}/cancel", json={"items": [0]})
        assert item(peer.job(job))["status"] == "cancelled"
        step.set()
        ended = peer.ended(job)
        assert (ended["status"], item(ended, 1)["value"]) == ("partially_failed", 8)
        assert seen == [[True, False]]
        step.clear()
        job = peer.start("work", inputs=[{"n": 7}, {"n": 8}])
        assert entered.acquire(timeout=10)
        peer.http.post(f"/v1/jobs/{job}/cancel")
        assert peer.ended(job)["status"] == "cancelled"
        eventually(lambda: len(seen) == 2)
        step.set()
        assert item(peer.run("work", {"n": 9}))["value"] == 9
    assert seen[1] == [True, True]


def test_a_call_that_is_cancelled_before_its_first_step_leaves_nothing_behind():
    server, ran = Server(**QUICK), []

    @server.endpoint(batch=True)
    async def work(n: list[int]) -> list[int]:
        ran.append(n)
        return n

    async def at_once() -> None:
        service = JobService(server.endpoints, server.settings, Metrics(), memory_of(server.settings))
        record = (
            await service.submit(ANONYMOUS, server.endpoints["work"], b'{"input": {"n": 1}}', None)
        ).record
        await service.cancel(record, None)
        await service.outcome(record)
        assert record.status == "cancelled"
        await service.close()

    asyncio.run(at_once())
    assert ran == []


def test_items_that_come_within_the_last_half_millisecond_of_a_wait_are_taken():
    server = Server(**QUICK)

    @server.endpoint(batch=True, batch_timeout=0.0004, concurrency_limit=None)
    async def work(n: list[int]) -> list[int]:
        return n

    async def at_once() -> None:
        service = JobService(server.endpoints, server.settings, Metrics(), memory_of(server.settings))
        jobs = [
            (await service.submit(ANONYMOUS, server.endpoints["work"], b'{"input": {"n": 1}}', None)).record
            for _ in range(50)
        ]
        for record in jobs:
            await service.outcome(record)
        assert [record.status for record in jobs] == ["succeeded"] * 50
        await service.close()

    # uvloop's handle of so short a wait has no time of its own, and this is the loop that serves.
    uvloop.run(at_once())


def test_a_call_may_take_so_long_and_no_longer():
    server, over = Server(**QUICK), threading.Event()

    @server.endpoint(batch=True, time_limit=0.05)
    def slow(n: list[int], ctx: Context) -> list[int]:
        while not ctx.cancelled:
            over.wait(0.005)
        over.set()
        return n

    with serving(server) as peer:
        job = peer.run("slow", inputs=[{"n": 1}, {"n": 2}])
        assert {each["error"]["code"] for each in job["state"]["items"]} == {"deadline_exceeded"}
        assert "0.05 s, the time_limit of endpoint 'slow'" in item(job)["error"]["detail"]
        assert over.wait(10)


def test_what_expired_or_was_abandoned_while_it_waited_is_in_no_call():
    gate, server = held(max_batch_size=8)
    server.configure(min_grace=0.02)
    with serving(server) as peer:
        first = peer.start("shout", {"words": "first"})
        eventually(lambda: gate.calls)
        left = peer.start("shout", {"words": "left"}, on_disconnect="cancel", grace_ms=1)
        eventually(lambda: peer.job(left)["status"] == "cancelled")
        late = peer.start("shout", {"words": "late"}, deadline_ms=20)
        gone = peer.start("shout", {"words": "gone"})
        kept = peer.start("shout", inputs=[{"words": "kept"}, {"words": "dropped"}])
        assert item(peer.ended(late))["error"]["code"] == "deadline_exceeded"
        assert peer.http.delete(f"/v1/jobs/{gone}").status_code == 204
        peer.http.post(f"/v1/jobs/{kept}/cancel", json={"items": [1]})
        gate.open(2)
        assert peer.ended(first)["status"] == "succeeded"
        assert [each["status"] for each in peer.ended(kept)["state"]["items"]] == ["succeeded", "cancelled"]
    assert gate.calls == [["first"], ["kept"]]


# ---- the rest: values, what is told, discovery -----------------------------------------------------------------------


def test_a_value_that_does_not_fit_fails_its_row_and_no_other():
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def values(n: list[int]) -> list[Any]:
        return [[float("nan"), "\ud800", object(), {"fine": True}, 10**400, (1, 2)][each] for each in n]

    @server.endpoint(batch=True)
    async def yielded(n: list[int]) -> AsyncIterator[dict[int, Any]]:
        yield {
            row: [float("nan"), "\ud800", object(), {"fine": True}, 10**400, (1, 2)][each]
            for row, each in enumerate(n)
        }

    with serving(server) as peer:
        for endpoint in ("values", "yielded"):
            items = peer.run(endpoint, inputs=[{"n": n} for n in range(6)])["state"]["items"]
            assert [each["status"] == "succeeded" for each in items] == [
                False,
                False,
                False,
                True,
                False,
                True,
            ]
            assert {each["error"]["code"] for each in items if "error" in each} == {"invalid_value"}
            assert (items[3]["value"], items[5]["value"]) == ({"fine": True}, [1, 2])


def test_progress_and_notes_of_a_call_reach_each_row():
    server, told = Server(**QUICK), threading.Event()

    @server.endpoint(batch=True)
    def work(n: list[int], ctx: Context) -> list[int]:
        ctx.progress(1, 2, unit="step")
        ctx.note("warm")
        ctx.rows[1].usage(tokens=3)
        assert told.wait(10)
        return n

    with serving(server) as peer:
        job = peer.start("work", inputs=[{"n": 1}, {"n": 2}])
        with peer.stream(job) as reading:
            assert {data(reading.until("progress"))["item"] for _ in range(2)} == {0, 1}
            told.set()
            assert reading.until("done")
        ended = peer.job(job)
        assert [note["text"] for note in ended["state"]["notes"]] == ["warm", "warm"]
        assert ended["done"]["usage"] == {"tokens": 3}


def test_discovery_says_how_many_inputs_a_job_may_have_and_not_how_many_share_a_call():
    server = Server(**QUICK, max_inputs=50)
    make_trim(server, max_batch_size=4)
    with serving(server) as peer:
        described = peer.http.get("/v1/endpoints/trim_words").json()
        assert described["capabilities"]["batch"] == {"max_items": 50}
        assert described["value_schema"] == {"type": "string"}
        assert set(described["input_schema"]["properties"]) == {"word", "length"}
        answer = peer.http.post(
            "/v1/endpoints/trim_words/jobs", content=b'{"input": {"word": "hello"}}', headers=JSON
        )
        assert answer.status_code == 201
        # More than one call takes come in one job.
        job = peer.run("trim_words", inputs=[{"word": f"w{n:02}"} for n in range(20)])
        assert [each["value"] for each in job["state"]["items"]] == [f"w{n:02}" for n in range(20)]
        assert max(each["batch"]["size"] for each in job["state"]["items"]) == 4
