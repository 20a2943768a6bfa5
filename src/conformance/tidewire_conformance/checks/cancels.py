"""Checks for section 6.6: requests to cancel running jobs, ended jobs and single items."""

from tidewire_conformance.checks.jobs import has_grown
from tidewire_conformance.checks.resume import same_log
from tidewire_conformance.judging.server_probe import LONG_TEXT
from tidewire_conformance.registry import check
from tidewire_conformance.schema_violations import json_text
from tidewire_conformance.session import Session


@check("TW-JOB-050", "TW-JOB-051", "TW-JOB-057", "TW-JOB-055", "TW-JOB-001")
async def cancel_ends_the_job(s: Session) -> None:
    """A request to cancel a running job gets 202, and the job ends as `cancelled` with its current value. A second
    request gets 200.
    """
    sample = s.long_running_sample(30)
    job = await s.submit(sample)
    started = await s.read_until(job, has_grown)
    if started.member("done"):
        s.inconclusive("the job ended before it was cancelled")
    answer = await s.cancel(job)
    s.at(answer).response(
        "TW-JOB-051", answer.status in {200, 202} and answer.member("id") == job.id, "202 and the job"
    )
    s.at(answer).response("TW-JOB-001", answer.status in {200, 202}, "202 for a request to cancel")
    if answer.status == 200:
        s.at(answer).expect("TW-JOB-051", answer.member("done"), "202, because the job has not ended", "200")
    async with s.follow(job, "0-0") as stream:
        ended = await stream.until(lambda now: now.of_type("done"), 10)
        last = stream.exchange
    if not s.at(last).expect(
        "TW-JOB-050", ended, "a done event soon after the job was cancelled", "the job still runs after 10 s"
    ):
        return
    status = last.of_type("done")[0].member("status")
    item = s.items(await s.read(job))[0]
    whole = not s.server.has_script or item["value"] == LONG_TEXT
    if answer.status == 200 and status == sample.ended and whole:
        s.inconclusive(
            f"the job was running before the request to cancel, and had ended as {status} after the request; unless the"
            " job ended by itself in between, the server must end it as cancelled"
        )
    s.at(last).equal("TW-JOB-050", status, "cancelled")
    kept = item["status"] == "cancelled" and bool(item["value"])
    s.at(last).expect("TW-JOB-057", kept, "a cancelled item that keeps its value", item)
    again = await s.cancel(job, json={})
    state = again.status, again.member("status")
    s.at(again).equal("TW-JOB-051", state, (200, "cancelled"), "200 and the job as cancelled")
    same = same_log(last, await s.history(job))
    s.at(again).expect("TW-JOB-055", same, "an unchanged log after the second request to cancel")


@check("TW-JOB-055", "TW-JOB-051")
async def cancel_of_ended_job_has_no_effect(s: Session) -> None:
    """A request to cancel a job that has ended gets 200 and does not change the job."""
    job, history = await s.run_to_end(s.any_sample())
    answer = await s.cancel(job)
    s.at(answer).status("TW-JOB-051", 200)
    final = history.of_type("done")[0].member("status")
    s.at(answer).equal(
        "TW-JOB-055", answer.member("status"), final, f"{final}, the status before the request"
    )


@check("TW-JOB-090", "TW-JOB-053", "TW-JOB-054", "TW-JOB-016", seconds=1.5)
async def cancel_with_empty_or_invalid_items_has_no_effect(s: Session) -> None:
    """A cancel request with an empty `items` has no effect. A request with an invalid index gets 422 and cancels
    nothing.
    """
    sample = s.long_running_sample(1.5)
    job = await s.submit(sample)
    none = await s.cancel(job, json={"items": []})
    s.at(none).response("TW-JOB-053", none.status in {200, 202}, "202")
    for items in ([0, 1], [-1], [0.5], ["0"], [False], 0):
        answer = await s.cancel(job, json={"items": items})
        s.at(answer).refused("TW-JOB-054", 422, "invalid_input", f"items {json_text(items)}")
        points = answer.pointer.startswith("/items")
        s.at(answer).expect("TW-JOB-016", points, "a pointer to the item", answer.pointer)
    status = await s.final_status(job)
    s.expect(
        ("TW-JOB-054", "TW-JOB-053", "TW-JOB-090"),
        status == sample.ended,
        f"the status {sample.ended} at the end of the job",
        status,
    )
