"""Reading a job with the async client: updates, text, results and checkpoints."""

import itertools
from dataclasses import FrozenInstanceError, asdict, is_dataclass, replace

import anyio
import pytest
from pydantic import BaseModel, TypeAdapter

from support.client_timing import with_timing
from support.scripted_server import (
    CLOSE,
    HOLD,
    STREAM,
    ScriptedServer,
    answer,
    done,
    ending,
    endpoint,
    event,
    hello,
    hurried,
    job,
    problem,
    snapshot,
    state,
)
from tidewire import AsyncClient, Checkpoint, TextDelta
from tidewire.errors import (
    CheckpointError,
    ConcurrentReadError,
    InvalidValueError,
    JobCancelledError,
    JobFailedError,
    QueueTimeoutError,
    TidewireError,
    VoidTextError,
)

pytestmark = pytest.mark.anyio

VALUE = "/items/0/value"
TEXT = f"{VALUE}/text"


class Reply(BaseModel):
    text: str
    tokens: list[int]
    reason: str


def replying(*events, opening=None, rollback=False):
    """Script that answers submit, job read and endpoint, and sends the events on one stream."""

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT, f"{VALUE}/tokens"]), Location="/v1/jobs/j1")
        elif request.path.startswith("/v1/endpoints/"):
            yield answer(200, endpoint(rollback=rollback))
        elif request.path.endswith("/events"):
            yield STREAM + hello() + (b"" if request.cursor else opening or OPENING)
            after = int((request.cursor or "1-1").partition("-")[2])
            for sse_event in events:
                if (
                    not isinstance(sse_event, bytes)
                    or int(sse_event.partition(b"id:1-")[2].partition(b"\n")[0] or 99) > after
                ):
                    yield sse_event
            yield CLOSE
        else:
            yield answer(200, job(state({"text": ""}), cursor="1-2"))

    return script


OPENING = snapshot("1-1", state(None, status="queued"), columns=[TEXT, f"{VALUE}/tokens"])
REPLY = {"text": "Hello", "tokens": [1, 2], "reason": "stop"}
EVENTS = [
    event([["s", "/items/0/status", "running"], ["s", "/status", "running"]], id="1-2"),
    event([["s", VALUE, {"text": "", "tokens": []}]], id="1-3"),
    event([["r", "Hel", 1]], id="1-4"),
    event([["r", "lo", 2]], id="1-5"),
    event([["s", f"{VALUE}/reason", "stop"]], id="1-6"),
    event([["s", "/items/0/status", "succeeded"]], id="1-7"),
    done("1-8", [{"status": "succeeded", "value": REPLY}]),
]


class ServerAndClient:
    """Context manager that starts a scripted server and a client for it."""

    def __init__(self, script, **options):
        self.server = ScriptedServer(script)
        self.options = options

    async def __aenter__(self):
        self.server.__enter__()
        timing, self.waits = hurried()
        self.client = with_timing(AsyncClient(self.server.url, **self.options), timing)
        return self.client, self.server

    async def __aexit__(self, *_):
        await self.client.aclose()
        self.server.__exit__()


async def first(count, stream):
    """Yield at most `count` elements of an async iterator."""
    for _ in range(count):
        try:
            yield await anext(stream)
        except StopAsyncIteration:
            return


# ---- updates -----------------------------------------------------------------------------------------------------


async def test_updates_cover_each_seq_once_and_their_texts_add_up():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.first_seq, update.seq) for update in updates] == [(1, 3), (4, 4), (5, 5), (6, 6)]
    assert "".join(update.text for update in updates) == "Hello"
    assert [update.id for update in updates] == ["1-3", "1-4", "1-5", "1-6"]


async def test_the_value_of_a_kept_update_does_not_change():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [update.value["text"] for update in updates] == ["", "Hel", "Hello", "Hello"]
    assert [update.value["tokens"] for update in updates] == [[], [1], [1, 2], [1, 2]]
    assert updates[1].value is not updates[1].value


