"""Request batching over HTTP: which items share a call, results per item, cancellation and limits."""

import asyncio
import json
import threading
from collections import UserDict
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import httpx2
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
    """Records the calls of a function and holds each call until the test opens the gate."""

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


def gated_server(**options):
    """A server with one endpoint whose calls wait at a gate."""
    gate, server = Gate(), Server(**QUICK)

    @server.endpoint(batch=True, **options)
    def shout(words: list[str]) -> list[str]:
        gate.enter(words)
        return [word.upper() for word in words]

    return gate, server


# ---- which items share a call ----------------------------------------------------------------------------------------


def test_items_that_queue_during_a_call_form_the_next_call_without_cancelled_ones():
    gate, server = gated_server(max_batch_size=4)
    with serving(server) as peer:
        first = peer.start("shout", {"words": "one"})
        eventually(lambda: gate.calls)
        two, three, four = (peer.start("shout", {"words": word}) for word in ("two", "three", "four"))
        peer.http.post(f"/v1/jobs/{two}/cancel")
        gate.open(2)
        assert item(peer.ended(first))["value"] == "ONE"
        assert [item(peer.ended(job))["value"] for job in (three, four)] == ["THREE", "FOUR"]
        assert peer.ended(two)["status"] == "cancelled"
        batches = [item(peer.job(job))["batch"] for job in (first, three, four)]
    assert gate.calls == [["one"], ["three", "four"]]
    assert [(each["size"], each["row"]) for each in batches] == [(1, 0), (2, 0), (2, 1)]
    assert all(each["wait_ms"] >= 0 for each in batches)


def test_items_of_several_jobs_and_callers_share_calls():
    gate, server = gated_server(max_batch_size=4)
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
    # Callers take turns within a batch, too.
    assert gate.calls == [["first"], ["0", "bo", "1", "2"], ["3", "4", "5"]]


def test_a_call_begins_after_the_values_of_the_previous_call_are_serialized():
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


def test_a_full_batch_starts_without_waiting():
    gate, server = gated_server(max_batch_size=2, batch_timeout=3600)
    gate.open(9)
    with serving(server) as peer:
        assert peer.run("shout", inputs=[{"words": "a"}, {"words": "b"}])["status"] == "succeeded"
    assert gate.sizes == [2]


def test_a_partial_batch_waits_batch_timeout_after_its_oldest_item():
    gate, server = gated_server(max_batch_size=9, batch_timeout=0.1)
    gate.open(9)
    with serving(server) as peer:
        alone = peer.run("shout", {"words": "c"})
        assert item(alone)["batch"]["wait_ms"] >= 99
        assert item(alone)["batch"]["size"] == 1


