"""`client.map`: ordered values for any number of inputs, with bounded jobs and look-ahead."""

import asyncio
import contextlib
import itertools
import json
import math
import time
from collections import Counter
from random import Random

import anyio
import pytest

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    STREAM,
    ScriptedServer,
    answer,
    discovery,
    done,
    endpoint,
    event,
    hello,
    job,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient, Client, RetryPolicy
from tidewire.errors import (
    ConcurrentReadError,
    InvalidInputError,
    InvalidValueError,
    ItemFailedError,
    JobExpiredError,
    JobNotFoundError,
    ProtocolError,
    QueueFullError,
    RequestError,
)
from tidewire.http.api_session import Timing
from tidewire.jobs.map.map_work import CONCURRENCY, MAX_EXPIRED_KEYS
from tidewire.protocol.resources import Limits
from tidewire.testing import FakeServer
from tidewire_server import ItemError, Server


@pytest.fixture
def server():
    with FakeServer() as server:
        server.endpoint("double").calls(lambda x: 2 * x)
        yield server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


def test_values_keep_the_input_order_across_batch_jobs(server, client):
    assert list(client.map("double", range(10), batch_size=4)) == [2 * x for x in range(10)]
    assert [[*submit.inputs] for submit in server.submits] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_map_requests_the_status_of_other_jobs_only_after_the_poll_interval(server, client):
    assert list(client.map("double", range(3), batch_size=1)) == [0, 2, 4]
    assert [path for method, path in server.requests if (method, path[:9]) == ("GET", "/v1/jobs/")] == [
        f"/v1/jobs/job-{number}/events" for number in (1, 2, 3)
    ]
    assert len(server.requests) == 8


def test_map_without_inputs_starts_no_jobs(server, client):
    assert list(client.map("double", [])) == []
    assert server.submits == []


def test_max_inputs_of_the_server_bounds_each_job():
    with FakeServer(limits=Limits(max_inputs=3)) as server, Client(server.url) as client:
        server.endpoint("double").calls(lambda x: 2 * x)
        server.endpoint("pairs", batch=2).calls(lambda x: 2 * x)
        assert len(list(client.map("double", range(7)))) == 7
        assert len(list(client.map("pairs", range(5)))) == 5
        assert [len(submit.inputs) for submit in server.submits] == [3, 3, 1, 2, 2, 1]


def test_max_body_bytes_of_the_server_bounds_each_job():
    with FakeServer(limits=Limits(max_body_bytes=3000)) as server, Client(server.url) as client:
        server.endpoint("size").calls(len)
        texts = ["x" * length for length in (900, 900, 900, 2, 2500, 1)]
        assert list(client.map("size", texts)) == [900, 900, 900, 2, 2500, 1]
        assert [[len(text) for text in submit.inputs] for submit in server.submits] == [
            [900, 900],
            [900, 2],
            [2500],
            [1],
        ]
        assert all(int(submit.headers["content-length"]) <= 3000 for submit in server.submits)


def test_shared_members_are_merged_into_inputs_of_endpoints_without_batches(server, client):
    server.endpoint("one", batch=None).calls(lambda value: [value["x"], value["tone"]])
    server.endpoint("many").calls(lambda value: [value["x"], value["tone"]])
    inputs = [{"x": 1}, {"x": 2, "tone": "own"}]
    assert list(client.map("one", inputs, tone="dry")) == [[1, "dry"], [2, "own"]]
    assert list(client.map("many", inputs, tone="dry")) == [[1, "dry"], [2, "own"]]
    assert [submit.body for submit in server.submits] == [
        {"input": {"tone": "dry", "x": 1}},
        {"input": {"tone": "own", "x": 2}},
        {"inputs": inputs, "shared": {"tone": "dry"}},
    ]


# ---- failures ----------------------------------------------------------------------------------------------------


