"""Batch jobs in the client: ordered results, items as they complete, and one update per changed item."""

import pytest
from pydantic import BaseModel

from support.scripted_server import (
    CLOSE,
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    done,
    event,
    hello,
    job,
    snapshot,
)
from tidewire import AsyncClient, Checkpoint, Client
from tidewire.errors import InvalidInputError, InvalidValueError, ItemFailedError

pytestmark = pytest.mark.anyio

COLUMNS = ["/items/0/value", "/items/1/value"]
FAILURE = {"code": "item_failed", "title": "No", "status": 500, "detail": "out of luck"}
QUEUED = {"status": "running", "items": [{"status": "queued"}] * 3, "usage": {}, "notes": []}
EVENTS = [
    event([["s", "/items/0/value", "a"], ["s", "/items/1/value", "b"]], id="1-2"),
    event([["a", "/items/1/value", "B"]], id="1-3"),
    event([["s", "/items/1/status", "succeeded"]], id="1-4"),
    event([["s", "/items/2/status", "failed"], ["s", "/items/2/error", FAILURE]], id="1-5"),
    event([["r", "A", ""], ["s", "/items/0/status", "succeeded"]], id="1-6"),
]
ITEMS = [
    {"status": "succeeded", "value": "aA"},
    {"status": "succeeded", "value": "bB"},
    {"status": "failed", "error": FAILURE},
]
END = done("1-7", ITEMS, status="partially_failed")


def script(request, *, events=tuple(EVENTS), end=END):
    if request.method == "POST":
        status = 202 if request.path.endswith("/cancel") else 201
        yield answer(status, job(QUEUED, columns=COLUMNS, batch=True))
        return
    after = int((request.cursor or "1-0").partition("-")[2])
    opening = b"" if request.cursor else snapshot("1-1", QUEUED, columns=COLUMNS)
    yield STREAM + hello() + opening
    for sse_event in events:
        if int(sse_event.partition(b"id:1-")[2].partition(b"\n")[0]) > after:
            yield sse_event
    yield end
    yield CLOSE


@pytest.fixture
def server():
    with ScriptedServer(script) as server:
        yield server


async def test_submit_batch_sends_inputs_and_shared_members(server):
    async with AsyncClient(server.url) as client:
        await client.submit_batch("embed", [{"text": "a"}, {"text": "b"}], normalize=True)
    assert server.requests[0].json == {
        "inputs": [{"text": "a"}, {"text": "b"}],
        "shared": {"normalize": True},
    }


async def test_submit_batch_without_inputs_raises_before_sending(server):
    async with AsyncClient(server.url) as client:
        with pytest.raises(InvalidInputError, match="at least one input"):
            await client.submit_batch("embed", [])
    assert server.requests == []


async def test_results_keep_the_input_order_and_raise_the_first_failure(server):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3])
        with pytest.raises(ItemFailedError, match=r"item 2 failed: out of luck \[item_failed\]") as caught:
            await batch.results()
        assert (caught.value.index, caught.value.status, caught.value.code) == (2, "failed", "item_failed")
        results = await batch.results(return_exceptions=True)
        assert results[:2] == ["aA", "bB"]
        assert isinstance(results[2], ItemFailedError)


async def test_as_completed_yields_items_as_they_end(server):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3])
        ended = [(index, result) async for index, result in batch.as_completed()]
        assert [index for index, _ in ended] == [1, 2, 0]
        assert (ended[0][1], ended[2][1]) == ("bB", "aA")
        assert isinstance(ended[1][1], ItemFailedError)


async def test_as_completed_starts_with_items_that_already_ended(server):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3])
        async for index, _ in batch.as_completed():
            assert index == 1
            break
        assert [index async for index, _ in batch.as_completed()] == [1, 2, 0]
        assert [index async for index, _ in batch.as_completed()] == [0, 1, 2]


@pytest.mark.parametrize("taken", [1, 3])
async def test_as_completed_resumes_from_a_checkpoint_without_repeating_items(server, taken):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3])
        ended = batch.as_completed()
        first = [(await anext(ended))[0] for _ in range(taken)]
        saved = Checkpoint.from_json(batch.checkpoint().to_json())
        rest = [index async for index, _ in client.batch_job(checkpoint=saved).as_completed()]
    assert first + rest == [1, 2, 0]


async def test_as_completed_yields_an_item_while_others_still_run():
    with ScriptedServer(lambda request: script(request, events=EVENTS[:3], end=HOLD)) as server:
        async with AsyncClient(server.url) as client:
            async for index, result in (await client.submit_batch("embed", [1, 2, 3])).as_completed():
                assert (index, result) == (1, "bB")
                break


