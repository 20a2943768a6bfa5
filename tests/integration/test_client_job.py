"""What a job hands to its reader: updates, text, results, checkpoints."""

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


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


def replying(*events, opening=None, rollback=False):
    """A script: submit, job read, endpoint, and one stream that sends the events and ends."""

    def script(request):
        if request.method == "POST":
            yield answer(201, job(columns=[TEXT, f"{VALUE}/tokens"]), Location="/v1/jobs/j1")
        elif request.path.startswith("/v1/endpoints/"):
            yield answer(200, endpoint(rollback=rollback))
        elif request.path.endswith("/events"):
            yield STREAM + hello() + (b"" if request.cursor else opening or OPENING)
            after = int((request.cursor or "1-1").partition("-")[2])
            for said in events:
                if (
                    not isinstance(said, bytes)
                    or int(said.partition(b"id:1-")[2].partition(b"\n")[0] or 99) > after
                ):
                    yield said
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


class Opened:
    """A scripted server and a client of it, entered as one."""

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
    """At most so many of a stream."""
    for _ in range(count):
        try:
            yield await anext(stream)
        except StopAsyncIteration:
            return


# ---- updates -----------------------------------------------------------------------------------------------------


async def test_each_seq_is_covered_by_exactly_one_update_and_the_texts_are_the_whole():
    async with Opened(replying(*EVENTS)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.first_seq, update.seq) for update in updates] == [(1, 3), (4, 4), (5, 5), (6, 6)]
    assert "".join(update.text for update in updates) == "Hello"
    assert [update.id for update in updates] == ["1-3", "1-4", "1-5", "1-6"]


async def test_a_value_stays_right_when_its_update_is_kept():
    async with Opened(replying(*EVENTS)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [update.value["text"] for update in updates] == ["", "Hel", "Hello", "Hello"]
    assert [update.value["tokens"] for update in updates] == [[], [1], [1, 2], [1, 2]]
    assert updates[1].value is not updates[1].value


async def test_parse_validates_and_says_midway_that_the_value_may_not_be_whole():
    async with Opened(replying(*EVENTS)) as (client, _):
        updates = [update async for update in await client.submit("reply", returns=Reply)]
    assert updates[-1].parse() == Reply(**REPLY)
    with pytest.raises(
        InvalidValueError, match=r"not a valid Reply: /reason: Field required.*may be incomplete"
    ):
        updates[0].parse()


async def test_an_attached_job_begins_with_one_update_of_all_that_is_there():
    opening = snapshot("1-5", state({"text": "Hello", "tokens": [1, 2]}), columns=[TEXT], reason="compacted")
    async with Opened(replying(*EVENTS[4:], opening=opening)) as (client, _):
        updates = [update async for update in client.job("j1")]
    assert [(update.first_seq, update.seq, update.text) for update in updates] == [
        (1, 5, "Hello"),
        (6, 6, ""),
    ]


async def test_what_the_answer_to_a_submit_holds_is_handed_over():
    # A repeated submit is answered with the job as it stands by now.
    standing = job(state({"text": "Hel", "tokens": [1]}), cursor="1-4", columns=[TEXT, f"{VALUE}/tokens"])
    rest = replying(*EVENTS)

    def script(request):
        return iter([answer(201, standing)]) if request.method == "POST" else rest(request)

    async with Opened(script) as (client, server):
        updates = [update async for update in await client.submit("reply")]
        assert [request.cursor for request in server.requests[1:]] == ["1-4"]
    assert [(update.first_seq, update.seq, update.text) for update in updates] == [
        (1, 4, "Hel"),
        (5, 5, "lo"),
        (6, 6, ""),
    ]


async def test_a_submit_answered_with_an_ended_job_needs_no_stream():
    items = [{"status": "succeeded", "value": REPLY}]
    standing = job(state(REPLY, status="succeeded"), cursor="1-8", columns=[TEXT], ended=ending(items))
    async with Opened(lambda _: iter([answer(201, standing)])) as (client, server):
        following = await client.submit("reply")
        assert await following.result() == REPLY
        assert [update.text async for update in following] == ["Hello"]
        assert len(server.requests) == 1


async def test_a_job_without_any_value_hands_over_one_last_update():
    items = [{"status": "succeeded"}]
    events = [EVENTS[0], event([["s", "/items/0/status", "succeeded"]], id="1-3"), done("1-4", items)]
    async with Opened(replying(*events)) as (client, _):
        following = await client.submit("reply")
        assert [(update.first_seq, update.seq, update.value) async for update in following] == [(1, 4, None)]
        assert await following.result() is None


async def test_text_that_became_void_is_told_with_the_text_that_came_instead():
    restarted = snapshot("9-5", state({"text": "Help", "tokens": [1]}), columns=[TEXT], reason="restart")
    end = done("9-6", [{"status": "running", "value": {"text": "Help", "tokens": [1]}}])
    async with Opened(replying(*EVENTS[:4], restarted, end)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.deleted, update.text) for update in updates] == [(0, ""), (0, "Hel"), (0, "lo"), (2, "p")]


