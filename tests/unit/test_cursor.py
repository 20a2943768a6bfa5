"""Event ids: grammar, order, and the continuity of a received id with the reader's cursor."""

import pytest

from tidewire.following.event_continuity import Continuity, continuity_of_change, continuity_of_snapshot
from tidewire.protocol.cursor import BEGINNING, ENDED_BY_PROBLEM, Cursor, CursorError


@pytest.mark.parametrize("text", ["1-1", "1-17", "9999999999-999999999999999"])
def test_id_is_parsed_and_formatted_unchanged(text):
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
def test_invalid_id_is_refused_with_the_expected_form(text):
    with pytest.raises(CursorError, match="EPOCH-SEQ"):
        Cursor.parse(text)


def test_ids_are_ordered_by_epoch_then_seq():
    assert Cursor(1, 99) < Cursor(2, 1) < Cursor(2, 2)


def test_reserved_ids_are_below_all_others():
    assert BEGINNING < ENDED_BY_PROBLEM < Cursor(1, 1)


MINE = Cursor(2, 10)


@pytest.mark.parametrize(
    ("mine", "event", "rewound", "continuity"),
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
def test_continuity_of_a_snapshot(mine, event, rewound, continuity):
    assert continuity_of_snapshot(mine, event, rewound=rewound) is continuity


@pytest.mark.parametrize(
    ("mine", "event", "on", "continuity"),
    [
        (None, Cursor(2, 11), None, Continuity.BROKEN),
        (MINE, Cursor(2, 10), None, Continuity.REPEAT),
        (MINE, Cursor(1, 11), None, Continuity.REPEAT),
        (MINE, Cursor(2, 9), 8, Continuity.REPEAT),
        (MINE, Cursor(2, 11), None, Continuity.NEXT),
        # A gap, a merged event, two merged events with a wrong base, and a diff across epochs.
        (MINE, Cursor(2, 12), None, Continuity.BROKEN),
        (MINE, Cursor(2, 15), 10, Continuity.NEXT),
        (MINE, Cursor(2, 15), 9, Continuity.BROKEN),
        (MINE, Cursor(2, 15), 12, Continuity.BROKEN),
        (MINE, Cursor(3, 11), None, Continuity.BROKEN),
    ],
)
def test_continuity_of_a_diff_or_done(mine, event, on, continuity):
    assert continuity_of_change(mine, event, on=on) is continuity
