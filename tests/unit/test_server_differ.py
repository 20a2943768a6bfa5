"""Diffs of changed values: `ShadowCopy`, and pending events."""

import copy
import json
import random
from typing import Any
from zlib import crc32

import pytest

from support.stream_harness import pending_events, take_diffs
from tidewire.protocol.diff import apply
from tidewire.protocol.document import Document
from tidewire.protocol.strict_json import StrictJsonError
from tidewire_server.errors import StateTooLargeError
from tidewire_server.job_log.open_event import addition
from tidewire_server.job_log.pending_events import PendingEvents
from tidewire_server.job_log.value_differ import NotPlainError, ShadowCopy


def test_value_mutated_in_place_is_detected():
    live: dict[str, Any] = {"rows": [["a", 1]], "text": "x"}
    shadow = ShadowCopy(live, "/v")
    assert shadow.step(live) == []
    live["text"] += "y"
    live["rows"][0][1] = True
    live["rows"].append(["b", 2])
    ops = shadow.step(live)
    assert sorted(ops, key=str) == sorted(
        [["a", "/v/text", "y"], ["s", "/v/rows/0/1", True], ["a", "/v/rows", [["b", 2]]]], key=str
    )
    live["rows"][1].append("later")
    assert ops[-1] != ["a", "/v/rows", [["b", 2, "later"]]]
    assert shadow.step(live) == [["a", "/v/rows/1", ["later"]]]


@pytest.mark.parametrize(
    ("old", "new", "ops"),
    [
        ("abc", "abcd", [["a", "", "d"]]),
        ("abcdef", "abcdeX", [["t", "", 1], ["a", "", "X"]]),
        ("abcdef", "abcd", [["t", "", 2]]),
        ("abc", "xyz", [["s", "", "xyz"]]),
        ("", "🎉", [["a", "", "🎉"]]),
        (1, 1.0, [["s", "", 1.0]]),
        (True, 1, [["s", "", 1]]),
        (None, None, []),
        ([1, 2, 3], [1], [["t", "", 2]]),
        ([1, 2], [1, 3, 4], [["s", "/1", 3], ["a", "", [4]]]),
        ({"a": 1}, {"b": 1}, [["d", "/a"], ["s", "/b", 1]]),
        ({"a/~": "x"}, {"a/~": "xy"}, [["a", "/a~1~0", "y"]]),
        ([], {}, [["s", "", {}]]),
    ],
)
def test_ops_are_minimal(old, new, ops):
    assert ShadowCopy(old).step(new) == ops


def test_insertion_at_the_front_does_not_rewrite_later_rows():
    old = [f"row {number}" for number in range(100)]
    ops = ShadowCopy(old).step(["first", *old])
    assert len(json.dumps(ops)) < 100
    assert apply(old, ops) == ["first", *old]


def test_ops_transform_any_value_into_any_other():
    draw = random.Random(5)

    def value(depth: int) -> Any:
        match draw.randrange(8 if depth else 6):
            case 0:
                return draw.choice([None, True, False, 0, 1, 1.0, -0.0, 2.5])
            case 1 | 2:
                return "ab🎉"[: draw.randrange(4)] * draw.randrange(4)
            case 3 | 4:
                return draw.randrange(4)
            case 6:
                return [value(depth - 1) for _ in range(draw.randrange(5))]
            case _:
                return (
                    {draw.choice("abc/~"): value(depth - 1) for _ in range(draw.randrange(4))}
                    if depth
                    else ""
                )

    for _ in range(3000):
        old, new = value(3), value(3)
        kept = copy.deepcopy(old)
        ops = ShadowCopy(old).step(new)
        assert old == kept
        found = apply(old, ops)
        assert json.dumps(found, sort_keys=True) == json.dumps(new, sort_keys=True)


def test_append_to_a_long_history_costs_one_op():
    history = [[f"question {number}", "answer " * 20] for number in range(1000)]
    shadow = ShadowCopy(history, "/items/0/value")
    history[-1][1] += "more"
    assert shadow.step(history) == [["a", "/items/0/value/999/1", "more"]]


