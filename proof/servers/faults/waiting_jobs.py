"""Faulty servers with errors in the deadlines and the cancellation of jobs that wait in the queue."""

import time

from proof.servers.faults import fault, faulty_server
from proof.servers.faults.limits_per_caller import queued_job_gets_no_pings

fault(
    "queued_job_gets_no_pings_without_a_job_limit",
    "TW-FRM-083",
    "waiting_jobs.waiting_job_receives_pings",
    "No pings are sent on a stream of a queued job, and the limit on jobs per caller is above what the suite tests.",
    settings={"max_jobs_per_principal": 1000},
    frames=queued_job_gets_no_pings,
)


@faulty_server("TW-JOB-069", "waiting_jobs.waiting_jobs_end_without_running")
def deadline_counts_from_the_start(hooks):
    """The deadline of a job counts from its start instead of its submission."""
    from tidewire_server.jobs.job import Job

    set_deadline, start = Job.set_deadline, Job._start
    deadlines = {}

    def note(job, seconds):
        deadlines[job.record.id] = seconds

    def started(job, *args, **named):
        found = start(job, *args, **named)
        if (seconds := deadlines.pop(job.record.id, None)) is not None:
            set_deadline(job, time.time() - job.record.created_at + seconds)
        return found

    Job.set_deadline, Job._start = note, started


@faulty_server(
    "TW-BAT-015",
    "waiting_jobs.waiting_jobs_end_without_running",
    also_fails={
        "cancelled jobs keep their places": "durable.any_replica_serves_any_job limits_per_caller.job_above_the_limit_returns_429"
    },
)
def cancelled_waiting_job_runs(hooks):
    """A request to cancel a job that waits is accepted, but the job runs as soon as there is a place."""
    from tidewire_server.jobs.job import Job

    inner = Job.cancel

    async def cancel(job, items=None):
        if job.record.status != "queued":
            await inner(job, items)

    Job.cancel = cancel
