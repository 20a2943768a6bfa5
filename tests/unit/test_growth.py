"""The cost of operations on inputs of size n is at most proportional to n log n. It is counted, not timed."""

import json
import math
import sys

import pytest

from tidewire.jobs.batch_job_reader import _items_in_diff
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import apply
from tidewire.protocol.document import Document, document
from tidewire.protocol.document.digests import text_check
from tidewire.types import Position
from tidewire_server.http.event_merging import EventMerger
from tidewire_server.log_writer.text_check_schedule import note_change, nothing_unchecked, take_below

N = 2000
MOST = 20 * N * math.log2(N)
"""At this size, a cost that is quadratic exceeds the bound four times or more."""


def cost(function):
    """Count function calls, and the elements and code points that an op of a diff moves or copies without a call."""
    count = 0

    def profile(frame, event, _):
        nonlocal count
        count += event in {"call", "c_call"}
        if event == "return" and frame.f_code.co_qualname.endswith(MOVERS):
            count += moved(**frame.f_locals)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


MOVERS = (
    "DiffApplier._copied", "DiffApplier._insert", "DiffApplier._delete", "DiffApplier._grow", "DiffApplier._truncate",
    "ArrayTree.__init__", "ObjectTree._fill", "_PathChange.truncate",
)  # fmt: skip


def moved(self, container=None, key=None, **frame):
    """Return the length of the dict, list or text that a frame has changed or copied."""
    if "copy" in frame:
        return len(frame["copy"]) if type(frame["copy"]) in {dict, list} else 0
    if "entries" in frame or "elements" in frame:
        return len(self)
    if container is None:
        return len(self.added[-1]) if getattr(self, "added", None) else 0
    text = container[key] if type(container) is dict else None
    return len(text) if type(text) is str else len(container) if type(container) is list else 0


def assert_at_most_n_log_n(run):
    assert cost(run(N)) <= MOST


OPS = {
    "inserts at the front": lambda n: (list(range(n)), [["i", "/v/0", at] for at in range(n)]),
    "inserts into an empty array": lambda n: ([], [["i", "/v/0", at] for at in range(n)]),
    "deletions at the front": lambda n: (list(range(n)), [["d", "/v/0"] for _ in range(n)]),
    "text appended": lambda n: ("", [["a", "/v", "word "] for _ in range(n)]),
    "text appended and dropped": lambda n: (
        "x" * n,
        [op for _ in range(n) for op in (["a", "/v", "words"], ["t", "/v", 1])],
    ),
}


@pytest.mark.parametrize("name", OPS)
def test_apply_of_a_diff_with_many_ops(name):
    def run(n):
        value, ops = OPS[name](n)
        return lambda: apply({"v": value}, ops)

    assert_at_most_n_log_n(run)


@pytest.mark.parametrize("name", OPS)
def test_a_document_to_which_a_diff_with_many_ops_is_applied(name):
    def run(n):
        value, ops = OPS[name](n)
        document = Document({"v": value})
        return lambda: document.apply(ops)

    assert_at_most_n_log_n(run)


DIFFS = {
    "members set": lambda n: ({}, [["s", f"/v/{at}", at] for at in range(n)]),
    "members deleted": lambda n: ({str(at): at for at in range(n)}, [["d", f"/v/{at}"] for at in range(n)]),
    "members of members set": lambda n: (
        {str(at): {"t": ""} for at in range(n)},
        [["s", f"/v/{at * 7 % n}/t", "word"] for at in range(n)],
    ),
}


@pytest.mark.parametrize("name", DIFFS)
def test_many_diffs_with_one_op_each(name, monkeypatch):
    # Objects of at most this many members are copied.
    monkeypatch.setattr(document, "MAX_COPIED", 32)
    start, ops = DIFFS[name](N)
    followed = Document({"v": start})

    def run():
        for op in ops:
            followed.apply([op])

    assert cost(run) <= MOST
    assert followed.value() == apply({"v": start}, ops)


def test_a_long_diff_has_the_result_of_its_ops_one_by_one():
    value = {"v": ["a", {"t": "", "u": [1]}], "kept": {"t": "x"}}
    ops = [
        op
        for at in range(40)
        for op in (
            ["i", "/v/0", at],
            ["a", f"/v/{at + 2}/t", "né 😀"],
            ["t", f"/v/{at + 2}/t", 1],
            ["a", f"/v/{at + 2}/u", [at, at]],
            ["s", "/v/0", {"new": [at]}],
            ["i", "/v/0/new/0", "first"],
        )
    ]
    before = json.dumps(value)
    whole = apply(value, ops)
    one_by_one = value
    for op in ops:
        one_by_one = apply(one_by_one, [op])
    assert whole == one_by_one
    assert whole["v"][-1]["t"] == "né " * 40
    assert {type(whole["v"]), type(whole["v"][-1]["t"]), type(whole["v"][-1]["u"])} == {list, str}
    assert whole["kept"] is value["kept"]
    assert json.dumps(value) == before
    document = Document(value)
    document.apply(ops)
    assert document.value() == whole


def merging(contents):
    frames = b"".join(
        b"id:1-%d\ndata:%b\n\n" % (seq, json.dumps(content).encode())
        for seq, content in enumerate(contents, 2)
    )
    merger = EventMerger(Cursor(1, 1), ["/v"], 2**40)
    return lambda: (merger.add(frames), merger.frames(2**40))


def test_merging_of_events_with_checks_of_many_texts():
    def run(n):
        return merging(
            {
                "ops": [["a", f"/v/{at}/t", "ab"], ["s", f"/v/{at}/status", "succeeded"]],
                "check": [text_check(f"/v/{at}/t", "ab")],
            }
            for at in range(n)
        )

    assert_at_most_n_log_n(run)


def test_merging_of_truncations_with_a_long_append():
    # One piece of the text is copied at most, however long the text is.
    length = 1_000_000
    short, long = ([["a", "/v", "x" * (length // part)]] for part in (200, 1))
    truncations = [[["t", "/v", 1]]] * 200
    assert cost(merging([long, *truncations])) <= 2 * cost(merging([short, *truncations]))


def test_schedule_of_the_checks_of_many_texts():
    def run(n):
        texts = Document({"v": [{"t": ""}] * n})
        unchecked = nothing_unchecked()

        def events():
            for at in range(n):
                note_change(unchecked, [["a", f"/v/{at}/t", "word"], ["s", f"/v/{at}/ended", True]], texts)
            for at in range(n):
                assert take_below(unchecked, f"/v/{at}") == [f"/v/{at}/t"]

        return events

    assert_at_most_n_log_n(run)


def test_columns_are_read_once_for_all_rows_of_a_diff():
    reads = []

    class Columns(tuple):
        __slots__ = ()

        def __iter__(self):
            reads.append(1)
            return super().__iter__()

    columns = Columns(f"/items/{index}/value" for index in range(3))
    document = Document({"items": [{"value": ""}] * 5}, [])
    position = Position(document.view(), columns, Cursor(1, 1))
    assert _items_in_diff([["r", "a", "b", "c"]] * 9 + [["a", "/items/4/value", "d"]], position) == {
        0,
        1,
        2,
        4,
    }
    assert len(reads) == 1
    assert _items_in_diff([["r", "a", "b", "c"], ["s", "/items", []]], position) == {*range(5)}
