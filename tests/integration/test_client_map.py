"""`client.map`: ordered values for any number of inputs, with bounded jobs and look-ahead."""

import itertools
import math

import anyio
import pytest

from support.client_timing import with_timing
from tidewire import AsyncClient, Client
from tidewire.errors import ConcurrentReadError, InvalidInputError, ItemFailedError, RequestError
from tidewire.http.api_session import Timing
from tidewire.jobs.map_work import BATCH_SIZE, CONCURRENCY, MapProgress
from tidewire.protocol.resources import Limits
from tidewire.testing import FakeServer


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


@pytest.fixture
def server():
    with FakeServer() as server:
        server.endpoint("double").calls(lambda x: 2 * x)
        yield server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


def validating(value):
    """Endpoint function that accepts only inputs with the member `x`."""
    return value["x"]


def test_values_keep_the_input_order_across_batch_jobs(server, client):
    assert list(client.map("double", range(10), batch_size=4)) == [2 * x for x in range(10)]
    assert [[*submit.inputs] for submit in server.submits] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.anyio
@pytest.mark.parametrize("lazy", [False, True])
async def test_async_map_accepts_sync_and_async_iterables(server, lazy):
    async def numbers():
        for x in range(5):
            await anyio.sleep(0)
            yield x

    async with AsyncClient(server.url) as client:
        inputs = numbers() if lazy else range(5)
        assert [value async for value in client.map("double", inputs, batch_size=2)] == [0, 2, 4, 6, 8]


class DataSet:
    """A sequence with `__getitem__` but without `__iter__`."""

    def __getitem__(self, index):
        return [1, 2, 3][index]


def test_map_and_submit_batch_accept_objects_with_getitem_only(client):
    assert list(client.map("double", DataSet())) == [2, 4, 6]
    assert client.submit_batch("double", DataSet()).results() == [2, 4, 6]


def test_map_without_inputs_starts_no_jobs(server, client):
    assert list(client.map("double", [])) == []
    assert server.submits == []


def test_map_consumes_an_infinite_iterable_only_up_to_its_look_ahead(client):
    taken = itertools.count()
    values = client.map("double", taken, concurrency=3, batch_size=5)
    assert next(taken) == 0, "nothing is taken before the first value is asked for"
    assert list(itertools.islice(values, 7)) == [2 * x for x in range(1, 8)]
    # Five of the seven values came from the first job, so the client has started a fourth job.
    assert next(taken) == 1 + 4 * 5


def test_map_runs_at_most_concurrency_jobs_at_once(server, client):
    seen = []
    assert len(list(client.map("double", range(20), concurrency=2, batch_size=3, progress=seen.append))) == 20
    assert max(snapshot.jobs for snapshot in seen) == 2
    assert seen[-1] == MapProgress(taken=20, ended=20, failed=0, jobs=0, total=20)
    assert [snapshot.ended for snapshot in seen] == sorted(snapshot.ended for snapshot in seen)


def test_map_uses_the_documented_default_bounds(client):
    taken = itertools.count()
    next(client.map("double", taken))
    assert next(taken) == CONCURRENCY * BATCH_SIZE


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


def test_map_validates_values_against_returns(client):
    assert list(client.map("double", [1.5], returns=float)) == [3.0]


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_item_raises_in_order_and_ends_the_map(server, client):
    flaky_endpoint = server.endpoint("flaky_endpoint")
    flaky_endpoint.returns("a")
    flaky_endpoint.fails("internal", "out of luck")
    flaky_endpoint.returns("c")
    values = client.map("flaky_endpoint", range(6), batch_size=3)
    assert next(values) == "a"
    with pytest.raises(ItemFailedError, match="out of luck") as caught:
        next(values)
    assert caught.value.index == 1
    assert list(values) == []


def test_return_exceptions_yields_errors_in_place_of_values(server, client):
    flaky_endpoint = server.endpoint("flaky_endpoint")
    for _ in range(4):
        flaky_endpoint.returns("a")
    flaky_endpoint.fails("internal", "out of luck")
    flaky_endpoint.returns("c")
    *before, failed, after = client.map("flaky_endpoint", range(6), batch_size=3, return_exceptions=True)
    assert (before, after) == (["a"] * 4, "c")
    assert isinstance(failed, ItemFailedError)
    assert (failed.index, failed.code) == (4, "internal")


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


def test_an_input_that_is_not_json_fails_alone(client):
    values = list(client.map("double", [1, math.nan, object(), 4], return_exceptions=True))
    assert (values[0], values[3]) == (2, 8)
    assert [value.index for value in values[1:3]] == [1, 2]


def test_a_rejection_without_an_input_pointer_ends_the_map(server, client):
    server.endpoint("validating").calls(lambda x: x)
    server.endpoint("validating").refuses("invalid_input", "shared is wrong", pointer="/shared/tone")
    with pytest.raises(InvalidInputError, match="shared is wrong"):
        list(client.map("validating", [1, 2], return_exceptions=True, tone=1))
    server.endpoint("validating").refuses("forbidden")
    with pytest.raises(RequestError):
        list(client.map("validating", [1, 2], return_exceptions=True))


def test_an_exception_of_the_input_iterable_ends_the_map(client):
    def numbers():
        yield 1
        raise KeyError("the file ended")

    values = client.map("double", numbers(), batch_size=1)
    with pytest.raises(KeyError):
        list(values)


@pytest.mark.anyio
async def test_a_cancelled_async_iterable_is_not_treated_as_exhausted(server):
    entered = anyio.Event()

    async def numbers():
        yield 1
        entered.set()
        await anyio.sleep_forever()

    async with AsyncClient(server.url) as client:
        values = client.map("double", numbers())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, values)
            await entered.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(ConcurrentReadError, match="no more inputs"):
            await anext(values)
        assert server.submits == []


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