async def test_a_restart_that_names_another_column_voids_the_old_ones_text():
    other = f"{VALUE}/answer"
    restarted = snapshot("9-5", state({"answer": "Hi"}), columns=[other], reason="restart")
    more = event("!", id="9-6")
    end = done("9-7", [{"status": "running", "value": {"answer": "Hi!"}}])
    async with Opened(replying(*EVENTS[:4], restarted, more, end)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.deleted, update.text) for update in updates[3:]] == [(5, "Hi"), (0, "!")]


async def test_a_restart_that_begins_from_nothing_voids_all_text():
    restarted = snapshot("9-5", state(None), columns=[TEXT], reason="restart")
    more = event([["s", VALUE, {"text": "Hey"}]], id="9-6")
    end = done("9-7", [{"status": "running", "value": {"text": "Hey"}}])
    async with Opened(replying(*EVENTS[:4], restarted, more, end)) as (client, _):
        updates = [update async for update in await client.submit("reply")]
    assert [(update.deleted, update.text) for update in updates[3:]] == [(5, ""), (0, "Hey")]


async def test_queue_and_progress_are_told_while_somebody_waits():
    told = []
    queue = event({"position": 2, "eta_ms": 100}, type="queue")
    progress = event({"current": 1, "total": 4, "unit": "step"}, type="progress")
    async with Opened(replying(queue, progress, *EVENTS)) as (client, _):
        following = await client.submit("reply")
        following.listener = told.append
        await following.result()
    assert [type(message).__name__ for message in told] == ["Queue", "Progress"]
    assert following.queue.position == 2
    assert following.progress.total == 4


# ---- result ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("returns", [Reply, TypeAdapter(Reply)])
async def test_a_result_is_validated(returns):
    async with Opened(replying(*EVENTS)) as (client, _):
        assert await client.run("reply", returns=returns) == Reply(**REPLY)


async def test_a_result_that_is_not_of_the_type_is_an_error_that_says_where():
    async with Opened(replying(*EVENTS)) as (client, _):
        with pytest.raises(
            InvalidValueError, match=r"not a valid dict\[str, int\]: /text: Input should be a valid integer"
        ):
            await client.run("reply", returns=dict[str, int])


