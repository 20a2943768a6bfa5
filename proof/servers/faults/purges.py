"""Faulty servers with errors when a job is purged."""

from proof.servers.expected_side_failures import GONE, REPLICA_FEATURES
from proof.servers.fault_helpers import gone_is_unknown, refuse, replace_events
from proof.servers.faults import fault
from proof.servers.server_process import BOB

# fmt: off
fault("purged_stream_ends_without_done", "TW-JOB-060", "purges.purge_sends_done_to_readers",
      "Streams of a purged job end without `done`.",
      frames=replace_events(b'"status":"cancelled","usage"', lambda frame: b":gone\n\n"),
      also_fails={"a cancelled job ends without `done`, also if it waits":
          "waiting_jobs.waiting_jobs_end_without_running"} | REPLICA_FEATURES | {"a purge cancels a running job, and cancelled jobs end without `done`":
          "cancels.cancel_ends_the_job queue_progress_ping_goaway.stream_ends_with_a_closing_event limits_per_caller.stream_above_the_limit_returns_429", "without `done` there is no usage":
          "generation.cancelled_generation_reports_reason_and_usage"})

fault("stream_token_of_purged_job_gets_404", "TW-JOB-062", "purges.purged_job_returns_410",
      "A request for a stream token for a purged job is answered with 404 instead of 410.",
      bodies=gone_is_unknown(at=".*/stream-token"))

fault("purged_job_of_another_principal_gets_410", "TW-JOB-044", "purges.purged_jobs_of_other_principals_look_unknown",
      "A request for another caller's purged job is answered with 410, which reveals that the job existed.",
      requests=lambda exchange: exchange.method == "DELETE" and exchange.shared.setdefault("purged", []).append(exchange.path),
      instead=refuse(lambda exchange: BOB in exchange.header("authorization") and
          any(map(exchange.path.startswith, exchange.shared.get("purged", ()))), 410, "job_expired"))
fault("cursor_of_anothers_purged_job_gets_410", "TW-JOB-044", "purges.purged_jobs_of_other_principals_look_unknown",
      "A request with a cursor for another caller's purged job is answered with 410.",
      requests=lambda exchange: exchange.method == "DELETE" and exchange.shared.setdefault("purged", []).append(exchange.path),
      instead=refuse(lambda exchange: BOB in exchange.header("authorization") and exchange.cursor and
          any(map(exchange.path.startswith, exchange.shared.get("purged", ()))), 410, "job_expired"))

fault("purged_job_gets_404", "TW-JOB-062", "purges.purged_job_returns_410",
      "A request for a purged job is answered with 404 instead of 410.",
      bodies=lambda exchange, status, body:
          (404, body.replace(b"job_expired", b"job_not_found").replace(b"410", b"404")) if status == 410 else None,
      also_fails=GONE)
# fmt: on