def refusing(server, *numbers):
    """Add an endpoint that rejects the request body once for each of these inputs, as input validation does."""
    endpoint = server.endpoint("validating")
    endpoint.calls(lambda x: 2 * x)
    for number in numbers:
        endpoint.refuses("invalid_input", f"/inputs/{number}: no number", pointer=f"/inputs/{number}")


def test_a_rejected_input_fails_alone_and_the_rest_of_its_job_runs(server, client):
    refusing(server, 1, 2)
    values = list(client.map("validating", range(5), return_exceptions=True))
    assert [values[at] for at in (0, 2, 4)] == [0, 4, 8]
    assert [(values[at].index, values[at].code) for at in (1, 3)] == [
        (1, "invalid_input"),
        (3, "invalid_input"),
    ]
    assert str(values[3]).startswith("input 3 was refused: no number [invalid_input]")
    assert [[*submit.inputs] for submit in server.submits] == [[0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 2, 4]]


def test_a_rejected_input_raises_in_order_and_later_inputs_do_not_run(server, client):
    refusing(server, 2)
    values = client.map("validating", itertools.count())
    assert [next(values), next(values)] == [0, 2]
    with pytest.raises(InvalidInputError, match="input 2 was refused"):
        next(values)
    assert [*server.submits[-1].inputs] == [0, 1]


def test_inputs_that_are_too_large_together_are_sent_in_smaller_requests():
    """The longest of the lists has more JSON values than a request may have, so it fails alone."""
    server = Server(max_body_values=100)

    @server.endpoint(batch=True)
    def size(values: list[list[int]]) -> list[int]:
        return [len(each) for each in values]

    lengths = [30, 30, 30, 30, 1, 150, 1, 60, 60, 30]
    inputs = [{"values": [0] * length} for length in lengths]
    with server.running() as url, Client(url) as client:
        values = list(client.map("size", inputs, return_exceptions=True))
        failed = values.pop(5)
        assert values == [length for length in lengths if length != 150]
        assert (failed.index, failed.code) == (5, "body_too_large")
        assert str(failed).startswith("input 5 was refused: the request body has more than 100 JSON values")


@pytest.mark.parametrize("code", ["body_too_large", "batch_too_large"])
def test_a_refused_size_bounds_the_requests_that_follow(server, client, code):
    server.endpoint("double").refuses(code, pointer="/inputs" if code == "batch_too_large" else None)
    assert list(client.map("double", range(100, 140), batch_size=8)) == [2 * x for x in range(100, 140)]
    assert [len(submit.inputs) for submit in server.submits] == [8] + [4] * 10


def test_a_gateway_that_refuses_a_size_bounds_the_requests_that_follow():
    refused = answer(413, b"<h1>Too large</h1>", media="text/html")
    with ScriptedServer(scripted(refused, [])) as server, Client(server.url) as client:
        found = list(client.map("count", [1, 2, 3], return_exceptions=True))
        sizes = [len(json.loads(each.body)["inputs"]) for each in server.requests if each.method == "POST"]
    assert [each.index for each in found] == [0, 1, 2]
    assert "413 text/html: '<h1>Too large</h1>'" in str(found[0])
    assert sizes == [3, 1, 1, 1]


@pytest.mark.parametrize("has_file", [False, True])
def test_values_that_are_too_large_together_arrive_in_smaller_jobs(tmp_path, caplog, has_file):
    server = Server(max_state_bytes=100_000)
    calls = Counter()

    @server.endpoint(concurrency_limit=1)
    def text(number: int, size: int) -> str:
        calls[number] += 1
        return "x" * size

    sizes = [30_000] * 9 + [200_000] + [30_000] * 6
    inputs = [{"number": number, "size": size} for number, size in enumerate(sizes)]
    arguments = {"resume_file": tmp_path / "run.jsonl"} if has_file else {}
    with server.running() as url, Client(url) as client:
        values = list(client.map("text", inputs, return_exceptions=True, batch_size=16, **arguments))
        failed = values.pop(9)
        assert [len(value) for value in values] == [30_000] * 15
        assert (failed.index, failed.code) == (9, "state_too_large")
        assert str(failed).startswith("input 9 failed")
        assert max(calls.values()) <= 4
        assert "in jobs of at most 8 inputs" in caplog.text
        assert len(client.jobs()) <= 8  # not one job for each input
        if has_file:
            again = list(client.map("text", inputs, return_exceptions=True, **arguments))
            assert [getattr(each, "code", each) for each in again] == [
                *values[:9],
                "state_too_large",
                *values[9:],
            ]
            assert sum(calls.values()) <= 30


