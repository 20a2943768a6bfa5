"""Faulty servers that do not comply with deadlines or grace periods."""

import json

from proof.servers.expected_side_failures import FAILED_JOB
from proof.servers.fault_helpers import rewrite_body
from proof.servers.faults import fault


def replace_deadline(condition):
    """If a request to submit a job satisfies a condition, replace the job's deadline by ten minutes."""

    def replace(exchange):
        if exchange.is_submit and isinstance(exchange.json, dict) and condition(exchange):
            exchange.body = json.dumps({**exchange.json, "deadline_ms": 600_000}).encode()

    return replace


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

fault("grace_of_a_second_declared", "TW-DSC-025", "deadlines.min_grace_ms_is_at_least_5_s",
      "The server declares a minimum of one second for `grace_ms`.",
      bodies=rewrite_body(b'"min_grace_ms":5000', b'"min_grace_ms":1000', at="/v1"))
# fmt: on
