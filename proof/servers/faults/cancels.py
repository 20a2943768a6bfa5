"""Faulty servers with errors in the cancellation of jobs and items."""

from proof.servers.expected_side_failures import READ_DIFFERS, SAME_CANCELS
from proof.servers.fault_helpers import rewrite_body, rewrite_request_body
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server


def empty_cancel(exchange):
    """Replace the body of a cancel request by one that cancels no item."""
    if exchange.path.endswith("/cancel"):
        exchange.body = b'{"items":[]}'
        exchange.set_header("content-type", "application/json")


# fmt: off
fault("cancel_with_unknown_index_accepted", "TW-JOB-054", "cancels.cancel_with_empty_or_invalid_items_has_no_effect",
      "A cancel request that names an unknown item is accepted, and cancels the known items.",
      requests=rewrite_request_body(rb'^\{"items": ?\[0, ?1\]\}$', b'{"items":[0]}'))
fault("cancel_reads_false_as_item_0", "TW-JOB-054", "cancels.cancel_with_empty_or_invalid_items_has_no_effect",
      "A cancel request with `items: [false]` cancels item 0, because `False` equals 0 in Python.",
      requests=rewrite_request_body(rb'^\{"items": ?\[false\]\}$', b'{"items":[0]}'))
fault("empty_items_cancel_the_job", "TW-JOB-090", "cancels.cancel_with_empty_or_invalid_items_has_no_effect",
      "A cancel request whose `items` is empty cancels the job.",
      requests=rewrite_request_body(rb'^\{"items": ?\[\]\}$', b"{}"))

fault("cancelled_job_loses_its_value", "TW-JOB-057", "cancels.cancel_ends_the_job",
      "A cancelled job loses its value.",
      bodies=rewrite_body(rb'("status":"cancelled","value":)"[^"]*"', rb'\1""'),
      also_fails=READ_DIFFERS)
fault("cancelled_job_continues", "TW-JOB-050", "cancels.cancel_ends_the_job",
      "A cancel request is answered with 202, but the job continues.",
      requests=empty_cancel,
      also_fails=SAME_CANCELS | {"cancelled jobs that continue still count towards the limit":
          "limits_per_caller.job_above_the_limit_returns_429"})
# fmt: on


@faulty_server(
    "TW-JOB-051",
    "cancels.cancel_ends_the_job",
    hook="instead",
    also_fails={
        "further checks send two requests to cancel to one URL": "purges.purged_jobs_of_other_principals_look_unknown requests_with_several_errors.request_with_several_errors_reports_one requests_with_several_errors.long_numbers_are_refused"
    }
    | SAME_CANCELS,
)
def cancel_is_not_idempotent(exchange):
    """A second request to cancel a job is rejected."""
    seen = exchange.shared.setdefault("cancelled", set())
    again = exchange.path.endswith("/cancel") and exchange.path in seen
    seen.add(exchange.path)
    return problem(409, "jobs.cancelled", retry_after_ms=1) if again else None


@faulty_server(
    "TW-JOB-055", "cancels.cancel_of_ended_job_has_no_effect", hook="bodies", also_fails=READ_DIFFERS
)
def late_cancel_changes_status(exchange, status, body):
    """A cancel request for an ended job changes its status to `cancelled`."""
    late = exchange.path.endswith("/cancel") and status == 200
    return (status, body.replace(b'"status":"succeeded"', b'"status":"cancelled"')) if late else None