def test_a_function_that_fails_for_an_input_fails_it_alone():
    server = Server()

    @server.endpoint(batch=True, key=lambda given: 1 // given.x)
    def double(x: list[int]) -> list[int]:
        return [2 * each for each in x]

    inputs = [{"x": x} for x in (1, 0, 3)]
    with server.running() as url, Client(url) as client:
        first, failed, last = client.map("double", inputs, return_exceptions=True)
        assert (first, last, failed.index, failed.code) == (2, 6, 1, "endpoint.function_failed")
        with pytest.raises(RequestError, match="input 1 was refused: endpoint 'double': key or cost raised"):
            list(client.map("double", inputs))


def test_a_rejection_without_an_input_pointer_ends_the_map(server, client):
    server.endpoint("validating").calls(lambda x: x)
    server.endpoint("validating").refuses("invalid_input", "shared is wrong", pointer="/shared/tone")
    with pytest.raises(InvalidInputError, match="shared is wrong"):
        list(client.map("validating", [1, 2], return_exceptions=True, tone=1))
    server.endpoint("validating").refuses("forbidden")
    with pytest.raises(RequestError):
        list(client.map("validating", [1, 2], return_exceptions=True))


def values_until_error(is_async, url, inputs, **arguments):
    """Return the values of a `map` and the error that ended it, which may be None."""
    values = []

    async def read():
        async with AsyncClient(url) as client, client.map("double", inputs, **arguments) as results:
            async for value in results:
                values.append(value)

    try:
        if is_async:
            anyio.run(read)
        else:
            with Client(url) as client:
                values.extend(client.map("double", inputs, **arguments))
    except Exception as error:
        return values, error
    return values, None


def numbers_and(last):
    """Yield more inputs than one job has, and then `last` and another input, or raise `last` if it is an exception."""
    yield from range(8)
    if isinstance(last, Exception):
        raise last
    yield last
    yield 9


class Unserializable:
    def tolist(self):
        raise RuntimeError("no data")


BEFORE = [2 * x for x in range(8)]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "last",
    [
        ValueError("row 8 is broken"),
        pytest.param(ItemFailedError("item 3 failed"), id="the error of another map"),
    ],
)
def test_an_exception_of_the_inputs_ends_the_map_after_the_values_before_it(server, is_async, last):
    for catch in (False, True):
        values, raised = values_until_error(
            is_async, server.url, numbers_and(last), batch_size=3, return_exceptions=catch
        )
        assert (values, raised) == (BEFORE, last)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("last", "error", "message", "reason"),
    [
        ({"image": b"x"}, TypeError, "inputs[8].image: bytes", "image: bytes"),
        ([{1}], TypeError, "inputs[8][0]: a set", "[0]: a set"),
        (b"x", TypeError, "inputs[8]: bytes", "bytes"),
        (math.nan, InvalidInputError, "input 8 was refused", "the input is not valid JSON"),
        (Unserializable(), Exception, "no data", ""),
    ],
)
def test_an_input_that_cannot_be_sent_fails_at_its_place(server, is_async, last, error, message, reason):
    values, raised = values_until_error(is_async, server.url, numbers_and(last), batch_size=3)
    assert values == BEFORE
    assert isinstance(raised, error)
    assert message in str(raised)
    (*values, failed, after), raised = values_until_error(
        is_async, server.url, numbers_and(last), batch_size=3, return_exceptions=True
    )
    assert (values, failed.index, after, raised) == (BEFORE, 8, 18, None)
    assert str(failed).startswith(f"input 8 was refused: {reason}")