async def test_parse_validates_and_reports_a_possibly_incomplete_value():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        updates = [update async for update in await client.submit("reply", returns=Reply)]
    assert updates[-1].parse() == Reply(**REPLY)
    with pytest.raises(
        InvalidValueError, match=r"not a valid Reply: /reason: Field required.*may be incomplete"
    ):
        updates[0].parse()


async def test_attaching_to_a_job_starts_with_one_update_of_its_current_value():
    opening = snapshot("1-5", state({"text": "Hello", "tokens": [1, 2]}), columns=[TEXT], reason="compacted")
    async with ServerAndClient(replying(*EVENTS[4:], opening=opening)) as (client, _):
        updates = [update async for update in client.job("j1")]
    assert [(update.first_seq, update.seq, update.text) for update in updates] == [
        (1, 5, "Hello"),
        (6, 6, ""),
    ]


async def test_a_value_in_the_response_to_a_submit_is_delivered_as_an_update():
    # The server answers a repeated submit with the current state of the job.
    job_resource = job(state({"text": "Hel", "tokens": [1]}), cursor="1-4", columns=[TEXT, f"{VALUE}/tokens"])
    rest = replying(*EVENTS)

    def script(request):
        return iter([answer(201, job_resource)]) if request.method == "POST" else rest(request)

    async with ServerAndClient(script) as (client, server):
        updates = [update async for update in await client.submit("reply")]
        assert [request.cursor for request in server.requests[1:]] == ["1-4"]
    assert [(update.first_seq, update.seq, update.text) for update in updates] == [
        (1, 4, "Hel"),
        (5, 5, "lo"),
        (6, 6, ""),
    ]


async def test_a_submit_that_returns_an_ended_job_opens_no_stream():
    items = [{"status": "succeeded", "value": REPLY}]
    job_resource = job(state(REPLY, status="succeeded"), cursor="1-8", columns=[TEXT], ended=ending(items))
    async with ServerAndClient(lambda _: iter([answer(201, job_resource)])) as (client, server):
        following = await client.submit("reply")
        assert await following.result() == REPLY
        assert [update.text async for update in following] == ["Hello"]
        assert len(server.requests) == 1


async def test_a_job_without_a_value_yields_one_update():
    items = [{"status": "succeeded"}]
    events = [EVENTS[0], event([["s", "/items/0/status", "succeeded"]], id="1-3"), done("1-4", items)]
    async with ServerAndClient(replying(*events)) as (client, _):
        following = await client.submit("reply")
        assert [(update.first_seq, update.seq, update.value) async for update in following] == [(1, 4, None)]
        assert await following.result() is None


async def test_an_update_after_a_restart_counts_the_deleted_text():
    restarted = snapshot("9-5", state({"text": "Help", "tokens": [1]}), columns=[TEXT], reason="restart")
    end = done("9-6", [{"status": "running", "value": {"text": "Help", "tokens": [1]}}])
    async with ServerAndClient(replying(*EVENTS[:4], restarted, end)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.deleted, update.text) for update in updates] == [(0, ""), (0, "Hel"), (0, "lo"), (2, "p")]


async def test_a_restart_with_another_text_column_deletes_the_old_text():
    other = f"{VALUE}/answer"
    restarted = snapshot("9-5", state({"answer": "Hi"}), columns=[other], reason="restart")
    more = event("!", id="9-6")
    end = done("9-7", [{"status": "running", "value": {"answer": "Hi!"}}])
    async with ServerAndClient(replying(*EVENTS[:4], restarted, more, end)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.deleted, update.text) for update in updates[3:]] == [(5, "Hi"), (0, "!")]


async def test_a_restart_without_a_value_deletes_all_text():
    restarted = snapshot("9-5", state(None), columns=[TEXT], reason="restart")
    more = event([["s", VALUE, {"text": "Hey"}]], id="9-6")
    end = done("9-7", [{"status": "running", "value": {"text": "Hey"}}])
    async with ServerAndClient(replying(*EVENTS[:4], restarted, more, end)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.deleted, update.text) for update in updates[3:]] == [(5, ""), (0, "Hey")]


