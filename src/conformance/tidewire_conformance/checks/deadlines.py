"""Checks for sections 6.8 and 6.9: deadlines, and the grace period of jobs with `on_disconnect`."""

import asyncio
from typing import Any

from tidewire_conformance.judging.state_history import value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import EVENT_STREAM, Job, Session
from tidewire_conformance.wire.recorded_exchange import RecordedExchange

BATCH_DEADLINES_MS = (1000, 6000)
"""Deadlines of a batch, in milliseconds. The check tries the longer one if a busy machine did not start all items in time."""


@check("TW-JOB-069", "TW-OVR-019", "TW-OVR-020", needs=["batches", "deadlines"], seconds=1.5)
async def deadline_keeps_ended_items(s: Session) -> None:
    """At the deadline of a job, ended items stay unchanged, all other items fail, and the job ends as
    `partially_failed`.
    """
    slow = {"script": [{"append": "b"}, {"sleep_ms": 20_000}]}
    sample = s.script_sample().with_inputs([{"script": [{"append": "a"}]}, slow, slow])
    for deadline in BATCH_DEADLINES_MS:
        job, history = await s.run_to_end(sample, deadline_ms=deadline)
        read = await s.read(job)
        items = [(each["status"], each["value"], each.get("error", {}).get("code")) for each in s.items(read)]
        if items[0][0] == "succeeded" and [value for _, value, _ in items] == ["a", "b", "b"]:
            break
    s.at(history).equal("TW-OVR-019", items[0], ("succeeded", "a", None), "the first item succeeded with a")
    late = ("failed", "b", "deadline_exceeded")
    s.at(history).equal("TW-JOB-069", items[1:], [late, late], f"{json_text(late)} for both other items")
    s.at(history).equal("TW-OVR-020", read.member("status"), "partially_failed")


MIN_GRACE_MS = 60_000
"""Value of `min_grace_ms` if discovery does not contain it."""


@check("TW-DSC-025")
async def min_grace_ms_is_at_least_5_s(s: Session) -> None:
    """If discovery contains the limit `min_grace_ms`, this limit is at least 5000."""
    answer = await s.get("/v1")
    least = s.server.limits.get("min_grace_ms", MIN_GRACE_MS)
    s.at(answer).expect("TW-DSC-025", least >= 5000, "a min_grace_ms of at least 5000", least)


@check("TW-JOB-085", "TW-JOB-063", needs=["disconnect"], seconds=1)
async def job_runs_for_min_grace_ms_without_a_reader(s: Session) -> None:
    """A job with `on_disconnect: cancel` and `grace_ms: 0` is not cancelled before its last reader has been disconnected
    for `min_grace_ms`.
    """
    least = s.server.limits.get("min_grace_ms", MIN_GRACE_MS) / 1000
    sample = s.long_running_sample(1.0)
    body = sample.body | {"on_disconnect": "cancel", "grace_ms": 0}
    async with s.wire.open("POST", sample.submit_to, json=body, header=EVENT_STREAM) as stream:
        await stream.until(value_has_grown, 30)
        left = asyncio.get_running_loop().time()
    job = s.job(sample, stream.exchange)
    ended = await s.read_until(job, lambda answer: answer.member("done"))
    passed = asyncio.get_running_loop().time() - left
    status = ended.member("status")
    wanted = f"the status {sample.ended}, because the grace period had not passed"
    s.at(ended).expect("TW-JOB-085", status == sample.ended or passed >= least, wanted, status)


MAX_GRACE_SECONDS = 6.0
"""Longest `min_grace_ms`, in seconds, for which the check of cancelled jobs waits."""