@pytest.mark.parametrize("arguments", [{"concurrency": 0}, {"batch_size": 0}, {"concurrency": 1.5}])
def test_map_refuses_invalid_bounds(client, arguments):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        client.map("double", [1], **arguments)


# ---- leaving a loop early ----------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_leaving_the_context_of_a_map_cancels_its_jobs(server):
    async with AsyncClient(server.url) as client:
        async with client.map("double", itertools.count(), batch_size=2) as values:
            assert await anext(values) == 0
        assert server.cancels == [f"job-{number}" for number in range(1, CONCURRENCY + 1)]


@pytest.mark.anyio
async def test_closing_the_client_cancels_the_jobs_of_a_map_left_by_break(server):
    async with AsyncClient(server.url) as client:
        async for _ in client.map("double", itertools.count(), batch_size=2):
            break
        await client.discover()
        assert server.cancels == []
    assert len(server.cancels) == CONCURRENCY


def test_leaving_a_blocking_map_loop_cancels_its_jobs(server):
    with Client(server.url) as client:
        for _ in client.map("double", itertools.count(), batch_size=2):
            break
        assert len(server.cancels) == CONCURRENCY


def test_a_map_with_an_idempotency_key_keeps_its_jobs_for_the_next_attempt(server, client):
    for _ in client.map("double", range(20), batch_size=5, idempotency_key="tonight"):
        break
    again = client.map("double", range(20), batch_size=5, idempotency_key="tonight")
    assert list(again) == [2 * x for x in range(20)]
    assert server.cancels == []
    assert [submit.replayed for submit in server.submits] == [False] * 4 + [True] * 4
    assert len({submit.idempotency_key for submit in server.submits}) == 4


def test_other_inputs_under_the_same_map_key_start_other_jobs(server, client):
    for inputs in ([1, 2, 3], [1, 2, 4]):
        values = client.map("double", inputs, batch_size=2, idempotency_key="k" * 255)
        assert list(values) == [2 * x for x in inputs]
    assert [submit.replayed for submit in server.submits] == [False, False, True, False]


@pytest.mark.anyio
async def test_a_cancelled_anext_of_a_map_can_be_repeated(server):
    server.endpoint("slow").streams(["a", "b"]).stalls_after(1)
    async with AsyncClient(server.url) as client:
        values = client.map("slow", [1])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, values)
            while not server.cuts:
                await anyio.sleep(0.001)
            tasks.cancel_scope.cancel()
        assert await anext(values) == "ab"
        assert len(server.submits) == 1


async def in_spite_of_cancellations(values, random):
    """Iterate over a map. Each wait is cancelled after a random time of at most 10 ms, and repeated."""
    received = []
    while True:
        with anyio.move_on_after(random.uniform(0, 0.01)):
            try:
                received.append(await anext(values))
            except StopAsyncIteration:
                return received


@pytest.mark.anyio
async def test_an_outcome_that_arrives_with_a_cancellation_is_not_lost(anyio_backend):
    server = Server()

    @server.endpoint
    async def slow(x: int) -> int:
        await asyncio.sleep(0.005)
        return x

    with server.running() as url:
        async with AsyncClient(url) as client:
            for seed in range(6):
                values = client.map("slow", [{"x": x} for x in range(40)], batch_size=5)
                assert await in_spite_of_cancellations(values, Random(seed)) == [*range(40)]


@pytest.mark.anyio
async def test_an_error_is_raised_although_the_wait_is_cancelled_while_the_jobs_are_cancelled(anyio_backend):
    server = Server()

    @server.endpoint
    async def fails(x: int) -> int:
        if x == 3:
            raise ItemError("no")
        await asyncio.sleep(0 if x < 3 else 60)
        return x

    with server.running() as url:
        async with AsyncClient(url) as client:
            for seed in range(20):
                values = client.map("fails", [{"x": x} for x in range(16)], batch_size=4)
                with pytest.raises(ItemFailedError, match="no"):
                    await in_spite_of_cancellations(values, Random(seed))


