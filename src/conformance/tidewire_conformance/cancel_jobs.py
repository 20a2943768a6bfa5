"""Cancellation of the jobs that a run has started and that are still running at its end."""

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from tidewire_conformance.judging.state_history import job_bodies, job_of
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import IncompleteResponseError, Wire

CANCEL_SECONDS: Final = 10.0
"""Timeout, in seconds, to cancel all jobs. The option `--patience` multiplies it."""
CONCURRENT_CANCELS: Final = 8
"""Number of requests to cancel a job that are sent concurrently."""


def unended_jobs(record: Iterable[RecordedExchange]) -> list[RecordedExchange]:
    """Return the exchanges that started a job of which no response shows the end."""
    started: dict[str, RecordedExchange] = {}
    ended: set[str] = set()
    for each in record:
        is_submit = each.method == "POST" and each.path.endswith("/jobs") and each.status in {200, 201}
        job = job_of(each)
        if is_submit and job:
            started.setdefault(job, each)
        if _shows_end(each):
            ended.add(job)
        ended.update(body["id"] for body in job_bodies(each) if body.get("done"))
    return [exchange for job, exchange in started.items() if job not in ended]


def _shows_end(exchange: RecordedExchange) -> bool:
    """Whether a job has ended, or ends, according to the response to a request about that job."""
    cancelled = exchange.path.endswith("/cancel") and not exchange.sent and exchange.status in {200, 202}
    purged = exchange.method == "DELETE" and exchange.status == 204
    return cancelled or purged or bool(exchange.of_type("done"))


async def cancel_jobs(wire: Wire, submits: Iterable[RecordedExchange]) -> None:
    """Cancel jobs, each with the credentials that started it. The requests are not part of the record.

    Args:
        wire: Client of the run.
        submits: Exchanges that started the jobs.
    """
    client = wire.without_record()
    slots = asyncio.Semaphore(CONCURRENT_CANCELS)

    async def cancel(submit: RecordedExchange) -> None:
        split = urlsplit(submit.url)
        root = f"{split.scheme}://{split.netloc}{split.path.partition('/v1/')[0]}"
        names = {name.lower() for name, _ in wire.header} | {"authorization", "cookie"}
        own = {name: value for name, value in submit.request_headers if name.lower() in names}
        header: dict[str, str | None] = {name: None for name, _ in wire.header} | own
        async with slots:
            with contextlib.suppress(IncompleteResponseError):
                place = f"{root}/v1/jobs/{job_of(submit)}/cancel"
                await client.request("POST", place, header=header, once=True)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CANCEL_SECONDS * wire.patience):
            await asyncio.gather(*map(cancel, submits))
