"""Faulty servers whose snapshots lack members that were set by earlier diffs."""

from proof.servers.fault_helpers import rewrite_events
from proof.servers.faults import faulty_server


def drop_from_snapshots(hooks, pattern, by=b""):
    """Rewrite snapshots with the reason `compacted`. The server creates such a snapshot for a single reader."""
    rewrite_events(hooks, pattern, by, within=b'"reason":"compacted"')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_notes(hooks):
    """Snapshots lack the notes that were set by earlier diffs."""
    drop_from_snapshots(hooks, rb'"notes":\[\{.*?\}\]', b'"notes":[]')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_stable(hooks):
    """Snapshots lack the `stable` lengths that were set by earlier diffs."""
    drop_from_snapshots(hooks, rb',"stable":\{[^}]*\}')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_batch(hooks):
    """Snapshots lack the `batch` member of items."""
    drop_from_snapshots(hooks, rb',"batch":\{[^}]*\}')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_error_detail(hooks):
    """Snapshots lack the `detail` of an item's error."""
    drop_from_snapshots(hooks, rb',"detail":"[^"]*"')
