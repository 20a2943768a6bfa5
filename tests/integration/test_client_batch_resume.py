"""A batch job that is resumed from a checkpoint between two updates yields each change of an item exactly once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import contextmanager

import pytest

from support.scripted_server import CLOSE, STREAM, ScriptedServer, answer, done, event, hello, job, snapshot
from tidewire import AsyncClient, Checkpoint, Client
from tidewire.errors import CheckpointError, InvalidValueError

pytestmark = pytest.mark.anyio

COLUMNS = ["/items/0/value", "/items/1/value"]
START = {"status": "running", "items": [{"status": "queued"}] * 2, "usage": {}, "notes": []}
GREETING = [{"status": "succeeded", "value": "ab"}, {"status": "succeeded", "value": "AC"}]
EVENTS = [
    event([["s", "/items/0/value", "a"], ["s", "/items/1/value", "AB"]], id="1-2"),
    event([["a", "/items/0/value", "b"], ["t", "/items/1/value", 1], ["a", "/items/1/value", "C"]], id="1-3"),
    event([["s", "/items/0/status", "succeeded"], ["s", "/items/1/status", "succeeded"]], id="1-4"),
]
END = done("1-5", GREETING)

WORDS = ["Dear ", "Bo, ", "how ", "are ", "you? "]
ITEMS = 3


def script(request, *, events=tuple(EVENTS), end=END, on_resume=None):
    if request.method == "POST":
        yield answer(201, job(START, columns=COLUMNS, batch=True))
        return
    yield STREAM + hello()
    if not request.cursor:
        yield snapshot("1-1", START, columns=COLUMNS)
    after = int((request.cursor or "1-1").partition("-")[2])
    if on_resume is not None and after > 1:
        yield on_resume
    for at, sse_event in enumerate(events, 2):
        if at > after:
            yield sse_event
    yield end
    yield CLOSE


@contextmanager
def scripted(**changes):
    with ScriptedServer(lambda request: script(request, **changes)) as server:
        yield server.url


@pytest.fixture(scope="module", params=[0.005, 0.02])
def server_url(request):
    from tidewire_server import Append, Server

    server = Server(single_user=True, merge_window=request.param, default_concurrency_limit=None)

    @server.endpoint(capabilities={"rollback": True})
    async def draft(rounds: int = 1, pause: float = 0.01) -> AsyncIterator[str | Append[str]]:
        text = ""
        for _ in range(rounds):
            for word in WORDS:
                text += word
                yield Append(word)
                await asyncio.sleep(pause)
            text = text[:-3]
            yield text

    with server.running() as url:
        yield url


class Texts:
    """The texts that a program stores together with its checkpoint, and the number of updates behind them."""

    def __init__(self, items):
        self.of = [""] * items
        self.updates = self.deleted = self.mid_event = 0

    def take(self, update):
        text = self.of[update.index]
        # A repeated deletion would otherwise go unnoticed at the start of the text.
        assert update.deleted <= len(text)
        self.of[update.index] = text[: len(text) - update.deleted] + update.text
        assert self.of[update.index] == (update.value or "")
        self.updates += 1
        self.deleted += update.deleted

    def save(self, batch):
        checkpoint = Checkpoint.from_json(batch.checkpoint().to_json())
        self.mid_event += bool(checkpoint.undelivered)
        return checkpoint


# ---- the reference server ----------------------------------------------------------------------------------------


def resumed_after_each_update(url, texts):
    """Read a batch job with one client per update."""
    with Client(url) as client:
        batch = client.submit_batch("draft", [{"rounds": 2}] * ITEMS)
        saved = batch.checkpoint()
    while True:
        with Client(url) as client:
            batch = client.batch_job(checkpoint=saved)
            for update in batch:
                texts.take(update)
                break
            else:
                return batch.results()
            saved = texts.save(batch)


def test_a_new_client_after_each_update_gets_each_change_once(server_url):
    texts = Texts(ITEMS)
    results = resumed_after_each_update(server_url, texts)
    assert texts.of == results
    assert texts.deleted > 0
    assert texts.updates > ITEMS


@pytest.mark.parametrize("wait", [0.0, 0.1])
def test_a_break_at_any_update_changes_no_text(server_url, wait):
    """With `wait`, the job continues before the resume, so that the server can merge the events after the break."""
    with Client(server_url) as client:
        mid_event = 0
        for stop in range(1, 12):
            texts = Texts(ITEMS)
            batch = client.submit_batch("draft", [{}] * ITEMS)
            for update in batch:
                texts.take(update)
                if texts.updates == stop:
                    break
            saved = texts.save(batch)
            if wait:
                batch.wait()
            with Client(server_url) as other:
                resumed = other.batch_job(checkpoint=saved)
                for update in resumed:
                    texts.take(update)
                assert texts.of == resumed.results() == ["".join(WORDS)[:-3]] * ITEMS, stop
            mid_event += texts.mid_event
        assert mid_event > 0


async def test_a_break_at_any_update_changes_no_text_for_the_async_client(server_url):
    async with AsyncClient(server_url) as client:
        mid_event = 0
        for stop in range(1, 12):
            texts = Texts(ITEMS)
            batch = await client.submit_batch("draft", [{}] * ITEMS)
            async with batch.updates() as updates:
                async for update in updates:
                    texts.take(update)
                    if texts.updates == stop:
                        break
                saved = texts.save(batch)
            async with AsyncClient(server_url) as other:
                resumed = other.batch_job(checkpoint=saved)
                async for update in resumed:
                    texts.take(update)
                assert texts.of == await resumed.results() == ["".join(WORDS)[:-3]] * ITEMS, stop
            mid_event += texts.mid_event
        assert mid_event > 0


@pytest.mark.parametrize("stop", range(1, ITEMS + 1))
def test_updates_merged_during_results_survive_a_break(server_url, stop):
    with Client(server_url) as client:
        texts = Texts(ITEMS)
        batch = client.submit_batch("draft", [{"pause": 0.001}] * ITEMS)
        results = batch.results()
        for update in batch:
            texts.take(update)
            if texts.updates == stop:
                break
        for update in client.batch_job(checkpoint=texts.save(batch)):
            texts.take(update)
        assert texts.of == results
        assert (texts.updates, texts.mid_event) == (ITEMS, stop < ITEMS)


# ---- scripted events ---------------------------------------------------------------------------------------------


LATER = [{"status": "running", "value": "ab"}, {"status": "running", "value": "AC"}]


@pytest.mark.parametrize(
    "on_resume",
    [None, snapshot("1-3", START | {"items": LATER}, columns=COLUMNS)],
    ids=["events", "snapshot"],
)
@pytest.mark.parametrize("stop", range(1, 5))
async def test_an_item_that_was_delivered_before_the_break_gets_only_the_rest(stop, on_resume):
    with scripted(on_resume=on_resume) as url:
        async with AsyncClient(url) as client:
            texts = Texts(2)
            batch = await client.submit_batch("greet", [1, 2])
            updates = batch.updates()
            for _ in range(stop):
                texts.take(await anext(updates))
            saved = texts.save(batch)
            await updates.aclose()
            assert texts.save(batch) == saved
            assert (saved.cursor, len(saved.undelivered)) == (f"1-{(stop + 3) // 2}", stop % 2)
            async for update in client.batch_job(checkpoint=saved):
                texts.take(update)
    assert texts.of == ["ab", "AC"]
    assert (texts.updates, texts.deleted) == (4, 1)


async def test_a_second_break_before_the_rest_of_the_event_loses_nothing():
    with scripted() as url:
        async with AsyncClient(url) as client:
            batch = await client.submit_batch("greet", [1, 2])
            async with batch.updates() as updates:
                await anext(updates)
            saved = batch.checkpoint()
            resumed = client.batch_job(checkpoint=saved)
            assert resumed.checkpoint() == saved
            await resumed.results()
            assert resumed.checkpoint() == saved
            rest = [(update.index, update.deleted, update.text) async for update in resumed]
    assert rest == [(1, 0, "AB"), (0, 0, "b"), (1, 1, "C")]


@pytest.mark.parametrize("stop", [1, 2])
async def test_as_completed_yields_items_that_end_in_one_event_once(stop):
    with scripted() as url:
        async with AsyncClient(url) as client:
            batch = await client.submit_batch("greet", [1, 2])
            ended = batch.as_completed()
            before = [await anext(ended) for _ in range(stop)]
            saved = Checkpoint.from_json(batch.checkpoint().to_json())
            await ended.aclose()
            after = [each async for each in client.batch_job(checkpoint=saved).as_completed()]
            # The end of an item is not a change of its value, so a loop over the updates does not yield it.
            assert [update async for update in client.batch_job(checkpoint=saved)] == []
    assert before + after == [(0, "ab"), (1, "AC")]


async def test_as_completed_of_an_existing_job_yields_items_in_its_first_event_once():
    ended = [{"status": "succeeded", "value": each} for each in ("ab", "AC")]
    sse_event = event([["s", "/items", ended]], id="1-2")
    with scripted(events=[sse_event], end=done("1-3", ended)) as url:
        async with AsyncClient(url) as client:
            batch = client.batch_job("j1")
            first = batch.as_completed()
            assert await anext(first) == (0, "ab")
            saved = batch.checkpoint()
            await first.aclose()
            assert [index async for index, _ in client.batch_job(checkpoint=saved).as_completed()] == [1]


async def test_an_invalid_value_in_the_middle_of_an_event_keeps_the_rest_of_the_event():
    items = [{"status": "succeeded", "value": each} for each in (1, "no number")]
    sse_event = event([["s", "/items", items]], id="1-2")
    with scripted(events=[sse_event], end=done("1-3", items)) as url:
        async with AsyncClient(url) as client:
            batch = await client.submit_batch("greet", [1, 2], returns=int)
            ended = batch.as_completed()
            assert await anext(ended) == (0, 1)
            with pytest.raises(InvalidValueError):
                await anext(ended)
            resumed = client.batch_job(checkpoint=batch.checkpoint(), returns=int)
            with pytest.raises(InvalidValueError):
                await anext(resumed.as_completed())


# ---- the saved form ----------------------------------------------------------------------------------------------

SAVED = {"job": "j1", "state": START, "columns": COLUMNS, "cursor": "1-2"}


def test_only_a_checkpoint_in_the_middle_of_an_event_has_undelivered_updates():
    with scripted() as url, Client(url) as client:
        batch = client.submit_batch("greet", [1, 2])
        members = []
        for _ in batch:
            members.append("undelivered" in batch.checkpoint().to_json())
        assert members == [True, False, True, False]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"undelivered": [{"index": 2, "first_seq": 2}]}, "item 2 does not belong to the state"),
        ({"undelivered": [{"index": 1, "first_seq": 3}]}, "item 1 does not belong to the state"),
        ({"undelivered": [{"index": 1, "first_seq": 2, "deleted": -1}]}, "item 1 does not belong"),
        ({"undelivered": [{"index": 1}]}, "first_seq"),
        ({"undelivered": [{"index": 1, "first_seq": 2}], "state": None, "cursor": None}, "need a state"),
    ],
)
def test_a_checkpoint_with_wrong_undelivered_updates_is_refused(changes, expected):
    from pydantic_core import to_json

    with pytest.raises(CheckpointError, match=expected):
        Checkpoint.from_json(to_json(SAVED | changes))


def test_a_job_with_one_input_refuses_undelivered_updates():
    from pydantic_core import to_json

    saved = Checkpoint.from_json(to_json(SAVED | {"undelivered": [{"index": 1, "first_seq": 2}]}))
    with Client("http://localhost:1") as client, pytest.raises(CheckpointError, match="client.batch_job"):
        client.job(checkpoint=saved)