async def test_a_loop_after_a_result_gets_everything_as_one_update():
    async with Opened(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        assert await following.result() == REPLY
        updates = [update async for update in following]
        assert [(update.first_seq, update.seq, update.text) for update in updates] == [(1, 6, "Hello")]
        assert [update async for update in following] == []
        assert await following.result() == REPLY


async def test_a_result_midway_hands_nothing_over_twice():
    async with Opened(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        updates = []
        async for update in following:
            updates.append(update)
            if update.text == "Hel":
                break
        assert await following.result() == REPLY
        updates += [update async for update in following]
    # What came in with "Hel" is handed over by itself, what the result brought in as one: how much depends on the chunks.
    assert "".join(update.text for update in updates) == "Hello"
    assert [update.first_seq for update in updates[1:]] == [update.seq + 1 for update in updates[:-1]]
    assert updates[-1].value == REPLY


@pytest.mark.parametrize("taken", range(4))
async def test_a_restart_that_a_result_brought_in_is_told_in_net_effect(taken):
    restarted = snapshot("9-5", state({"text": "Help", "tokens": [1]}), columns=[TEXT], reason="restart")
    end = done("9-6", [{"status": "running", "value": {"text": "Help", "tokens": [1]}}])
    async with Opened(replying(*EVENTS[:4], HOLD)) as (client, server):
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


async def test_a_result_and_a_loop_at_the_same_time_share_one_stream():
    async with Opened(replying(*EVENTS)) as (client, server), anyio.create_task_group() as tasks:
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


async def test_a_second_loop_at_the_same_time_is_refused_and_told_what_to_do():
    async with Opened(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        async for _ in following:
            with pytest.raises(ConcurrentReadError, match=r"client\.job\(job\.id\)"):
                await anext(following.updates())
        assert await following.result() == REPLY


FAILURE = {"code": "item_failed", "title": "No", "status": 500, "detail": "out of luck"}


async def test_a_failed_job_raises_at_the_end_of_a_loop_and_in_result():
    items = [{"status": "failed", "value": {"text": "Hel", "tokens": [1]}, "error": FAILURE}]
    failed = event([["s", "/items/0/status", "failed"], ["s", "/items/0/error", FAILURE]], id="1-5")
    async with Opened(replying(*EVENTS[:3], failed, done("1-6", items, status="failed", error=FAILURE))) as (
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


async def test_a_cancelled_job_raises_an_error_that_is_no_cancellation_of_a_task():
    items = [{"status": "cancelled"}]
    cancelled = event([["s", "/items/0/status", "cancelled"]], id="1-2")
    async with Opened(replying(cancelled, done("1-3", items, status="cancelled"))) as (client, _):
        with pytest.raises(JobCancelledError) as caught:
            await client.run("reply")
        assert not isinstance(caught.value, anyio.get_cancelled_exc_class())


async def test_a_timeout_while_the_job_is_queued_says_so():
    queue = event({"position": 3}, type="queue")
    async with Opened(replying(queue, HOLD)) as (client, _):
        with pytest.raises(QueueTimeoutError, match="in the server's queue at position 3"):
            await client.with_options(timeout=0.3).run("reply")


async def test_a_batch_read_as_one_job_says_how_to_read_it():
    two = snapshot("1-1", state("a", "b"))
    end = done("1-2", state("a", "b")["items"])
    async with Opened(replying(end, opening=two)) as (client, _):
        with pytest.raises(TidewireError, match="batch_job"):
            await client.job("j1").result()


# ---- text --------------------------------------------------------------------------------------------------------


async def test_text_comes_undelayed_where_there_is_no_rollback():
    async with Opened(replying(*EVENTS[:4], HOLD)) as (client, _):
        texts = (await client.submit("reply")).iter_text()
        assert [await anext(texts) for _ in range(2)] == ["Hel", "lo"]
        await texts.aclose()


def wavering(*, restart=False):
    """Text that is taken back in part, with promises of what stays."""
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


async def test_text_that_may_be_taken_back_is_held_until_it_is_stable_or_the_job_ends():
    async with Opened(replying(*wavering(), rollback=True)) as (client, _):
        assert [text async for text in (await client.submit("reply")).iter_text()] == ["I like ", "dogs."]


async def test_text_that_was_handed_over_and_became_void_is_an_error():
    async with Opened(replying(*wavering(restart=True), rollback=True)) as (client, _):
        texts = (await client.submit("reply")).iter_text()
        assert await anext(texts) == "I like "
        with pytest.raises(VoidTextError, match="7 code points"):
            await anext(texts)


async def test_deltas_tell_what_becomes_void():
    async with Opened(replying(*wavering(), rollback=True)) as (client, _):
        deltas = [delta async for delta in (await client.submit("reply")).iter_text_deltas()]
    assert deltas == [
        TextDelta(0, "I like "),
        TextDelta(0, "cats"),
        TextDelta(4, "dogs"),
        TextDelta(0, "."),
    ]


async def test_text_that_is_held_back_is_not_lost_to_the_next_loop():
    async with Opened(replying(*wavering(), rollback=True)) as (client, _):
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


def with_a_promise_within_an_update(request):
    """Of `defgh` the first two code points are promised, the others are taken back."""
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
async def test_held_text_goes_on_where_a_loop_or_another_process_left_it(taken):
    async with Opened(with_a_promise_within_an_update) as (client, _):
        following = await client.submit("reply")
        texts = following.iter_text()
        before = [text async for text in first(taken, texts)]
        saved = following.checkpoint()
        assert len(saved.state["items"][0]["value"]["text"] if taken else "") == len("".join(before))
        await texts.aclose()
        for again in (following, client.job(checkpoint=saved)):
            rest = [text async for text in again.iter_text()]
            assert "".join(before + rest) == "abcdeFGHij"


async def test_held_text_is_left_to_a_loop_of_another_kind_with_every_seq_covered_once():
    async with Opened(with_a_promise_within_an_update) as (client, _):
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


async def test_text_that_became_void_is_told_to_the_next_loop():
    async with Opened(replying(*wavering(restart=True), rollback=True)) as (client, _):
        following = await client.submit("reply")
        texts = following.iter_text()
        text = await anext(texts)
        with pytest.raises(VoidTextError):
            await anext(texts)
        async for delta in following.iter_text_deltas():
            text = text[: len(text) - delta.deleted] + delta.text
        assert text == "No."


async def test_an_attached_job_asks_for_the_endpoint_to_know_whether_it_takes_text_back():
    async with Opened(replying(*wavering(), rollback=True)) as (client, server):
        assert "".join([text async for text in client.job("j1").iter_text()]) == "I like dogs."
        assert server.paths()[:2] == ["/v1/jobs/j1", "/v1/endpoints/count"]


# ---- checkpoints -------------------------------------------------------------------------------------------------


async def test_a_checkpoint_moves_when_an_update_is_taken():
    async with Opened(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        assert following.checkpoint() == Checkpoint(job="j1", url=client.url)
        cursors = []
        async for update in following:
            cursors.append(following.checkpoint().cursor)
            assert following.checkpoint().state["items"][0]["value"] == update.value
        assert cursors == ["1-3", "1-4", "1-5", "1-6"]


@pytest.mark.parametrize("taken", range(5))
async def test_reading_on_from_a_checkpoint_gives_exactly_the_rest(taken):
    async with Opened(replying(*EVENTS)) as (client, _):
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


async def test_a_result_moves_no_checkpoint():
    async with Opened(replying(*EVENTS)) as (client, _):
        following = await client.submit("reply")
        await following.result()
        assert following.checkpoint().cursor is None


async def test_attaching_sends_nothing():
    async with Opened(replying(*EVENTS)) as (client, server):
        client.job("j1")
        client.job(checkpoint=Checkpoint(job="j1"))
        assert (server.requests, server.open) == ([], 0)


async def test_a_checkpoint_of_another_job_or_server_is_refused():
    client = AsyncClient("http://127.0.0.1:1")
    saved = Checkpoint(job="j1", url="http://127.0.0.1:1")
    with pytest.raises(CheckpointError, match="belongs to job j1, not to j2"):
        client.job("j2", checkpoint=saved)
    with pytest.raises(CheckpointError, match="dataclasses.replace"):
        client.job(checkpoint=replace(saved, url="http://127.0.0.1:2"))
    assert client.job("j1", checkpoint=saved).id == "j1"
    with pytest.raises(TypeError):
        client.job()


@pytest.mark.parametrize("given", [Checkpoint(job="j1").to_json(), asdict(Checkpoint(job="j1"))])
async def test_a_checkpoint_that_was_not_read_back_says_how_to(given):
    with pytest.raises(TypeError, match="Checkpoint.from_json"):
        AsyncClient("http://127.0.0.1:1").job(checkpoint=given)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "Invalid JSON"),
        ("{}", "/job: Field required"),
        ('{"job":"j1","cursor":"1-1"}', "state and cursor must both"),
        (
            '{"job":"j1","cursor":"0-0","state":{"status":"running","items":[{"status":"running"}]}}',
            "is not an event id",
        ),
        ('{"job":"j1","cursor":"1-1","state":{}}', "Field required"),
        ('{"job":"j1","protocol":"tidewire/2"}', "tidewire/1"),
        ('{"job":"j1","cusror":"1-1"}', "cusror"),
    ],
)
def test_a_text_that_is_no_checkpoint_is_refused(text, what):
    with pytest.raises(CheckpointError, match=what):
        Checkpoint.from_json(text)


@pytest.mark.parametrize(
    ("state_of_it", "columns", "what"),
    [(state("a"), ("-",), "column '-'"), (state(2**60), (), "integer beyond")],
)
def test_a_checkpoint_that_was_changed_by_hand_is_refused_where_it_is_given(state_of_it, columns, what):
    changed = Checkpoint(job="j1", state=state_of_it, columns=columns, cursor="1-2")
    with pytest.raises(CheckpointError, match=f"the checkpoint is not valid: .*{what}.*to_json"):
        AsyncClient("http://127.0.0.1:1").job(checkpoint=changed)


def test_a_checkpoint_is_a_dataclass_with_the_json_that_it_always_had():
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


async def test_status_is_one_get():
    async with Opened(replying()) as (client, server):
        assert await client.job("j1").status() == "running"
        assert server.paths() == ["/v1/jobs/j1"]


async def test_cancel_is_one_post():
    async with Opened(lambda _: iter([answer(202, job(state("x")))])) as (client, server):
        assert await client.job("j1").cancel() == "running"
        assert server.paths("POST") == ["/v1/jobs/j1/cancel"]
        assert server.requests[0].json == {}


async def test_an_id_with_a_slash_stays_one_path_segment():
    async with Opened(lambda _: iter([problem(404, "job_not_found")])) as (client, server):
        with pytest.raises(TidewireError):
            await client.job("../secret").status()
        assert server.paths() == ["/v1/jobs/..%2Fsecret"]
