"""Checks for sections 2.4 and 11.4: limits for each principal, that is, each user. Limits that are too large are not tested."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack

from tidewire_conformance.checks.ownership import other_principal, two_anonymous_callers
from tidewire_conformance.checks.queue_progress_ping_goaway import (
    MAX_WAITING_HEARTBEAT,
    judge_ping_of_waiting_job,
)
from tidewire_conformance.judging.server_probe import MAX_TESTED_CONCURRENCY, SampleRequest
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange
from tidewire_conformance.wire.recording_client import BUSY_SECONDS, BUSY_STATUSES, BUSY_TRIES, Stream, Wire

STREAMS_AT_ONCE = 16
"""Number of streams that a check opens concurrently, so that a job of a few seconds does not end before all are open."""
READ_SECONDS = 0.2
"""Time, in seconds, to read the events that a stream has already received."""
END_SECONDS = 10.0
"""Timeout, in seconds, for a stream to end after its job was cancelled. The option `--patience` multiplies it."""


def _limit(s: Session, name: str) -> int:
    limit = s.server.limits.get(name)
    if limit is None:
        s.skip_untested(f"the server declares no limit {name}")
    if limit > MAX_TESTED_CONCURRENCY:
        s.skip_untested(
            f"the limit {name} is {limit}, but the suite tests limits of at most {MAX_TESTED_CONCURRENCY}"
        )
    return limit


async def _retry_until(send: Callable[[], Awaitable[RecordedExchange]], *codes: str) -> RecordedExchange:
    """Repeat a request while the server is too busy for the check to judge the limit.

    The server is busy if its response has status 429 or 503, and a problem code other than `codes`.
    """
    for _ in range(BUSY_TRIES):
        answer = await send()
        if answer.status not in BUSY_STATUSES or answer.code in codes:
            break
        wait = answer.response_header("retry-after")
        await asyncio.sleep(min(float(wait) if wait.isdigit() else 1.0, BUSY_SECONDS))
    return answer


async def _stream(wire: Wire, place: str) -> RecordedExchange:
    """Request a stream and read until it is clear whether the server accepts the request."""

    async def send() -> RecordedExchange:
        async with wire.open("GET", place, header=EVENT_STREAM, once=True) as stream:
            await stream.until(lambda now: now.ended or now.of_type("problem") or now.logged)
        return stream.exchange

    return await _retry_until(send, "too_many_streams")


async def _open_streams(
    s: Session, stack: AsyncExitStack, job: Job, count: int, wire: Wire | None = None
) -> list[Stream]:
    """Open several streams of a job. If the server refuses one of them, skip the check."""

    async def open_stream(_: int) -> Stream:
        return await stack.enter_async_context(s.follow(job, wire=wire))

    streams = await s.concurrently(open_stream, range(count), at_once=STREAMS_AT_ONCE)
    for answer in (each.exchange for each in streams):
        s.skip_unless(answer.is_stream, f"{answer} returned {answer.outcome}, before stream {count + 1}")
    return streams


async def _why_ended(s: Session, job: Job, streams: Sequence[Stream], wire: Wire | None = None) -> str:
    """Return the reason why streams of a job may have ended, or an empty string if all of them must still be open."""
    found = (each.until(lambda now: now.of_type("goaway"), READ_SECONDS) for each in streams)
    if any(await asyncio.gather(*found)):
        return "the server ended streams with goaway"
    return "the job ended" if (await s.read(job, wire)).member("done") else ""


async def _submit(wire: Wire, sample: SampleRequest) -> RecordedExchange:
    async def send() -> RecordedExchange:
        return await wire.request("POST", sample.submit_to, json=sample.body, once=True)

    return await _retry_until(send, "too_many_jobs", "queue_full")


@check("TW-DSC-013", "TW-SEC-024", "TW-DSC-012", "TW-ERR-016", alone=True)
async def stream_above_the_limit_returns_429(s: Session) -> None:
    """A request for one stream too many gets 429 `too_many_streams`, or a `problem` event without an id. Other streams
    continue.
    """
    limit = _limit(s, "max_streams_per_principal")
    sample = s.long_running_sample(20)
    job = await s.submit(sample)
    async with AsyncExitStack() as stack:
        streams = await _open_streams(s, stack, job, limit)
        late = await _stream(s.wire, job.events)
        if late.is_stream and (why := await _why_ended(s, job, streams)):
            s.skip_no_occasion(f"{why} before {limit + 1} streams were open")
        s.at(late).refused(("TW-SEC-024", "TW-DSC-012"), 429, "too_many_streams", f"stream {limit + 1}")
        if "inband_problems" in s.server.capabilities:
            inband = await _stream(s.wire, f"{job.events}?errors=inband")
            block = next(iter(inband.of_type("problem")), None)
            # A stream that has ended in the meantime has made room for this one.
            if block is not None or not await _why_ended(s, job, streams):
                problem = block.members if block else {}
                wanted = "a `problem` event without an id, because the client may retry"
                s.at(inband, block).expect(
                    "TW-ERR-016", block and block.id is None, wanted, block and block.id
                )
                waits = next((each.retry for each in inband.blocks if each.retry is not None), None)
                due = problem.get("retry_after_ms")
                wanted = f"a retry field equal to retry_after_ms, {due}"
                s.at(inband, block).expect("TW-ERR-016", waits is not None and waits == due, wanted, waits)
        if s.wire.header and s.hooks.second:
            other = other_principal(s)
            theirs = await _submit(other, sample)
            place = s.job(sample, theirs).path
            read = await _stream(other, f"{place}/events")
            s.at(read).response("TW-SEC-024", read.is_stream, "a stream for another caller")
            await other.request("POST", f"{place}/cancel")
        await s.cancel(job)
        await asyncio.gather(*(each.until(lambda now: now.of_type("done"), END_SECONDS) for each in streams))
        for each in streams:
            kinds = [block.type for block in each.exchange.events]
            s.at(each.exchange).expect(
                "TW-DSC-013", "done" in kinds, "a stream that continues to done", kinds
            )


async def _cancel(s: Session, jobs: list[str]) -> None:
    await asyncio.gather(*(s.wire.request("POST", f"{each}/cancel") for each in jobs))


@check(
    "TW-SEC-024",
    "TW-DSC-012",
    "TW-FRM-063",
    "TW-FRM-067",
    "TW-FRM-083",
    "TW-BRW-005",
    "TW-DSC-027",
    alone=True,
)
async def job_above_the_limit_returns_429(s: Session) -> None:
    """A caller that exceeds the limit by one job gets 429 `too_many_jobs`, and a caller far below the limit does not. Meanwhile,
    other callers are served, and queued jobs get pings.
    """
    limit = _limit(s, "max_jobs_per_principal")
    sample = s.script_sample({"sleep_ms": 120_000})
    jobs = []
    for _ in range(limit + 1):
        answer = await _submit(s.wire, sample)
        if answer.status != 201:
            break
        jobs.append(s.job(sample, answer).path)
    if answer.code == "queue_full":
        await _cancel(s, jobs)
        s.skip_no_occasion(
            f"the queue is full after {len(jobs)} jobs, before a caller reaches max_jobs_per_principal ({limit})"
        )
    s.at(answer).refused(("TW-SEC-024", "TW-DSC-012"), 429, "too_many_jobs", f"job {limit + 1}")
    # Jobs of earlier checks may not have ended yet.
    wanted = f"at least {limit // 2} jobs, because the declared max_jobs_per_principal is {limit}"
    s.at(answer).expect(
        "TW-DSC-027", len(jobs) >= limit // 2, wanted, f"{answer.code} after {len(jobs)} jobs"
    )
    if s.wire.header and s.hooks.second:
        other = other_principal(s)
        theirs = await _submit(other, sample)
        s.at(theirs).status("TW-SEC-024", 201, "for another caller")
        await other.request("POST", f"/v1/jobs/{theirs.member('id')}/cancel")
    if s.hooks.origin:
        # A different layer of the server may reject this request. That response needs CORS headers, too.
        late = await s.post(sample, header={"Origin": s.hooks.origin}, once=True)
        allowed = late.response_header("access-control-allow-origin")
        sound = late.status == 201 or allowed in {s.hooks.origin, "*"}
        s.at(late).expect("TW-BRW-005", sound, f"Access-Control-Allow-Origin: {s.hooks.origin}", allowed)
    if jobs and s.server.heartbeat <= MAX_WAITING_HEARTBEAT:
        # This cursor says that the reader already has the snapshot. The server must still send the queue position.
        back = EVENT_STREAM | {"Last-Event-ID": "1-1"}
        async with s.wire.open("GET", f"{jobs[-1]}/events", header=back) as waiting:
            await judge_ping_of_waiting_job(s, waiting)
            waits = not any(block.type in {"message", "done"} for block in waiting.exchange.logged)
            sound = bool(waiting.exchange.of_type("queue")) or not waits
            got = [block.type for block in waiting.exchange.events]
            wanted = "a queue event after hello, for a waiting job"
            s.at(waiting.exchange).expect("TW-FRM-067", sound, wanted, got)
            if waits and waiting.exchange.of_type("queue"):
                # Cancel most of the jobs ahead in the queue. The waiting job must then move up or start.
                places = len(waiting.exchange.of_type("queue"))
                await _cancel(s, jobs[len(jobs) // 4 : -1])
                moved = await waiting.until(
                    lambda now: len(now.of_type("queue")) > places or now.logged, END_SECONDS
                )
                s.at(waiting.exchange).expect(
                    "TW-FRM-063", moved, "a new queue position after many jobs ahead were cancelled", places
                )
    await _cancel(s, jobs)
    control = await s.post(sample, json=(s.server.any_sample() or sample).body)
    s.at(control).status("TW-SEC-024", 201, "after the jobs have ended")


@check("TW-SEC-024", alone=True)
async def anonymous_caller_at_the_stream_limit_does_not_lock_out_others(s: Session) -> None:
    """While one anonymous caller is at its stream limit, an anonymous caller with another address still gets a stream."""
    limit = _limit(s, "max_streams_per_principal")
    first, second, job = await two_anonymous_callers(s, s.long_running_sample(20))
    async with AsyncExitStack() as stack:
        streams = await _open_streams(s, stack, job, limit, first)
        theirs = await _stream(second, job.events)
        if theirs.is_stream and (why := await _why_ended(s, job, streams, first)):
            s.skip_no_occasion(f"{why} before {limit + 1} streams were open")
        s.at(theirs).response("TW-SEC-024", theirs.is_stream, "a stream for another anonymous caller")
    await first.request("POST", f"{job.path}/cancel")


@check("TW-SEC-024", alone=True)
async def anonymous_caller_at_the_job_limit_does_not_lock_out_others(s: Session) -> None:
    """While one anonymous caller is at its job limit, an anonymous caller with another address can still submit a job."""
    limit = _limit(s, "max_jobs_per_principal")
    sample = s.long_running_sample(20)
    first, second, job = await two_anonymous_callers(s, sample)
    jobs = [job.path]
    for _ in range(limit):
        answer = await first.request("POST", sample.submit_to, json=sample.body, once=True)
        if answer.status != 201:
            break
        jobs.append(s.job(sample, answer).path)
    theirs = await _submit(second, sample)
    s.at(theirs).status("TW-SEC-024", 201, "for another anonymous caller")
    jobs += [s.job(sample, theirs).path] if theirs.status == 201 else []
    await asyncio.gather(*(first.request("POST", f"{each}/cancel") for each in jobs))
