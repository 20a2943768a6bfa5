"""Faulty servers with errors in purges of jobs."""

from proof.servers.fault_helpers import gone_is_unknown, replace_events
from proof.servers.faults import faulty_server


@faulty_server("TW-JOB-062", "purges.a_purged_job_is_gone")
def purge_answers_404(hooks):
    """A purged job is answered with 404 instead of 410."""

    def forget(exchange, status, body):
        return (
            (404, body.replace(b"job_expired", b"job_not_found").replace(b"410", b"404"))
            if status == 410
            else None
        )

    hooks.bodies.append(forget)


@faulty_server("TW-JOB-060", "purges.a_purge_ends_the_streams_of_the_job")
def purge_without_done(hooks):
    """Streams of a purged job end without `done`."""
    replace_events(hooks, b'"status":"cancelled","usage"', lambda frame: b":gone\n\n")


@faulty_server("TW-JOB-062", "purges.a_purged_job_is_gone")
def a_token_of_a_purged_job_is_looked_for_elsewhere(hooks):
    """A stream token for a purged job is answered with 404 instead of 410."""
    gone_is_unknown(hooks, at=".*/stream-token")