def test_items_share_a_call_only_with_equal_keys_and_within_max_cost():
    gate, server = gated_server(
        max_batch_size=8,
        key=lambda input_: input_.words[0],
        cost=lambda input_: len(input_.words),
        max_cost=6,
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
def test_a_call_is_padded_to_an_allowed_size_and_padding_is_not_returned(pad):
    gate, server = gated_server(sizes=[1, 4], pad=pad)
    gate.open(9)
    with serving(server) as peer:
        job = peer.run("shout", inputs=[{"words": "a"}, {"words": "b"}])
        assert [each["value"] for each in job["state"]["items"]] == ["A", "B"]
        assert item(job)["batch"]["size"] == 2
    # Both inputs arrive in one submit while nothing runs, so they share one call.
    assert gate.calls == [["a", "b", *["-" if pad else "b"] * 2]]


# ---- results per item ------------------------------------------------------------------------------------------------


def make_trim(server, **options):
    @server.endpoint(batch=True, **options)
    def trim_words(inputs: list[TrimWords]) -> Sequence[str | ItemError]:
        return [
            each.word[: each.length]
            if each.word
            else ItemError("no word", code="https://example.com/empty", retryable=True, hint="write one")
            for each in inputs
        ]


def test_a_returned_item_error_fails_only_its_item():
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


def test_a_batched_function_may_take_and_return_one_list_per_member():
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def pairs(words: list[str], lengths: list[int]) -> tuple[list[str], list[int]]:
        return [word[:n] for word, n in zip(words, lengths, strict=True)], lengths

    with serving(server) as peer:
        job = peer.run("pairs", inputs=[{"words": "hello", "lengths": 2}, {"words": "sea", "lengths": 1}])
        assert [each["value"] for each in job["state"]["items"]] == [["he", 2], ["s", 1]]


def by_client(url, name, input_):
    with Client(url) as client:
        return client.run(name, input_)


def by_command(url, name, input_):
    members = [f"{member}={value}" for member, value in input_.items()]
    result = typer.testing.CliRunner().invoke(cli.app, ["call", url, name, *members])
    assert result.exit_code == 0, result.output
    shown = result.stdout.removesuffix("\n")
    return json.loads(shown) if shown.startswith(("[", "{")) else shown


def by_raw_http(url, name, input_):
    answer = httpx2.post(f"{url}/v1/endpoints/{name}/jobs", json={"input": input_}, headers=STREAM)
    return Fold().take(Decoder().feed(answer.content)).items[0]["value"]


@pytest.mark.parametrize("ask", [by_client, by_command, by_raw_http])
def test_one_input_of_a_batched_endpoint_gives_one_value(ask):
    server = Server(**QUICK)
    make_trim(server)

    @server.endpoint(batch=True)
    def lists(words: list[str], lengths: list[int]) -> list[list[str]]:
        return [[word[:n]] for word, n in zip(words, lengths, strict=True)]

    with server.running() as url:
        assert ask(url, "trim_words", {"word": "hello"}) == "hel"
        assert ask(url, "lists", {"words": "hello", "lengths": 2}) == ["he"]


def test_a_wrong_number_of_results_fails_all_items(caplog):
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


class Table:
    """As a DataFrame of pandas: the length is the number of rows, but the elements are the names of the columns."""

    columns = ("score", "label")

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


@pytest.mark.parametrize("returned", [{"a": 1, "b": 2}, UserDict({"a": 1, "b": 2}), Table()])
def test_a_mapping_or_table_with_as_many_columns_as_inputs_fails_all_items(returned):
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def judge(n: list[int]):
        return returned

    with serving(server) as peer:
        items = peer.run("judge", inputs=[{"n": 1}, {"n": 2}])["state"]["items"]
    detail = f"a batched function must return a list, not {type(returned).__name__}"
    assert [each["error"]["detail"] for each in items] == [detail, detail]


@pytest.mark.parametrize("kind", ["def", "async def", "generator"])
def test_an_exception_fails_all_items_and_is_logged_once(kind, caplog):
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


def test_bisect_fails_only_the_item_that_raises():
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


def test_bisect_runs_the_last_row_again_after_the_invalid_one_was_cancelled():
    gate, server = Gate(), Server(**QUICK)

    @server.endpoint(batch=True, bisect=True, max_batch_size=2, batch_timeout=10)
    def divide(n: list[int]) -> list[float]:
        gate.enter(n)
        return [60 / each for each in n]

    with serving(server) as peer:
        invalid, valid = peer.start("divide", {"n": 0}), peer.start("divide", {"n": 2})
        eventually(lambda: gate.calls)
        peer.http.post(f"/v1/jobs/{invalid}/cancel")
        gate.open(2)
        assert item(peer.ended(valid))["value"] == 30
    assert gate.calls == [[0, 2], [2]]


# ---- cancellation and time limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["def", "async def", "generator", "async generator"])
def test_cancelling_a_row_keeps_the_others_and_cancelling_all_ends_the_call(kind):
    server, cancelled_rows, entered = Server(**QUICK), [], threading.Semaphore(0)
    step = threading.Event()

    if kind == "def":

        @server.endpoint(batch=True, name="work")
        def work(n: list[int], ctx: Context) -> list[int]:
            entered.release()
            while not (ctx.cancelled or step.is_set()):
                step.wait(0.005)
            cancelled_rows.append([ctx.rows[row].cancelled for row in range(len(n))])
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
                cancelled_rows.append([ctx.rows[row].cancelled for row in range(len(n))])

    elif kind == "generator":

        @server.endpoint(batch=True, name="work")
        def generate(n: list[int], ctx: Context) -> Iterator[dict[int, int]]:
            entered.release()
            try:
                while not step.wait(0.005):
                    yield {}
                yield dict(enumerate(n))
            finally:
                cancelled_rows.append([ctx.rows[row].cancelled for row in range(len(n))])

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
                cancelled_rows.append([ctx.rows[row].cancelled for row in range(len(n))])

    with serving(server) as peer:
        job = peer.start("work", inputs=[{"n": 7}, {"n": 8}])
        assert entered.acquire(timeout=10)
        peer.http.post(f"/v1/jobs/{job}/cancel", json={"items": [0]})
        assert item(peer.job(job))["status"] == "cancelled"
        step.set()
        ended = peer.ended(job)
        assert (ended["status"], item(ended, 1)["value"]) == ("partially_failed", 8)
        assert cancelled_rows == [[True, False]]
        step.clear()
        job = peer.start("work", inputs=[{"n": 7}, {"n": 8}])
        assert entered.acquire(timeout=10)
        peer.http.post(f"/v1/jobs/{job}/cancel")
        assert peer.ended(job)["status"] == "cancelled"
        eventually(lambda: len(cancelled_rows) == 2)
        step.set()
        assert item(peer.run("work", {"n": 9}))["value"] == 9
    assert cancelled_rows[1] == [True, True]


async def test_a_call_cancelled_before_its_first_step_does_not_run():
    server, ran = Server(**QUICK), []

    @server.endpoint(batch=True)
    async def work(n: list[int]) -> list[int]:
        ran.append(n)
        return n

    service = JobService(server.endpoints, server.settings, Metrics(), memory_of(server.settings))
    record = (await service.submit(ANONYMOUS, server.endpoints["work"], b'{"input": {"n": 1}}', None)).record
    await service.cancel(record, None)
    await service.outcome(record)
    assert record.status == "cancelled"
    await service.close()
    assert ran == []


def test_batch_timeouts_below_half_a_millisecond_work():
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

    # uvloop's timer handle for such a short wait has no time, and production servers run on uvloop.
    uvloop.run(at_once())


def test_a_call_is_cancelled_at_its_time_limit():
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


def test_expired_and_cancelled_items_in_the_queue_enter_no_call():
    gate, server = gated_server(max_batch_size=8)
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


# ---- values, progress, discovery -------------------------------------------------------------------------------------


def test_an_invalid_value_fails_only_its_row():
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


class UnfinishedError(ItemError):
    def __init__(self):  # without that of its base class
        pass


class Sparse:
    """As a sparse tensor of PyTorch."""

    def tolist(self) -> None:
        raise RuntimeError("no storage")


@pytest.mark.parametrize(("faulty", "code"), [(UnfinishedError(), "internal"), (Sparse(), "invalid_value")])
def test_a_faulty_error_or_type_fails_only_its_row(faulty, code):
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def values(n: list[int]) -> list[Any]:
        return [each or faulty for each in n]

    with serving(server) as peer:
        failed, fine = peer.run("values", inputs=[{"n": 0}, {"n": 1}])["state"]["items"]
    assert (failed["error"]["code"], fine["value"]) == (code, 1)


class Words(BaseModel):
    words: list[str]

    def __len__(self) -> int:
        return len(self.words)


def test_a_padding_input_may_be_empty():
    server = Server(**QUICK)

    @server.endpoint(batch=True, sizes=[2], pad=Words(words=[]))
    def seen(inputs: list[Words]) -> list[list[list[str]]]:
        return [[each.words for each in inputs]] * len(inputs)

    assert server.call("seen", words=["a"]) == [["a"], []]


def test_progress_and_notes_of_a_call_reach_each_row():
    server, batches = Server(**QUICK), threading.Event()

    @server.endpoint(batch=True)
    def work(n: list[int], ctx: Context) -> list[int]:
        ctx.progress(1, 2, unit="step")
        ctx.note("warm")
        ctx.rows[1].usage(tokens=3)
        assert batches.wait(10)
        return n

    with serving(server) as peer:
        job = peer.start("work", inputs=[{"n": 1}, {"n": 2}])
        with peer.stream(job) as reading:
            assert {data(reading.until("progress"))["item"] for _ in range(2)} == {0, 1}
            batches.set()
            assert reading.until("done")
        ended = peer.job(job)
        assert [note["text"] for note in ended["state"]["notes"]] == ["warm", "warm"]
        assert ended["done"]["usage"] == {"tokens": 3}


def test_discovery_reports_max_inputs_of_a_job_not_the_batch_size():
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
        # A job may have more inputs than one call takes.
        job = peer.run("trim_words", inputs=[{"word": f"w{n:02}"} for n in range(20)])
        assert [each["value"] for each in job["state"]["items"]] == [f"w{n:02}" for n in range(20)]
        assert max(each["batch"]["size"] for each in job["state"]["items"]) == 4


# ---- events ------------------------------------------------------------------------------------------------------------


def test_items_that_end_with_texts_and_errors_next_to_others_are_complete():
    server = Server(**QUICK)

    @server.endpoint(batch=True)
    def mixed(n: list[int]) -> list[str | int | ItemError]:
        return [(str(each), each, ItemError("no"))[each % 3] for each in n]

    with serving(server) as peer:
        events = peer.events(peer.start("mixed", inputs=[{"n": n} for n in range(9)]), "0-0")
    items = Fold().take(events).items
    assert [item.get("value") for item in items] == ["0", 1, None, "3", 4, None, "6", 7, None]
    assert [item["status"] for item in items] == ["succeeded", "succeeded", "failed"] * 3


def test_no_event_contains_the_start_and_the_result_of_an_item():
    server = Server(**(QUICK | {"merge_window": 0.05, "default_concurrency_limit": None}))

    @server.endpoint
    async def same(n: int) -> int:
        return n

    with serving(server) as peer:
        events = peer.events(peer.start("same", inputs=[{"n": n} for n in range(20)]), "0-0")
    diffs = [str(event.data) for event in events if event.type == "message"]
    for n in range(20):
        statuses = [f'"/items/{n}/status","{status}"' for status in ("running", "succeeded")]
        at = [next(at for at, diff in enumerate(diffs) if status in diff) for status in statuses]
        assert at[0] < at[1]


def test_a_refused_cost_has_all_digits():
    server = Server(**QUICK)

    @server.endpoint(batch=True, cost=lambda given: given.pixels, max_cost=1_048_576)
    def shrink(pixels: list[int]) -> list[int]:
        return pixels

    with serving(server) as peer:
        answer = peer.submit("shrink", {"pixels": 1_048_577})
    assert "cost 1048577 exceeds the maximum cost of a batch, 1048576 (max_cost)" in answer.json()["detail"]