async def test_the_listener_receives_queue_and_progress_messages():
    messages = []
    queue = event({"position": 2, "eta_ms": 100}, type="queue")
    progress = event({"current": 1, "total": 4, "unit": "step"}, type="progress")
    async with ServerAndClient(replying(queue, progress, *EVENTS)) as (client, _):
        following = await client.submit("reply")
        following.listener = messages.append
        await following.result()
    assert [type(message).__name__ for message in messages] == ["Queue", "Progress"]
    assert following.queue.position == 2
    assert following.progress.total == 4


async def test_a_listener_that_raises_loses_no_update(caplog):
    progress = event({"current": 1, "total": 4, "unit": "step"}, type="progress")
    pieces = [each for part in EVENTS for each in (progress, part)]

    def fail(message):
        raise ValueError("from the listener")

    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        expected = [update.value async for update in await client.submit("reply")]
    async with ServerAndClient(replying(*pieces)) as (client, _):
        following = await client.submit("reply")
        following.listener = fail
        assert [update.value async for update in following] == expected
        assert await following.result() == REPLY
    assert "from the listener" in caplog.text


async def test_an_async_listener_is_awaited_and_its_cancellation_loses_no_update():
    progress = event({"current": 1, "total": 4, "unit": "step"}, type="progress")
    pieces = [each for part in EVENTS for each in (progress, part)]
    reached = anyio.Event()

    async def wait_forever(message):
        reached.set()
        await anyio.sleep_forever()

    async with ServerAndClient(replying(*pieces)) as (client, _):
        following = await client.submit("reply")
        following.listener = wait_forever
        async with anyio.create_task_group() as group:
            group.start_soon(following.result)
            await reached.wait()
            group.cancel_scope.cancel()
        following.listener = None
        assert [update.value async for update in following][-1] == REPLY


async def test_a_listener_must_be_callable():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        with pytest.raises(TypeError, match="listener must be a function with one argument, not 'print'"):
            following.listener = "print"
        assert await following.result() == REPLY


# ---- result ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", [Reply, TypeAdapter(Reply)])
async def test_result_is_validated_against_returns(returns):
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        assert await client.run("reply", returns=returns) == Reply(**REPLY)


async def test_a_result_of_another_type_raises_with_the_path():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        with pytest.raises(
            InvalidValueError, match=r"not a valid dict\[str, int\]: /text: Input should be a valid integer"
        ):
            await client.run("reply", returns=dict[str, int])


async def test_a_loop_after_result_yields_one_merged_update():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        assert await following.result() == REPLY
        updates = [update async for update in following]
        assert [(update.first_seq, update.seq, update.text) for update in updates] == [(1, 6, "Hello")]
        assert [update async for update in following] == []
        assert await following.result() == REPLY


async def test_result_in_the_middle_of_a_loop_repeats_no_update():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        updates = []
        async for update in following:
            updates.append(update)
            if update.text == "Hel":
                break
        assert await following.result() == REPLY
        updates += [update async for update in following]
    # Updates that arrived with "Hel" are delivered separately; updates received by `result` are merged into
    # one. How many arrived depends on the chunks.
    assert "".join(update.text for update in updates) == "Hello"
    assert [update.first_seq for update in updates[1:]] == [update.seq + 1 for update in updates[:-1]]
    assert updates[-1].value == REPLY


@pytest.mark.parametrize("taken", range(4))
async def test_a_restart_received_during_result_is_merged_into_its_net_effect(taken):
    restarted = snapshot("9-5", state({"text": "Help", "tokens": [1]}), columns=[TEXT], reason="restart")
    end = done("9-6", [{"status": "running", "value": {"text": "Help", "tokens": [1]}}])
    async with ServerAndClient(replying(*EVENTS[:4], HOLD)) as (client, server):
        following = await client.submit("reply")
        updates = following.updates()
        seen = [await anext(updates) for _ in range(taken)]
        await updates.aclose()
        server.script = replying(*EVENTS[:4], restarted, end)
        await following.result()
        seen += [update async for update in following]
    text = ""
    for update in seen:
        text = text[: len(text) - update.deleted] + update.text
        assert text == update.value["text"]
    assert text == "Help"


