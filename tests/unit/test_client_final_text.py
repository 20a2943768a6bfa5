"""Text that is held back while it may become void: what is kept of it, and that none of it is lost or comes twice."""

import asyncio
from random import Random

import pytest

from tidewire.jobs.final_text import MAX_HELD, FinalTextReader
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.types import ItemChange, Position, ResultType

TEXT = "/items/0/value"
MANY = 4 * MAX_HELD


@pytest.fixture
def final():
    async def rollback():
        return True

    final = FinalTextReader(rollback, delivered=0, column=lambda: TEXT, job_id="j1")
    asyncio.run(final.prepare())
    return final


@pytest.fixture
def document():
    return Document({"items": [{"status": "running", "value": "", "stable": {}}]}, [TEXT])


def told(document, seq, ops):
    document.apply(ops)
    changes = document.text_changes
    deleted, text = changes[0][1:] if changes else (0, "")
    place = Position(document.view(), (TEXT,), Cursor(1, seq))
    return ItemChange(place, ResultType(None), seq, deleted=deleted, text=text)


@pytest.mark.parametrize("takes_back", [False, True], ids=["appends", "rollbacks"])
def test_much_that_is_held_back_becomes_few_updates_that_cover_each_event_once(final, document, takes_back):
    random = Random(7)
    for seq in range(2, MANY):
        ops = [["a", TEXT, f"{seq} "]]
        if takes_back and seq % 10 == 0:
            ops.insert(0, ["t", TEXT, random.randrange(30)])
        assert final.project(told(document, seq, ops)) == ()
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


def test_what_becomes_stable_comes_also_where_neighbours_became_one(final, document):
    got = ""
    for seq in range(2, MANY):
        ops = [["a", TEXT, f"{seq} "]]
        if seq % (MANY // 3) == 0:
            stable = len(document.value(TEXT)) // 2
            ops.append(["s", "/items/0/stable", {"": stable}])
        got += "".join(final.project(told(document, seq, ops)))
        # One update of those that became one may be too long.
        if seq % (MANY // 3) == 0:
            assert stable - len(document.value(TEXT)) // (MAX_HELD // 8) <= len(got) <= stable
            assert final.final.place.text(TEXT) == got
    assert document.value(TEXT).startswith(got)
    assert got + "".join(final.finish()) == document.value(TEXT)
    assert final.settled(None)[-1].cursor.seq == MANY - 1
