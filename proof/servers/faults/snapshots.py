"""Faulty servers whose snapshots lack members that were set by earlier diffs."""

from proof.servers.expected_side_failures import WRONG_SNAPSHOT
from proof.servers.fault_helpers import rewrite_events
from proof.servers.faults import fault


def drop_from_snapshots(pattern, by=b""):
    """Rewrite `compacted` snapshots, which the server creates for a single reader."""
    return rewrite_events(pattern, by, within=b'"reason":"compacted"')


# fmt: off
fault("snapshots_without_notes", "TW-RES-007", "snapshots.snapshots_match_the_history",
      "Snapshots lack the notes that were set by earlier diffs.",
      frames=drop_from_snapshots(rb'"notes":\[\{.*?\}\]', b'"notes":[]'),
      also_fails=WRONG_SNAPSHOT)
fault("snapshots_without_stable", "TW-RES-007", "snapshots.snapshots_match_the_history",
      "Snapshots lack the `stable` lengths that were set by earlier diffs.",
      frames=drop_from_snapshots(rb',"stable":\{[^}]*\}'),
      also_fails=WRONG_SNAPSHOT)
fault("snapshots_without_batch", "TW-RES-007", "snapshots.snapshots_match_the_history",
      "Snapshots lack the `batch` member of items.",
      frames=drop_from_snapshots(rb',"batch":\{[^}]*\}'),
      also_fails=WRONG_SNAPSHOT)
fault("snapshots_without_error_detail", "TW-RES-007", "snapshots.snapshots_match_the_history",
      "Snapshots lack the `detail` of an item's error.",
      frames=drop_from_snapshots(rb',"detail":"[^"]*"'),
      also_fails=WRONG_SNAPSHOT)
# fmt: on
