"""Checks of recommendations about a job's log: how many events it has, and how long it is kept."""

from tidewire_conformance.registry import check
from tidewire_conformance.session import Session

MERGE_MS = 5
"""Minimum time, in milliseconds, between two logged events while the value of a job changes continuously."""
CHANGES = 900
"""Number of changes that a job makes without a pause."""
UNMERGED_EVENTS = 10
"""Number of events that a server need not merge, such as those for the start and the end of an item."""
MIN_LOG_TTL = 60
"""Shortest `log_ttl_s`, in seconds, for which the check expects the log of a job that has just ended."""
MIN_LOG_BYTES = 65_536
"""Smallest `max_log_bytes` for which the check expects a short log to be kept."""


@check("TW-DIF-041")
async def continuous_changes_are_merged(s: Session) -> None:
    """While a value changes continuously, the server logs at most one event in 5 ms.

    The check measures the time from the submission to the arrival of `done`, which is longer than the server spent on the
    changes. A slow machine or network can therefore only raise the allowed number of events.
    """
    sample = s.script_sample(*[{"append": "x"}] * CHANGES)
    began = s.wire.now()
    _, history = await s.run_to_end(sample)
    done = history.of_type("done")[0]
    most = int((s.wire.now() - began) * 1000 / MERGE_MS) + UNMERGED_EVENTS
    count = len(history.logged)
    s.at(history, done).expect("TW-DIF-041", count <= most, f"at most {most} logged events", count)


@check("TW-RES-027")
async def log_of_an_ended_job_is_kept(s: Session) -> None:
    """The log of a job that has just ended begins with the event that its first reader received."""
    limits = s.server.limits
    if limits.get("log_ttl_s", 0) < MIN_LOG_TTL or limits.get("max_log_bytes", 0) < MIN_LOG_BYTES:
        s.skip_no_occasion(f"log_ttl_s is below {MIN_LOG_TTL}, or max_log_bytes below {MIN_LOG_BYTES}")
    job = await s.submit(s.growing_sample())
    live = await s.stream(job, "0-0")
    first = live.logged[0] if live.logged else None
    if first is None or first.snapshot_reason != "start":
        s.skip_no_occasion("the first event of the job's log was not sent")
    replayed = await s.stream(job, "0-0")
    s.at(replayed).equal(
        "TW-RES-027", replayed.logged_ids[:1], [first.id], f"the event {first.id}, which is still in the log"
    )
