"""Behavior of the client that is the same on the fake server and on the reference server."""

import itertools
import math
import secrets

import anyio
import pytest

from support.fake_and_real import REPLIES
from tidewire import AsyncClient, Checkpoint, Client, Hooks
from tidewire.errors import (
    ConcurrentReadError,
    EndpointNotFoundError,
    InvalidInputError,
    ItemFailedError,
    JobFailedError,
    JobNotFoundError,
    NoTextError,
    RequestError,
    TidewireError,
)
from tidewire.jobs.map.map_work import BATCH_SIZE, CONCURRENCY
from tidewire.jobs.map.outcomes import MapProgress
from tidewire.protocol.messages import Progress


@pytest.fixture
def client(either_server):
    with Client(either_server) as client:
        yield client


def seqs_are_contiguous(updates):
    return all(after.first_seq == before.seq + 1 for before, after in itertools.pairwise(updates))


# ---- one job -----------------------------------------------------------------------------------------------------


def test_a_single_job_behaves_the_same_on_both_servers(either_server):
    with Client(either_server) as client:
        assert "".join(client.submit("talk").iter_text()) == client.run("talk") == "Hello"
        text = ""
        for update in client.submit("grow"):
            text = text[: len(text) - update.deleted] + update.text
            assert text == ("" if update.value is None else update.value["t"])
        assert client.run("upper", text="a") == "A"
        job = client.submit("works")
        messages = []
        job.listener = messages.append
        assert job.result() == 1
        assert [(one.current, one.total, one.unit) for one in messages if isinstance(one, Progress)] == [
            (5, 10, "step")
        ]


def test_both_servers_refuse_in_the_same_way(either_server):
    with Client(either_server) as client:
        with pytest.raises(EndpointNotFoundError, match="tell"):
            client.run("tell")
        with pytest.raises(JobNotFoundError):
            client.job("job-9").status()
        key = secrets.token_hex(8)
        first, second = (client.submit("upper", text="a", idempotency_key=key) for _ in range(2))
        assert first.id == second.id
        with pytest.raises(RequestError, match="body"):
            client.submit("upper", text="b", idempotency_key=key)


def test_both_servers_keep_what_a_cancelled_job_had_ended(either_server):
    with Client(either_server) as client:
        job = client.submit("talk")
        assert job.result() == "Hello"
        assert job.cancel() == "succeeded"
        batch = client.submit_batch("works", [{}, {}, {}])
        batch.cancel([1])
        results = batch.results(return_exceptions=True)
        assert [getattr(result, "status", result) for result in results] == [1, "cancelled", 1]


def test_updates_cover_each_seq_once_and_their_texts_add_up(client):
    updates = list(client.submit("reply"))
    assert updates[0].first_seq == 1
    assert seqs_are_contiguous(updates)
    assert "".join(update.text for update in updates) == "Hello"
    assert [update.id for update in updates] == [f"1-{update.seq}" for update in updates]
    assert updates[-1].value == REPLIES[-1]


def test_attaching_to_an_ended_job_yields_its_value_once(client):
    job = client.submit("reply")
    assert job.result() == REPLIES[-1]
    [update] = client.job(job.id)
    assert (update.first_seq, update.text, update.value) == (1, "Hello", REPLIES[-1])
    assert client.job(job.id).result() == REPLIES[-1]
    assert (client.job(job.id).status(), job.ended) == ("succeeded", True)


@pytest.mark.parametrize("taken", range(5))
def test_a_checkpoint_resumes_between_updates(client, taken):
    job = client.submit("reply")
    before = list(itertools.islice(job, taken))
    saved = Checkpoint.from_json(job.checkpoint().to_json())
    after = list(client.job(checkpoint=saved))
    assert "".join(update.text for update in before + after) == "Hello"
    assert seqs_are_contiguous(before + after)
    assert client.job(checkpoint=saved).result() == REPLIES[-1]


def test_a_job_without_a_value_yields_one_update(client):
    job = client.submit("nothing")
    [update] = job
    assert (update.first_seq, update.text, update.value, job.result()) == (1, "", None, None)


