"""Event ids: their grammar, their order, and every cell of the table of what one means to a reader."""

import pytest

from tidewire.protocol.cursor import (
    BEGINNING,
    ENDED_BY_PROBLEM,
    Continuity,
    Cursor,
    CursorError,
    standing_of_change,
    standing_of_snapshot,
)


@pytest.mark.parametrize("text", ["1-1", "1-17", "9999999999-999999999999999"])
def test_an_id_is_read_and_written_back(text):
    assert str(Cursor.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "1-",
        "-1",
        "0-0",
        "0-1",
        "1-0",
        "01-1",
        "1-01",
        "1-1 ",
        " 1-1",
        "1-1\n",
        "1_1",
        "+1-1",
        "1-1-1",
        "١-١",
        "a-b",
    ]
    + ["10000000000-1", "1-1000000000000000"],
)
def test_what_is_no_id_is_refused_and_named(text):
    with pytest.raises(CursorError, match="EPOCH-SEQ"):
        Cursor.parse(text)


def test_ids_are_ordered_by_epoch_then_seq():
    assert Cursor(1, 99) < Cursor(2, 1) < Cursor(2, 2)


def test_the_reserved_ids_are_below_all_others():
    assert BEGINNING < ENDED_BY_PROBLEM < Cursor(1, 1)


MINE = Cursor(2, 10)


@pytest.mark.parametrize(
    ("mine", "event", "rewound", "standing"),
    [
        (None, Cursor(1, 1), True, Continuity.NEXT),
        (None, Cursor(1, 1), False, Continuity.NEXT),
        (MINE, Cursor(2, 9), True, Continuity.NEXT),
        (MINE, Cursor(2, 10), True, Continuity.NEXT),
        (MINE, Cursor(2, 11), True, Continuity.NEXT),
        (MINE, Cursor(1, 99), False, Continuity.REPEAT),
        (MINE, Cursor(2, 10), False, Continuity.REPEAT),
        (MINE, Cursor(2, 11), False, Continuity.NEXT),
        (MINE, Cursor(3, 1), False, Continuity.NEXT),
    ],
)
def test_standing_of_a_snapshot(mine, event, rewound, standing):
    assert standing_of_snapshot(mine, event, rewound=rewound) is standing


@pytest.mark.parametrize(
    ("mine", "event", "on", "standing"),
    [
        (None, Cursor(2, 11), None, Continuity.BROKEN),
        (MINE, Cursor(2, 10), None, Continuity.REPEAT),
        (MINE, Cursor(1, 11), None, Continuity.REPEAT),
        (MINE, Cursor(2, 9), 8, Continuity.REPEAT),
        (MINE, Cursor(2, 11), None, Continuity.NEXT),
        (MINE, Cursor(2, 12), None, Continuity.BROKEN),  # a gap
        (MINE, Cursor(2, 15), 10, Continuity.NEXT),  # several events as one
        (MINE, Cursor(2, 15), 9, Continuity.BROKEN),  # an overlap
        (MINE, Cursor(2, 15), 12, Continuity.BROKEN),
        (MINE, Cursor(3, 11), None, Continuity.BROKEN),  # no diff crosses an epoch
    ],
)
def test_standing_of_a_diff_or_done(mine, event, on, standing):
    assert standing_of_change(mine, event, on=on) is standing
