"""Pending events: validation at the call, size limits, order, and which calls share an event."""

import json
import zlib
from typing import Any

import pytest

from support.stream_harness import StreamHarness
from tidewire.protocol.document import Document
from tidewire.protocol.document.view import View
from tidewire_server.endpoints.stream import Stream
from tidewire_server.errors import StateTooLargeError, StreamClosedError

KIB = 1024


def appends_until_refused(stream: Stream[Any], piece: str, *, at: str | None = None) -> int:
    for count in range(10 * KIB):
        try:
            stream.append(piece, at=at)
        except StateTooLargeError:
            return count
    raise AssertionError("no append was refused")


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


async def test_refused_changes_leave_the_state_as_it_was(monkeypatch: pytest.MonkeyPatch):
    value = {"text": "", "rows": [], "other": {"a": 1}}
    job = StreamHarness(value, ("/text", "/rows"), max_state_bytes=4 * KIB)
    job.stream.row("é", [0.5, None])
    filled = appends_until_refused(job.stream, "x", at="/text")
    expected = {"text": "é" + "x" * filled, "rows": [[0.5, None]], "other": {"a": 1}}
    # A copy of a state of 16 MiB would block the event loop for seconds.
    with monkeypatch.context() as patch:
        patch.delattr(Document, "value")
        patch.delattr(View, "value")
        for ops in (
            [["a", "/items/0/value/text", "y" * 50], ["a", "/items/0/value/rows", [["z" * 50]]]],
            [["d", "/items/0/value/other"], ["s", "/items/0/value/text", "y" * 5000]],
            [["t", "/items/0/value/text", 1], ["a", "/items/0/value/rows", ["z" * 50]]],
        ):
            with pytest.raises(StateTooLargeError):
                job.log_writer.pending.change(ops)
    assert job.stream.value == await job.read() == expected
    job.log_writer.pending.change(
        [
            ["t", "/items/0/value/text", 100],
            ["a", "/items/0/value/text", "z"],
            ["a", "/items/0/value/rows", [1]],
        ]
    )
    expected |= {"text": expected["text"][:-100] + "z", "rows": [[0.5, None], 1]}
    assert job.stream.value == await job.read() == expected


async def test_event_size_limit_holds_for_many_appends():
    job = StreamHarness("", max_event_bytes=KIB, merge_window=1.0)
    for number in range(3000):
        job.stream.append(f"{number}\x01 ")
    events = await job.events()
    assert max(len(json.dumps(event)) for event in events) <= KIB
    assert (
        "".join(event if isinstance(event, str) else event["ops"][0][-1] for event in events)
        == job.stream.value
    )
    job = StreamHarness({"a": "", "b": []}, ("/a", "/b"), max_event_bytes=KIB, merge_window=1.0)
    for number in range(1000):
        job.stream.row(f"{number} ", [number, "x" * 20])
    assert max(len(json.dumps(event)) for event in await job.events()) <= KIB
    assert await job.read() == job.stream.value


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


async def test_values_outside_json_in_the_middle_of_a_long_list_are_converted():
    job = StreamHarness([{"n": n} for n in range(500)], ())
    live: list[Any] = [{"n": n} for n in range(500)]
    job.writer.replace(live)
    live[250] = {"n": ("a", "tuple")}
    live[251] = {"n": True}
    job.writer.replace(live)
    expected = [{"n": n} for n in range(500)]
    expected[250], expected[251] = {"n": ["a", "tuple"]}, {"n": True}
    assert json.dumps(job.stream.value) == json.dumps(expected) == json.dumps(await job.read())


APPEND = ["a", "/items/0/value/a", "x"]
A, B, ROW, CHANGE, READ, COMMIT = "append to a", "append to b", "row", "change", "read", "commit"


