"""Checks for section 6.7: the effect of `DELETE` on a job and on its open streams."""

from tidewire_conformance.checks.errors import UNKNOWN_JOB
from tidewire_conformance.checks.ownership import comparable, other_principal, requests_for_a_job
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Session


@check("TW-JOB-059", "TW-JOB-062", "TW-RES-028", needs=["delete"])
async def purged_job_returns_410(s: Session) -> None:
    """A `DELETE` request for a job gets 204, and each later request for that job gets 410 `job_expired`."""
    job, history = await s.run_to_end(s.any_sample())
    answer = await s.wire.request("DELETE", job.path)
    s.at(answer).status("TW-JOB-059", 204)
    tombstone = s.server.limits.get("tombstone_ttl_s", 0)
    if tombstone < 1:
        s.skip_no_occasion("tombstone_ttl_s is 0")
    asked = [("GET", ""), ("GET", "/events"), ("POST", "/cancel"), ("DELETE", "")]
    asked += [("POST", "/stream-token")] if "stream_tokens" in s.server.capabilities else []
    for method, place in asked:
        gone = await s.wire.request(method, job.path + place)
        s.at(gone).refused(("TW-JOB-062", "TW-RES-028"), 410, "job_expired", f"{method} {place}")
    late = await s.stream(job, history.logged[-1].id or "")
    s.at(late).refused("TW-RES-028", 410, "job_expired", "the cursor of done")


@check("TW-JOB-060", "TW-JOB-059", needs=["delete"])
async def purge_sends_done_to_readers(s: Session) -> None:
    """If a client deletes a running job, each connected reader gets a `done` event."""
    sample = s.long_running_sample(30)
    job = await s.submit(sample)
    async with s.follow(job) as stream:
        await stream.until(lambda now: now.logged)
        answer = await s.wire.request("DELETE", job.path)
        s.at(answer).status("TW-JOB-059", 204)
        last = await stream.to_end(10)
    done = last.of_type("done")
    if not done and last.events and last.events[-1].type == "goaway":
        s.skip_no_occasion("the server ended the stream with goaway when the job was deleted")
    s.at(last).expect(
        "TW-JOB-060", done, "done, for the reader that was connected", [b.type for b in last.events][-2:]
    )
    if done and sample.endpoint == "tidewire.script":
        s.at(last).equal("TW-JOB-060", done[0].member("status"), "cancelled")


@check("TW-JOB-044", "TW-SEC-001", needs=["delete"], after="ownership")
async def purged_jobs_of_other_principals_look_unknown(s: Session) -> None:
    """A request for a purged job of another principal gets the same response as a request for an unknown job."""
    other = other_principal(s)
    job, history = await s.run_to_end(s.any_sample())
    deleted = await s.wire.request("DELETE", job.path)
    s.skip_unless(deleted.status == 204, f"{deleted} returned {deleted.outcome}")
    for method, place, cursor in requests_for_a_job(history.logged[-1].id or ""):
        header = EVENT_STREAM | {"Last-Event-ID": cursor} if cursor else {}
        theirs = await other.request(method, job.path + place, header=header)
        unknown = await other.request(method, f"/v1/jobs/{UNKNOWN_JOB}{place}", header=header)
        s.at(theirs).equal("TW-JOB-044", comparable(theirs), comparable(unknown))
        s.at(theirs).equal("TW-SEC-001", theirs.status, unknown.status)
    mine = await s.read(job)
    if s.server.limits.get("tombstone_ttl_s", 0) >= 1:
        s.at(mine).status("TW-SEC-001", 410, "for the principal that owned the job")