async def test_concurrent_result_and_loop_share_one_stream():
    async with ServerAndClient(replying(*EVENTS)) as (client, server), anyio.create_task_group() as tasks:
        following = await client.submit("reply")
        results, updates = [], []

        async def wait():
            results.append(await following.result())

        async def loop():
            updates.extend([update async for update in following])

        tasks.start_soon(wait)
        tasks.start_soon(loop)
        tasks.start_soon(wait)
    assert results == [REPLY, REPLY]
    assert "".join(update.text for update in updates) == "Hello"
    assert updates[0].first_seq == 1
    assert all(after.first_seq == before.seq + 1 for before, after in itertools.pairwise(updates))
    assert len(server.paths("GET")) == 1


async def test_a_second_concurrent_loop_raises_with_advice():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        async for _ in following:
            with pytest.raises(ConcurrentReadError, match=r"client\.job\(job\.id\)"):
                await anext(following.updates())
        assert await following.result() == REPLY


FAILURE = {"code": "item_failed", "title": "No", "status": 500, "detail": "out of luck"}


async def test_a_failed_job_raises_after_the_loop_and_in_result():
    items = [{"status": "failed", "value": {"text": "Hel", "tokens": [1]}, "error": FAILURE}]
    failed = event([["s", "/items/0/status", "failed"], ["s", "/items/0/error", FAILURE]], id="1-5")
    async with ServerAndClient(
        replying(*EVENTS[:3], failed, done("1-6", items, status="failed", error=FAILURE))
    ) as (
        client,
        _,
    ):
        following = await client.submit("reply")
        updates = following.updates()
        assert [(await anext(updates)).text for _ in range(2)] == ["", "Hel"]
        with pytest.raises(JobFailedError, match=r"the job failed: out of luck \[item_failed\]") as caught:
            await anext(updates)
        assert caught.value.problem.detail == "out of luck"
        assert (caught.value.code, caught.value.job_id) == ("item_failed", "j1")
        assert caught.value.value == {"text": "Hel", "tokens": [1]}
        with pytest.raises(StopAsyncIteration):
            await anext(updates)
        with pytest.raises(JobFailedError):
            await following.result()


async def test_a_cancelled_job_does_not_raise_task_cancellation():
    items = [{"status": "cancelled"}]
    cancelled = event([["s", "/items/0/status", "cancelled"]], id="1-2")
    async with ServerAndClient(replying(cancelled, done("1-3", items, status="cancelled"))) as (client, _):
        with pytest.raises(JobCancelledError) as caught:
            await client.run("reply")
        assert not isinstance(caught.value, anyio.get_cancelled_exc_class())


async def test_a_timeout_while_the_job_is_queued_raises_queue_timeout():
    queue = event({"position": 3}, type="queue")
    async with ServerAndClient(replying(queue, HOLD)) as (client, _):
        with pytest.raises(QueueTimeoutError, match="in the server's queue at position 3"):
            await client.with_options(timeout=0.3).run("reply")


# ---- text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rollback", [False, True])
async def test_iter_text_does_not_hold_text_back_without_stable(rollback):
    async with ServerAndClient(replying(*EVENTS[:4], HOLD, rollback=rollback)) as (client, _):
        texts = (await client.submit("reply")).iter_text()
        assert [await anext(texts) for _ in range(2)] == ["Hel", "lo"]
        await texts.aclose()


