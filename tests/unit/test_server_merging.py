"""Merging of logged events for a reader that is behind."""

from zlib import crc32

import orjson
import pytest

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import apply
from tidewire_server.http.event_merging import EventMerger, sets_different_long_values

TEXT = "/items/0/value"


def merge(*contents: object, columns: tuple[str, ...] = (TEXT,), limit: int = 2**20) -> list[object]:
    frames = [
        b"id:1-%d\ndata:%b\n\n" % (seq, orjson.dumps(content)) for seq, content in enumerate(contents, 4)
    ]
    merging = EventMerger(Cursor(1, 3), columns, limit)
    merging.add(b"".join(frames))
    assert merging.last == (1, 3 + len(contents))
    blocks = merging.frames(2**30)[0].split(b"\n\n")[:-1]
    return [orjson.loads(block.partition(b"\ndata:")[2]) for block in blocks]


def proof(text: str) -> list[int]:
    return [len(text), crc32(text.encode())]


def test_appends_to_one_text_are_merged():
    assert merge(*"Hello, wörld🎉") == [{"ops": [["a", TEXT, "Hello, wörld🎉"]], "on": 3}]


def test_single_event_is_sent_as_it_was_logged():
    frame = b'id:1-4\ndata:[["s" , "/a" , "as it was"]]\n\n'
    merging = EventMerger(Cursor(1, 3), (), 2**20)
    merging.add(frame)
    assert merging.frames(2**30)[0] == frame


def test_only_the_last_of_several_replacements_is_sent():
    steps = [[["s", TEXT, {"image": number}]] for number in range(100)]
    assert merge(*steps, columns=()) == [{"ops": [["s", TEXT, {"image": 99}]], "on": 3}]


def test_text_that_was_appended_and_truncated_is_not_sent():
    assert merge("abc", [["t", TEXT, 2]], "d", [["t", TEXT, 4]], "xyz") == [
        {"ops": [["t", TEXT, 2], ["a", TEXT, "xyz"]], "on": 3}
    ]


def test_check_is_recomputed_for_text_appended_after_it():
    checked = {"ops": [["r", "c"]], "check": [[TEXT, *proof("abc")]]}
    assert merge("b", checked, *"défghijk") == [
        {
            "ops": [["a", TEXT, "b"], ["r", "c"], ["a", TEXT, "défghijk"]],
            "on": 3,
            "check": [[TEXT, *proof("abcdéfghijk")]],
        }
    ]


def test_check_of_a_replaced_text_is_computed_for_the_new_text():
    checked = {"ops": [["r", "c"]], "check": [[TEXT, *proof("abc")]]}
    (found,) = merge(checked, [["s", TEXT, "new"]])
    assert found["check"] == [[TEXT, *proof("new")]]


@pytest.mark.parametrize(
    "op", [["t", TEXT, 1], ["i", "/items/0", {}], ["d", "/items/1"], ["s", "/items/0", {"value": "x"}]]
)
def test_event_that_invalidates_a_check_starts_another_diff(op):
    checked = {"ops": [["r", "c"]], "check": [[TEXT, *proof("abc")]]}
    first, second = merge(*"defghijkl", checked, [op], *[[["s", "/a", number]] for number in range(9)])
    assert first["check"] == checked["check"]
    assert second == {"ops": [op, ["s", "/a", 8]], "on": 13}


def test_snapshots_and_done_are_not_merged_and_new_columns_apply_after_a_snapshot():
    parts = [
        b"".join(b'id:1-%d\ndata:"a"\n\n' % seq for seq in range(4, 14)),
        b'id:9-14\nevent:snapshot\ndata:{"state":{},"columns":["/new"],"reason":"restart"}\n\n',
        b"".join(b'id:9-%d\ndata:"b"\n\n' % seq for seq in range(15, 25)),
        b"id:9-25\nevent:done\ndata:{}\n\n",
    ]
    merging = EventMerger(Cursor(1, 3), (TEXT,), 2**20)
    for part in parts:
        merging.add(part)
    assert merging.frames(2**30)[0] == (
        b'id:1-13\ndata:{"ops":[["a","/items/0/value","aaaaaaaaaa"]],"on":3}\n\n'
        + parts[1]
        + b'id:9-24\ndata:{"ops":[["a","/new","bbbbbbbbbb"]],"on":14}\n\n'
        + parts[3]
    )


