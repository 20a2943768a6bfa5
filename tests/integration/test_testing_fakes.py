"""`tidewire.testing`: clients see scripted results and faults of `FakeServer` through the real protocol."""

import math
import threading
from datetime import date

import httpx2
import numpy as np
import pytest
from pydantic import BaseModel

from tidewire import AsyncClient, Client, RetryPolicy, TextDelta
from tidewire.errors import (
    AuthenticationError,
    ConnectTimeoutError,
    EndpointNotFoundError,
    InvalidInputError,
    ItemFailedError,
    JobCancelledError,
    JobExpiredError,
    JobFailedError,
    QueueFullError,
    TotalTimeoutError,
    TransportError,
    VoidTextError,
)
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.sse import Decoder
from tidewire.protocol.strict_json import loads
from tidewire.testing import FakeServer, FakeToken

pytest_plugins = ["tidewire.testing.pytest_plugin"]


@pytest.fixture
def server(tidewire_server):
    return tidewire_server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


# ---- scripted results --------------------------------------------------------------------------------------------


def test_streams_sends_each_piece(server, client):
    server.endpoint("talk").streams(["Hel", "lo"])
    assert [update.text for update in client.submit("talk") if update.text] == ["Hel", "lo"]


def test_results_are_used_in_order_and_the_last_one_repeats(server, client):
    scripted = server.endpoint("scripted")
    scripted.returns(1)
    scripted.returns({"two": 2})
    assert [client.run("scripted") for _ in range(3)] == [1, {"two": 2}, {"two": 2}]


def test_yields_sends_differences(server, client):
    server.endpoint("grow").yields([{"t": "a"}, {"t": "ab"}, {"t": "c"}], columns=["/t"])
    deltas = list(client.submit("grow").iter_text_deltas())
    assert deltas == [TextDelta(0, "a"), TextDelta(0, "b"), TextDelta(2, "c")]


def test_yields_accepts_one_object_that_is_changed_in_place(server, client):
    def grow():
        value: list[int] = []
        for n in range(3):
            value.append(n)
            yield value

    server.endpoint("grow").yields(grow())
    assert [update.value for update in client.submit("grow")] == [[0], [0, 1], [0, 1, 2]]


def test_calls_computes_the_value_of_each_input(server, client):
    server.endpoint("upper").calls(lambda value: value["text"].upper())
    assert client.submit_batch("upper", [{"text": "a"}, {}], text="shared").results() == ["A", "SHARED"]


class Caption(BaseModel):
    text: str


def test_values_are_converted_to_json_as_on_a_real_server(server, client):
    scripted = server.endpoint("scripted")
    scripted.returns(Caption(text="a"))
    scripted.yields([np.arange(2), [Caption(text="b")]])
    scripted.calls(lambda _: {"when": date(2026, 1, 31)})
    assert client.run("scripted") == {"text": "a"}
    assert client.run("scripted") == [{"text": "b"}]
    assert client.run("scripted") == {"when": "2026-01-31"}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            lambda scripted: scripted.returns(object()),
            "cannot answer with <object.*: /value: .*object has no",
        ),
        (
            lambda scripted: scripted.returns(b"x"),
            "value: bytes cannot be sent as JSON; pass them in a model",
        ),
        (lambda scripted: scripted.yields([[1, math.nan]]), "at '/1': nan is not a JSON number"),
        (lambda scripted: scripted.streams([1]), "the pieces of a text must be strings, not 1"),
    ],
)
def test_a_value_that_is_not_json_raises_where_it_is_scripted(server, script, message):
    with pytest.raises(TypeError, match=message):
        script(server.endpoint("scripted"))


def test_a_function_whose_value_is_not_json_raises(server, client):
    server.endpoint("scripted").calls(lambda _: {"at": object()})
    with pytest.raises(TypeError, match="a fake endpoint cannot answer with .*: /value/at: "):
        client.run("scripted")


@pytest.mark.parametrize("code", ["item_refused.empty", "https://example.com/empty"])
def test_fails_accepts_the_codes_that_a_function_may_choose(server, client, code):
    server.endpoint("talk").fails(code, "an empty line", retryable=True)
    with pytest.raises(JobFailedError, match="an empty line") as caught:
        client.run("talk")
    assert (caught.value.code, caught.value.retryable) == (code, True)


