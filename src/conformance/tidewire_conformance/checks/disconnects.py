"""Checks for section 6.8: jobs whose readers have disconnected."""

from tidewire_conformance.judging.state_history import job_of
from tidewire_conformance.registry import check
from tidewire_conformance.session import EVENT_STREAM, Job, Session

SECONDS_WITHOUT_READERS = 1.8
"""Time, in seconds, for which a job of the check runs without a reader."""


@check("TW-JOB-063", "TW-OVR-025", seconds=2)
async def job_runs_on_without_its_readers(s: Session) -> None:
    """A job without `on_disconnect: cancel` is not cancelled, even a second after its last reader has disconnected.

    After the disconnect, the suite only reads the job resource, because a new stream could keep the server from
    cancelling the job.
    """
    sample = s.long_running_sample(SECONDS_WITHOUT_READERS)
    jobs: dict[str, Job] = {}
    members: dict[str, dict[str, str]] = {"without on_disconnect": {}}
    if "disconnect" in s.server.capabilities:  # a server without it refuses the member (TW-DSC-011)
        members["with on_disconnect: continue"] = {"on_disconnect": "continue"}
    for why, member in members.items():
        body = sample.body | member
        async with s.wire.open("POST", sample.submit_to, json=body, header=EVENT_STREAM) as stream:
            await stream.until(lambda now: now.logged, 30)
        # A server that responds with JSON is judged by the job below, whose stream is opened with another request.
        if stream.exchange.is_stream and job_of(stream.exchange):
            jobs[why] = Job(job_of(stream.exchange), sample, stream.exchange)
    jobs["whose stream was opened and closed later"] = later = await s.submit(sample)
    async with s.follow(later) as stream:
        await stream.until(lambda now: now.logged, 30)
    for why, job in jobs.items():
        ended = await s.read_until(job, lambda answer: answer.member("done"))
        wanted = f"the status {sample.ended} of a job {why}, after its reader has disconnected"
        s.at(ended).equal(("TW-JOB-063", "TW-OVR-025"), ended.member("status"), sample.ended, wanted)