@pytest.mark.parametrize(
    ("calls", "events"),
    [
        ([A, A, B, A], [[["a", "/items/0/value/a", "xxx"], ["a", "/items/0/value/b", [1]]]]),
        ([ROW, ROW], [[["r", "y", 2], ["r", "y", 2]]]),
        ([A, ROW, A, A], [[APPEND, ["r", "y", 2], ["a", "/items/0/value/a", "xx"]]]),
        ([ROW, A, ROW], [[["r", "y", 2], APPEND, ["r", "y", 2]]]),
        ([A, CHANGE, A], [[APPEND], CHANGE, [APPEND]]),
        ([ROW, CHANGE, ROW], [[["r", "y", 2]], CHANGE, [["r", "y", 2]]]),
        ([CHANGE, CHANGE], [CHANGE, CHANGE]),
        ([A, READ, A, READ], [[["a", "/items/0/value/a", "xx"]]]),
        ([A, COMMIT, A, A], [[APPEND], [["a", "/items/0/value/a", "xx"]]]),
        ([A, COMMIT, ROW], [[APPEND], [["r", "y", 2]]]),
        ([A, COMMIT, COMMIT, CHANGE], [[APPEND], CHANGE]),
    ],
)
async def test_calls_share_an_event_as_documented(calls, events):
    """Check the table in the docstring of `pending_events`."""
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
    assert await job.events() == [change if event is CHANGE else event for event in events]


async def test_each_call_is_an_event_if_merging_is_off():
    job = StreamHarness({"a": "", "b": []}, ("/a", "/b"), merge_window=0.0)
    for _ in range(3):
        job.stream.append("x", at="/a")
        job.stream.row("y", 2)
    assert len(await job.events()) == 6


@pytest.mark.parametrize("window", [0.0, 1.0])
async def test_failed_change_leaves_the_changes_before_it(window):
    job = StreamHarness("", max_state_bytes=2 * KIB, merge_window=window)
    job.stream.append("a")
    with pytest.raises(ValueError, match=r"^op 1: at '/items/0/value/x'"):
        job.log_writer.pending.change([["s", "/items/0/status", "failed"], ["s", "/items/0/value/x", 1]])
    with pytest.raises(StateTooLargeError):
        job.log_writer.pending.change([["s", "/items/0/value", "x" * 3000]])
    assert job.log_writer.pending.state.value("/items/0/status") == "running"
    job.stream.append("b")
    assert "".join(await job.events()) == job.stream.value == await job.read() == "ab"
    assert (await job.log.state()).view.value("/items/0/status") == "running"


async def test_appends_to_the_only_column_have_their_shortest_forms():
    job = StreamHarness("", merge_window=0.0)
    for _ in range(65):
        job.stream.append("x")
    data = [each.data for each in await job.frames()]
    check = '"check":[["/items/0/value",64,' + str(zlib.crc32(b"x" * 64)) + "]]"
    assert data[-2:] == ['{"ops":[["r","x"]],' + check + "}", '"x"']
    assert set(data[-65:-2]) == {'"x"'}


async def test_checks_of_many_texts_at_the_end_of_an_item_stay_within_the_event_size():
    job = StreamHarness({"texts": [""] * 300}, (), max_event_bytes=KIB, merge_window=0.0)
    for number in range(300):
        job.stream.append("é", at=f"/texts/{number}")
    job.log_writer.pending.change([["s", "/items/0/status", "succeeded"]], check_below="/items/0")
    *_, end = frames = await job.frames()
    assert json.loads(end.data) == [["s", "/items/0/status", "succeeded"]]
    checked = [check for each in frames if '"check"' in each.data for check in json.loads(each.data)["check"]]
    assert len(checked) == 300
    assert max(len(event.data.encode()) for event in frames) <= KIB
    assert await job.read() == {"texts": ["é"] * 300}


async def test_tokens_after_rows_honor_max_event_ops():
    job = StreamHarness("", max_event_ops=64, merge_window=1.0)
    for _ in range(100):
        # An append after a row is a new op.
        job.stream.append("y")
        job.stream.row("x")
    events = await job.events()
    assert [len(event) for event in events] == [64, 64, 64, 8]
    job.stream.append("y")
    for _ in range(63):
        job.stream.row("x")
    job.stream.append("y")
    assert [len(event) for event in (await job.events())[4:]] == [64, 1]
    assert await job.read() == "yx" * 100 + "y" + "x" * 63 + "y"