def test_an_item_of_a_batch_fails_alone(server, client):
    scripted = server.endpoint("scripted")
    scripted.returns(1)
    scripted.fails("item_refused")
    first, second = client.submit_batch("scripted", [{}, {}]).results(return_exceptions=True)
    assert first == 1
    assert isinstance(second, ItemFailedError)


def test_items_of_a_batch_stream_separately(server, client):
    talk = server.endpoint("talk")
    talk.streams(["a", "b"]).cuts_after(1)
    talk.streams(["c"])
    texts = ["", ""]
    for update in client.submit_batch("talk", [1, 2]):
        texts[update.index] += update.text
    assert (texts, server.cuts) == (["ab", "c"], 1)


def test_generates_sends_the_requested_columns(server, client):
    server.endpoint("generate").generates(
        [FakeToken("a", -1, [("a", -1), ("b", -2)], rank=1)], finish_reason="length"
    )
    plain = client.run("generate")
    assert plain == {"text": "a", "finish_reason": "length"}
    full = client.run("generate", top_logprobs=1, ranks=True, token_text=True)
    assert full == {
        "text": "a",
        "token_ids": [0],
        "logprobs": [-1],
        "top_ids": [[0]],
        "top_logprobs": [[-1]],
        "ranks": [1],
        "token_text": ["a"],
        "top_text": [["a"]],
        "logprobs_mode": "raw",
        "finish_reason": "length",
    }
    batch = client.submit_batch("generate", [{"logprobs": True}, {}])
    assert [item["text"] for item in batch.results()] == ["a", "a"]


def test_queued_and_progresses_send_messages(server, client):
    server.endpoint("slow").returns(1).queued(3, 1).progresses(5, 10, "step")
    messages = []
    job = client.submit("slow")
    job.listener = messages.append
    assert job.result() == 1
    assert [getattr(one, "position", None) or one.current for one in messages] == [3, 1, 5]


def test_an_endpoint_without_a_script_raises(server, client):
    server.endpoint("scripted")
    with pytest.raises(AssertionError, match="has no answer; add an answer"):
        client.run("scripted")


# ---- faults ------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["cuts_after", "stalls_after"])
@pytest.mark.parametrize("changes", range(3))
def test_a_fault_occurs_once_within_an_event(server, client, fault, changes):
    getattr(server.endpoint("talk").streams(["Hel", "lo"]), fault)(changes)
    assert "".join(client.submit("talk").iter_text()) == "Hello"
    assert (server.cuts, server.resumes, server.streams) == (1, 1, 2)


def test_restarts_after_retracts_earlier_text(server, client):
    server.endpoint("talk").streams(["Hel", "lo"]).restarts_after(1)
    assert [*client.submit("talk").iter_text_deltas()] == [TextDelta(0, "Hel"), TextDelta(3, ""), TextDelta(0, "Hel"), TextDelta(0, "lo")]  # fmt: skip
    server.endpoint("again").streams(["Hel", "lo"]).restarts_after(1)
    with pytest.raises(VoidTextError):
        list(client.submit("again").iter_text())


def test_a_fault_without_a_value_raises(server):
    with pytest.raises(ValueError, match="has only 0 changes, not 1; pass the values before the fault"):
        server.endpoint("talk").fails().cuts_after(1)
    with pytest.raises(ValueError, match="has only 2 changes, not -1"):
        server.endpoint("talk").streams(["Hel", "lo"]).cuts_after(-1)


# ---- refused requests --------------------------------------------------------------------------------------------


def test_refuses_applies_the_scripted_number_of_times_without_waiting(server, client):
    scripted = server.endpoint("scripted")
    scripted.returns(1)
    scripted.refuses("queue_full", times=2)
    assert client.run("scripted") == 1
    scripted.refuses("queue_full", times=1000)
    with pytest.raises(QueueFullError, match="gave up"):
        client.with_options(retry=RetryPolicy(patience=3600)).run("scripted")
    with pytest.raises(TotalTimeoutError):
        client.with_options(timeout=0.05).run("scripted")
    assert [submit.job_id for submit in server.submits][:3] == [None, None, "job-1"]