async def test_each_update_belongs_to_one_changed_item(server):
    async with AsyncClient(server.url) as client:
        updates = [update async for update in await client.submit_batch("embed", [1, 2, 3])]
    assert [(update.index, update.text, update.seq) for update in updates] == [
        (0, "a", 2),
        (1, "b", 2),
        (1, "B", 3),
        (0, "A", 6),
        (1, "", 6),
    ]
    assert [update.value for update in updates] == ["a", "b", "bB", "aA", "bB"]
    assert updates[-2].status == "succeeded"


@pytest.mark.parametrize("path", ["", "/items"])
async def test_a_diff_that_replaces_all_items_yields_one_update_per_item(path):
    items = [{"status": "running", "value": text} for text in ("a", "b", "c")]
    sse_event = event([["s", path, items if path else QUEUED | {"items": items}]], id="1-2")
    with ScriptedServer(
        lambda request: script(request, events=[sse_event], end=done("1-3", items))
    ) as server:
        async with AsyncClient(server.url) as client:
            updates = [update async for update in client.batch_job("j1")]
    assert [(update.index, update.value, update.seq) for update in updates] == [
        (0, "a", 2),
        (1, "b", 2),
        (2, "c", 2),
    ]


async def test_attaching_to_a_batch_starts_with_one_update_per_item(server):
    async with AsyncClient(server.url) as client:
        batch = client.batch_job("j1")
        texts = {}
        async for update in batch:
            texts[update.index] = texts.get(update.index, "") + update.text
        assert texts == {0: "aA", 1: "bB"}


async def test_updates_received_while_waiting_for_results_are_merged_per_item(server):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3])
        await batch.results(return_exceptions=True)
        updates = [(update.index, update.text, update.first_seq, update.seq) async for update in batch]
        assert sorted(updates) == [(0, "aA", 1, 6), (1, "bB", 1, 6)]
        assert batch.checkpoint().cursor == "1-6"


@pytest.mark.parametrize(
    ("taken", "cursor", "rest"),
    [
        (1, "1-2", [(1, "b"), (1, "B"), (0, "A"), (1, "")]),
        (2, "1-2", [(1, "B"), (0, "A"), (1, "")]),
        (3, "1-3", [(0, "A"), (1, "")]),
    ],
)
async def test_a_checkpoint_between_items_of_an_event_continues_with_the_other_items(
    server, taken, cursor, rest
):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3])
        updates = batch.updates()
        for _ in range(taken):
            await anext(updates)
        assert batch.checkpoint().cursor == cursor
        await updates.aclose()
        saved = Checkpoint.from_json(batch.checkpoint().to_json())
        resumed = client.batch_job(checkpoint=saved)
        assert [(update.index, update.text) async for update in resumed] == rest


async def test_cancel_accepts_item_indices(server):
    async with AsyncClient(server.url) as client:
        batch = client.batch_job("j1")
        assert await batch.cancel([0, 2]) == "running"
        await batch.cancel()
    assert [request.json for request in server.requests] == [{"items": [0, 2]}, {}]


@pytest.mark.parametrize("items", [1, "12"])
async def test_cancel_with_invalid_indices_raises_before_sending(server, items):
    async with AsyncClient(server.url) as client:
        with pytest.raises(TypeError, match=r"items must be indices such as \[1, 3\], not"):
            await client.batch_job("j1").cancel(items)
    assert server.requests == []


class Word(BaseModel):
    text: str


async def test_each_result_of_a_batch_is_validated(server):
    async with AsyncClient(server.url) as client:
        batch = await client.submit_batch("embed", [1, 2, 3], returns=Word)
        with pytest.raises(InvalidValueError, match="not a valid Word"):
            await batch.results(return_exceptions=True)


async def test_the_update_of_a_failed_item_carries_its_error():
    failed = [event([["s", "/items/2", {"status": "failed", "value": 1, "error": FAILURE}]], id="1-2")]
    end = done("1-3", [*QUEUED["items"][:2], {"status": "failed", "value": 1, "error": FAILURE}])
    with ScriptedServer(lambda request: script(request, events=failed, end=end)) as server:
        async with AsyncClient(server.url) as client:
            [update] = [update async for update in await client.submit_batch("embed", [1, 2, 3])]
    assert (update.index, update.status, update.error.detail) == (2, "failed", "out of luck")


def test_the_blocking_client_reads_batches(server):
    with Client(server.url) as client:
        batch = client.submit_batch("embed", [1, 2, 3])
        assert [index for index, _ in batch.as_completed()] == [1, 2, 0]
        assert batch.results(return_exceptions=True)[:2] == ["aA", "bB"]
        with pytest.raises(ItemFailedError):
            batch.results()
        assert batch.cancel([1]) == "running"
        assert {update.index for update in client.batch_job("j1")} == {0, 1}
