"""Cancel the jobs that a run leaves running, so that they use no more of the server's time."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

from tidewire_conformance.judging.state_history import job_bodies, job_of
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Wire

CONCURRENT_CANCELS: Final = 8
"""Number of requests to cancel a job that are sent at the same time."""
CANCEL_SECONDS: Final = 10.0
"""Timeout, in seconds, for all requests together. The option `--patience` multiplies it."""
_OTHER_FIELDS: Final = frozenset(
    {"host", "content-type", "content-length", "transfer-encoding", "accept", "origin", "idempotency-key"}
)
"""Header fields of a submit request, in lower case, that the suite does not copy to the cancel request for the job."""


async def cancel_leftover_jobs(wire: Wire) -> None:
    """Cancel each job in the record of a run that is not known to have ended.

    The requests have the credentials with which the job was submitted. They are not recorded, so no check judges them.
    """
    slots = asyncio.Semaphore(CONCURRENT_CANCELS)
    unrecorded = Wire(wire.base_url, patience=wire.patience, source=wire.source)

    async def cancel(job: str, submit: RecordedExchange) -> None:
        header = {name: value for name, value in submit.request_headers if name.lower() not in _OTHER_FIELDS}
        url = f"{submit.url.partition('/v1/')[0]}/v1/jobs/{job}/cancel"
        async with slots:
            with contextlib.suppress(IncompleteResponseError):
                await unrecorded.request("POST", url, header=header, once=True)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS * wire.patience):
            await asyncio.gather(*(cancel(job, submit) for job, submit in leftover_jobs(wire.record)))


def leftover_jobs(record: Sequence[RecordedExchange]) -> Iterator[tuple[str, RecordedExchange]]:
    """Yield the id of each job that is not known to have ended, with the response to the request that submitted it."""
    ended = {job_of(each) for each in record if _shows_end(each)}
    ended |= {body["id"] for each in record for body in job_bodies(each) if body.get("done")}
    seen: set[str] = set()
    for each in record:
        is_submit = each.method == "POST" and each.path.endswith("/jobs") and each.status in {200, 201}
        job = job_of(each) if is_submit else ""
        if job and job not in ended | seen:
            seen.add(job)
            yield job, each


def _shows_end(exchange: RecordedExchange) -> bool:
    """Whether a job has ended, or ends, according to the response to a request about that job."""
    cancelled = exchange.path.endswith("/cancel") and not exchange.sent and exchange.status in {200, 202}
    purged = exchange.method == "DELETE" and exchange.status == 204
    return cancelled or purged or bool(exchange.of_type("done"))