@pytest.mark.parametrize("times", [0, -1])
def test_refuses_needs_a_positive_number_of_times(server, times):
    with pytest.raises(ValueError, match=f"times must be at least 1, not {times}"):
        server.endpoint("scripted").refuses("queue_full", times=times)


@pytest.mark.parametrize("method", ["fails", "refuses"])
def test_unknown_problem_code_is_refused_with_a_suggestion(server, method):
    scripted = getattr(server.endpoint("scripted"), method)
    with pytest.raises(ValueError, match=r"unknown problem code 'que_full'; did you mean 'queue_full'\?"):
        scripted("que_full")
    with pytest.raises(ValueError, match="unknown problem code 'nonsense'; the codes are: malformed_body, "):
        scripted("nonsense")


def test_unknown_endpoint_is_reported_with_a_suggestion(server, client):
    server.endpoint("Caption").returns(1)
    with pytest.raises(EndpointNotFoundError, match="did you mean 'Caption'.*has: Caption"):
        client.run("Captoin")


def test_stream_token_authorizes_only_requests_for_the_stream_of_its_job():
    with FakeServer(token="sesame") as server, Client(server.url, token="sesame") as client:
        server.endpoint("talk").streams(["Hel", "lo"])
        job, other = client.submit("talk"), client.submit("talk")
        assert job.stream_url().startswith(f"{server.url}/v1/jobs/{job.id}/events?")
        stream = job.stream_url()

        def status(method, target=stream):
            return server._answer(httpx2.Request(method, target)).status_code

        assert status("GET") == 200
        refused = [("GET", stream.replace("/events", "")), ("GET", stream.replace(job.id, other.id, 1))]
        refused += [("DELETE", stream.replace("/events", "")), ("POST", stream.replace("/events", "/cancel"))]
        refused += [("POST", stream.replace("/events", "/stream-token")), ("POST", stream)]
        assert [status(*each) for each in refused] == [401] * len(refused)


def test_refuses_sends_the_pointer(server, client):
    server.endpoint("scripted").refuses("invalid_input", "n is no number", pointer="/input/n")
    with pytest.raises(InvalidInputError, match="n is no number") as caught:
        client.run("scripted", n="x")
    assert caught.value.pointer == "/input/n"


def test_a_fake_server_with_a_token_requires_it():
    with FakeServer(token="secret") as server:
        server.endpoint("scripted").returns(1)
        with Client(server.url) as client, pytest.raises(AuthenticationError):
            client.run("scripted")
        with Client(server.url, headers={"Authorization": "Bearer secret"}) as client:
            assert client.run("scripted") == 1


def test_the_url_of_a_fake_server_may_have_a_path(caplog):
    with FakeServer("http://gateway.test/api/gpu/") as server:
        server.endpoint("scripted").streams(["a", "b"]).cuts_after(1)
        with Client("http://gateway.test/api/gpu") as client:
            assert client.run("scripted") == "ab"
            assert client.describe("scripted").name == "scripted"
            assert len(client.jobs()) == 1
            assert client.discover().endpoints[0].href == "/api/gpu/v1/endpoints/scripted"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == []
    assert server.requests[0] == ("POST", "/v1/endpoints/scripted/jobs")


def test_large_batches_and_forgotten_jobs_are_refused_like_by_a_server(server, client):
    server.endpoint("scripted", batch=2).returns(1)
    with pytest.raises(InvalidInputError, match="at most 2"):
        client.submit_batch("scripted", [1, 2, 3])
    job = client.submit("scripted")
    server.forget(job.id)
    with pytest.raises(JobExpiredError):
        client.job(job.id).result()
    assert httpx2.URL(server.url).host == "tidewire.test"


# ---- recorded requests -------------------------------------------------------------------------------------------


