"""Appends that the log writer merges into one open event: validation at the call, size limits and order."""

import json
from typing import Any

import pytest

from support.stream_harness import StreamHarness, on_event_loop
from tidewire_server.errors import StateTooLargeError, StreamClosedError
from tidewire_server.log_writer.log_writer import MAX_BUDGET
from tidewire_server.log_writer.stream import Stream

KIB = 1024


def appends_until_refused(stream: Stream[Any], piece: str) -> int:
    for count in range(10 * KIB):
        try:
            stream.append(piece)
        except StateTooLargeError:
            return count
    raise AssertionError("no append was refused")


@on_event_loop
async def test_lone_surrogate_is_refused_by_the_append_call():
    job = StreamHarness("")
    job.stream.append("before")
    job.stream.append(" it")
    with pytest.raises(ValueError, match="surrogate"):
        job.stream.append("\ud83d")
    with pytest.raises(ValueError, match="surrogate"):
        job.stream.append("né\udc00")
    job.stream.append(", after 🎉")
    assert job.stream.value == await job.read() == "before it, after 🎉"


@on_event_loop
async def test_invalid_row_is_refused_without_affecting_other_rows():
    job = StreamHarness({"text": "", "ids": []}, ("/text", "/ids"))
    job.stream.row("a", 1)
    job.stream.row("b", 2)
    for wrong in (("\ud83d", 3), ("c", float("nan")), ("c", 2**60), (3, "c"), ("c",), ("c", 3, 4)):
        with pytest.raises(ValueError, match=r"\w"):
            job.stream.row(*wrong)
    mine = [3]
    job.stream.row("c", mine)
    mine.append(4)
    job.stream.row("d", (5, 6))
    assert job.stream.value == await job.read() == {"text": "abcd", "ids": [1, 2, [3], [5, 6]]}


@on_event_loop
async def test_state_limit_refuses_the_same_append_with_and_without_merging():
    for piece in ("word ", "\x00", "é🎉"):
        taken = []
        for window in (0.0, 1.0):
            job = StreamHarness("", max_state_bytes=2 * KIB, merge_window=window)
            count = appends_until_refused(job.stream, piece)
            with pytest.raises(StateTooLargeError):
                job.stream.append("x")
            assert await job.read() == piece * count
            taken.append(count)
        assert taken[0] == taken[1] > 100


@on_event_loop
async def test_event_size_limit_holds_for_many_appends():
    job = StreamHarness("", max_event_bytes=KIB, merge_window=1.0)
    for number in range(3000):
        job.stream.append(f"{number}\x01 ")
    events = await job.events()
    assert max(len(json.dumps(event)) for event in events) <= KIB
    assert (
        "".join(event if isinstance(event, str) else event["ops"][0][1] for event in events)
        == job.stream.value
    )
    job = StreamHarness({"a": "", "b": []}, ("/a", "/b"), max_event_bytes=KIB, merge_window=1.0)
    for number in range(1000):
        job.stream.row(f"{number} ", [number, "x" * 20])
    assert max(len(json.dumps(event)) for event in await job.events()) <= KIB
    assert await job.read() == job.stream.value


@on_event_loop
async def test_open_event_is_closed_once_its_budget_is_used():
    job = StreamHarness("", merge_window=1.0)
    job.stream.append("x")
    waiting = job.log_writer.backlog
    for _ in range(2 * MAX_BUDGET):
        job.stream.append("y")
    assert job.log_writer.backlog >= waiting + MAX_BUDGET
    assert job.stream.value == "x" + "y" * (2 * MAX_BUDGET)


@on_event_loop
async def test_writes_after_the_item_was_closed_are_refused():
    job = StreamHarness({"text": "", "ids": []}, ("/text", "/ids"))
    job.stream.row("a", 1)
    job.stream.row("b", 2)
    job.writer.close()
    for write in (lambda: job.stream.row("c", 3), lambda: job.stream.append("c", at="/text")):
        with pytest.raises(StreamClosedError):
            write()
    assert await job.read() == {"text": "ab", "ids": [1, 2]}
    job = StreamHarness("")
    job.stream.append("a")
    job.stream.append("b")
    job.writer.close()
    with pytest.raises(StreamClosedError):
        job.stream.append("c")
    assert await job.read() == "ab"


@on_event_loop
async def test_values_outside_json_are_converted_even_after_a_fast_comparison():
    job = StreamHarness([{"n": n} for n in range(500)], ())
    live: list[Any] = [{"n": n} for n in range(500)]
    for _ in range(4):
        job.writer.replace(live)
    live[250] = {"n": ("a", "tuple")}
    live[251] = {"n": True}
    # A full comparison is not due yet, so this call compares only the ends of the list.
    job.writer.replace(live)
    expected = [{"n": n} for n in range(500)]
    expected[250], expected[251] = {"n": ["a", "tuple"]}, {"n": True}
    assert json.dumps(job.stream.value) == json.dumps(expected) == json.dumps(await job.read())


A, B, ROW, CHANGE, READ, COMMIT = "append to a", "append to b", "row", "change", "read", "commit"


