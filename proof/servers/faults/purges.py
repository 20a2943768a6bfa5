"""Faulty servers with errors when a job is purged."""

from proof.servers.expected_side_failures import GONE, REPLICA_FEATURES
from proof.servers.fault_helpers import gone_is_unknown, replace_events
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("purged_stream_ends_without_done", "TW-JOB-060", "purges.purge_sends_done_to_readers",
      "Streams of a purged job end without `done`.",
      frames=replace_events(b'"status":"cancelled","usage"', lambda frame: b":gone\n\n"),
      also_fails=REPLICA_FEATURES | {"a purge cancels a running job, and cancelled jobs end without `done`":
          "cancels.cancel_ends_the_job queue_progress_ping_goaway.stream_ends_with_a_closing_event limits_per_caller.stream_above_the_limit_returns_429", "without `done` there is no usage":
          "generation.cancelled_generation_reports_reason_and_usage"})

fault("stream_token_of_purged_job_gets_404", "TW-JOB-062", "purges.purged_job_returns_410",
      "A request for a stream token for a purged job is answered with 404 instead of 410.",
      bodies=gone_is_unknown(at=".*/stream-token"))
# fmt: on


@faulty_server("TW-JOB-062", "purges.purged_job_returns_410", hook="bodies", also_fails=GONE)
def purged_job_gets_404(exchange, status, body):
    """A request for a purged job is answered with 404 instead of 410."""
    return (
        (404, body.replace(b"job_expired", b"job_not_found").replace(b"410", b"404"))
        if status == 410
        else None
    )