def rolled_back_text(*, restart=False):
    """Events that truncate text after `stable` declared part of it final."""
    events = [
        *EVENTS[:2],
        event([["a", TEXT, "I like "]], id="1-4"),
        event([["a", TEXT, "cats"], ["s", "/items/0/stable", {"/text": 7}]], id="1-5"),
        event([["t", TEXT, 4], ["a", TEXT, "dogs"]], id="1-6"),
    ]
    value = {"text": "I like dogs.", "tokens": []}
    items = [{"status": "succeeded", "value": value, "stable": {"/text": 7}}]
    if restart:
        value = {"text": "No.", "tokens": []}
        again = snapshot("5-7", state(value), columns=[TEXT], reason="restart")
        return [*events, again, done("5-8", state(value)["items"])]
    return [
        *events,
        event([["a", TEXT, "."], ["s", "/items/0/status", "succeeded"]], id="1-7"),
        done("1-8", items),
    ]


async def test_iter_text_holds_text_back_until_it_is_stable_or_the_job_ends():
    async with ServerAndClient(replying(*rolled_back_text(), rollback=True)) as (client, _):
        assert [text async for text in (await client.submit("reply")).iter_text()] == ["I like ", "dogs."]


async def test_iter_text_raises_if_delivered_text_is_retracted():
    async with ServerAndClient(replying(*rolled_back_text(restart=True), rollback=True)) as (client, _):
        texts = (await client.submit("reply")).iter_text()
        assert await anext(texts) == "I like "
        with pytest.raises(VoidTextError, match="7 code points"):
            await anext(texts)


async def test_text_deltas_count_retracted_characters():
    async with ServerAndClient(replying(*rolled_back_text(), rollback=True)) as (client, _):
        deltas = [delta async for delta in (await client.submit("reply")).iter_text_deltas()]
    assert deltas == [
        TextDelta(0, "I like "),
        TextDelta(0, "cats"),
        TextDelta(4, "dogs"),
        TextDelta(0, "."),
    ]


async def test_text_held_back_by_one_loop_is_delivered_by_the_next():
    async with ServerAndClient(replying(*rolled_back_text(), rollback=True)) as (client, _):
        following = await client.submit("reply")
        texts = []
        async for text in following.iter_text():
            texts.append(text)
            break
        deltas = [delta async for delta in following.iter_text_deltas()]
    text = texts[0]
    for delta in deltas:
        text = text[: len(text) - delta.deleted] + delta.text
    assert text == "I like dogs."


def stable_boundary_within_an_update(request):
    """Script with `defgh` in one event: `stable` then covers `de`, and a truncation removes `fgh`."""
    events = [
        event([["s", VALUE, {"text": "", "tokens": []}]], id="1-2"),
        event([["a", TEXT, "abc"], ["s", "/items/0/stable", {"/text": 3}]], id="1-3"),
        event([["a", TEXT, "defgh"]], id="1-4"),
        event([["s", "/items/0/stable", {"/text": 5}]], id="1-5"),
        event([["t", TEXT, 3], ["a", TEXT, "FGH"]], id="1-6"),
        event([["a", TEXT, "ij"], ["s", "/items/0/stable", {"/text": 8}]], id="1-7"),
        event([["s", "/items/0/status", "succeeded"]], id="1-8"),
    ]
    value = {"text": "abcdeFGHij", "tokens": []}
    items = [{"status": "succeeded", "value": value, "stable": {"/text": 8}}]
    ended = state(status="succeeded") | {"items": items}
    if request.method == "GET" and request.path.endswith("/j1"):
        yield answer(200, job(ended, cursor="1-9", columns=[TEXT], ended=ending(items)))
    elif request.cursor == "1-9":
        yield b"HTTP/1.1 204 X\r\n\r\n"
    else:
        yield from replying(*events, done("1-9", items), rollback=True)(request)


