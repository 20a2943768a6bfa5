"""From what a function does to diffs: shadows of whole values, and ops that are too large for one event."""

import copy
import json
import random
from typing import Any
from zlib import crc32

import orjson
import pytest

from support.stream_harness import log_writer, on_a_loop
from tidewire.protocol.diff import apply
from tidewire.protocol.document import Document
from tidewire.protocol.strict_json import StrictJsonError
from tidewire_server.errors import StateTooLargeError
from tidewire_server.log_writer.differ import NotPlainError, ShadowCopy
from tidewire_server.log_writer.log_writer import LogWriter
from tidewire_server.log_writer.op_splitting import split_op, split_text


def test_a_value_mutated_in_place_is_found_changed():
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
def test_the_ops_are_the_small_ones(old, new, ops):
    assert ShadowCopy(old).step(new) == ops


def test_an_insertion_at_the_front_does_not_rewrite_what_follows():
    old = [f"row {number}" for number in range(100)]
    ops = ShadowCopy(old).step(["first", *old])
    assert len(json.dumps(ops)) < 100
    assert apply(old, ops) == ["first", *old]


def test_any_two_values_are_led_into_each_other():
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


def test_an_append_to_a_long_history_looks_but_does_not_write():
    history = [[f"question {number}", "answer " * 20] for number in range(1000)]
    shadow = ShadowCopy(history, "/items/0/value")
    history[-1][1] += "more"
    assert shadow.step(history) == [["a", "/items/0/value/999/1", "more"]]


def test_what_is_not_json_is_told_apart_from_what_is_too_deep():
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotPlainError):
        ShadowCopy([]).step([(1, 2)])
    with pytest.raises(NotPlainError):
        ShadowCopy({}).step({1: 2})
    with pytest.raises(StrictJsonError, match="deeper"):
        ShadowCopy([]).step(loop)


# ---- large ops ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["x" * 1000, "é🎉" * 300, '\x00\x1f"\\' * 200])
def test_a_text_is_cut_into_parts_that_fit(text):
    parts = list(split_text(text, 120))
    assert "".join(parts) == text
    assert max(len(orjson.dumps(part)) for part in parts) <= 122


@pytest.mark.parametrize(
    ("state", "op", "start"),
    [
        ({"t": ""}, ["a", "/t", "é" * 2000], 0),
        ({"t": ""}, ["s", "/t", "x" * 3000], 0),
        ({"t": [1, 2]}, ["a", "/t", list(range(500))], 2),
        ({"t": [1, 2]}, ["a", "/t", [["y" * 900], {"deep": ["z" * 900, {"er": list(range(300))}]}, 5]], 2),
        ({"t": 0}, ["s", "/t", {f"name/{number}~": "v" * 50 for number in range(40)}], 0),
        ({"t": [1, 2]}, ["i", "/t/1", ["w" * 600, [], {}]], 0),
        ({"t": [1]}, ["s", "/t/1", [list(range(200))]], 0),
        ({"t": 1}, ["d", "/t"], 0),
    ],
)
def test_a_large_op_becomes_small_ones_that_do_the_same(state, op, start):
    parts = list(split_op(op, 256, start=start))
    assert max(len(orjson.dumps(part)) for part in parts) <= 256
    assert apply(state, parts) == apply(state, [op])


# ---- merging ----------------------------------------------------------------------------------------------------------


def pending(value: Any, *columns: str, **settings: Any) -> LogWriter:
    return log_writer(value, columns, **settings)


@on_a_loop
async def test_adjacent_appends_are_one_event_and_anything_else_is_its_own():
    made = pending({"a": "", "b": "", "c": 0}, "/a")
    for text in ("x", "y", "é"):
        made.append([("/a", text)])
    made.append([("/b", "z")])
    made.change([["s", "/c", 1]])
    made.append([("/a", "w")])
    assert [json.loads(diff) for diff in made.take()] == [
        [["a", "/a", "xyé"], ["a", "/b", "z"]],
        [["s", "/c", 1]],
        "w",
    ]
    assert made.take() == []


@on_a_loop
async def test_an_array_that_came_with_an_element_comes_before_what_grows_in_it():
    made = pending({"rows": []})
    made.append([("/rows", [["a"]])])
    made.append([("/rows/0", ["b"])])
    document = Document({"rows": []})
    for diff in made.take():
        document.apply(json.loads(diff))
    assert document.value() == {"rows": [["a", "b"]]} == made.document.value()


@on_a_loop
async def test_without_merging_each_call_is_an_event():
    made = pending({"a": ""}, "/a", merge=False)
    for text in "xyz":
        made.append([("/a", text)])
    assert made.take() == [b'"x"', b'"y"', b'"z"']


@on_a_loop
async def test_a_change_that_would_pass_the_bound_changes_nothing():
    made = pending({"a": "", "b": ""}, "/a", max_state_bytes=2000, reserve=500)
    made.append([("/a", "x" * 1000)])
    with pytest.raises(StateTooLargeError):
        made.append([("/a", "y" * 600)])
    with pytest.raises(StateTooLargeError):
        made.change([["s", "/b", "y" * 600]])
    made.change([["s", "/b", "y" * 600]], ends=True)
    assert made.document.value() == {"a": "x" * 1000, "b": "y" * 600}
    assert [json.loads(diff) for diff in made.take()] == ["x" * 1000, [["s", "/b", "y" * 600]]]


@on_a_loop
async def test_a_value_that_is_set_again_and_again_is_not_taken_for_growth():
    made = pending({"a": ""}, max_state_bytes=2000)
    for number in range(100):
        made.change([["s", "/a", str(number) * 500]])
    assert made.document.value("/a") == "99" * 500


@on_a_loop
async def test_a_status_that_changes_beside_a_long_text_is_set_at_once():
    made = pending({"status": "running", "text": ""}, "/text")
    made.change([["s", "/status", "succeeded"], ["s", "/text", "x" * 9000], ["s", "/status", "succeeding"]])
    diffs = [json.loads(diff) for diff in made.take()]
    ops = [op for diff in diffs for op in (diff["ops"] if type(diff) is dict else diff) if op[1] == "/status"]
    assert ops == [["s", "/status", "succeeded"], ["s", "/status", "succeeding"]]
    assert made.document.value() == {"status": "succeeding", "text": "x" * 9000}


@on_a_loop
async def test_the_ops_of_a_change_in_parts_each_find_what_those_before_left():
    made = pending({"rows": [1, 2, 3], "text": "abc"}, "/text")
    change = [
        ["s", "/rows", []],
        ["a", "/rows", [["y" * 5000], "z"]],
        ["s", "/text", "abd" + "x" * 5000],
        ["s", "/text", "ab" + "x" * 5000],
        ["s", "/text", "ab" + "x" * 4990],
    ]
    wanted = apply({"rows": [1, 2, 3], "text": "abc"}, change)
    made.change(change)
    document = Document({"rows": [1, 2, 3], "text": "abc"}, ["/text"])
    for diff in made.take():
        document.apply(json.loads(diff))
    assert document.value() == wanted == made.document.value()


@on_a_loop
async def test_a_check_follows_its_text_when_elements_move():
    made = pending({"rows": ["a", "b", "c"]})
    made.append([("/rows/2", "!")])
    made.change([["d", "/rows/0"]])
    made.change([["i", "/rows/1", "new"]])
    assert made.document.value("/rows") == ["b", "new", "c!"]
    assert made.pending_checks("/rows") == [["/rows/2", 2, crc32(b"c!")]]
    assert made.pending_checks("/rows") == []