def test_a_returned_text_is_a_text_that_grows_once(client):
    assert list(client.submit("upper", text="ab").iter_text()) == ["AB"]
    assert "".join(update.text for update in client.submit("upper", text="ab")) == "AB"
    texts = [update.text for update in client.submit_batch("upper", [{"text": "a"}, {"text": "b"}])]
    assert sorted(filter(None, texts)) == ["A", "B"]


def test_an_ended_job_has_its_times(client):
    job = client.submit("upper", text="a")
    job.result()
    read = job.read()
    assert "" < read.created_at <= (read.started_at or "") <= (read.ended_at or "")


def test_items_that_a_job_does_not_have_cannot_be_cancelled(client):
    batch = client.submit_batch("upper", [{"text": "a"}, {"text": "b"}])
    with pytest.raises(InvalidInputError, match="/items"):
        batch.cancel([2])
    assert batch.results() == ["A", "B"]


def test_iter_text_of_values_without_text_raises(client):
    with pytest.raises(NoTextError):
        list(client.submit("double", x=1).iter_text())
    with pytest.raises(TidewireError, match="no token columns"):
        list(client.submit("talk").tokens())


def test_retracted_text_is_reported(client):
    text = ""
    for delta in client.submit("grow").iter_text_deltas():
        text = text[: len(text) - delta.deleted] + delta.text
    assert text == "c"


def test_a_failed_job_raises_after_the_loop_and_in_result(client):
    job = client.submit("breaks")
    updates = []
    with pytest.raises(JobFailedError, match="too slow"):
        updates.extend(job)
    assert "".join(update.text for update in updates) == "Hel"
    with pytest.raises(JobFailedError, match="too slow") as caught:
        job.result()
    error = caught.value
    assert (error.code, error.value, error.job_id) == ("deadline_exceeded", "Hel", job.id)
    assert job.status() == "failed"


def test_jobs_are_listed_newest_first(client):
    jobs = [client.submit("double", x=x) for x in range(3)]
    for job in jobs:
        job.wait()
    found = client.jobs(limit=3)
    assert [each.id for each in found] == [job.id for job in reversed(jobs)]
    assert {(each.endpoint, each.status, each.batch, each.attempt) for each in found} == {
        ("double", "succeeded", False, 1)
    }
    assert all(each.done.digest for each in found)


def test_a_server_describes_itself_and_its_endpoints(client):
    names = {endpoint.name for endpoint in client.discover().endpoints}
    assert names >= {"talk", "grow", "double", "one"}
    described = client.describe("talk")
    assert (described.name, described.capabilities.streams) == ("talk", True)
    assert client.describe("one").links["jobs"] == "/v1/endpoints/one/jobs"
    with pytest.raises(EndpointNotFoundError, match="talk"):
        client.describe("tell")
    with pytest.raises(TidewireError, match="talk"):
        client.submit()


def test_a_read_job_has_its_state_and_end(client):
    job = client.submit("reply")
    job.wait()
    found = job.read()
    assert (found.status, found.endpoint, found.batch, found.attempt) == ("succeeded", "reply", False, 1)
    assert found.columns == ["/items/0/value/text"]
    [item] = found.state["items"]
    assert (item["status"], item["value"], found.state["status"]) == ("succeeded", REPLIES[-1], "succeeded")
    assert (found.done.status, found.done.error) == ("succeeded", None)
    assert found.cursor.startswith("1-")


@pytest.mark.parametrize("slow", [False, True])
def test_hooks_receive_requests_and_the_end(either_server, slow):
    received = []

    async def record_slowly(event):
        await anyio.sleep(0)
        received.append(event)

    hook = record_slowly if slow else received.append
    with Client(either_server, hooks=Hooks(on_request=hook, on_reconnect=hook, on_end=hook)) as client:
        job = client.submit("talk")
        assert job.result() == "Hello"
    *requests, end = received
    # The reference server answers with the stream of the job, and the fake server with the job. Both are allowed.
    assert (requests[0].method, requests[0].status in {200, 201}, requests[0].error) == ("POST", True, None)
    assert requests[0].url == f"{either_server}/v1/endpoints/talk/jobs"
    assert (end.job_id, end.status) == (job.id, "succeeded")