@pytest.mark.parametrize(
    ("calls", "events"),
    [
        ([A, A, B, A], [[["a", "/items/0/value/a", "xxx"], ["a", "/items/0/value/b", [1]]]]),
        ([ROW, ROW], [[["r", "y", 2], ["r", "y", 2]]]),
        ([A, ROW, A], [[["a", "/items/0/value/a", "x"]], [["r", "y", 2]], [["a", "/items/0/value/a", "x"]]]),
        ([A, CHANGE, A], [[["a", "/items/0/value/a", "x"]], CHANGE, [["a", "/items/0/value/a", "x"]]]),
        ([ROW, CHANGE, ROW], [[["r", "y", 2]], CHANGE, [["r", "y", 2]]]),
        ([CHANGE, CHANGE], [CHANGE, CHANGE]),
        ([A, A, READ, A, READ], [[["a", "/items/0/value/a", "xx"]], [["a", "/items/0/value/a", "x"]]]),
        ([ROW, READ, ROW], [[["r", "y", 2]], [["r", "y", 2]]]),
        ([A, READ, COMMIT, A], [[["a", "/items/0/value/a", "x"]], [["a", "/items/0/value/a", "x"]]]),
        ([A, COMMIT, A, A], [[["a", "/items/0/value/a", "x"]], [["a", "/items/0/value/a", "xx"]]]),
        ([A, COMMIT, ROW], [[["a", "/items/0/value/a", "x"]], [["r", "y", 2]]]),
        ([A, COMMIT, COMMIT, CHANGE], [[["a", "/items/0/value/a", "x"]], CHANGE]),
    ],
)
@on_event_loop
async def test_calls_share_an_event_as_documented(calls, events):
    """Check the table in the docstring of `log_writer`. An append to an array precedes appends to texts."""
    job = StreamHarness({"a": "", "b": []}, ("/a", "/b"), merge_window=1.0)
    for call in calls:
        match call:
            case "append to a":
                job.stream.append("x", at="/a")
            case "append to b":
                job.stream.append([1], at="/b")
            case "row":
                job.stream.row("y", 2)
            case "change":
                job.stream.note("n")
            case "read":
                assert job.stream.value
            case "commit":
                await job.log_writer.commit()
    change = [["a", "/notes", [{"level": "info", "text": "n"}]]]
    wanted = [change if event is CHANGE else sorted(event, key=str) for event in events]
    assert [sorted(event, key=str) for event in await job.events()] == wanted


@on_event_loop
async def test_each_call_is_an_event_if_merging_is_off():
    job = StreamHarness({"a": "", "b": []}, ("/a", "/b"), merge_window=0.0)
    for _ in range(3):
        job.stream.append("x", at="/a")
        job.stream.row("y", 2)
    assert len(await job.events()) == 6


START = [["s", "/items/0/status", "running"], ["s", "/status", "running"]]


@on_event_loop
async def test_start_of_an_item_is_a_separate_event_before_any_other_change():
    end = [["s", "/items/0/value", "done"], ["s", "/items/0/status", "succeeded"]]
    changes = {
        "end": lambda job: job.log_writer.change(end),
        "append": lambda job: job.stream.append("text"),
        "read": lambda job: job.log_writer.value("/items/0/status"),
        "second start": lambda job: job.log_writer.start([["s", "/items/0/status", "running"]]),
        "nothing": lambda job: None,
    }
    for name, change in changes.items():
        job = StreamHarness("")
        job.log_writer.change([["s", "/items/0/status", "queued"], ["s", "/status", "queued"]])
        await job.log_writer.commit()
        head = job.log.extent().head
        job.log_writer.start(START)
        change(job)
        await job.log_writer.commit()
        chunk = await job.log.read(head, 10_000)
        first, *others = chunk.frames.decode().split("\n\n")[:-1]
        assert first.endswith(f"data:{json.dumps(START, separators=(',', ':'))}"), name
        assert len(others) == (name in {"end", "append", "second start"}), name
        state = (await job.log.state()).view.value()
        assert state["status"] == "running"
        assert state["items"][0]["status"] == ("succeeded" if name == "end" else "running")


@on_event_loop
async def test_change_that_fails_after_a_start_keeps_the_start_and_counts_only_its_own_ops():
    job = StreamHarness("", max_state_bytes=2 * KIB)
    job.log_writer.start(START)
    with pytest.raises(ValueError, match=r"^op 1: at '/items/0/value/x'"):
        job.log_writer.change([["s", "/items/0/status", "failed"], ["s", "/items/0/value/x", 1]])
    assert job.log_writer.value("/items/0/status") == "running"
    job.log_writer.start([["s", "/items/0/status", "queued"]])
    with pytest.raises(StateTooLargeError):
        job.log_writer.change([["s", "/items/0/value", "x" * 3000]])
    assert job.log_writer.value("/items/0/status") == "queued"


@on_event_loop
async def test_starts_and_ends_of_items_share_an_event_until_another_change_or_a_commit():
    job = StreamHarness({"a": []}, ("/a",))
    head = job.log.extent().head
    start, other = [["s", "/items/0/status", "running"]], [["s", "/status", "running"]]
    end = [["s", "/items/0/value/b", 1], ["s", "/items/0/status", "succeeded"]]
    job.log_writer.start(start, joins=True)
    job.log_writer.start(other, joins=True)
    job.log_writer.change(end, joins=True)
    job.log_writer.start(other)
    job.log_writer.start(start, joins=True)
    job.log_writer.change(end, joins=True)
    await job.log_writer.commit()
    job.log_writer.start(start, joins=True)
    await job.log_writer.commit()
    chunk = await job.log.read(head, 10_000)
    events = [json.loads(frame.partition("data:")[2]) for frame in chunk.frames.decode().split("\n\n")[:-1]]
    assert events == [[*start, *other, *end], other, [*start, *end], start]
    assert (await job.log.state()).view.value("/items/0") == {"status": "running", "value": {"a": [], "b": 1}}
