"""Checks for sections 6.8 and 6.9: deadlines, and the grace period of jobs with `on_disconnect`."""

import asyncio

from tidewire_conformance.judging.state_history import value_has_grown
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import EVENT_STREAM, Job, Session


@check("TW-JOB-069", "TW-OVR-019", "TW-OVR-020", needs=["batches", "deadlines"], serial=True)
async def deadline_keeps_ended_items(s: Session) -> None:
    """At the deadline of a job, ended items stay unchanged, all other items fail, and the job ends as
    `partially_failed`.
    """
    if not s.server.has_script:
        s.skip_untested("needs the endpoint tidewire.script")
    slow = {"script": [{"append": "b"}, {"sleep_ms": 6000}]}
    sample = s.batch_sample()
    job, history = await s.run_to_end(
        sample.with_inputs([{"script": [{"append": "a"}]}, slow, slow]), deadline_ms=1000
    )
    read = await s.read(job)
    items = [(item["status"], item["value"], item.get("error", {}).get("code")) for item in s.items(read)]
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


@check("TW-JOB-085", "TW-JOB-063", needs=["disconnect"], slow=True)
async def job_runs_for_min_grace_ms_without_a_reader(s: Session) -> None:
    """A job with `on_disconnect: cancel` and `grace_ms: 0` is not cancelled before its last reader has been disconnected
    for `min_grace_ms`.
    """
    least = s.server.limits.get("min_grace_ms", MIN_GRACE_MS) / 1000
    sample = s.long_running_sample(1.0)
    body = sample.body | {"on_disconnect": "cancel", "grace_ms": 0}
    async with s.wire.open("POST", sample.submit_to, json=body, header=EVENT_STREAM) as stream:
        await stream.until(value_has_grown, 30)
        place = stream.exchange.response_header("location")
        left = asyncio.get_running_loop().time()
    s.skip_unless(
        "/v1/jobs/" in place,
        "the response to the request that submits the job is not a stream with a Location",
    )
    job = Job(place.rpartition("/")[2], sample, stream.exchange)
    ended = await s.read_until(job, lambda answer: answer.member("done"))
    passed = asyncio.get_running_loop().time() - left
    status = ended.member("status")
    wanted = f"the status {sample.ended}, because the grace period had not passed"
    s.at(ended).expect("TW-JOB-085", status == sample.ended or passed >= least, wanted, status)


@check("TW-JOB-069", "TW-JOB-070", needs=["deadlines"], slow=True)
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