@pytest.mark.parametrize("taken", range(4))
async def test_held_back_text_resumes_in_another_loop_or_from_a_checkpoint(taken):
    async with ServerAndClient(stable_boundary_within_an_update) as (client, _):
        following = await client.submit("reply")
        texts = following.iter_text()
        before = [text async for text in first(taken, texts)]
        saved = following.checkpoint()
        assert len(saved.state["items"][0]["value"]["text"] if taken else "") == len("".join(before))
        await texts.aclose()
        for again in (following, client.job(checkpoint=saved)):
            rest = [text async for text in again.iter_text()]
            assert "".join(before + rest) == "abcdeFGHij"


async def test_held_back_text_is_delivered_once_by_an_update_loop():
    async with ServerAndClient(stable_boundary_within_an_update) as (client, _):
        following = await client.submit("reply")
        texts = following.iter_text()
        assert await anext(texts) == "abc"
        await texts.aclose()
        updates = [update async for update in following]
        text = "abc"
        for update in updates:
            text = text[: len(text) - update.deleted] + update.text
        assert text == "abcdeFGHij"
        for earlier, later in itertools.pairwise(updates):
            assert later.first_seq == earlier.seq + 1


async def test_the_next_loop_reports_text_retracted_in_the_previous_loop():
    async with ServerAndClient(replying(*rolled_back_text(restart=True), rollback=True)) as (client, _):
        following = await client.submit("reply")
        texts = following.iter_text()
        text = await anext(texts)
        with pytest.raises(VoidTextError):
            await anext(texts)
        async for delta in following.iter_text_deltas():
            text = text[: len(text) - delta.deleted] + delta.text
        assert text == "No."


async def test_iter_text_of_an_attached_job_needs_no_description_of_its_endpoint():
    async with ServerAndClient(replying(*rolled_back_text(), rollback=True)) as (client, server):
        assert "".join([text async for text in client.job("j1").iter_text()]) == "I like dogs."
        assert not any("/endpoints/" in path for path in server.paths())


# ---- checkpoints -------------------------------------------------------------------------------------------------


async def test_the_checkpoint_advances_with_each_delivered_update():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        assert following.checkpoint() == Checkpoint(job="j1", url=client.url)
        cursors = []
        async for update in following:
            cursors.append(following.checkpoint().cursor)
            assert following.checkpoint().state["items"][0]["value"] == update.value
        assert cursors == ["1-3", "1-4", "1-5", "1-6"]


@pytest.mark.parametrize("taken", range(5))
async def test_resuming_from_a_checkpoint_yields_the_remaining_updates(taken):
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        updates = following.updates()
        texts = [(await anext(updates)).text for _ in range(taken)]
        saved = following.checkpoint().to_json()
        await updates.aclose()

        again = client.job(checkpoint=Checkpoint.from_json(saved), returns=Reply)
        rest = [update async for update in again]
        assert "".join(texts + [update.text for update in rest]) == "Hello"
        assert [update.seq for update in rest] == [3, 4, 5, 6][taken:]
        assert await again.result() == Reply(**REPLY)


