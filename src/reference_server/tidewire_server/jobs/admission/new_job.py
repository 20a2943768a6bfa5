"""The first block, the record and the queue entries of a new job."""

import os
import time
from typing import NamedTuple

from pydantic import JsonValue

from tidewire.protocol.diff import DiffError
from tidewire.protocol.document import Document
from tidewire_server import tracing
from tidewire_server.endpoints.item_writer import value_path
from tidewire_server.errors import EndpointFunctionError, refuse
from tidewire_server.job_log.snapshot_events import first_block
from tidewire_server.jobs.admission.admitted_job import AdmittedJob
from tidewire_server.jobs.live_item import batch_slot, queue_entry
from tidewire_server.jobs.outcomes import RESERVED_END_BYTES
from tidewire_server.settings import Settings
from tidewire_server.store.jobs_interface import NewJob
from tidewire_server.store.records import JobRecord, Key, QueueLimits


class PreparedJob(NamedTuple):
    """A job that is ready to be committed."""

    new: NewJob
    columns: list[list[str]]
    """Columns of each item, relative to the value of the item."""
    document: Document
    """State after the first block."""
    size: int
    """Size of the state in bytes."""


def prepare_job(
    principal: str,
    admitted: AdmittedJob,
    body: bytes,
    key: tuple[Key, bytes] | None,
    settings: Settings,
    limits: QueueLimits,
) -> PreparedJob:
    """Prepare a job with validated inputs.

    Args:
        principal: Principal that submits the job.
        admitted: Endpoint, request and inputs of the job.
        body: Body of the request.
        key: Idempotency key and SHA-256 of the body, or None. See `NewJob.key`.
        settings: The server's settings.
        limits: Limits of the queue.

    Raises:
        ProblemError: The state of the job is too large.
        EndpointFunctionError: The endpoint's initial value, or its columns, are not valid.
    """
    endpoint, submission, values = admitted.endpoint, admitted.submission, admitted.values
    items: list[JsonValue] = [{"status": "queued", "value": endpoint.initial(value)} for value in values]
    columns = [endpoint.columns(value) for value in values]
    # Column pointers of the whole job. The columns of an item are relative to the item's value.
    pointers = [value_path(index, column) for index, of_item in enumerate(columns) for column in of_item]
    state: JsonValue = {"status": "queued", "items": items, "usage": {}, "notes": []}
    try:
        block, document, size = first_block(state, pointers)
    except DiffError as error:
        raise EndpointFunctionError(
            f"endpoint {endpoint.name!r}: the initial value or the columns are not valid"
        ) from error
    if size + RESERVED_END_BYTES * len(values) > settings.max_state_bytes:
        detail = (
            f"the job's initial state has {size} bytes, which is too large for the limit of "
            f"{settings.max_state_bytes} bytes (max_state_bytes)"
        )
        raise refuse("input_too_long", detail, pointer="/inputs" if submission.batch else "/input")
    batch = submission.batch or len(values) > 1  # TW-GEN-009
    record = JobRecord(os.urandom(16).hex(), endpoint.name, principal, batch, time.time())
    record.traceparent = tracing.trace_headers().get("traceparent")
    new = NewJob(
        record,
        body,
        block,
        key,
        [queue_entry(record, index) for index in range(len(values))],
        None if endpoint.batching is None else [batch_slot(endpoint, value) for value in values],
        limits,
        submission.deadline,
        submission.grace_of_job(settings.min_grace),
    )
    return PreparedJob(new, columns, document, size)
