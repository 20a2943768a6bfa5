"""Faulty servers with errors in streams of snapshots (`diffs=0`)."""

import re

from proof.servers.fault_helpers import rewrite_body, set_request_header
from proof.servers.faults import faulty_server


@faulty_server("TW-JOB-072", "snapshots_only.diffs_0_returns_snapshots_and_done")
def diffs_0_ignored(hooks):
    """`diffs=0` is ignored."""

    def ignore(exchange):
        exchange.query = exchange.query.replace(b"diffs=0", b"diffs=1")

    hooks.requests.append(ignore)


@faulty_server("TW-JOB-075", "snapshots_only.diffs_0_returns_snapshots_and_done")
def last_snapshot_repeated(hooks):
    """A stream of snapshots repeats the last snapshot before `done`."""

    def twice(exchange, frame):
        if b"event:snapshot" in frame:
            exchange.own["last"] = frame
        again = b"diffs=0" in exchange.query and b"event:done" in frame
        return exchange.own.get("last", b"") + frame if again else frame

    hooks.frames.append(twice)


@faulty_server("TW-JOB-081", "snapshots_only.diffs_0_validates_the_cursor")
def snapshot_stream_ignores_cursor(hooks):
    """A stream of snapshots ignores its cursor."""
    set_request_header(hooks, "last-event-id", None, lambda exchange: b"diffs=0" in exchange.query)


@faulty_server("TW-JOB-073", "snapshots_only.diffs_0_returns_snapshots_and_done")
def snapshot_stream_ignores_min_interval_ms(hooks):
    """A stream of snapshots ignores `min_interval_ms`."""
    hooks.settings["min_snapshot_interval"] = 0.001

    def forget(exchange):
        exchange.query = re.sub(rb"&min_interval_ms=\d+", b"", exchange.query)

    hooks.requests.append(forget)


@faulty_server("TW-JOB-074", "snapshots_only.min_interval_ms_is_raised_to_the_minimum")
def low_min_interval_ms_not_raised(hooks):
    """A `min_interval_ms` below the minimum in discovery is not raised to the minimum."""
    hooks.settings["min_snapshot_interval"] = 0.005
    rewrite_body(hooks, rb'"min_interval_ms":\d+', b'"min_interval_ms":200')


@faulty_server("TW-JOB-084", "snapshots_only.diffs_0_returns_snapshots_and_done")
def no_snapshots_between_first_and_last(hooks):
    """A stream of snapshots sends nothing between its first and its last snapshot."""

    def hold(exchange, frame):
        if b"diffs=0" not in exchange.query or b"event:snapshot" not in frame + exchange.own.get(
            "buffered", b""
        ):
            return frame
        if b"event:snapshot" not in frame:
            return exchange.own.pop("buffered") + frame if b"event:done" in frame else frame
        first = not exchange.own.setdefault("count", 0)
        exchange.own["count"] += 1
        exchange.own["buffered"] = b"" if first else frame
        return frame if first else b""

    hooks.frames.append(hold)


@faulty_server("TW-JOB-081", "snapshots_only.diffs_0_validates_the_cursor")
def snapshot_stream_begins_with_first_state(hooks):
    """A stream of snapshots with the cursor `0-0` begins with the job's first state."""
    first = b'id:1-1\nevent:snapshot\ndata:{"state":{"status":"queued","items":[{"status":"queued","value":""}],"usage":{},"notes":[]},'
    rest = b'"columns":["/items/0/value"],"reason":"start"}\n\n'
    hooks.frames.append(
        lambda exchange, frame: (
            frame + first + rest
            if b"event:hello" in frame and b"diffs=0" in exchange.query and exchange.cursor == "0-0"
            else frame
        )
    )
