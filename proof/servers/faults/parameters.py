"""Faulty servers with errors in query parameters."""

from proof.servers.fault_helpers import refuse, rewrite_query
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("unknown_members_refused", "TW-OVR-009", "parameters.invalid_parameters_return_400",
      "A request to submit a job is rejected if it has unknown members.",
      instead=refuse(lambda exchange: b"x.colour" in exchange.body, 422, "invalid_input", pointer="/x.colour"),
      also_fails={"the check uses unknown members to test the limits of JSON": "bodies.json_limits_are_exact"})
fault("repeated_diffs_or_errors_accepted", "TW-JOB-007", "parameters.invalid_parameters_return_400",
      "The parameters `diffs` and `errors` may be repeated.",
      requests=rewrite_query(rb"(diffs=1|errors=http)&\1", rb"\1"))
fault("diffs_false_accepted", "TW-JOB-007", "parameters.invalid_parameters_return_400",
      "`diffs=false` is accepted as `diffs=0`.",
      requests=rewrite_query(rb"diffs=false", b"diffs=0"))

fault("diffs_1_refused", "TW-JOB-007", "parameters.default_parameter_values_are_accepted",
      "`diffs=1` is refused.",
      instead=refuse(lambda exchange: b"diffs=1" in exchange.query, 400, "bad_parameter"))
fault("empty_token_refused", "TW-JOB-078", "parameters.default_parameter_values_are_accepted",
      "An empty `token=` is treated as a wrong token.",
      instead=refuse(lambda exchange: b"token=&" in exchange.query, 401, "unauthorized"))
fault("stream_parameter_validated_at_every_url", "TW-JOB-006", "parameters.default_parameter_values_are_accepted",
      "A query parameter for event streams is validated even at URLs that are not event streams.",
      instead=refuse(lambda exchange: exchange.path == "/v1" and b"diffs=2" in exchange.query, 400,
          "bad_parameter"))
fault("submit_validates_after", "TW-JOB-006", "parameters.default_parameter_values_are_accepted",
      "A request to submit a job is rejected if `after` is invalid, although such a request has no cursor.",
      instead=refuse(lambda exchange: exchange.is_submit and b"after=x" in exchange.query, 400, "bad_cursor"),
      also_fails={"a submission has no cursor, whichever way it is sent":
          "jobs.submit_ignores_a_cursor"})

fault("limit_0_means_no_limit", "TW-JOB-007", "parameters.limit_outside_1_to_1000_returns_400",
      "`limit=0` is accepted and means no limit.",
      requests=rewrite_query(rb"limit=0", b""))
fault("excess_limit_reduced_to_1000", "TW-JOB-007", "parameters.limit_outside_1_to_1000_returns_400",
      "A `limit` above 1000 is treated as 1000.",
      requests=rewrite_query(rb"limit=1001", b"limit=1000"))

fault("negative_min_interval_ms_accepted", "TW-JOB-007", "parameters.invalid_min_interval_ms_returns_400",
      "A negative `min_interval_ms` is treated as 0.",
      requests=rewrite_query(rb"min_interval_ms=-\d+", b"min_interval_ms=0"))
# fmt: on


@faulty_server("TW-JOB-007", "parameters.invalid_parameters_return_400", hook="requests")
def repeated_parameter_accepted(exchange):
    """A repeated query parameter is accepted."""
    query = exchange.query
    exchange.query = query.partition(b"&after=")[0] if query.count(b"after=") > 1 else query