async def test_result_does_not_advance_the_checkpoint():
    async with ServerAndClient(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        await following.result()
        assert following.checkpoint().cursor is None


async def test_attaching_sends_no_request():
    async with ServerAndClient(replying(*EVENTS)) as (client, server):
        client.job("j1")
        client.job(checkpoint=Checkpoint(job="j1"))
        assert (server.requests, server.open) == ([], 0)


async def test_a_checkpoint_of_another_job_or_server_raises():
    client = AsyncClient("http://127.0.0.1:1")
    saved = Checkpoint(job="j1", url="http://127.0.0.1:1")
    with pytest.raises(CheckpointError, match="belongs to job j1, not to j2"):
        client.job("j2", checkpoint=saved)
    with pytest.raises(CheckpointError, match="dataclasses.replace"):
        client.job(checkpoint=replace(saved, url="http://127.0.0.1:2"))
    assert client.job("j1", checkpoint=saved).id == "j1"
    with pytest.raises(TypeError):
        client.job()


@pytest.mark.parametrize("serialized", [Checkpoint(job="j1").to_json(), asdict(Checkpoint(job="j1"))])
async def test_a_serialized_checkpoint_raises_and_names_from_json(serialized):
    with pytest.raises(TypeError, match="Checkpoint.from_json"):
        AsyncClient("http://127.0.0.1:1").job(checkpoint=serialized)


def test_from_json_of_another_type_names_the_checkpoint():
    with pytest.raises(
        TypeError, match=r"a checkpoint must be the output of checkpoint.to_json\(\), not None"
    ):
        Checkpoint.from_json(None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "Invalid JSON"),
        ("{}", "/job: Field required"),
        ('{"job":"j1","cursor":"1-1"}', "state and cursor must both"),
        (
            '{"job":"j1","cursor":"0-0","state":{"status":"running","items":[{"status":"running"}]}}',
            "is not an event id",
        ),
        ('{"job":"j1","cursor":"1-1","state":{}}', "state: /status: this member is required"),
        ('{"job":"j1","protocol":"tidewire/2"}', "tidewire/1"),
        ('{"job":"j1","cusror":"1-1"}', "cusror"),
    ],
)
def test_from_json_refuses_an_invalid_checkpoint(text, expected):
    with pytest.raises(CheckpointError, match=expected):
        Checkpoint.from_json(text)


@pytest.mark.parametrize(
    ("job_state", "columns", "expected"),
    [(state("a"), ("-",), "column '-'"), (state(2**60), (), "integer beyond")],
)
def test_a_manually_edited_checkpoint_raises_when_it_is_used(job_state, columns, expected):
    changed = Checkpoint(job="j1", state=job_state, columns=columns, cursor="1-2")
    with pytest.raises(CheckpointError, match=f"the checkpoint is not valid: .*{expected}.*to_json"):
        AsyncClient("http://127.0.0.1:1").job(checkpoint=changed)


def test_a_checkpoint_is_a_dataclass_with_stable_json():
    value = {"a": None, "b": [1.5, "né 😀"]}
    saved = Checkpoint(
        job="j1",
        url="http://127.0.0.1:1",
        state={"status": "running", "items": [{"status": "running", "value": value}]},
        columns=["/items/0/value/a"],
        cursor="1-2",
    )
    text = (
        '{"protocol":"tidewire/1","job":"j1","url":"http://127.0.0.1:1","state":{"status":"running","items":'
        '[{"status":"running","value":{"a":null,"b":[1.5,"né 😀"]}}]},"columns":["/items/0/value/a"],"cursor":"1-2"}'
    )
    assert saved.to_json() == text
    assert Checkpoint.from_json(text) == Checkpoint.from_json(text.encode()) == saved
    assert Checkpoint(job="j1").to_json() == '{"protocol":"tidewire/1","job":"j1","columns":[]}'
    assert is_dataclass(saved)
    assert replace(saved, url=None).url is None
    with pytest.raises(ValueError, match="state and cursor must both"):
        Checkpoint(job="j1", cursor="1-1")


def test_a_checkpoint_is_frozen():
    with pytest.raises(FrozenInstanceError):
        Checkpoint(job="j1").job = "j2"


# ---- status and cancel -------------------------------------------------------------------------------------------


async def test_status_sends_one_get():
    async with ServerAndClient(replying()) as (client, server):
        assert await client.job("j1").status() == "running"
        assert server.paths() == ["/v1/jobs/j1"]


async def test_cancel_sends_one_post():
    async with ServerAndClient(lambda _: iter([answer(202, job(state("x")))])) as (client, server):
        assert await client.job("j1").cancel() == "running"
        assert server.paths("POST") == ["/v1/jobs/j1/cancel"]
        assert server.requests[0].json == {}


async def test_a_job_id_with_a_slash_is_escaped_as_one_path_segment():
    async with ServerAndClient(lambda _: iter([problem(404, "job_not_found")])) as (client, server):
        with pytest.raises(TidewireError):
            await client.job("../secret").status()
        assert server.paths() == ["/v1/jobs/..%2Fsecret"]