@pytest.mark.anyio
async def test_async_clients_read_and_share_a_job(either_server):
    async with AsyncClient(either_server) as client:
        job = await client.submit("reply")
        seen = [{}, {}]

        async def read(into):
            async for update in client.job(job.id):
                into[update.seq] = update.value

        async with anyio.create_task_group() as tasks:
            for into in seen:
                tasks.start_soon(read, into)
        assert all(seen[0][seq] == seen[1][seq] for seq in seen[0].keys() & seen[1].keys())
        assert [max(into.items())[1] for into in seen] == [REPLIES[-1]] * 2


# ---- batches -----------------------------------------------------------------------------------------------------


def replayed(updates, texts=()):
    """Apply the changes of the items' texts, and check each text against the value of the same update."""
    texts = {**dict(texts)}
    for update in updates:
        old = texts.get(update.index, "")
        texts[update.index] = old[: len(old) - update.deleted] + update.text
        assert text_of(update.value) == texts[update.index]
    return texts


def text_of(value):
    return (value["t"] if isinstance(value, dict) else value) or ""


@pytest.mark.parametrize("inputs", [1, 2, 5])
@pytest.mark.parametrize(("endpoint", "text"), [("talk", "Hello"), ("grow", "c")])
def test_the_text_of_each_item_follows_its_value(either_server, endpoint, text, inputs):
    with Client(either_server) as client:
        batch = client.submit_batch(endpoint, [{}] * inputs)
        first = replayed(itertools.islice(batch, 1))
        saved = Checkpoint.from_json(batch.checkpoint().to_json())
        held = saved.state["items"] if saved.state else []
        texts = {at: text_of(item.get("value")) for at, item in enumerate(held)}
        assert replayed(batch, first) == dict.fromkeys(range(inputs), text)
        assert replayed(client.batch_job(checkpoint=saved), texts) == dict.fromkeys(range(inputs), text)
        assert replayed(client.batch_job(batch.id)) == dict.fromkeys(range(inputs), text)


def test_text_received_while_waiting_for_results_follows_the_value(either_server):
    with Client(either_server) as client:
        batch = client.submit_batch("grow", [{}, {}])
        assert batch.results() == [{"t": "c"}, {"t": "c"}]
        assert replayed(batch) == {0: "c", 1: "c"}


def test_items_of_both_servers_end_in_the_same_way(either_server):
    with Client(either_server) as client:
        batch = client.submit_batch("odd", [{}, {"n": 1}])
        completed = dict(batch.as_completed())
        assert completed[0] == 1
        assert (completed[1].status, completed[1].code, completed[1].problem.detail) == (
            "failed",
            "item_refused",
            "too odd",
        )
        assert [*client.submit_batch("upper", [{"text": "a"}, {}], text="b").results()] == ["A", "B"]
        failed = client.submit_batch("breaks", [{}, {}]).results(return_exceptions=True)
        assert [(each.code, each.value) for each in failed] == [("deadline_exceeded", "Hel")] * 2


# ---- map ---------------------------------------------------------------------------------------------------------


def numbers(count):
    return [{"x": x} for x in range(count)]


def test_values_of_a_map_keep_the_input_order_across_batch_jobs(client):
    assert list(client.map("double", numbers(10), batch_size=4)) == [2 * x for x in range(10)]
    assert list(client.map("double", [])) == []


@pytest.mark.anyio
@pytest.mark.parametrize("lazy", [False, True])
async def test_async_map_accepts_sync_and_async_iterables(either_server, lazy):
    async def arriving():
        for each in numbers(5):
            await anyio.sleep(0)
            yield each

    async with AsyncClient(either_server) as client:
        inputs = arriving() if lazy else numbers(5)
        assert [value async for value in client.map("double", inputs, batch_size=2)] == [0, 2, 4, 6, 8]


class DataSet:
    """A sequence with `__getitem__` but without `__iter__`."""

    def __getitem__(self, index):
        return numbers(3)[index]


