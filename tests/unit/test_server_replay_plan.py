import pytest

from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire_server.opening import NOTHING, Opening, Place, opening
from tidewire_server.store.base import Extent

COMPACTED = Opening(snapshot=(Place.HEAD, "compacted"))
REWOUND = Opening(snapshot=(Place.HEAD, "rewound"))


def extent(base: int, head: int, *, ended: bool = False, epoch: int = 3) -> Extent:
    return Extent(Cursor(epoch, base), Cursor(epoch, head), ended, (Cursor(epoch, 1),), ())


@pytest.mark.parametrize(
    ("cursor", "held", "opens"),
    [
        (None, extent(0, 1), Opening(after=Cursor(3, 0))),
        (None, extent(0, 2, ended=True), Opening(after=Cursor(3, 0))),
        (None, extent(0, 2), COMPACTED),
        (None, extent(5, 9, ended=True), COMPACTED),
        (BEGINNING, extent(0, 9), Opening(after=Cursor(3, 0))),
        (BEGINNING, extent(4, 9), Opening(snapshot=(Place.OLDEST, "compacted"))),
        (Cursor(3, 9), extent(0, 9, ended=True), NOTHING),
        (Cursor(3, 9), extent(0, 9), Opening(after=Cursor(3, 9))),
        (Cursor(3, 8), extent(0, 9, ended=True), Opening(after=Cursor(3, 8))),
        (Cursor(3, 4), extent(4, 9), Opening(after=Cursor(3, 4))),
        (Cursor(3, 3), extent(4, 9), COMPACTED),
        (Cursor(3, 10), extent(0, 9), REWOUND),
        (Cursor(3, 10), extent(0, 9, ended=True), REWOUND),
        (Cursor(2, 9), extent(0, 9), REWOUND),
        (Cursor(4, 1), extent(0, 9), REWOUND),
    ],
)
def test_a_cursor_opens_a_stream_by_the_table(cursor, held, opens):
    assert opening(cursor, held) == opens


# What section 4.2 of the specification gives as its example: 1-3, then an epoch that opens with 4711-4.
EPOCHS = Extent(
    Cursor(1, 2), Cursor(4711, 5), ended=False, starts=(Cursor(1, 1), Cursor(4711, 4)), columns=()
)


@pytest.mark.parametrize(
    ("cursor", "opens"),
    [
        (None, COMPACTED),
        (BEGINNING, Opening(snapshot=(Place.OLDEST, "compacted"))),
        (Cursor(1, 1), COMPACTED),
        (Cursor(1, 2), Opening(after=Cursor(1, 2))),
        (Cursor(1, 3), Opening(after=Cursor(1, 3))),
        (Cursor(1, 4), REWOUND),
        (Cursor(17, 5), REWOUND),
        (Cursor(4711, 3), REWOUND),
        (Cursor(4711, 5), Opening(after=Cursor(4711, 5))),
        (Cursor(4711, 6), REWOUND),
    ],
)
def test_a_cursor_opens_a_stream_whose_log_has_had_several_epochs(cursor, opens):
    assert opening(cursor, EPOCHS) == opens


def test_a_snapshot_at_the_head_is_sent_as_it_was_logged():
    assert opening(None, EPOCHS._replace(head=Cursor(4711, 4))) == Opening(after=Cursor(1, 3))
    assert opening(None, EPOCHS._replace(head=Cursor(4711, 5), ended=True)) == Opening(after=Cursor(1, 3))
    assert opening(None, EPOCHS._replace(base=Cursor(4711, 4), head=Cursor(4711, 4))) == COMPACTED
