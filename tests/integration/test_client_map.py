"""`client.map`: any number of inputs, the values in order, a bounded number of jobs and inputs ahead."""

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


def fussy(value):
    """Like a server that checks its input."""
    return value["x"]


def test_values_come_in_the_order_of_the_inputs_in_jobs_of_many(server, client):
    assert list(client.map("double", range(10), batch_size=4)) == [2 * x for x in range(10)]
    assert [[*submit.inputs] for submit in server.submits] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@pytest.mark.anyio
@pytest.mark.parametrize("lazy", [False, True])
async def test_async_loops_take_sync_and_async_iterables(server, lazy):
    async def numbers():
        for x in range(5):
            await anyio.sleep(0)
            yield x

    async with AsyncClient(server.url) as client:
        inputs = numbers() if lazy else range(5)
        assert [value async for value in client.map("double", inputs, batch_size=2)] == [0, 2, 4, 6, 8]


class DataSet:
    """What has items and a length, and no more."""

    def __getitem__(self, index):
        return [1, 2, 3][index]


def test_a_data_set_that_only_has_items_is_looped_over(client):
    assert list(client.map("double", DataSet())) == [2, 4, 6]
    assert client.submit_batch("double", DataSet()).results() == [2, 4, 6]


def test_no_inputs_are_no_jobs(server, client):
    assert list(client.map("double", [])) == []
    assert server.submits == []


def test_an_endless_iterable_is_taken_no_further_than_the_look_ahead(client):
    taken = itertools.count()
    values = client.map("double", taken, concurrency=3, batch_size=5)
    assert next(taken) == 0, "nothing is taken before the first value is asked for"
    assert list(itertools.islice(values, 7)) == [2 * x for x in range(1, 8)]
    # 5 of the 7 were handed over with the first job, so that a fourth one was begun.
    assert next(taken) == 1 + 4 * 5


def test_no_more_jobs_than_concurrency_are_under_way(server, client):
    seen = []
    assert len(list(client.map("double", range(20), concurrency=2, batch_size=3, progress=seen.append))) == 20
    assert max(told.jobs for told in seen) == 2
    assert seen[-1] == MapProgress(taken=20, ended=20, failed=0, jobs=0, total=20)
    assert [told.ended for told in seen] == sorted(told.ended for told in seen)


def test_the_bounds_have_the_defaults_that_are_documented(client):
    taken = itertools.count()
    next(client.map("double", taken))
    assert next(taken) == CONCURRENCY * BATCH_SIZE


def test_the_servers_number_of_inputs_bounds_a_job():
    with FakeServer(limits=Limits(max_inputs=3)) as server, Client(server.url) as client:
        server.endpoint("double").calls(lambda x: 2 * x)
        server.endpoint("pairs", batch=2).calls(lambda x: 2 * x)
        assert len(list(client.map("double", range(7)))) == 7
        assert len(list(client.map("pairs", range(5)))) == 5
        assert [len(submit.inputs) for submit in server.submits] == [3, 3, 1, 2, 2, 1]


def test_the_servers_size_of_a_body_bounds_a_job():
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


def test_shared_members_go_once_with_each_job_or_with_each_input_where_there_are_no_batches(server, client):
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


def test_values_are_validated(client):
    assert list(client.map("double", [1.5], returns=float)) == [3.0]


# ---- failures ----------------------------------------------------------------------------------------------------


def test_a_failed_item_is_raised_at_its_place_and_what_runs_is_cancelled(server, client):
    some = server.endpoint("some")
    some.returns("a")
    some.fails("internal", "out of luck")
    some.returns("c")
    values = client.map("some", range(6), batch_size=3)
    assert next(values) == "a"
    with pytest.raises(ItemFailedError, match="out of luck") as caught:
        next(values)
    assert caught.value.index == 1
    assert list(values) == []


def test_with_return_exceptions_an_error_stands_in_the_place_of_its_value(server, client):
    some = server.endpoint("some")
    for _ in range(4):
        some.returns("a")
    some.fails("internal", "out of luck")
    some.returns("c")
    *before, failed, after = client.map("some", range(6), batch_size=3, return_exceptions=True)
    assert (before, after) == (["a"] * 4, "c")
    assert isinstance(failed, ItemFailedError)
    assert (failed.index, failed.code) == (4, "internal")


def refusing(server, *numbers):
    """An endpoint that refuses the body with these inputs, one after another, as a server that checks its input does."""
    endpoint = server.endpoint("fussy")
    endpoint.calls(lambda x: 2 * x)
    for number in numbers:
        endpoint.refuses("invalid_input", f"/inputs/{number}: no number", pointer=f"/inputs/{number}")