def test_errors_name_the_input_and_not_the_item_of_its_job(server, client):
    server.endpoint("picky").calls(lambda x: x if x != 6 else "six")
    seen = []
    results = [
        *client.map(
            "picky", range(8), batch_size=4, returns=int, return_exceptions=True, progress=seen.append
        )
    ]
    assert (seen[-1].ended, seen[-1].failed) == (8, 1)
    assert [result for result in results if type(result) is int] == [0, 1, 2, 3, 4, 5, 7]
    assert (results[6].index, results[6].value) == (6, "six")
    assert str(results[6]).startswith("input 6: the value is not a valid int")
    with pytest.raises(InvalidValueError, match="^input 6: "):
        [*client.map("picky", range(8), batch_size=4, returns=int)]


def test_the_failure_of_a_later_job_names_the_input():
    server = Server()

    @server.endpoint
    async def picky(x: int) -> int:
        if x == 6:
            raise ItemError("no six")
        return x

    with server.running() as url, Client(url) as client:
        values = client.map("picky", [{"x": x} for x in range(8)], batch_size=4, return_exceptions=True)
        (failed,) = [value for value in values if isinstance(value, ItemFailedError)]
    assert failed.index == 6
    assert str(failed).startswith("input 6 failed: no six")
    assert repr(failed) == "ItemFailedError('input 6 failed: no six [item_refused]')"


def test_an_input_refused_after_a_restart_is_not_named_by_its_index_in_the_job(server, client):
    reason = "the input was no longer valid after the server restarted: /inputs/0/x: unknown member. Also /inputs/0: no"
    server.endpoint("picky").fails("worker_lost", reason)
    _, failed = client.map("picky", [{"x": 0}, {"x": 1}], batch_size=1, return_exceptions=True)
    assert failed.what == (
        "input 1 failed: the input was no longer valid after the server restarted: /x: unknown member. Also no [worker_lost]"
    )


def test_a_map_whose_waiting_jobs_would_be_cancelled_is_refused(client):
    with pytest.raises(ValueError, match="map does not accept on_disconnect='cancel'"):
        client.with_options(on_disconnect="cancel").map("double", [1])


def test_a_slow_loop_body_does_not_count_towards_the_timeout():
    server = Server()

    @server.endpoint
    async def quick(x: int) -> int:
        await asyncio.sleep(0.02)
        return x

    with server.running() as url, Client(url, timeout=0.8) as client:
        values = []
        for value in client.map("quick", [{"x": x} for x in range(10)], batch_size=5, concurrency=1):
            values.append(value)
            time.sleep(0.2)
        assert values == [*range(10)]


@pytest.mark.anyio
async def test_a_second_concurrent_loop_over_a_map_raises(server):
    server.endpoint("slow").streams(["a", "b"]).stalls_after(1)
    async with AsyncClient(server.url) as client:
        values = client.map("slow", [1, 2])

        async def read():
            async for _ in values:
                pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(ConcurrentReadError, match="another loop is reading"):
                await anext(values)


@pytest.mark.anyio
async def test_map_reads_ended_jobs_before_the_server_can_forget_them(server):
    slow = server.endpoint("slow", batch=None)
    slow.streams(["a", "b"]).stalls_after(1)
    slow.returns("c")

    async def nap(_):
        await anyio.sleep(0.01)

    async with (
        AsyncClient(server.url) as other,
        with_timing(AsyncClient(server.url), Timing(sleep=nap)) as client,
    ):
        values = client.map("slow", [1, 2])

        async def end_the_second_one():
            while len(server.submits) < 2:
                await anyio.sleep(0.001)
            await other.job("job-2").result()
            while server.requests.count(("GET", "/v1/jobs/job-2/events")) < 2:
                await anyio.sleep(0.001)
            server.forget("job-2")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(end_the_second_one)
            assert [value async for value in values] == ["ab", "c"]


