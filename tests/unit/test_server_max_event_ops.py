"""Limit of the number of ops of one diff, `max_event_ops`: merged changes count, and longer changes are split."""

import pytest

from support.stream_harness import StreamHarness
from tidewire_server.job_log.open_event import addition

MAX_OPS = 64
COUNT = 2 * MAX_OPS + 10


def op_counts(diffs):
    """Return the number of ops of each diff, which is 1 for a diff that is only a string."""
    ops = [diff["ops"] if isinstance(diff, dict) else diff for diff in diffs]
    return [1 if isinstance(each, str) else len(each) for each in ops]


def append_to_many_texts(job):
    for index in range(COUNT):
        job.stream.append("y", at=f"/texts/{index}")


def append_to_many_texts_at_once(job):
    job.log_writer.pending.append([addition(f"/items/0/value/texts/{index}", "y") for index in range(COUNT)])


def append_rows(job):
    for index in range(COUNT):
        job.stream.row("y", index)


def append_encoded_rows(job):
    job.writer.encoded_rows([("y", b"%d" % index) for index in range(COUNT)])


def emit_changes_in_many_texts(job):
    job.writer.replace(APPENDED)


TEXT = "x" * 100
EMPTY = {"text": "", "ids": [], "texts": [TEXT] * COUNT}
APPENDED = {**EMPTY, "texts": [f"{TEXT}y"] * COUNT}
GROWN = {**EMPTY, "text": "y" * COUNT, "ids": [*range(COUNT)]}


@pytest.mark.parametrize("window", [0.0, 1.0])
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (append_to_many_texts, APPENDED),
        (append_to_many_texts_at_once, APPENDED),
        (append_rows, GROWN),
        (append_encoded_rows, GROWN),
        (emit_changes_in_many_texts, APPENDED),
    ],
)
async def test_change_of_many_ops_is_split(change, expected, window):
    job = StreamHarness(EMPTY, ("/text", "/ids"), merge_window=window, max_event_ops=MAX_OPS)
    change(job)
    assert await job.read() == job.stream.value == expected
    counts = op_counts(await job.events())
    assert max(counts) <= MAX_OPS
    assert sum(counts) == COUNT
    assert window == 0.0 or max(counts) == MAX_OPS


async def test_check_of_a_split_change_is_in_its_last_part():
    job = StreamHarness(EMPTY, ("/text", "/ids"), merge_window=1.0, max_event_ops=MAX_OPS)
    job.stream.append("y", at="/text")
    await job.log_writer.commit()
    ops = [["s", f"/items/0/value/texts/{index}", ""] for index in range(COUNT)]
    job.log_writer.pending.change(ops, check_below="/items/0")
    *parts, last = (await job.events())[1:]
    assert op_counts([*parts, last]) == [MAX_OPS, MAX_OPS, 10]
    assert all(isinstance(part, list) for part in parts)
    assert last["check"] == [["/items/0/value/text", 1, 4225443349]]
    assert (await job.read())["texts"] == [""] * COUNT


@pytest.mark.parametrize("ops", [63, 10_001])
def test_setting_outside_the_range_of_the_protocol_is_refused(ops):
    with pytest.raises(ValueError, match="max_event_ops"):
        StreamHarness("", max_event_ops=ops)