def test_events_are_not_merged_if_the_result_would_be_larger():
    assert merge("a", "b") == ["a", "b"]


def test_output_fits_the_limit_except_for_a_single_large_event():
    def taken() -> EventMerger:
        merging = EventMerger(Cursor(1, 3), (), 2**20)
        merging.add(b"".join(b'id:1-%d\ndata:[["d","/%d"]]\n\n' % (seq, seq % 2) for seq in range(4, 8)))
        merging.add(b'id:7-8\nevent:snapshot\ndata:{"columns":[]}\n\n')
        return merging

    whole, last = taken().frames(1000)
    assert last == (7, 8)
    for limit in range(len(whole) + 1):
        some, last = taken().frames(limit)
        assert whole.startswith(some)
        assert some.endswith(b"\n\n")
        assert len(some) <= limit or some.count(b"\n\n") == 1
        assert some.split(b"\n\n")[-2].startswith(b"id:%d-%d\n" % last)
    assert EventMerger(Cursor(1, 3), (), 100).frames(1000) == (b"", (1, 3))


LONG = [n / 7 for n in range(200)]
"""Array that is longer than the arrays that the merger parses."""


@pytest.mark.parametrize(
    "steps",
    [
        [[["s", "/a", LONG], ["s", "/a~1b", "x"]], [["s", "/b", LONG]]],
        [[["s", "/a", LONG]], [["s", "/a", [*LONG, 1]], ["s", "/b", 1]]],
        [[["s", "/a", LONG]], [["a", "/a", [1, 2]], ["t", "/a", 1]]],
        [[["s", "/a", LONG]], [["t", "/a", 3]], [["s", "/a/0", LONG]]],
        [[["s", "/a", LONG], ["a", "/a", LONG], ["t", "/a", 3]], [["d", "/b"]]],
        [
            [["s", "/a", [["x"], ["s", "/b", LONG]]], ["s", "/b", [["s", "x"], ["s", "/c", 1]]]],
            [["s", "/c", 1]],
        ],
        [[["s", "/a", [LONG, ["s", "/b"]]]], [["s", "/a", [True, None, *LONG]]]],
        [[["s", '/"\\é', LONG]], [["s", '/"\\é', {"x": LONG}]]],
        [[["s", "/a", '],["s","/b",[1]' * 100], ["s", "/b", LONG]], [["s", "/c", LONG]]],
        [{"ops": [["s", "/a", LONG]], "check": [["/a", 200]]}, [["a", "/a", [1]]]],
    ],
)
def test_long_arrays_of_numbers_are_merged_like_short_ones(steps):
    start = {"a": 0, "b": 1, "a/b": None}
    expected = found = start
    for step in steps:
        expected = apply(expected, step)
    for merged in merge(*steps, columns=(), limit=2**16):
        found = apply(found, merged)
    assert found == expected


LONG = b"[" + b"0.123456," * 1000 + b"0.5]"


def sets(*paths, value=LONG):
    """Encode one event for each path, which sets a value at this path."""
    return b"".join(
        b'id:1-%d\ndata:[["s","%b",%b],["s","/items/0/status","running"]]\n\n' % (seq, path.encode(), value)
        for seq, path in enumerate(paths, 2)
    )


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (sets("/items/0/value"), True),
        (sets("/items/0/value", "/items/1/value", "/items/10/value"), True),
        (sets("/items/0/value", "/items/1/value", "/items/0/value"), False),
        (sets("/items/0/value", "/items/1/value", value=b"1"), False),
        (sets("/items/0/value", "/items/0/value/" + "x" * 300), False),
        (sets("/items/0/value") + b'id:1-3\ndata:"%b"\n\n' % (b"x" * 9000), False),
        (b"", False),
    ],
)
def test_long_events_that_set_different_values_are_not_merged(frames, expected):
    assert sets_different_long_values(frames) is expected
