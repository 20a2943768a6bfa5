"""Faulty servers that do not comply with deadlines or grace periods."""

import json

from proof.servers.expected_side_failures import FAILED_JOB
from proof.servers.fault_helpers import rewrite_body, rewrite_request_body
from proof.servers.faults import fault


def replace_deadline(condition):
    """If a request to submit a job satisfies a condition, replace the job's deadline by ten minutes."""

    def replace(exchange):
        if exchange.is_submit and isinstance(exchange.json, dict) and condition(exchange):
            exchange.body = json.dumps({**exchange.json, "deadline_ms": 600_000}).encode()

    return replace


def ignore_readers(hooks):
    """Treat a job with open streams as a job without readers."""
    from tidewire_server.jobs.admission.stream_limit_and_unread_jobs import StreamReaders

    StreamReaders.attach = lambda self, job: lambda kept_away: None


def count_reads_as_readers(hooks):
    """Restart the grace period of a job at each read of the job."""
    from tidewire_server.jobs.job_service import JobService

    def resource(self, record, root, *, read=JobService.encoded_resource):
        self.readers.attach(record.id)(0.0)
        return read(self, record, root)

    JobService.encoded_resource = resource


# fmt: off
fault("deadline_fails_with_code_internal", "TW-JOB-069", "deadlines.deadline_fails_unfinished_items",
      "An item that exceeds its deadline fails with the code `internal`.",
      bodies=rewrite_body(b"deadline_exceeded", b"internal"),
      also_fails=FAILED_JOB)
fault("stream_submit_deadline_ignored", "TW-JOB-069", "deadlines.deadline_fails_unfinished_items",
      "A job's deadline is ignored if the request to submit the job asks for a stream.",
      requests=replace_deadline(
          lambda exchange: "deadline_ms" in exchange.json and "event-stream" in exchange.header("accept")))

fault("batch_deadline_ignored", "TW-JOB-069", "deadlines.deadline_keeps_ended_items",
      "The deadline of a batch job is ignored.",
      requests=replace_deadline(lambda exchange: exchange.inputs and "deadline_ms" in exchange.json))

fault("grace_below_the_minimum_accepted", "TW-JOB-085", "deadlines.job_runs_for_min_grace_ms_without_a_reader",
      "`grace_ms` may be less than `min_grace_ms`, so that the job is cancelled soon after its reader disconnects.",
      settings={"min_grace": 0.0}, bodies=rewrite_body(b'"min_grace_ms":0', b'"min_grace_ms":5000', at="/v1"))

fault("job_without_readers_runs_on", "TW-JOB-064",
      "deadlines.job_without_readers_is_cancelled_after_its_grace_period",
      "A job with `on_disconnect: cancel` is never cancelled.",
      requests=rewrite_request_body(rb'"on_disconnect": ?"cancel"', b'"on_disconnect":"continue"'))
fault("grace_measured_from_the_submission_only", "TW-JOB-066",
      "deadlines.job_without_readers_is_cancelled_after_its_grace_period",
      "A grace period is measured from the submission, even if streams were opened afterwards.",
      install=ignore_readers)
fault("read_counts_as_a_reader", "TW-JOB-068",
      "deadlines.job_without_readers_is_cancelled_after_its_grace_period",
      "A `GET` of the job begins its grace period again.",
      install=count_reads_as_readers)

fault("grace_of_a_second_declared", "TW-DSC-025", "deadlines.min_grace_ms_is_at_least_5_s",
      "The server declares a minimum of one second for `grace_ms`.",
      bodies=rewrite_body(b'"min_grace_ms":5000', b'"min_grace_ms":1000', at="/v1"))
# fmt: on
