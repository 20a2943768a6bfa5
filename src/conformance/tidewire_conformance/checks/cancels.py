"""Checks for section 6.6: requests to cancel running jobs, ended jobs and single items."""

from tidewire_conformance.checks.jobs import has_started
from tidewire_conformance.checks.resume import contents
from tidewire_conformance.registry import check
from tidewire_conformance.session import Session


@check("TW-JOB-050", "TW-JOB-051", "TW-JOB-057", "TW-JOB-055", "TW-JOB-001")
async def cancel_ends_the_job(s: Session) -> None:
    """A request to cancel a running job gets 202, and the job ends as `cancelled` with its current value. A second
    request gets 200.
    """
    sample = s.long_running_sample(30)
    job = await s.submit(sample)
    started = await s.read_until(job, lambda answer: has_started(answer) or answer.members.get("done"))
    if started.members.get("done"):
        s.inconclusive("the job ended before it was cancelled")
    answer = await s.wire.request("POST", f"{job.path}/cancel")
    s.expect("TW-JOB-051", answer.status in {200, 202} and answer.members.get("id") == job.id, "202 and the job",
             f"{answer.status} {answer.code}", at=answer)  # fmt: skip
    s.expect(
        "TW-JOB-001", answer.status in {200, 202}, "202 for a request to cancel", answer.status, at=answer
    )
    async with s.follow(job, "0-0") as stream:
        ended = await stream.until(lambda now: now.of_type("done"), 10)
        last = stream.exchange
    if not s.expect(
        "TW-JOB-050",
        ended,
        "a done event soon after the job was cancelled",
        "the job still runs after 10 s",
        at=last,
    ):
        return
    if answer.status == 200 and last.of_type("done")[0].members.get("status") == sample.ended:
        s.inconclusive("the job had ended before it was cancelled")
    status = last.of_type("done")[0].members.get("status")
    s.expect("TW-JOB-050", status == "cancelled", "cancelled", status, at=last)
    item = s.items(await s.read(job))[0]
    s.expect("TW-JOB-057", item["status"] == "cancelled" and bool(item["value"]), "a cancelled item that keeps its value",
             item, at=last)  # fmt: skip
    again = await s.wire.request("POST", f"{job.path}/cancel", json={})
    s.expect("TW-JOB-051", (again.status, again.members.get("status")) == (200, "cancelled"), "200 and the job as cancelled",
             f"{again.status} {again.members.get('status')}", at=again)  # fmt: skip
    s.expect(
        "TW-JOB-055",
        contents((await s.history(job)).logged) == contents(last.logged),
        "an unchanged log after the second request to cancel",
        at=again,
    )


@check("TW-JOB-055", "TW-JOB-051")
async def cancel_of_ended_job_has_no_effect(s: Session) -> None:
    """A request to cancel a job that has ended gets 200 and does not change the job."""
    job, history = await s.run_to_end(s.any_sample())
    answer = await s.wire.request("POST", f"{job.path}/cancel")
    s.expect("TW-JOB-051", answer.status == 200, "200", f"{answer.status} {answer.code}", at=answer)
    s.expect("TW-JOB-055", answer.members.get("status") == history.of_type("done")[0].members.get("status"),
             "the final status that the job had before the request", answer.members.get("status"), at=answer)  # fmt: skip


@check("TW-JOB-053", "TW-JOB-054", "TW-JOB-016", slow=True)
async def cancel_with_empty_or_invalid_items_has_no_effect(s: Session) -> None:
    """A cancel request with an empty `items` has no effect. A request with an invalid index gets 422 and cancels
    nothing.
    """
    sample = s.long_running_sample(1.5)
    job = await s.submit(sample)
    none = await s.wire.request("POST", f"{job.path}/cancel", json={"items": []})
    s.expect("TW-JOB-053", none.status in {200, 202}, "202", f"{none.status} {none.code}", at=none)
    for items in ([0, 1], [-1], [0.5], ["0"], [False], 0):
        answer = await s.wire.request("POST", f"{job.path}/cancel", json={"items": items})
        s.expect_refused("TW-JOB-054", answer, 422, "invalid_input", f"items {items}")
        pointer = str(answer.members.get("pointer", "")) if answer.status == 422 else ""
        s.expect("TW-JOB-016", pointer.startswith("/items"), "a pointer to the item", pointer, at=answer)
    end = await s.stream(job)
    status = next((block.members.get("status") for block in end.of_type("done")), "no done")
    s.expect("TW-JOB-054", status == sample.ended, f"the status {sample.ended} at the end of the job", status)
    s.expect("TW-JOB-053", status == sample.ended, f"the status {sample.ended} at the end of the job", status)
