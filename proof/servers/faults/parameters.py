"""Faulty servers with errors in query parameters."""

from proof.servers.fault_helpers import refuse, rewrite_query
from proof.servers.faults import faulty_server


@faulty_server("TW-OVR-009", "parameters.invalid_parameters_return_400")
def unknown_members_refused(hooks):
    """A request to submit a job is rejected if it has unknown members."""
    refuse(hooks, lambda exchange: b"x.colour" in exchange.body, 422, "invalid_input", pointer="/x.colour")


@faulty_server("TW-JOB-007", "parameters.invalid_parameters_return_400")
def repeated_parameter_accepted(hooks):
    """A repeated query parameter is accepted."""

    def once(exchange):
        query = exchange.query
        exchange.query = query.partition(b"&after=")[0] if query.count(b"after=") > 1 else query

    hooks.requests.append(once)


@faulty_server("TW-JOB-007", "parameters.default_parameter_values_are_accepted")
def diffs_1_refused(hooks):
    """`diffs=1` is refused."""
    refuse(hooks, lambda exchange: b"diffs=1" in exchange.query, 400, "bad_parameter")


@faulty_server("TW-JOB-078", "parameters.default_parameter_values_are_accepted")
def empty_token_refused(hooks):
    """An empty `token=` is treated as a wrong token."""
    refuse(hooks, lambda exchange: b"token=&" in exchange.query, 401, "unauthorized")


@faulty_server("TW-JOB-006", "parameters.default_parameter_values_are_accepted")
def stream_parameter_validated_at_every_url(hooks):
    """A query parameter for event streams is validated even at URLs that are not event streams."""
    wrong = lambda exchange: exchange.path == "/v1" and b"diffs=2" in exchange.query  # noqa: E731
    refuse(hooks, wrong, 400, "bad_parameter")


@faulty_server("TW-JOB-007", "parameters.limit_outside_1_to_1000_returns_400")
def limit_0_means_no_limit(hooks):
    """`limit=0` is accepted and means no limit."""
    rewrite_query(hooks, rb"limit=0", b"")


@faulty_server("TW-JOB-007", "parameters.limit_outside_1_to_1000_returns_400")
def excess_limit_reduced_to_1000(hooks):
    """A `limit` above 1000 is treated as 1000."""
    rewrite_query(hooks, rb"limit=1001", b"limit=1000")


@faulty_server("TW-JOB-007", "parameters.invalid_min_interval_ms_returns_400")
def negative_min_interval_ms_accepted(hooks):
    """A negative `min_interval_ms` is treated as 0."""
    rewrite_query(hooks, rb"min_interval_ms=-\d+", b"min_interval_ms=0")


@faulty_server("TW-JOB-007", "parameters.invalid_parameters_return_400")
def repeated_diffs_or_errors_accepted(hooks):
    """The parameters `diffs` and `errors` may be repeated."""
    rewrite_query(hooks, rb"(diffs=1|errors=http)&\1", rb"\1")


@faulty_server("TW-JOB-007", "parameters.invalid_parameters_return_400")
def diffs_false_accepted(hooks):
    """`diffs=false` is accepted as `diffs=0`."""
    rewrite_query(hooks, rb"diffs=false", b"diffs=0")


@faulty_server("TW-JOB-006", "parameters.default_parameter_values_are_accepted")
def submit_validates_after(hooks):
    """A request to submit a job is rejected if `after` is invalid, although such a request has no cursor."""
    refuse(hooks, lambda exchange: exchange.is_submit and b"after=x" in exchange.query, 400, "bad_cursor")
