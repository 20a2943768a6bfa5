"""Checks of jobs that wait in the queue: their deadlines, and their cancellation."""

import asyncio

from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.registry import check
from tidewire_conformance.session import READ_INTERVAL, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

MAX_BLOCKERS = 24
"""Maximum number of jobs that the check starts until one of them has to wait."""
DEADLINE_MS = 200
"""Deadline of the job that waits, in milliseconds."""
WITNESS_DEADLINES_MS = (1500, 4000)
"""Deadlines, in milliseconds, of the job that was submitted first. The longer one is for a busy machine."""
BLOCKER_MS = 60_000
WAITING_READS = 3
"""Number of reads that must all show that a job waits."""


@check("TW-JOB-069", "TW-JOB-071", "TW-BAT-015", "TW-JOB-050", serial=True, after="deadlines")
async def waiting_jobs_end_without_running(s: Session) -> None:
    """The deadline of a job counts from its submission, so that it can fail while it waits. A job that is cancelled
    while it waits never runs.

    A running job with a later deadline is the witness: when it has failed, the job with the earlier deadline must have
    failed, too. At that moment, the running job makes place for one that waits.
    """
    for deadline in WITNESS_DEADLINES_MS:
        started: list[Job] = []
        try:
            if await _judge(s, deadline, started):
                return
        finally:
            for job in started:
                await s.cancel(job)
    s.skip_no_occasion("no job had to wait for longer than its deadline")


async def _judge(s: Session, witness_deadline: int, started: list[Job]) -> bool:
    """Start jobs until two of them wait, and judge these two. Return whether they were submitted in time."""
    sample = s.script_sample({"append": "a"}, {"sleep_ms": BLOCKER_MS})
    began = s.wire.now()
    witness = await s.submit(sample, deadline_ms=witness_deadline)
    started.append(witness)
    for _ in range(min(MAX_BLOCKERS, s.server.limits.get("max_jobs_per_principal", MAX_BLOCKERS) - 4)):
        answer = await s.post(sample, once=True)
        if answer.status != 201:
            s.skip_no_occasion(f"{answer} returned {answer.status} {answer.code} before a job had to wait")
        started.append(Job(answer.json["id"], sample, answer))
        if await _waits(s, started[-1]):
            break
    else:
        s.skip_no_occasion(f"the server runs {MAX_BLOCKERS} jobs at the same time")
    late, left = await s.submit(sample, deadline_ms=DEADLINE_MS), await s.submit(sample)
    started += late, left
    # If this took longer, the witness could end before the deadline of the job that waits.
    in_time = (s.wire.now() - began) * 1000 < witness_deadline / 2 - DEADLINE_MS
    answer = await s.cancel(left)
    s.skip_unless(answer.status in {200, 202}, f"{answer} returned {answer.status} {answer.code}")
    ended = await s.stream(witness)
    code = [block.member("error", {}).get("code") for block in ended.of_type("done")]
    s.skip_unless(code == ["deadline_exceeded"], "a running job did not fail at its deadline")
    overdue = await s.read(late)
    if in_time and not overdue.member("done"):
        for requirement in ("TW-JOB-069", "TW-JOB-071"):
            wanted = (
                "a failed job, because its deadline was earlier than that of a job that has already failed"
            )
            s.at(overdue).expect(requirement, False, wanted, overdue.member("status"))
        return True
    had_to_wait = in_time and not _ran(await s.history(late)) and _shows(s, answer, {"queued", "cancelled"})
    if not had_to_wait:
        return False
    item = s.items(overdue)[0]
    got = item["status"], item.get("error", {}).get("code")
    for requirement in ("TW-JOB-069", "TW-JOB-071"):
        s.at(overdue).equal(requirement, got, ("failed", "deadline_exceeded"))
    for job in started[:-1]:
        await s.cancel(job)
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


async def _waits(s: Session, job: Job) -> bool:
    """Whether a job still waits after several reads."""
    for _ in range(WAITING_READS):
        if not _shows(s, await s.read(job), {"queued"}):
            return False
        await asyncio.sleep(READ_INTERVAL * s.wire.patience)
    return True


def _shows(s: Session, answer: RecordedExchange, statuses: set[str]) -> bool:
    """Whether the item of a job has one of these statuses."""
    return s.items(answer)[0]["status"] in statuses
