"""Checks of jobs that wait in the queue: their deadlines, their cancellation and their pings."""

import asyncio

from tidewire_conformance.checks.queue_progress_ping_goaway import (
    MAX_WAITING_HEARTBEAT,
    judge_ping_of_waiting_job,
)
from tidewire_conformance.judging.server_probe import SampleRequest
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.registry import check
from tidewire_conformance.session import READ_INTERVAL, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

MAX_BLOCKERS = 24
"""Maximum number of jobs that the check starts until one of them has to wait."""
DEADLINE_MS = 200
"""Deadline of the job that waits, in milliseconds."""
WITNESS_DEADLINES_MS = (1000, 4000)
"""Deadlines, in milliseconds, of the running job that serves as a witness. The longer one is for a busy machine."""
BLOCKER_MS = 60_000
BLOCKERS_AT_ONCE = 12
OTHER_JOBS = 5
"""Number of jobs that the check leaves free below the caller's limit, for its other jobs and for the idle stream."""
WAITING_READS = 3
"""Number of reads that must all show that a job waits."""
NO_JOB_WAITS = "no submitted job had to wait, because the server ran or refused all of them at once"
MARGIN_MS = 300
"""Minimum time, in milliseconds, from the deadline of the waiting job to the deadline of the witness."""


@check("TW-JOB-069", "TW-JOB-071", "TW-BAT-015", "TW-JOB-050", serial=True, after="deadlines")
async def waiting_jobs_end_without_running(s: Session) -> None:
    """The deadline of a job counts from its submission, so that it can fail while it waits. A job that is cancelled
    while it waits never runs.

    A running job with a later deadline serves as a witness. When the witness has failed, the waiting job with the earlier
    deadline must have failed, too. The failure of the witness also makes room for one of the waiting jobs.
    """
    for deadline in WITNESS_DEADLINES_MS:
        started: list[Job] = []
        try:
            if await _judge(s, deadline, started):
                return
        finally:
            await asyncio.gather(*map(s.cancel, started))
    s.skip_no_occasion("no job had to wait for longer than its deadline")


@check("TW-FRM-083", serial=True, after="queue_progress_ping_goaway")
async def waiting_job_receives_pings(s: Session) -> None:
    """The stream of a job that waits in the queue has pings within the heartbeat interval."""
    if s.server.heartbeat > MAX_WAITING_HEARTBEAT:
        s.skip_untested(f"the heartbeat interval is longer than {MAX_WAITING_HEARTBEAT:g} s")
    sample = s.script_sample({"append": "a"}, {"sleep_ms": BLOCKER_MS})
    started: list[Job] = []
    try:
        if not await _fill_all_places(s, sample, started):
            s.skip_no_occasion(NO_JOB_WAITS)
        started.append(last := await s.submit(sample))
        async with s.follow(last) as waiting:
            await judge_ping_of_waiting_job(s, waiting)
            if _ran(waiting.exchange):
                s.skip_no_occasion("the job started before a ping was due")
    finally:
        await asyncio.gather(*map(s.cancel, started))


async def _judge(s: Session, witness_deadline: int, started: list[Job]) -> bool:
    """Submit jobs until two of them wait. Judge one that is cancelled, and one that reaches its deadline. Return False if neither can be judged."""
    sample = s.script_sample({"append": "a"}, {"sleep_ms": BLOCKER_MS})
    began = s.wire.now()
    witness = await s.submit(sample, deadline_ms=witness_deadline)
    started.append(witness)
    if not await _fill_all_places(s, sample, started):
        s.skip_no_occasion(NO_JOB_WAITS)
    late, left = await asyncio.gather(s.submit(sample, deadline_ms=DEADLINE_MS), s.submit(sample))
    started += late, left
    # If this took longer, the witness could end before the deadline of the job that waits.
    in_time = (s.wire.now() - began) * 1000 < witness_deadline - DEADLINE_MS - MARGIN_MS
    answer = await s.cancel(left)
    s.skip_unless(answer.status in {200, 202}, f"{answer} returned {answer.outcome}")
    ended = await s.stream(witness)
    code = [block.member("error", {}).get("code") for block in ended.of_type("done")]
    s.skip_unless(code == ["deadline_exceeded"], "a running job did not fail at its deadline")
    overdue = await s.read(late)
    if in_time and not overdue.member("done"):
        wanted = "a failed job, because its deadline was earlier than that of a job that has already failed"
        s.at(overdue).expect(("TW-JOB-069", "TW-JOB-071"), False, wanted, overdue.member("status"))
        return True
    had_to_wait = in_time and not _ran(await s.history(late)) and _shows(s, answer, {"queued", "cancelled"})
    if not had_to_wait:
        return False
    item = s.items(overdue)[0]
    got = item["status"], item.get("error", {}).get("code")
    s.at(overdue).equal(("TW-JOB-069", "TW-JOB-071"), got, ("failed", "deadline_exceeded"))
    await asyncio.gather(*map(s.cancel, started[:-1]))
    del started[:-1]
    async with s.follow(left, "0-0") as stream:
        await stream.until(lambda now: now.of_type("done") or _ran(now))
        seen = stream.exchange
    s.at(seen).expect("TW-BAT-015", not _ran(seen), "a cancelled job that never runs", "a running item")
    status = [block.member("status") for block in seen.of_type("done")]
    s.at(seen).equal("TW-JOB-050", status, ["cancelled"], "the status cancelled")
    return True


def _ran(exchange: RecordedExchange) -> bool:
    """Whether an event shows a running item."""
    states = (step.after for _, steps in Histories([exchange]).streams for step in steps)
    items = [item for state in states if state is not None for item in state.value["items"]]
    return any(item["status"] == "running" for item in items)


async def _fill_all_places(s: Session, sample: SampleRequest, started: list[Job]) -> bool:
    """Submit jobs until one of them has to wait. Returns whether one waits and the queue has room for two more jobs."""
    most = min(MAX_BLOCKERS, s.server.limits.get("max_jobs_per_principal", MAX_BLOCKERS) - OTHER_JOBS)
    for _ in range(0, most, BLOCKERS_AT_ONCE):
        answers = await asyncio.gather(*(s.post(sample, once=True) for _ in range(BLOCKERS_AT_ONCE)))
        jobs = [s.job(sample, each) for each in answers if each.status == 201]
        started += jobs
        waiting = jobs
        for _ in range(WAITING_READS):
            await asyncio.sleep(READ_INTERVAL * s.wire.patience)
            reads = await asyncio.gather(*map(s.read, waiting))
            waiting = [job for job, read in zip(waiting, reads, strict=True) if _shows(s, read, {"queued"})]
        if len(jobs) == len(answers) and waiting:
            return True
        if len(jobs) < len(answers):
            await asyncio.gather(*map(s.cancel, waiting[:2]))
            return len(waiting) > 2
    return False


def _shows(s: Session, answer: RecordedExchange, statuses: set[str]) -> bool:
    """Whether the item of a job has one of these statuses."""
    return s.items(answer)[0]["status"] in statuses
