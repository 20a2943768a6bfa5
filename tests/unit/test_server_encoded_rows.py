"""Rows whose elements are already JSON, which the log contains as they are."""

import json
from typing import Any

import orjson
import pytest

from support.stream_harness import StreamHarness
from tidewire.protocol.document.digests import digest
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.errors import StateTooLargeError, StreamClosedError

COLUMNS = ("/text", "/ids", "/top")
EMPTY: dict[str, Any] = {"text": "", "ids": [], "top": []}


def rows_of(count: int, candidates: int = 5) -> list[tuple[str, bytes, bytes]]:
    """Return rows whose candidates are different objects once they are parsed."""
    return [
        (f"é{row} ", b"%d" % row, orjson.dumps([-row - k / 8 - 1 / 16 for k in range(candidates)]))
        for row in range(count)
    ]


def value_of(rows: list[tuple[str, bytes, bytes]]) -> dict[str, Any]:
    return {
        "text": "".join(text for text, _, _ in rows),
        "ids": [json.loads(ids) for _, ids, _ in rows],
        "top": [json.loads(top) for _, _, top in rows],
    }


def rows_until_refused(job: StreamHarness, rows: list[tuple[str, bytes, bytes]], *, encoded: bool) -> int:
    for count, (text, ids, top) in enumerate(rows):
        try:
            if encoded:
                job.writer.encoded_rows([(text, ids, top)])
            else:
                job.stream.row(text, json.loads(ids), json.loads(top))
        except StateTooLargeError:
            return count
    raise AssertionError("no row was refused")


@pytest.mark.parametrize("merge_window", [0.0, 1.0])
async def test_readers_and_the_state_have_the_elements(merge_window):
    job = StreamHarness(EMPTY, COLUMNS, merge_window=merge_window)
    rows = rows_of(10)
    job.writer.encoded_rows(rows[:4])
    job.writer.encoded_rows(rows[4:5])
    await job.log_writer.commit()
    before = job.log_writer.pending.state.document.view()
    job.writer.encoded_rows(rows[5:])
    assert job.stream.value == await job.read() == value_of(rows)
    assert before.value("/items/0/value") == value_of(rows[:5])
    assert before.has_more_nodes_than(35)
    assert not before.has_more_nodes_than(70)
    assert job.log_writer.pending.state.document.value("/items/0/value/top/3/1") == -3.1875


async def test_event_has_the_given_json():
    job = StreamHarness(EMPTY, COLUMNS)
    job.writer.encoded_rows([("a\n", b"7", b"[-0.5,1]")])
    await job.log_writer.commit()
    chunk = await job.log.read((await job.log.state(oldest=True)).cursor, 2**20)
    assert chunk is not None
    assert chunk.frames.endswith(b'data:[["r","a\\n",7,[-0.5,1]]]\n\n')


async def test_encoded_rows_mix_with_all_other_changes():
    job = StreamHarness({**EMPTY, "other": ""}, COLUMNS, merge_window=1.0)
    rows = rows_of(6)
    job.writer.encoded_rows(rows[:2])
    job.stream.row(*(rows[2][0], 2, json.loads(rows[2][2])))
    job.writer.encoded_rows(rows[3:4])
    job.stream.append("x", at="/other")
    job.stream.append([4], at="/ids")
    job.writer.append_encoded([rows[4][2]], at="/top")
    job.stream.append(rows[4][0], at="/text")
    job.writer.encoded_rows(rows[5:])
    expected = {**value_of(rows), "other": "x"}
    assert job.stream.value == await job.read() == expected
    job.stream.truncate(2, at="/top")
    job.stream.set("/top/0/1", {"a": "1.0,"})
    job.stream.set("/ids/6", [])
    job.writer.encoded_rows(rows[:1])
    expected["top"] = [*expected["top"][:-2], json.loads(rows[0][2])]
    expected["top"][0][1] = {"a": "1.0,"}
    expected["ids"] = [*expected["ids"], [], 0]
    expected["text"] += rows[0][0]
    assert job.stream.value == await job.read() == expected
    items = job.log_writer.pending.state.document.node("/items")
    assert digest(items) == digest(job.log_writer.pending.state.document.value("/items"))


@pytest.mark.parametrize("merge_window", [0.0, 1.0])
async def test_rows_of_one_item_of_several_append_to_its_own_columns(merge_window):
    job = StreamHarness({"a": EMPTY, "b": EMPTY}, ("/a/text", "/a/ids", "/b/ids"), merge_window=merge_window)
    one = ItemWriter(
        job.log_writer.pending,
        0,
        columns=[f"/b{column}" for column in COLUMNS],
        rollback=True,
        report=lambda _key, _message: None,
        to_json=lambda value: value,
    )
    rows = rows_of(3)
    one.encoded_rows(rows)
    one.append_encoded([b"3", b"4"], at="/a/ids")
    one.append_encoded([], at="/a/ids")
    expected = {"a": {**EMPTY, "ids": [3, 4]}, "b": value_of(rows)}
    assert job.stream.value == await job.read() == expected
    with pytest.raises(ValueError, match="text"):
        one.append_encoded([b"1"], at="/b/text")
    document = job.log_writer.pending.state.document
    assert digest(document.node("/items")) == digest(document.value("/items"))


async def test_limits_hold_for_encoded_rows():
    written = []
    for encoded in (True, False):
        job = StreamHarness(EMPTY, COLUMNS, max_state_bytes=4096, max_event_bytes=1024, merge_window=1.0)
        count = rows_until_refused(job, rows_of(200, 20), encoded=encoded)
        assert await job.read() == value_of(rows_of(count, 20))
        written.append(count)
    assert abs(written[0] - written[1]) <= 1
    job = StreamHarness(EMPTY, COLUMNS, max_event_bytes=1024, merge_window=1.0)
    job.writer.encoded_rows(rows_of(1, 500))
    assert await job.read() == value_of(rows_of(1, 500))
    with pytest.raises(ValueError, match="row has 2 members"):
        job.writer.encoded_rows([("a", b"1")])
    job.writer.close()
    with pytest.raises(StreamClosedError):
        job.writer.encoded_rows(rows_of(1))