def test_a_refused_input_fails_by_itself_and_the_others_of_its_job_run(server, client):
    refusing(server, 1, 2)
    values = list(client.map("fussy", range(5), return_exceptions=True))
    assert [values[at] for at in (0, 2, 4)] == [0, 4, 8]
    assert [(values[at].index, values[at].code) for at in (1, 3)] == [
        (1, "invalid_input"),
        (3, "invalid_input"),
    ]
    assert str(values[3]).startswith("input 3 was refused: the input: no number [invalid_input]")
    assert [[*submit.inputs] for submit in server.submits] == [[0, 1, 2, 3, 4], [0, 2, 3, 4], [0, 2, 4]]


def test_a_refused_input_is_raised_at_its_place_and_none_after_it_runs(server, client):
    refusing(server, 2)
    values = client.map("fussy", itertools.count())
    assert [next(values), next(values)] == [0, 2]
    with pytest.raises(InvalidInputError, match="input 2 was refused"):
        next(values)
    assert [*server.submits[-1].inputs] == [0, 1]


def test_what_is_not_json_fails_by_itself(client):
    values = list(client.map("double", [1, math.nan, object(), 4], return_exceptions=True))
    assert (values[0], values[3]) == (2, 8)
    assert [value.index for value in values[1:3]] == [1, 2]


def test_a_refusal_that_names_no_input_ends_the_map(server, client):
    server.endpoint("fussy").calls(lambda x: x)
    server.endpoint("fussy").refuses("invalid_input", "shared is wrong", pointer="/shared/tone")
    with pytest.raises(InvalidInputError, match="shared is wrong"):
        list(client.map("fussy", [1, 2], return_exceptions=True, tone=1))
    server.endpoint("fussy").refuses("forbidden")
    with pytest.raises(RequestError):
        list(client.map("fussy", [1, 2], return_exceptions=True))


def test_an_iterable_that_raises_ends_the_map_with_its_error(client):
    def numbers():
        yield 1
        raise KeyError("the file ended")

    values = client.map("double", numbers(), batch_size=1)
    with pytest.raises(KeyError):
        list(values)


@pytest.mark.anyio
async def test_an_async_iterable_that_is_broken_off_is_not_taken_for_its_end(server):
    waits = anyio.Event()

    async def numbers():
        yield 1
        waits.set()
        await anyio.sleep_forever()

    async with AsyncClient(server.url) as client:
        values = client.map("double", numbers())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, values)
            await waits.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(ConcurrentReadError, match="ended early"):
            await anext(values)
        assert server.submits == []


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"batch_size": 0}, {"concurrency": 1.5}])
def test_a_bound_that_is_none_is_refused_at_once(client, wrong):
    with pytest.raises(ValueError, match="must be an integer of at least 1"):
        client.map("double", [1], **wrong)


# ---- leaving -----------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_loop_that_is_left_cancels_what_runs(server):
    async with AsyncClient(server.url) as client:
        async with client.map("double", itertools.count(), batch_size=2) as values:
            assert await anext(values) == 0
        assert server.cancels == [f"job-{number}" for number in range(1, CONCURRENCY + 1)]


@pytest.mark.anyio
async def test_a_loop_that_is_left_by_break_cancels_what_runs_at_the_latest_with_the_client(server):
    async with AsyncClient(server.url) as client:
        async for _ in client.map("double", itertools.count(), batch_size=2):
            break
        await client.discover()
        assert server.cancels == []
    assert len(server.cancels) == CONCURRENCY


def test_a_blocking_loop_that_is_left_cancels_what_runs(server):
    with Client(server.url) as client:
        for _ in client.map("double", itertools.count(), batch_size=2):
            break
        assert len(server.cancels) == CONCURRENCY


def test_a_key_of_the_users_own_leaves_the_jobs_to_the_next_attempt(server, client):
    for _ in client.map("double", range(20), batch_size=5, idempotency_key="tonight"):
        break
    again = client.map("double", range(20), batch_size=5, idempotency_key="tonight")
    assert list(again) == [2 * x for x in range(20)]
    assert server.cancels == []
    assert [submit.replayed for submit in server.submits] == [False] * 4 + [True] * 4
    assert len({submit.idempotency_key for submit in server.submits}) == 4


def test_other_inputs_under_the_same_key_are_other_jobs(server, client):
    for inputs in ([1, 2, 3], [1, 2, 4]):
        values = client.map("double", inputs, batch_size=2, idempotency_key="k" * 255)
        assert list(values) == [2 * x for x in inputs]
    assert [submit.replayed for submit in server.submits] == [False, False, True, False]


@pytest.mark.anyio
async def test_a_wait_that_is_cancelled_goes_on_with_the_next(server):
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
async def test_two_loops_over_one_map_are_refused(server):
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
async def test_what_has_ended_is_read_before_its_turn_so_that_the_server_may_forget_it(server):
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