def test_ended_jobs_are_read_in_time_although_another_job_delivers_items_all_the_time():
    """The items arrive at shorter intervals than those of the checks, for longer than the server keeps the second job."""
    calls = Counter[float]()
    server = Server(default_concurrency_limit=None, state_ttl=1.0)

    @server.endpoint
    async def wait(seconds: float) -> float:
        calls[seconds] += 1
        await asyncio.sleep(seconds)
        return seconds

    times = [number / 20 for number in range(1, 51)] + [0.0, 0.01]
    with server.running() as url, Client(url) as client:
        found = client.map("wait", [{"seconds": time} for time in times], batch_size=50, concurrency=2)
        assert list(found) == times
    assert {*calls.values()} == {1}


# ---- jobs that the server no longer has, and faulty servers ---------------------------------------------------------


def scripted(submitted, stream):
    """Return a script whose responses to submits and to requests for the stream of a job are passed."""

    def script(request):
        match request.method, request.path.split("/")[2:]:
            case ["GET", []]:
                yield answer(200, discovery("count"))
            case ["GET", ["endpoints", _]]:
                yield answer(200, endpoint() | {"capabilities": {"batch": {"max_items": 8}}})
            case ["POST", _]:
                yield submitted
            case ["GET", ["jobs", _, "events"]]:
                yield from stream

    return script


@pytest.mark.parametrize("fault", [problem(410, "job_expired"), problem(404, "job_not_found")])
def test_a_map_skips_a_bounded_number_of_expired_keys(fault):
    with ScriptedServer(scripted(fault, [])) as server, Client(server.url) as client:
        with pytest.raises((JobExpiredError, JobNotFoundError)):
            list(client.map("count", [{}], idempotency_key="tonight"))
        keys = [request.headers["idempotency-key"] for request in server.requests if request.method == "POST"]
    assert len(keys) == len(set(keys)) == MAX_EXPIRED_KEYS + 1


@pytest.mark.parametrize("fault", [problem(404, "not_found"), problem(403, "forbidden")])
def test_a_refusal_that_does_not_mean_a_lost_job_ends_the_map(fault):
    """A proxy that does not know the path of the stream must not make the map run its inputs again and again."""
    with ScriptedServer(scripted(answer(201, job()), [fault])) as server, Client(server.url) as client:
        with pytest.raises(RequestError):
            list(client.map("count", [{}]))
        assert len(server.paths("POST")) == 2
        assert server.paths("POST")[1].endswith("/cancel")


@pytest.mark.parametrize(
    ("inputs", "items", "message"),
    [(1, 2, "the job has more items than its 1 inputs"), (2, 1, "without an outcome of input 1")],
)
def test_a_job_with_another_number_of_items_is_a_fault_of_the_server(inputs, items, message):
    ends = [["s", f"/items/{index}/status", "succeeded"] for index in range(items)]
    ended = [{"status": "succeeded", "value": 1}] * items
    stream = [
        STREAM
        + hello(head="1-3")
        + snapshot("1-1", state(*[1] * items))
        + event(ends, id="1-2")
        + done("1-3", ended),
        CLOSE,
    ]
    with ScriptedServer(scripted(answer(201, job()), stream)) as server, Client(server.url) as client:
        with pytest.raises(ProtocolError, match=message):
            list(client.map("count", [{}] * inputs))


# ---- progress --------------------------------------------------------------------------------------------------------


def failing_progress(seen, *, slow):
    def fail(progress):
        seen.append(progress.ended)
        raise RuntimeError("a fault of the callback")

    async def fail_slowly(progress):
        await anyio.sleep(0)
        fail(progress)

    return fail_slowly if slow else fail


