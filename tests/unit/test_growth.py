"""The cost of operations on inputs of size n is at most proportional to n log n. It is counted, not timed."""

import math
import sys

import pytest

from tidewire.jobs.batch_job_reader import _items_in_diff
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.updates import Position
from tidewire_server.http.event_merging import EventMerger
from tidewire_server.job_log.text_check_schedule import note_change, nothing_unchecked, take_below

N = 2000
MOST = 20 * N * math.log2(N)
"""At this size, a cost that is quadratic exceeds the bound four times or more."""


def cost(function):
    """Count function calls, and the elements and code points that are copied without a call."""
    count = 0

    def profile(frame, event, _):
        nonlocal count
        count += event in {"call", "c_call"}
        if event == "return":
            count += copied(frame.f_code.co_qualname, frame.f_locals)

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def copied(function, variables):
    """Return the length of the dict, list or text that a call has copied."""
    if function == "Tree._writable":
        return len(variables.get("copy", ()))
    added = variables["self"].added if function == "_PathChange.truncate" else ()
    return len(added[-1]) if added else 0


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
def test_a_diff_with_many_ops_copies_each_text_and_array_once(name):
    """Each op on an array also moves the elements after it, so the limit of the number of ops bounds the time of a diff."""

    def run(n):
        value, ops = OPS[name](n)
        document = Document({"v": value})
        return lambda: document.apply(ops)

    assert_at_most_n_log_n(run)


@pytest.mark.parametrize("data", ['"word "', '[["r","word ",[1]]]', '[["a","/t","a"],["a","/u",[1]]]'])
def test_merging_of_appends_and_rows(data):
    def run(n):
        merger = EventMerger(Cursor(1, 1), ["/v", "/w"], max_bytes=2**40, max_ops=2**40)
        events = [b"id:1-%d\ndata:%b" % (seq, data.encode()) for seq in range(2, n)]

        def merge():
            for event in events:
                merger.add(event)
            merger.frames()

        return merge

    assert_at_most_n_log_n(run)


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