def test_map_and_submit_batch_accept_objects_with_getitem_only(client):
    assert list(client.map("double", DataSet())) == [0, 2, 4]
    assert client.submit_batch("double", DataSet()).results() == [0, 2, 4]


def test_map_consumes_an_infinite_iterable_only_up_to_its_look_ahead(client):
    taken = itertools.count()
    values = client.map("double", ({"x": x} for x in taken), concurrency=3, batch_size=5)
    assert next(taken) == 0, "nothing is taken before the first value is asked for"
    assert list(itertools.islice(values, 7)) == [2 * x for x in range(1, 8)]
    # Five of the seven values came from the first job, so the client has started a fourth job.
    assert next(taken) == 1 + 4 * 5


def test_map_runs_at_most_concurrency_jobs_at_once(client):
    seen = []
    values = client.map("double", numbers(20), concurrency=2, batch_size=3, progress=seen.append)
    assert len(list(values)) == 20
    assert max(snapshot.jobs for snapshot in seen) == 2
    assert seen[-1] == MapProgress(taken=20, ended=20, failed=0, jobs=0, total=20)
    assert [snapshot.ended for snapshot in seen] == sorted(snapshot.ended for snapshot in seen)


def test_map_uses_the_documented_default_bounds(client):
    taken = itertools.count()
    next(client.map("double", ({"x": x} for x in taken)))
    assert next(taken) == CONCURRENCY * BATCH_SIZE


def test_shared_members_of_a_map_are_merged_into_inputs(client):
    inputs = [{"x": 1}, {"x": 2, "tone": "own"}]
    for name in ("one", "many"):
        assert list(client.map(name, inputs, tone="dry")) == [[1, "dry"], [2, "own"]]


def test_map_validates_values_against_returns(client):
    assert list(client.map("double", [{"x": 1.5}], returns=float)) == [3.0]


def test_a_failed_item_of_a_map_raises_in_order_and_ends_the_map(client):
    values = client.map("flaky", numbers(6), batch_size=3)
    assert [next(values) for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ItemFailedError, match="out of luck") as caught:
        next(values)
    assert caught.value.index == 4
    assert list(values) == []


def test_map_with_return_exceptions_yields_errors_in_place_of_values(client):
    *before, failed, after = client.map("flaky", numbers(6), batch_size=3, return_exceptions=True)
    assert (before, after) == ([0, 1, 2, 3], 5)
    assert isinstance(failed, ItemFailedError)
    assert (failed.index, failed.code) == (4, "item_refused")


def test_an_input_of_a_map_that_is_not_json_fails_alone(client):
    inputs = [{"x": 1}, {"x": math.nan}, object(), {"x": 4}]
    values = list(client.map("double", inputs, return_exceptions=True))
    assert (values[0], values[3]) == (2, 8)
    assert [value.index for value in values[1:3]] == [1, 2]


def test_an_exception_of_the_input_iterable_ends_the_map(client):
    def failing():
        yield {"x": 1}
        raise KeyError("the file ended")

    with pytest.raises(KeyError):
        list(client.map("double", failing(), batch_size=1))


@pytest.mark.anyio
async def test_a_cancelled_async_iterable_is_not_treated_as_exhausted(either_server):
    entered = anyio.Event()

    async def waiting():
        yield {"x": 1}
        entered.set()
        await anyio.sleep_forever()

    async with AsyncClient(either_server) as client:
        values = client.map("double", waiting())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anext, values)
            await entered.wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(ConcurrentReadError, match="no more inputs"):
            await anext(values)


def test_a_map_with_an_idempotency_key_continues_in_the_next_attempt(client):
    key = secrets.token_hex(8)
    for _ in client.map("double", numbers(20), batch_size=5, idempotency_key=key):
        break
    again = client.map("double", numbers(20), batch_size=5, idempotency_key=key)
    assert list(again) == [2 * x for x in range(20)]
    found = {job.id for job in client.jobs(limit=8) if job.batch}
    third = client.map("double", numbers(20), batch_size=5, idempotency_key=key)
    assert list(third) == [2 * x for x in range(20)]
    assert {job.id for job in client.jobs(limit=8) if job.batch} == found
