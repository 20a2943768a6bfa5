"""Faulty servers whose snapshots lack members that diffs had set."""

from proof.servers.fault_helpers import rewrite_events
from proof.servers.faults import faulty_server


def drop_from_snapshots(hooks, pattern, by=b""):
    """Rewrite snapshots that are made for a reader, which have the reason `compacted`."""
    rewrite_events(hooks, pattern, by, within=b'"reason":"compacted"')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_notes(hooks):
    """Snapshots lack notes that diffs had set."""
    drop_from_snapshots(hooks, rb'"notes":\[\{.*?\}\]', b'"notes":[]')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_stable(hooks):
    """Snapshots lack `stable` values that diffs had set."""
    drop_from_snapshots(hooks, rb',"stable":\{[^}]*\}')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_batch(hooks):
    """Snapshots lack the `batch` member of items."""
    drop_from_snapshots(hooks, rb',"batch":\{[^}]*\}')


@faulty_server("TW-RES-007", "snapshots.snapshots_match_the_history")
def snapshots_without_error_detail(hooks):
    """Snapshots lack the `detail` of an item's error."""
    drop_from_snapshots(hooks, rb',"detail":"[^"]*"')
