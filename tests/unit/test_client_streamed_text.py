"""Buffer of text that is not stable yet: bounded size, and each event covered exactly once."""

from random import Random

import pytest

from tidewire.jobs.streamed_text import MAX_HELD, StreamedText
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.result_type import ResultType
from tidewire.updates import ItemChange, Position

TEXT = "/items/0/value"
MANY = 4 * MAX_HELD


@pytest.fixture
def final():
    return StreamedText(delivered=0, column=lambda: TEXT, job_id="j1", latest=lambda: None)


@pytest.fixture
def document():
    return Document({"items": [{"status": "running", "value": "", "stable": {}}]}, [TEXT])


def item_change(document, seq, ops):
    document.apply(ops)
    changes = document.text_changes
    deleted, text = changes[0][1:] if changes else (0, "")
    position = Position(document.view(), (TEXT,), Cursor(1, seq))
    return ItemChange(position, ResultType(None), seq, deleted=deleted, text=text)


@pytest.mark.parametrize("with_rollbacks", [False, True], ids=["appends", "rollbacks"])
def test_buffered_text_is_merged_into_few_updates_that_cover_each_event_once(final, document, with_rollbacks):
    random = Random(7)
    for seq in range(2, MANY):
        ops = [["a", TEXT, f"{seq} "]]
        if with_rollbacks and seq % 10 == 0:
            ops.insert(0, ["t", TEXT, random.randrange(30)])
        assert final.project(item_change(document, seq, ops)) == ()
        assert len(list(final.undelivered())) <= MAX_HELD
    held = list(final.undelivered())
    assert "".join(update.text for update in held) == document.value(TEXT)
    assert [held[0].first_seq, *(update.cursor.seq + 1 for update in held)] == [
        *(update.first_seq for update in held),
        MANY,
    ]
    assert final.finish() == (document.value(TEXT),)
    assert final.settled(None) == held
    assert (list(final.undelivered()), final.settled(None)) == ([], [])


def test_stable_text_is_released_after_buffered_updates_were_merged(final, document):
    released = ""
    for seq in range(2, MANY):
        ops = [["a", TEXT, f"{seq} "]]
        if seq % (MANY // 3) == 0:
            stable = len(document.value(TEXT)) // 2
            ops.append(["s", "/items/0/stable", {"": stable}])
        released += "".join(final.project(item_change(document, seq, ops)))
        # A merged update may reach beyond the stable length; the reader then releases less text.
        if seq % (MANY // 3) == 0:
            assert stable - len(document.value(TEXT)) // (MAX_HELD // 8) <= len(released) <= stable
            assert final.settled(None)[-1].position.text(TEXT) == released
    assert document.value(TEXT).startswith(released)
    assert released + "".join(final.finish()) == document.value(TEXT)
    assert final.settled(None)[-1].cursor.seq == MANY - 1
