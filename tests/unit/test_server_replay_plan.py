"""Plans for logs with several epochs; the vectors `cursor/answers` have one epoch."""

import pytest

from tidewire.protocol.cursor import BEGINNING, Cursor
from tidewire_server.http.replay_plan import ReplayPlan, ReplayStart, plan_replay
from tidewire_server.store.records import Extent

COMPACTED = ReplayPlan(snapshot=(ReplayStart.HEAD, "compacted"))
REWOUND = ReplayPlan(snapshot=(ReplayStart.HEAD, "rewound"))


# The example of section 4.2 of the specification: epoch 1 ends at 1-3, and the next epoch begins with 4711-4.
EPOCHS = Extent(
    Cursor(1, 2), Cursor(4711, 5), ended=False, starts=(Cursor(1, 1), Cursor(4711, 4)), columns=()
)


@pytest.mark.parametrize(
    ("cursor", "plan"),
    [
        (None, COMPACTED),
        (BEGINNING, ReplayPlan(snapshot=(ReplayStart.OLDEST, "compacted"))),
        (Cursor(1, 1), COMPACTED),
        (Cursor(1, 2), ReplayPlan(after=Cursor(1, 2))),
        (Cursor(1, 3), ReplayPlan(after=Cursor(1, 3))),
        (Cursor(1, 4), REWOUND),
        (Cursor(17, 5), REWOUND),
        (Cursor(4711, 3), REWOUND),
        (Cursor(4711, 5), ReplayPlan(after=Cursor(4711, 5))),
        (Cursor(4711, 6), REWOUND),
    ],
)
def test_replay_of_a_log_with_several_epochs(cursor, plan):
    assert plan_replay(cursor, EPOCHS) == plan


def test_snapshot_at_the_head_is_sent_as_it_was_logged():
    assert plan_replay(None, EPOCHS._replace(head=Cursor(4711, 4))) == ReplayPlan(after=Cursor(1, 3))
    assert plan_replay(None, EPOCHS._replace(head=Cursor(4711, 5), ended=True)) == ReplayPlan(
        after=Cursor(1, 3)
    )
    assert plan_replay(None, EPOCHS._replace(base=Cursor(4711, 4), head=Cursor(4711, 4))) == COMPACTED
