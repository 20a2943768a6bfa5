"""Faulty servers with errors in streams of snapshots (`diffs=0`)."""

from proof.servers.expected_side_failures import IDS_DECREASE, WRONG_EVENT
from proof.servers.fault_helpers import rewrite_body, rewrite_query, set_request_header
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("snapshot_stream_ignores_cursor", "TW-JOB-081", "snapshots_only.diffs_0_validates_the_cursor",
      "A stream of snapshots ignores its cursor.",
      requests=set_request_header("last-event-id", None, lambda exchange: b"diffs=0" in exchange.query),
      also_fails=IDS_DECREASE)

fault("low_min_interval_ms_not_raised", "TW-JOB-074", "snapshots_only.min_interval_ms_is_raised_to_the_minimum",
      "A `min_interval_ms` below the minimum in discovery is not raised to the minimum.",
      settings={"min_snapshot_interval": 0.005},
      bodies=rewrite_body(rb'"min_interval_ms":\d+', b'"min_interval_ms":200'))

fault("snapshot_stream_ignores_min_interval_ms", "TW-JOB-073", "snapshots_only.diffs_0_returns_snapshots_and_done",
      "A stream of snapshots ignores `min_interval_ms`.",
      settings={"min_snapshot_interval": 0.001}, requests=rewrite_query(rb"&min_interval_ms=\d+", b""),
      also_fails={"the server ignores the interval in every form, also in an invalid form":
          "parameters.invalid_min_interval_ms_returns_400"})

fault("diffs_0_ignored", "TW-JOB-072", "snapshots_only.diffs_0_returns_snapshots_and_done", "`diffs=0` is ignored.",
      requests=rewrite_query(b"diffs=0", b"diffs=1"),
      also_fails={"a stream of diffs lacks the events that a stream of snapshots may leave out":
          "resume.ids_are_consecutive"})
# fmt: on


@faulty_server(
    "TW-JOB-075", "snapshots_only.diffs_0_returns_snapshots_and_done", hook="frames", also_fails=WRONG_EVENT
)
def last_snapshot_repeated(exchange, frame):
    """A stream of snapshots repeats the last snapshot before `done`."""
    if b"event:snapshot" in frame:
        exchange.own["last"] = frame
    again = b"diffs=0" in exchange.query and b"event:done" in frame
    return exchange.own.get("last", b"") + frame if again else frame


@faulty_server("TW-JOB-084", "snapshots_only.diffs_0_returns_snapshots_and_done", hook="frames")
def no_snapshots_between_first_and_last(exchange, frame):
    """A stream of snapshots sends nothing between its first and its last snapshot."""
    if b"diffs=0" not in exchange.query or b"event:snapshot" not in frame + exchange.own.get("buffered", b""):
        return frame
    if b"event:snapshot" not in frame:
        return exchange.own.pop("buffered") + frame if b"event:done" in frame else frame
    first = not exchange.own.setdefault("count", 0)
    exchange.own["count"] += 1
    exchange.own["buffered"] = b"" if first else frame
    return frame if first else b""


@faulty_server("TW-JOB-081", "snapshots_only.diffs_0_validates_the_cursor", hook="frames")
def snapshot_stream_begins_with_first_state(exchange, frame):
    """A stream of snapshots with the cursor `0-0` begins with the job's first state."""
    state = b'{"status":"queued","items":[{"status":"queued","value":""}],"usage":{},"notes":[]}'
    more = b'"columns":["/items/0/value"],"reason":"start"}\n\n'
    begins = b"event:hello" in frame and b"diffs=0" in exchange.query and exchange.cursor == "0-0"
    return frame + b'id:1-1\nevent:snapshot\ndata:{"state":%b,%b' % (state, more) if begins else frame
