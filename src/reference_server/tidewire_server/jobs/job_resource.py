"""Representation of a job for `GET /v1/jobs/{id}`.

The members `state`, `columns` and `cursor` of the result belong to the same event of the log.
"""

from datetime import UTC, datetime
from typing import Any

import orjson

from tidewire.protocol.messages import to_json
from tidewire.protocol.resources import JobLinks, JobResource
from tidewire_server.jobs.shared_texts import SharedText, SharedTexts
from tidewire_server.store.log_interface import LogReader, StateAt
from tidewire_server.store.records import Extent, JobRecord


def read_job(record: JobRecord, extent: Extent, root: str, at: StateAt | None = None) -> JobResource:
    """Create the representation of a job without the job's state.

    Args:
        record: Record of the job.
        extent: Extent of the job's log.
        root: Path of the API root in URLs that clients use. The links in the result start with this path.
        at: State from which the status and the cursor are read. By default, they come from the record and the extent.
    """
    done = record.done if extent.ended else None
    status: Any = record.status
    if at is not None:
        status = at.view.value("/status") if done is None else done.status
    url = f"{root}/jobs/{record.id}"
    # Validate the members, because a damaged log can contain a status that does not exist.
    return JobResource.model_validate(
        {
            "id": record.id,
            "endpoint": record.endpoint,
            "status": status,
            "batch": record.batch,
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


async def encode_job(record: JobRecord, log: LogReader, root: str, texts: SharedTexts) -> list[SharedText]:
    """Encode a job with its state as JSON. The returned texts form the JSON document when they are joined.

    Args:
        record: Record of the job.
        log: Log of the job.
        root: Path of the API root in URLs that clients use.
        texts: Cache of large texts that readers share.
    """
    at = await log.state()
    # Encode these members before the state, because the job may change while its state is encoded.
    job = read_job(record, log.extent(), root, at)
    members = orjson.dumps(job_members(job))
    changes: dict[str, Any] | None = None
    if job.done is not None:
        done = to_json(job.done)
        changes = {name: done[name] for name in ("status", "usage", "error") if name in done}
    state = await texts.state(record.principal, record.id, at, changes)
    rest = texts.body(record.principal, b"," + members.removeprefix(b"{"))
    return [SharedText(b'{"state":'), state, rest]


def job_members(job: JobResource) -> dict[str, Any]:
    """Return the JSON representation of a job.

    The member `done` is null while the job is unfinished (specification, section 6.4).
    """
    return {"done": None} | to_json(job)


def timestamp(seconds: float) -> str:
    """Format a time, in seconds since the Unix epoch, as an RFC 3339 timestamp in UTC with milliseconds."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
