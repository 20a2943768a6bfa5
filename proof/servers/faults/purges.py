"""Faulty servers with errors when a job is purged."""

from proof.servers.fault_helpers import gone_is_unknown, replace_events
from proof.servers.faults import faulty_server


@faulty_server("TW-JOB-062", "purges.purged_job_returns_410")
def purged_job_gets_404(hooks):
    """A request for a purged job is answered with 404 instead of 410."""

    def forget(exchange, status, body):
        return (
            (404, body.replace(b"job_expired", b"job_not_found").replace(b"410", b"404"))
            if status == 410
            else None
        )

    hooks.bodies.append(forget)


@faulty_server("TW-JOB-060", "purges.purge_sends_done_to_readers")
def purged_stream_ends_without_done(hooks):
    """Streams of a purged job end without `done`."""
    replace_events(hooks, b'"status":"cancelled","usage"', lambda frame: b":gone\n\n")


@faulty_server("TW-JOB-062", "purges.purged_job_returns_410")
def stream_token_of_purged_job_gets_404(hooks):
    """A request for a stream token for a purged job is answered with 404 instead of 410."""
    gone_is_unknown(hooks, at=".*/stream-token")
