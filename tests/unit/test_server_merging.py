"""Merging of consecutive appends and rows for a reader that is behind."""

from zlib import crc32

import orjson
import pytest

from tidewire.protocol.cursor import Cursor
from tidewire_server.http.event_merging import EventMerger

TEXT = "/items/0/value"
OTHER = "/items/1/value"
SET = [["s", "/items/0/status", "running"]]


def merge_events(*events: bytes, limit: int = 2**20, max_ops: int = 1000) -> list[bytes]:
    merger = EventMerger(Cursor(1, 3), (TEXT,), max_bytes=limit, max_ops=max_ops)
    for event in events:
        merger.add(event)
    return merger.frames().split(b"\n\n")[:-1]


def encode(contents: object) -> list[bytes]:
    return [b"id:1-%d\ndata:%b" % (seq, orjson.dumps(content)) for seq, content in enumerate(contents, 4)]


def merge(*contents: object, limit: int = 2**20, max_ops: int = 1000) -> list[object]:
    merged = merge_events(*encode(contents), limit=limit, max_ops=max_ops)
    return [orjson.loads(event.partition(b"\ndata:")[2]) for event in merged]


def checked(text: str, *ops: list) -> dict:
    return {"ops": list(ops), "check": [[TEXT, len(text), crc32(text.encode())]]}


def a(path: str, x: object) -> list:
    return ["a", path, x]


@pytest.mark.parametrize(
    ("contents", "merged"),
    [
        ([*"Hello, wörld🎉"], [{"ops": [a(TEXT, "Hello, wörld🎉")], "on": 3}]),
        ([[["r", text]] for text in "abcd"], [{"ops": [["r", text] for text in "abcd"], "on": 3}]),
        # Each path has one op, but a later append to a column stays behind a row.
        ([*"abc", [a(OTHER, [1])], [a(OTHER, [2, 3])], *"de"], [{"ops": [a(TEXT, "abcde"), a(OTHER, [1, 2, 3])], "on": 3}]),
        (["a", "b", "c", [["r", "d"]], "e", "f"], [{"ops": [a(TEXT, "abc"), ["r", "d"], a(TEXT, "ef")], "on": 3}]),
        # Other events are sent as they were logged.
        ([*"abcd", SET, *"efgh"], [{"ops": [a(TEXT, "abcd")], "on": 3}, SET, {"ops": [a(TEXT, "efgh")], "on": 8}]),
        ([SET, SET, SET], [SET, SET, SET]),
        ([[["t", TEXT, 1]], [["i", "/x/0", 1]], [["d", "/x/0"]]], [[["t", TEXT, 1]], [["i", "/x/0", 1]], [["d", "/x/0"]]]),
        ([[a(TEXT, "a"), *SET]] * 3, [[a(TEXT, "a"), *SET]] * 3),
        # A check holds after its event, so it ends the merged diff.
        (
            [*"abc", checked("abcd", a(TEXT, "d")), *"efgh", checked("abcdefghi", ["r", "i"])],
            [
                checked("abcd", a(TEXT, "abcd")) | {"on": 3},
                checked("abcdefghi", a(TEXT, "efgh"), ["r", "i"]) | {"on": 7},
            ],
        ),
        # A merged diff that would be larger than its events is not sent.
        (["a", "b"], ["a", "b"]),
    ],
)  # fmt: skip
def test_consecutive_appends_and_rows_become_one_diff(contents, merged):
    assert merge(*contents) == merged


def test_an_event_alone_is_sent_as_it_was_logged():
    event = b'id:1-4\ndata:"as \\u0069t was"'
    assert merge_events(event) == [event]


def test_merged_diff_has_the_id_of_its_last_event():
    assert merge_events(*encode("abcd")) == [b'id:1-7\ndata:{"ops":[["a","/items/0/value","abcd"]],"on":3}']


def test_events_after_a_snapshot_are_not_merged_because_the_columns_may_be_different():
    snapshot = b'id:9-8\nevent:snapshot\ndata:{"state":{},"columns":["/new"],"reason":"restart"}'
    done = b"id:9-13\nevent:done\ndata:{}"
    after = [b'id:9-%d\ndata:"b"' % seq for seq in range(9, 13)]
    merged = merge_events(*encode("abcd"), snapshot, *after, done)
    assert merged == [*merge_events(*encode("abcd")), snapshot, *after, done]


def test_merged_diff_stays_within_the_limits_at_the_bound():
    rows = [[["r", "x" * 40]]] * 100
    assert [len(each["ops"]) for each in merge(*rows, max_ops=50)] == [50, 50]
    assert [len(each["ops"]) for each in merge(*rows, max_ops=99)[:-1]] == [99]
    for limit in range(500, 600):
        merged = merge(*rows, limit=limit)
        assert all(len(orjson.dumps(each)) <= limit for each in merged)
        assert len(merged) < 34
