"""How jobs run and end: kinds of functions, failures, queue, batches, cancellation, deadlines and limits."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from support.reference_server import QUICK, Fold, data, eventually, logged, serving
from tidewire_server import Append, ItemError, Server, Stream
from tidewire_server.errors import ProblemError

ran: list[str] = []
"""Names that endpoint functions append to show what ran."""
release = threading.Event()


class Point(BaseModel):
    x: float
    tags: tuple[str, ...] = ()


class Loose(BaseModel):
    x: Any


@dataclass
class Size:
    width: int


class Columns:
    """A callable object that yields two growing columns."""

    def __call__(self, n: int = 3) -> Iterator[dict[str, list[int]]]:
        rows: dict[str, list[int]] = {"a": [], "b": []}
        for number in range(n):
            rows["a"].append(number)
            rows["b"].append(-number)
            yield rows


def make_server(**settings: object) -> Server:
    server = Server(**(QUICK | {"default_concurrency_limit": None} | settings))
    endpoint = server.endpoint

    @endpoint
    def plain(n: int = 2) -> int:
        return n * n

    @endpoint
    async def model(x: float = 1.5) -> Point:
        return Point(x=x, tags=("a", "b"))

    @endpoint
    def dataclass_() -> Size:
        return Size(7)

    @endpoint
    def history(turns: int = 3) -> Iterator[list[list[str]]]:
        chat: list[list[str]] = []
        for turn in range(turns):
            chat.append([f"question {turn}", ""])
            for word in ("so ", "it ", "is"):
                chat[-1][1] += word
                yield chat

    @endpoint
    async def async_history(turns: int = 3) -> AsyncIterator[list[list[str]]]:
        for value in history(turns):
            yield value
            await asyncio.sleep(0)

    endpoint(name="rows", columns=["/a", "/b"], initial={"a": [], "b": []})(Columns())

    @endpoint
    async def say(text: str, stream: Stream[str]) -> None:
        for word in text.split():
            stream.append(word + " ")
            await asyncio.sleep(0)

    @endpoint
    def say_in_thread(text: str, stream: Stream[str]) -> None:
        for word in text.split():
            stream.append(word + " ")

    @endpoint(capabilities={"rollback": True})
    def edit(stream: Stream[dict[str, Any]]) -> None:
        stream.set("", {"text": "Helped", "list": [1, 2, 3]})
        stream.truncate(3, at="/text")
        stream.append("lo 🎉", at="/text")
        stream.append([4, (5, 6)], at="/list")
        stream.set("/point", Point(x=1))
        stream.note("look here", "warning")
        stream.usage(tokens=3, seconds=0.5)
        stream.usage(tokens=4)
        assert stream.value["text"] == "Hello 🎉"

    @endpoint(columns=["/text", "/ids"], initial=lambda _: {"text": "", "ids": []})
    async def generate(n: int, stream: Stream[dict[str, Any]]) -> None:
        for number in range(n):
            stream.row(f"t{number} ", number)

    @endpoint
    def refuse(at: str = "once", code: str = "") -> Iterator[str]:
        yield "so far"
        raise ItemError(f"not {at}", **({"code": code} if code else {}))

    @endpoint
    async def crash() -> int:
        raise ValueError("the password is hunter2")

    @endpoint
    def wrong(kind: str) -> Iterator[Any]:
        deep: Any = []
        for _ in range(60):
            deep = [deep]
        loop: list[Any] = []
        loop.append(loop)
        values = {
            "nan": float("nan"),
            "nan_in_a_model": Loose(x=float("nan")),
            "nan_in_models": [Loose(x=[float("nan")])],
            "merged": {"a": {1: 2, "1": 3}},
            "huge": 2**53 + 1,
            "surrogate": "\ud83d",
            "object": object(),
            "deep": deep,
            "loop": loop,
            "key": {1: "x", (2, 3): "y"},
        }
        yield values[kind]

    @endpoint
    async def loose() -> Loose:
        return Loose(x={"far": [1, float("inf")]})

    @endpoint
    async def wrong_type() -> int:
        return "three"  # type: ignore[return-value]

    @endpoint
    def elements() -> list[int]:
        yield 1  # type: ignore[misc]

    @endpoint
    def nothing() -> Iterator[int]:
        yield from ()

    @endpoint
    async def late(stream: Stream[str]) -> None:
        held.append(stream)

    @endpoint(concurrency_limit=1)
    async def one_at_a_time(name: str = "") -> str:
        ran.append(name)
        await asyncio.to_thread(release.wait, 10)
        return name

    @endpoint
    async def hang(stream: Stream[str], last_words: str = "") -> None:
        try:
            stream.append("begun")
            await asyncio.Event().wait()
        finally:
            ran.append("finally")
            stream.append(last_words)

    @endpoint
    def hang_in_thread(stream: Stream[str]) -> None:
        stream.append("begun")
        while not stream.cancelled:
            time.sleep(0.001)
        ran.append("saw it")

    @endpoint
    def endless() -> Iterator[int]:
        number = 0
        try:
            while True:
                yield number
                number += 1
                time.sleep(0.001)
        finally:
            ran.append("closed")

    @endpoint
    async def deaf(stream: Stream[str]) -> None:
        stream.append("begun")
        while not release.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                ran.append("swallowed")

    @endpoint(concurrency_limit=1)
    def stuck() -> int:
        release.wait(10)
        return 1

    @endpoint
    async def grow(stream: Stream[str], step: int = 1000, times: int = 10**6) -> None:
        for _ in range(times):
            stream.append("x" * step)
            await asyncio.sleep(0)

    return server


held: list[Stream[str]] = []


@pytest.fixture(scope="module")
def peer():
    with serving(make_server()) as peer:
        yield peer


@pytest.fixture(autouse=True)
def _reset():
    ran.clear()
    held.clear()
    release.clear()
    yield
    release.set()


# ---- kinds of functions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "input_", "value"),
    [
        ("plain", {"n": 3}, 9),
        ("model", {}, {"x": 1.5, "tags": ["a", "b"]}),
        ("dataclass_", {}, {"width": 7}),
        ("history", {"turns": 2}, [["question 0", "so it is"], ["question 1", "so it is"]]),
        ("async_history", {"turns": 1}, [["question 0", "so it is"]]),
        ("rows", {}, {"a": [0, 1, 2], "b": [0, -1, -2]}),
        ("say", {"text": "a b c"}, "a b c "),
        ("say_in_thread", {"text": "a b c"}, "a b c "),
        ("edit", {}, {"text": "Hello 🎉", "list": [1, 2, 3, 4, [5, 6]], "point": {"x": 1.0, "tags": []}}),
        ("generate", {"n": 2}, {"text": "t0 t1 ", "ids": [0, 1]}),
    ],
)
def test_each_kind_of_function_produces_its_value(peer, endpoint, input_, value):
    job = peer.start(endpoint, input_)
    fold = Fold().take(peer.events(job, after="0-0"))
    assert fold.items == [{"status": "succeeded", "value": value}]
    assert peer.job(job)["state"]["items"] == fold.items


def test_a_registered_function_stays_callable_directly_and_with_server_call():
    server = make_server()

    @server.endpoint(concurrency_limit=3)
    def double(n: int, text: str = "") -> str:
        return text * n

    assert double(2, "ab") == "abab"
    assert server.call("double", n=3, text="x") == "xxx"
    assert server.call("history", turns=1) == [["question 0", "so it is"]]
    assert server.call("edit")["text"] == "Hello 🎉"
    for bad, message in (
        ({1: 2, "1": 3}, "both become the JSON member '1'"),
        (float("nan"), "nan is not a JSON number"),
    ):
        with pytest.raises(ProblemError, match=message):
            server.call("double", n=bad)
    with pytest.raises(ItemError, match="not once"):
        server.call("refuse")
    with pytest.raises(ValueError, match="hunter2"):
        server.call("crash")
    with pytest.raises(Exception, match="did you mean 'text'"):
        server.call("double", n=1, txt="x")
    with pytest.raises(KeyError):
        server.call("triple")


def test_a_generator_that_mutates_one_object_sends_only_diffs():
    with serving(make_server(merge_window=0.0)) as peer:
        job = peer.start("async_history", {"turns": 2})
        diffs = [data(event) for event in logged(peer.events(job, after="0-0"))[2:-2]]
    assert diffs == [
        [["s", "/items/0/value", [["question 0", "so "]]]],
        [["a", "/items/0/value/0/1", "it "]],
        [["a", "/items/0/value/0/1", "is"]],
        [["a", "/items/0/value", [["question 1", "so "]]]],
        [["a", "/items/0/value/1/1", "it "]],
        [["a", "/items/0/value/1/1", "is"]],
    ]


def test_appends_to_each_column_become_rows(peer):
    job = peer.start("rows")
    peer.ended(job)
    assert [op for event in logged(peer.events(job, after="0-0"))[2:-2] for op in data(event)] == [
        ["r", 0, 0],
        ["r", 1, -1],
        ["r", 2, -2],
    ]


def test_notes_and_usage_are_in_the_job_resource(peer):
    job = peer.run("edit")
    assert job["state"]["notes"] == [{"level": "warning", "text": "look here"}]
    assert job["state"]["usage"] == job["done"]["usage"] == {"tokens": 4, "seconds": 0.5}


def test_appends_within_the_merge_window_become_one_event():
    with serving(make_server(merge_window=0.2)) as peer:
        job = peer.start("say_in_thread", {"text": "word " * 200})
        began = logged(peer.events(job, after="0-0"))
        texts = [event for event in began if event.data.startswith('"')]
        assert 1 <= len(texts) <= 3
        assert Fold().take(began).items[0]["value"] == "word " * 200


# ---- failing functions -----------------------------------------------------------------------------------------------


def failed(peer: Any, endpoint: str, input_: Any = None) -> dict[str, Any]:
    job = peer.start(endpoint, input_)
    fold = Fold().take(peer.events(job, after="0-0"))
    assert fold.done["status"] == fold.items[0]["status"] == "failed"
    assert fold.done["error"] == fold.items[0]["error"]
    return fold.items[0]


def test_an_item_error_reaches_the_caller_with_the_partial_value(peer):
    item = failed(peer, "refuse", {"at": "today"})
    assert item["value"] == "so far"
    assert (item["error"]["detail"], item["error"]["code"]) == ("not today", "item_refused")
    assert failed(peer, "refuse", {"code": "empty"})["error"]["code"] == "item_refused.empty"
    assert (
        failed(peer, "refuse", {"code": "https://example.com/e"})["error"]["code"] == "https://example.com/e"
    )
    registered = failed(peer, "refuse", {"code": "input_too_long"})["error"]
    assert (registered["code"], registered["status"]) == ("input_too_long", 422)


def test_an_exception_fails_as_internal_and_is_logged(peer, caplog):
    job = peer.start("crash")
    whole = "".join(event.data for event in peer.events(job, after="0-0"))
    assert "hunter2" not in whole
    assert "Traceback" not in whole
    assert data(logged(peer.events(job))[-1])["error"]["code"] == "internal"
    assert "hunter2" in caplog.text
    assert job in caplog.text


@pytest.mark.parametrize(
    "kind",
    ["nan", "nan_in_a_model", "nan_in_models", "merged", "huge", "surrogate", "object", "deep", "loop"],
)
def test_a_value_that_is_not_json_fails_its_item(peer, kind):
    assert failed(peer, "wrong", {"kind": kind})["error"]["code"] == "invalid_value"


def test_a_non_finite_number_in_a_model_fails_with_its_path(peer):
    error = failed(peer, "loose")["error"]
    assert (error["code"], "/x/far/1" in error["detail"]) == ("invalid_value", True)


def test_member_names_are_converted_to_strings(peer):
    assert peer.value("wrong", {"kind": "key"}) == {"1": "x", "2,3": "y"}


def test_a_generator_of_elements_is_told_how_to_append_them(peer):
    error = failed(peer, "elements")["error"]
    assert error["code"] == "invalid_value"
    assert "yield Append([element])" in error["detail"]


@pytest.mark.parametrize("endpoint", ["wrong_type", "nothing"])
def test_a_value_that_does_not_fit_the_schema_fails_its_item(peer, endpoint):
    error = failed(peer, endpoint)["error"]
    assert error["code"] == "invalid_value"
    assert "integer" in error["detail"]


def test_writing_to_an_ended_stream_raises(peer):
    peer.run("late")
    with pytest.raises(RuntimeError, match="has ended"):
        held[0].append("x")
    with pytest.raises(RuntimeError, match="has ended"):
        held[0].progress(1)
    assert held[0].value == ""


def test_an_invalid_stream_change_raises_at_the_call():
    server = Server(**QUICK)
    refused: list[str] = []

    @server.endpoint
    async def clumsy(stream: Stream[dict[str, Any]]) -> None:
        stream.set("", {"text": "abc", "n": 1})
        for attempt in (
            lambda: stream.append("x", at="/n"),
            lambda: stream.append("x", at="/none"),
            lambda: stream.append([1], at="/text"),
            lambda: stream.append("\ud83d", at="/text"),
            lambda: stream.truncate(4, at="/text"),
            lambda: stream.truncate(-1, at="/text"),
            lambda: stream.set("text", 1),
            lambda: stream.set("/a/b", 1),
            lambda: stream.set("/n", float("inf")),
            lambda: stream.set("/n", object()),
            lambda: stream.row(1, 2),
            lambda: stream.note("x", "loud"),
            lambda: stream.usage(tokens="many"),
        ):
            try:
                attempt()
            except ValueError as error:
                refused.append(str(error))

    assert server.call("clumsy") == {"text": "abc", "n": 1}
    assert len(refused) == 13


# ---- the queue -------------------------------------------------------------------------------------------------------


def test_worker_threads_are_bounded_over_all_endpoints():
    with serving(make_server(max_threads=2)) as peer:
        stuck = [peer.start("hang_in_thread") for _ in range(2)]
        for job in stuck:
            eventually(lambda job=job: peer.job(job)["status"] == "running")
        waiting = peer.start("plain")
        assert peer.value("model")["x"] == 1.5
        assert peer.job(waiting)["status"] == "queued"
        peer.http.post(f"/v1/jobs/{stuck[0]}/cancel")
        assert peer.ended(waiting)["status"] == "succeeded"
        peer.http.post(f"/v1/jobs/{stuck[1]}/cancel")


# ---- batches ---------------------------------------------------------------------------------------------------------


def test_the_items_of_a_batch_end_independently(peer):
    job = peer.start("refuse", inputs=[{"at": "a"}, {"at": "b", "code": "internal"}])
    fold = Fold().take(peer.events(job, after="0-0"))
    assert [item["error"]["detail"] for item in fold.items] == ["not a", "not b"]
    assert fold.done["status"] == "failed"
    assert peer.job(job)["batch"] is True
    mixed = peer.run("plain", inputs=[{"n": 1}, {"n": 2}, {"n": 3}])
    assert [item["value"] for item in mixed["state"]["items"]] == [1, 4, 9]
    assert mixed["columns"] == []


def test_shared_members_fill_in_missing_members_of_each_input(peer):
    job = peer.run("say", inputs=[{}, {"text": "own"}], shared={"text": "for all"})
    assert [item["value"] for item in job["state"]["items"]] == ["for all ", "own "]
    assert peer.run("plain", inputs=[{}])["batch"] is True


def test_rows_of_several_items_update_their_own_values(peer):
    job = peer.start("generate", inputs=[{"n": 3}, {"n": 2}])
    fold = Fold().take(peer.events(job, after="0-0"))
    assert [item["value"] for item in fold.items] == [
        {"text": "t0 t1 t2 ", "ids": [0, 1, 2]},
        {"text": "t0 t1 ", "ids": [0, 1]},
    ]


def test_a_batch_with_succeeded_and_cancelled_items_is_partially_failed(peer):
    job = peer.start("hang", inputs=[{}, {}])
    eventually(lambda: [item["value"] for item in peer.job(job)["state"]["items"]] == ["begun"] * 2)
    answer = peer.http.post(f"/v1/jobs/{job}/cancel", json={"items": [1]})
    assert answer.status_code == 202
    eventually(
        lambda: [item["status"] for item in peer.job(job)["state"]["items"]] == ["running", "cancelled"]
    )
    peer.http.post(f"/v1/jobs/{job}/cancel")
    assert peer.ended(job)["status"] == "cancelled"
    mixed = make_mixed(peer)
    assert mixed["status"] == "partially_failed"
    assert "error" not in mixed["done"]


def make_mixed(peer: Any) -> dict[str, Any]:
    job = peer.start("one_at_a_time", inputs=[{"name": "x"}, {"name": "y"}])
    eventually(lambda: peer.job(job)["status"] == "running")
    assert peer.http.post(f"/v1/jobs/{job}/cancel", json={"items": [1]}).status_code == 202
    release.set()
    return peer.ended(job)


# ---- cancel ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "marker"),
    [("hang", "finally"), ("hang_in_thread", "saw it"), ("endless", "closed"), ("deaf", "swallowed")],
)
def test_cancel_reaches_the_function_and_keeps_the_value(peer, endpoint, marker):
    job = peer.start(endpoint)
    eventually(lambda: peer.job(job)["state"]["items"][0]["value"])
    answer = peer.http.post(f"/v1/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["id"]) == (202, job)
    fold = Fold().take(peer.events(job, after="0-0"))
    assert fold.done["status"] == fold.items[0]["status"] == "cancelled"
    assert fold.items[0]["value"]
    eventually(lambda: marker in ran)
    again = peer.http.post(f"/v1/jobs/{job}/cancel")
    assert (again.status_code, again.json()["status"]) == (200, "cancelled")


def test_a_cancelled_function_may_write_during_cleanup(peer):
    job = peer.start("hang", {"last_words": ", and over"})
    eventually(lambda: peer.job(job)["state"]["items"][0]["value"])
    peer.http.post(f"/v1/jobs/{job}/cancel")
    assert peer.ended(job)["state"]["items"][0]["value"] == "begun, and over"


def test_cancelling_a_blocked_function_ends_the_job_but_keeps_its_slot(peer):
    job = peer.start("stuck")
    eventually(lambda: peer.job(job)["status"] == "running")
    peer.http.post(f"/v1/jobs/{job}/cancel")
    assert peer.ended(job)["status"] == "cancelled"
    next_one = peer.start("stuck")
    assert peer.job(next_one)["status"] == "queued"
    release.set()
    assert peer.ended(next_one)["status"] == "succeeded"


@pytest.mark.heavy
def test_a_cancel_during_a_write_does_not_lose_the_end_of_the_job(tmp_path):
    server = Server(**QUICK, log=f"sqlite:///{tmp_path}/log.db")

    @server.endpoint(concurrency_limit=None)
    async def flood() -> AsyncIterator[Append[str]]:
        """Yield so much that the generator has to wait for the writes."""
        while True:
            yield Append("x" * 300_000)

    with serving(server) as peer:
        for _ in range(5):
            job = peer.start("flood")
            eventually(lambda job=job: peer.job(job)["state"]["items"][0]["value"])
            assert peer.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
            assert peer.ended(job)["status"] == "cancelled"


def test_a_cancelled_queued_item_never_runs(peer):
    peer.start("one_at_a_time", {"name": "first"})
    waiting = peer.start("one_at_a_time", {"name": "never"})
    assert peer.job(waiting)["done"] is None
    assert peer.http.get("/v1/jobs").json()["jobs"][0]["done"] is None
    peer.http.post(f"/v1/jobs/{waiting}/cancel")
    job = peer.ended(waiting)
    assert (job["status"], job["cursor"], job.get("started_at")) == ("cancelled", "1-3", None)
    release.set()
    eventually(lambda: peer.metrics()['tidewire_items_running{endpoint="one_at_a_time"}'] == 0)
    assert ran == ["first"]


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"items": [0, 2]}, "/items/1"),
        ({"items": [-1]}, "/items/0"),
        ({"items": [True]}, "/items/0"),
        ({"items": 1}, "/items"),
    ],
)
def test_cancel_with_an_unknown_item_cancels_nothing(peer, body, pointer):
    job = peer.start("hang", inputs=[{}, {}])
    answer = peer.http.post(f"/v1/jobs/{job}/cancel", json=body)
    assert (answer.status_code, answer.json()["pointer"]) == (422, pointer)
    assert peer.http.post(f"/v1/jobs/{job}/cancel", json={"items": []}).status_code == 202
    assert {item["status"] for item in peer.job(job)["state"]["items"]} <= {"queued", "running"}
    peer.http.delete(f"/v1/jobs/{job}")


def test_the_first_of_cancel_and_end_decides_the_status(peer):
    for _ in range(20):
        job = peer.start("say", {"text": "a b c d e f"})
        answer = peer.http.post(f"/v1/jobs/{job}/cancel")
        fold = Fold().take(peer.events(job, after="0-0"))
        final = peer.job(job)
        assert final["status"] == fold.done["status"] == final["state"]["items"][0]["status"]
        assert answer.status_code == (202 if fold.done["status"] == "cancelled" else answer.status_code)
        if answer.status_code == 200:
            assert answer.json()["status"] == fold.done["status"]


def test_deleting_a_running_job_sends_done_to_its_readers(peer):
    job = peer.start("hang")
    with peer.stream(job) as reading:
        reading.until_text("begun")
        assert peer.http.delete(f"/v1/jobs/{job}").status_code == 204
        assert peer.http.get(f"/v1/jobs/{job}").status_code == 410
        assert data(reading.until("done"))["status"] == "cancelled"
    eventually(lambda: "finally" in ran)


# ---- deadlines and disconnects ---------------------------------------------------------------------------------------


def test_a_deadline_fails_unfinished_items(peer):
    answer = peer.submit("hang", {}, deadline_ms=50)
    fold = Fold().take(peer.events(answer.json()["id"], after="0-0"))
    assert fold.done["status"] == "failed"
    assert fold.items[0]["error"]["code"] == fold.done["error"]["code"] == "deadline_exceeded"
    eventually(lambda: "finally" in ran)


def test_a_job_whose_deadline_passes_in_the_queue_does_not_run(peer):
    peer.start("one_at_a_time", {"name": "first"})
    answer = peer.submit("one_at_a_time", {"name": "never"}, deadline_ms=30)
    assert peer.ended(answer.json()["id"])["done"]["error"]["code"] == "deadline_exceeded"
    release.set()
    eventually(lambda: peer.metrics()['tidewire_items_running{endpoint="one_at_a_time"}'] == 0)
    assert ran == ["first"]


@pytest.mark.parametrize(("settings", "least"), [({}, 5000), ({"min_grace": 90.0}, 90_000)])
def test_discovery_has_the_minimum_of_grace_ms(settings, least):
    with serving(make_server(**settings)) as peer:
        assert peer.http.get("/v1").json()["limits"]["min_grace_ms"] == least


@pytest.mark.slow
def test_a_caller_can_ask_for_a_grace_of_five_seconds():
    with serving(make_server()) as peer:
        began = time.monotonic()
        quick = peer.submit("hang", {}, on_disconnect="cancel", grace_ms=5000).json()["id"]
        default = peer.submit("hang", {}, on_disconnect="cancel").json()["id"]
        eventually(lambda: peer.job(quick)["status"] == "cancelled", within=30)
        assert time.monotonic() - began >= 5
        assert peer.job(default)["status"] == "running"


def test_a_job_without_readers_is_cancelled_only_with_on_disconnect():
    with serving(make_server(min_grace=0.15)) as peer:
        assert peer.http.get("/v1").json()["limits"]["min_grace_ms"] == 150
        careless = peer.submit("hang", {}, on_disconnect="cancel", grace_ms=0).json()["id"]
        watched = peer.submit("hang", {}, on_disconnect="cancel", grace_ms=1).json()["id"]
        longer = peer.submit("hang", {}, on_disconnect="cancel", grace_ms=60_000).json()["id"]
        steady = peer.submit("hang", {}).json()["id"]
        with peer.stream(watched) as reading:
            reading.until_text("begun")
            # Reading the job or the headers of its stream does not count as a reader.
            looked = f"/v1/jobs/{careless}/events"
            eventually(lambda: peer.http.head(looked) and peer.job(careless)["status"] == "cancelled")
            assert peer.job(watched)["status"] == "running"
        eventually(lambda: peer.job(watched)["status"] == "cancelled")
        assert [peer.job(job)["status"] for job in (longer, steady)] == ["running", "running"]


# ---- size limits -----------------------------------------------------------------------------------------------------


def test_a_job_beyond_max_state_bytes_fails():
    with serving(make_server(max_state_bytes=20_000)) as peer:
        item = failed(peer, "grow")
        assert item["error"]["code"] == "state_too_large"
        assert "max_state_bytes=20000; return less, or raise this setting" in item["error"]["detail"]
        assert 18_000 < len(item["value"]) < 20_000
        assert peer.run("grow", {"times": 19})["status"] == "succeeded"
        job = peer.start("grow")
        peer.ended(job)
        snapshot = logged(peer.events(job))[0]
        assert len(snapshot.data.encode()) <= 20_000
        assert peer.submit("say", {"text": "x" * 100_000}).status_code == 201


def test_no_diff_is_larger_than_max_event_bytes():
    server = make_server(max_event_bytes=2048, merge_window=0.0)

    @server.endpoint
    async def bulky(stream: Stream[dict[str, Any]]) -> None:
        stream.set("", {"text": "", "table": [], "names": {}})
        stream.append("é" * 5000, at="/text")
        stream.append([["cell" * 20, number] for number in range(100)], at="/table")
        stream.append([[{"deep": ["x" * 3000]}, 1]], at="/table")
        stream.set("/names", {f"name {number}": "y" * 100 for number in range(50)})

    with serving(server) as peer:
        job = peer.start("bulky")
        events = peer.events(job, after="0-0")
        fold = Fold().take(events)
        assert fold.done["status"] == "succeeded"
        value = fold.items[0]["value"]
        assert value["text"] == "é" * 5000
        assert value["table"][100] == [{"deep": ["x" * 3000]}, 1]
        assert len(value["table"]) == 101
        assert len(value["names"]) == 50
        assert max(len(event.data.encode()) for event in events if event.type == "message") <= 2048


def test_checks_are_sent_regularly_and_match():
    with serving(make_server(merge_window=0.0)) as peer:
        job = peer.start("say", {"text": "w " * 200})
        events = logged(peer.events(job, after="0-0"))
    since, checks = 0, 0
    for event in events:
        if event.type != "message":
            continue
        content = data(event)
        if isinstance(content, dict):
            checks += 1
            since = 0
        elif isinstance(content, str):
            since += 1
        assert since < 64
    assert checks >= 4
    assert Fold().take(events).done["check"] == []


def test_randomly_changing_values_are_reproduced_by_readers():
    import random

    server = Server(**(QUICK | {"merge_window": 0.0, "default_concurrency_limit": None}))
    kinds: list[Any] = [None, True, 1, 1.0, -0.0, "", "text", "é🎉", [], {}, [1, [2]], {"a": {"b": 1}}]

    @server.endpoint
    def wander(seed: int) -> Iterator[Any]:
        draw = random.Random(seed)
        value: Any = {"list": [1, 2, 3], "text": "abc"}
        for _ in range(60):
            match draw.randrange(7):
                case 0:
                    value["list"].insert(draw.randrange(len(value["list"]) + 1), draw.choice(kinds))
                case 1 if value["list"]:
                    del value["list"][draw.randrange(len(value["list"]))]
                case 2:
                    value["text"] += draw.choice(("x", "é", "🎉 "))
                case 3:
                    value["text"] = value["text"][: draw.randrange(len(value["text"]) + 1)]
                case 4:
                    value[f"k/{draw.randrange(3)}~"] = draw.choice(kinds)
                case 5:
                    value.pop(f"k/{draw.randrange(3)}~", None)
                case _:
                    value["list"].append([value["text"]])
            yielded[seed].append(json.loads(json.dumps(value)))
            yield value

    yielded: dict[int, list[Any]] = {seed: [] for seed in range(12)}
    with serving(server) as peer:
        for seed, values in yielded.items():
            fold = Fold().take(peer.events(peer.start("wander", {"seed": seed}), after="0-0"))
            assert fold.done["status"] == "succeeded"
            seen = [json.dumps(state[0]["value"], sort_keys=True) for state in fold.states.values()]
            assert [
                text for text in (json.dumps(value, sort_keys=True) for value in values) if text not in seen
            ] == []
