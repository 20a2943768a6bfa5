"""Representation of a job for `GET /v1/jobs/{id}`.

The state, the columns and the cursor in the result belong to the same event of the log.
"""

from datetime import UTC, datetime

from tidewire.protocol.messages import to_json
from tidewire.protocol.resources import JobLinks, JobResource
from tidewire_server.store.interfaces import JobRecord, LogReader


async def read_job(record: JobRecord, log: LogReader, root: str, *, state: bool = True) -> JobResource:
    """Create the representation of a job from the job's record and log.

    Args:
        record: Record of the job.
        log: Log of the job.
        root: Path of the API root in URLs that clients use. The links in the result start with this path.
        state: Whether to include the job's state.
    """
    at = await log.state() if state else None
    extent = log.extent()
    done = record.done if extent.ended else None
    members = None if at is None else at.view.value()
    if isinstance(members, dict) and done is not None:
        done_members = to_json(done)
        members |= {name: done_members[name] for name in ("status", "usage", "error") if name in done_members}
    status = record.status if not isinstance(members, dict) else members["status"]
    url = f"{root}/jobs/{record.id}"
    return JobResource.model_validate(
        {
            "id": record.id,
            "endpoint": record.endpoint,
            "status": status,
            "batch": record.batch,
            "state": members,
            "columns": list(extent.columns),
            "cursor": str(extent.head if at is None or done is not None else at.cursor),
            "attempt": record.attempt,
            "created_at": timestamp(record.created_at),
            "started_at": None if record.started_at is None else timestamp(record.started_at),
            "ended_at": None if record.ended_at is None else timestamp(record.ended_at),
            "expires_at": None if record.expires_at is None else timestamp(record.expires_at),
            "done": done,
            "links": JobLinks(self=url, events=f"{url}/events", cancel=f"{url}/cancel"),
        }
    )


def timestamp(seconds: float) -> str:
    """Format a time, in seconds since the Unix epoch, as an RFC 3339 timestamp in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