@check("TW-JOB-064", "TW-JOB-066", "TW-JOB-068", needs=["disconnect"], seconds=6.5)
async def job_without_readers_is_cancelled_after_its_grace_period(s: Session) -> None:
    """A job with `on_disconnect: cancel` is cancelled after `grace_ms` without an open stream. The time counts from the close
    of the last stream or, if no stream was opened, from the submission. A read of the job does not restart the time.
    """
    grace = s.server.limits.get("min_grace_ms", MIN_GRACE_MS) / 1000
    if grace > MAX_GRACE_SECONDS:
        s.skip_untested(f"a min_grace_ms of {grace * 1000:g} is longer than a check may take")
    steps: list[dict[str, Any]] = [{"append": "x"}, {"sleep_ms": 1000}] * 20
    sample = s.script_sample(*steps)
    member: dict[str, Any] = {"on_disconnect": "cancel", "grace_ms": round(grace * 1000)}
    clock = asyncio.get_running_loop().time

    async def read_until_done(job: Job) -> tuple[RecordedExchange, float]:
        return await s.read_until(job, lambda answer: answer.member("done"), interval=0.2), clock()

    async def never_streamed() -> None:
        submitted = clock()
        answer, ended = await read_until_done(await s.submit(sample, **member))
        status, passed = answer.member("status"), ended - submitted
        wanted = "the status cancelled of a job that was only read, and never streamed"
        s.at(answer).equal(("TW-JOB-064", "TW-JOB-068"), status, "cancelled", wanted)
        wanted = f"a cancel at least {grace:g} s after the submission"
        s.at(answer).expect("TW-JOB-066", status != "cancelled" or passed >= grace, wanted, f"{passed:.1f} s")

    async def streamed_twice() -> None:
        closed = clock()
        job = await s.submit(sample, **member)
        for seconds in (0.0, grace / 10):
            await asyncio.sleep(seconds)
            async with s.follow(job) as stream:
                if clock() - closed >= grace:
                    s.inconclusive(f"opening a stream took longer than the grace period of {grace:g} s")
                await stream.until(lambda now: now.logged, 30)
            closed = clock()
        answer, ended = await read_until_done(job)
        status, passed = answer.member("status"), ended - closed
        s.at(answer).equal(
            "TW-JOB-064", status, "cancelled", "the status cancelled of a job whose readers have disconnected"
        )
        wanted = f"a cancel at least {grace:g} s after the last stream was closed"
        s.at(answer).expect("TW-JOB-066", status != "cancelled" or passed >= grace, wanted, f"{passed:.1f} s")

    await asyncio.gather(never_streamed(), streamed_twice())


@check("TW-JOB-069", "TW-JOB-070", needs=["deadlines"], seconds=2)
async def deadline_fails_unfinished_items(s: Session) -> None:
    """An unfinished job fails with `deadline_exceeded` at its deadline. A job that ends earlier is not affected."""
    sample = s.long_running_sample(30)
    deadline = 300 if sample.seconds >= 1 else 1
    job, history = await s.run_to_end(sample, deadline_ms=deadline)
    done = history.of_type("done")[0].members
    code = done.get("error", {}).get("code") if isinstance(done.get("error"), dict) else None
    s.at(history).equal("TW-JOB-070", done.get("status"), "failed")
    item = s.items(await s.read(job))[0]
    failed_late = item.get("error", {}).get("code") == "deadline_exceeded"
    s.at(history).expect("TW-JOB-069", failed_late, "deadline_exceeded", item.get("error") or code)
    async with s.wire.open(
        "POST", sample.submit_to, json=sample.body | {"deadline_ms": deadline}, header=EVENT_STREAM
    ) as stream:
        ends = await stream.until(lambda now: now.of_type("done"), 10 + deadline / 1000)
        wanted = "a done event at the deadline, in the response to the request that submits the job"
        s.at(stream.exchange).expect("TW-JOB-069", ends, wanted, "none")
    quick = s.any_sample()
    _, control = await s.run_to_end(quick, deadline_ms=600_000)
    status = control.of_type("done")[0].member("status")
    s.at(control).equal(
        "TW-JOB-069", status, quick.ended, f"the status {quick.ended} for a job that ends before its deadline"
    )