def test_submits_record_the_request(server, client):
    server.endpoint("scripted").returns(1)
    client.with_options(deadline=2.0, headers={"X-Trace": "t"}).submit("scripted", n=1, idempotency_key="k")
    client.submit_batch("scripted", [{"a": 1}, {"a": 2}], b=3)
    one, many = server.submits
    assert (one.endpoint, one.input, one.batch, one.idempotency_key) == ("scripted", {"n": 1}, False, "k")
    assert (one.body["deadline_ms"], one.headers["x-trace"], one.job_id) == (2000, "t", "job-1")
    assert (list(many.inputs), many.batch) == ([{"a": 1, "b": 3}, {"a": 2, "b": 3}], True)
    with pytest.raises(ValueError, match=r"has 2 inputs; read them with \.inputs"):
        _ = many.input


def test_a_job_advances_while_it_is_read(server, client):
    server.endpoint("talk").streams(["a", "b"])
    job = client.submit("talk")
    assert (job.status(), server.job_status(job.id)) == ("queued", "queued")
    job.result()
    assert job.status() == "succeeded"
    assert [one.id for one in client.jobs()] == ["job-1"]


def test_cancel_ends_unfinished_items(server, client):
    server.endpoint("talk").streams(["a", "b"])
    job = client.submit("talk")
    assert job.cancel() == "cancelled"
    with pytest.raises(JobCancelledError):
        job.result()
    batch = client.submit_batch("talk", [1, 2, 3])
    batch.cancel([1])
    assert [getattr(result, "status", result) for result in batch.results(return_exceptions=True)] == ["ab", "cancelled", "ab"]  # fmt: skip
    assert server.cancels == ["job-1", "job-2"]


@pytest.mark.anyio
async def test_async_clients_work_on_asyncio_and_trio(server):
    server.endpoint("talk").streams(["Hel", "lo"]).cuts_after(1)
    async with AsyncClient(server.url) as client:
        assert [text async for text in (await client.submit("talk")).iter_text()] == ["Hel", "lo"]
        async for _ in await client.submit("talk"):
            break


def test_many_threads_share_one_fake_server(server, client):
    server.endpoint("double").calls(lambda value: 2 * value)
    found = {}
    threads = [
        threading.Thread(target=lambda n=n: found.__setitem__(n, client.run("double", n))) for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {n: 2 * n for n in range(20)}


# ---- addresses ---------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_a_fake_server_may_replace_any_url_until_it_closes():
    with FakeServer("http://127.0.0.1:9") as server:
        server.endpoint("scripted").returns(1)
        with Client("http://127.0.0.1:9/") as client:
            assert client.run("scripted") == 1
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(TransportError, match="no server is listening"),
    ):
        client.discover()


def test_two_fake_servers_with_one_url_raise(server):
    with pytest.raises(ValueError, match="http://tidewire.test is already .*; pass another URL"):
        FakeServer().__enter__()


def test_requests_after_the_fake_server_closed_raise():
    with FakeServer() as server:
        pass
    with (
        Client(server.url, connect_timeout=2.0) as client,
        pytest.raises((TransportError, ConnectTimeoutError)),
    ):
        client.discover()


def test_the_log_of_a_fake_server_conforms_to_the_protocol(server):
    """Decode the log without the client: contiguous ids, applicable diffs, matching checks and digest."""
    server.endpoint("generate").generates([FakeToken("a"), FakeToken("b"), FakeToken("é😀")])
    with Client(server.url) as client:
        job = client.submit("generate", logprobs=True, token_text=True)
    document = Document({"status": "queued", "items": [], "usage": {}, "notes": []})
    frames = server._jobs[job.id].frames(Cursor(0, 0), 1000)
    events = Decoder().feed(b"".join(frame for frame in frames if isinstance(frame, bytes)))
    ids = []
    for event in events:
        if event.type == "hello":
            continue
        ids.append(Cursor.parse(event.id))
        data = loads(event.data)
        if event.type == "snapshot":
            document = Document(data["state"], data["columns"])
        elif event.type == "message":
            document.apply(data)
        else:
            assert data["digest"] == digest(document.value("/items"))
    assert ids == [Cursor(1, seq) for seq in range(1, len(ids) + 1)]
    assert document.value("/items/0/value/text") == "abé😀"
