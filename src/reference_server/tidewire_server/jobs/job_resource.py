"""A job as it is read: state, columns and cursor at one moment."""

from datetime import UTC, datetime

from tidewire.protocol.messages import to_json
from tidewire.protocol.resources import JobLinks, JobResource
from tidewire_server.store.interfaces import JobRecord, LogReader


async def read_job(record: JobRecord, log: LogReader, root: str, *, state: bool = True) -> JobResource:
    """Read a job.

    Args:
        record: Of the job.
        log: Its log.
        root: The path under which readers reach the protocol; its links begin with it.
        state: Whether its state is read as well.
    """
    at = await log.state() if state else None
    extent = log.extent()
    done = record.done if extent.ended else None
    members = None if at is None else at.view.value()
    if isinstance(members, dict) and done is not None:
        ending = to_json(done)
        members |= {name: ending[name] for name in ("status", "usage", "error") if name in ending}
    status = record.status if not isinstance(members, dict) else members["status"]
    here = f"{root}/jobs/{record.id}"
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
            "links": JobLinks(self=here, events=f"{here}/events", cancel=f"{here}/cancel"),
        }
    )


def timestamp(seconds: float) -> str:
    """RFC 3339 in UTC, to the millisecond, of seconds since the Unix epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