class WithoutLength:
    """Iterable whose `len` raises, as that of `tqdm(generator)` and of a DataLoader over an IterableDataset."""

    def __init__(self, error):
        self.error = error

    def __len__(self):
        raise self.error

    def __iter__(self):
        return iter(range(3))


@pytest.mark.parametrize("error", [TypeError("no len()"), NotImplementedError(), AssertionError()], ids=repr)
def test_inputs_whose_length_cannot_be_determined_have_no_total(server, error):
    seen = []
    with Client(server.url) as client:
        assert [*client.map("double", WithoutLength(error), progress=seen.append)] == [0, 2, 4]
    assert {progress.total for progress in seen} == {None}


def test_a_progress_argument_that_is_no_function_is_refused(client):
    with pytest.raises(TypeError, match="progress must be a function of a MapProgress, not True"):
        client.map("double", range(3), progress=True)


@pytest.mark.parametrize("slow", [False, True])
def test_a_blocking_map_logs_the_exceptions_of_its_progress_callback(client, caplog, slow):
    seen = []
    assert list(client.map("double", range(3), progress=failing_progress(seen, slow=slow))) == [0, 2, 4]
    assert seen[-1] == 3
    assert "a fault of the callback" in caplog.text


@pytest.mark.anyio
@pytest.mark.parametrize("slow", [False, True])
async def test_an_async_map_logs_the_exceptions_of_its_progress_callback(server, caplog, slow):
    seen = []
    async with AsyncClient(server.url) as client:
        values = client.map("double", range(3), progress=failing_progress(seen, slow=slow))
        assert [value async for value in values] == [0, 2, 4]
    assert seen[-1] == 3
    assert "a fault of the callback" in caplog.text


def test_an_interrupt_in_the_progress_callback_of_a_blocking_map_ends_the_map(client):
    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(client.map("double", range(3), progress=interrupt))
    assert client.run("double", 4) == 8


# ---- submits that have to wait -----------------------------------------------------------------------------------


def queue_server():
    """Server whose queue has room for one of the jobs below, and which runs one input at a time. Input 13 never ends."""
    server = Server(cancel_timeout=0.2)

    @server.endpoint(max_queue_size=4)
    async def slow(x: int) -> int:
        await asyncio.sleep(3600 if x == 13 else 0.6)
        return x

    return server


def test_running_jobs_are_read_while_a_submit_waits_for_the_queue():
    """Each outcome restarts `patience`, which is shorter than the time until the next job fits."""
    with (
        queue_server().running() as url,
        Client(url, retry=RetryPolicy(patience=2.2)) as client,
        contextlib.closing(
            client.map("slow", [{"x": x} for x in range(8)], batch_size=4, concurrency=2)
        ) as values,
    ):
        first = next(values)
        assert [found.status for found in client.jobs()] == ["running"], "the second job does not fit yet"
        assert [first, *values] == list(range(8))


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"])  # A blocking client runs on asyncio.
async def test_running_jobs_are_read_while_a_submit_waits_for_the_queue_in_async_code():
    with queue_server().running() as url:
        async with AsyncClient(url, retry=RetryPolicy(patience=2.2)) as client:
            values = client.map("slow", [{"x": x} for x in range(8)], batch_size=4, concurrency=2)
            assert [value async for value in values] == list(range(8))


def test_a_submit_gives_up_if_no_outcome_arrives_for_the_time_of_patience(tmp_path):
    path, inputs = tmp_path / "run.jsonl", [{"x": x} for x in range(11, 19)]
    with queue_server().running() as url, Client(url, retry=RetryPolicy(patience=2.2)) as client:
        values = client.map("slow", inputs, batch_size=4, concurrency=2, resume_file=path)
        assert [next(values), next(values)] == [11, 12]
        with pytest.raises(QueueFullError) as caught:
            next(values)
        assert "with the same file" in caught.value.advice
        for found in client.jobs():
            client.job(found.id).cancel()
    assert path.read_text().count('"line":"value"') == 2