def test_type_outside_json_and_excessive_depth_raise_different_errors():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotPlainError):
        ShadowCopy([]).step([(1, 2)])
    with pytest.raises(NotPlainError):
        ShadowCopy({}).step({1: 2})
    with pytest.raises(StrictJsonError, match="deeper"):
        ShadowCopy([]).step(loop)


# ---- append buffer of the log writer --------------------------------------------------------------------------------


def writer_for(value: Any, *columns: str, **settings: Any) -> PendingEvents:
    return pending_events(value, columns, **settings)


async def test_adjacent_appends_are_merged_into_one_event():
    writer = writer_for({"a": "", "b": "", "c": 0}, "/a")
    for text in ("x", "y", "é"):
        writer.append([addition("/a", text)])
    writer.append([addition("/b", "z")])
    writer.change([["s", "/c", 1]])
    writer.append([addition("/a", "w")])
    assert [json.loads(diff) for diff in take_diffs(writer)] == [
        [["a", "/a", "xyé"], ["a", "/b", "z"]],
        [["s", "/c", 1]],
        "w",
    ]
    assert take_diffs(writer) == []


async def test_new_array_is_logged_before_appends_to_it():
    writer = writer_for({"rows": []})
    writer.append([addition("/rows", [["a"]])])
    writer.append([addition("/rows/0", ["b"])])
    document = Document({"rows": []})
    for diff in take_diffs(writer):
        document.apply(json.loads(diff))
    assert document.value() == {"rows": [["a", "b"]]} == writer.state.document.value()


async def test_change_above_the_state_limit_is_refused_as_a_whole():
    writer = writer_for({"a": "", "b": ""}, "/a", max_state_bytes=2000, reserve=500)
    writer.append([addition("/a", "x" * 1000)])
    with pytest.raises(StateTooLargeError):
        writer.append([addition("/a", "y" * 600)])
    with pytest.raises(StateTooLargeError):
        writer.change([["s", "/b", "y" * 600]])
    writer.change([["s", "/b", "y" * 600]], reserved=True)
    assert writer.state.document.value() == {"a": "x" * 1000, "b": "y" * 600}
    assert [json.loads(diff) for diff in take_diffs(writer)] == ["x" * 1000, [["s", "/b", "y" * 600]]]


async def test_replacing_a_value_repeatedly_does_not_count_as_growth():
    writer = writer_for({"a": ""}, max_state_bytes=2000)
    for number in range(100):
        writer.change([["s", "/a", str(number) * 500]])
    assert writer.state.document.value("/a") == "99" * 500


async def test_change_longer_than_an_event_is_a_snapshot_of_the_state_after_it():
    writer = writer_for({"rows": [1, 2, 3], "text": "abc"}, "/text")
    writer.append([addition("/text", "d")])
    writer.change([["s", "/rows", []], ["a", "/rows", [["y" * 5000], "z"]]])
    writer.append([addition("/text", "x" * 5000)])
    first, *snapshots = take_diffs(writer)
    assert json.loads(first) == "d"
    assert [json.loads(snapshot)["reason"] for snapshot in snapshots] == ["compacted"] * 2
    states = [json.loads(snapshot)["state"] for snapshot in snapshots]
    rows = [["y" * 5000], "z"]
    assert states == [{"rows": rows, "text": "abcd"}, {"rows": rows, "text": "abcd" + "x" * 5000}]
    assert writer.state.document.value() == states[-1]
    assert writer.pending_checks() == [["/text", 5004, crc32(b"abcd" + b"x" * 5000)]]


async def test_pending_check_follows_its_text_when_elements_move():
    writer = writer_for({"rows": ["a", "b", "c"]})
    writer.append([addition("/rows/2", "!")])
    writer.change([["d", "/rows/0"]])
    writer.change([["i", "/rows/1", "new"]])
    assert writer.state.document.value("/rows") == ["b", "new", "c!"]
    assert writer.pending_checks("/rows") == [["/rows/2", 2, crc32(b"c!")]]
    assert writer.pending_checks("/rows") == []
