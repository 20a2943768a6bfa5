"""Faulty servers with errors in query parameters."""

from proof.servers.fault_helpers import refuse, rewrite_query
from proof.servers.faults import faulty_server


@faulty_server("TW-OVR-009", "parameters.parameters_and_members_are_read_as_said")
def unknown_members_are_refused(hooks):
    """Unknown members of a submit are refused."""
    refuse(hooks, lambda exchange: b"x.colour" in exchange.body, 422, "invalid_input", pointer="/x.colour")


@faulty_server("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def the_first_of_two_parameters_counts(hooks):
    """A repeated query parameter is accepted."""

    def once(exchange):
        query = exchange.query
        exchange.query = query.partition(b"&after=")[0] if query.count(b"after=") > 1 else query

    hooks.requests.append(once)


@faulty_server("TW-JOB-007", "parameters.what_means_the_same_as_nothing_is_taken")
def diffs_is_known_with_0_alone(hooks):
    """`diffs=1` is refused."""
    refuse(hooks, lambda exchange: b"diffs=1" in exchange.query, 400, "bad_parameter")


@faulty_server("TW-JOB-078", "parameters.what_means_the_same_as_nothing_is_taken")
def an_empty_token_is_a_wrong_one(hooks):
    """An empty `token=` is treated as a wrong token."""
    refuse(hooks, lambda exchange: b"token=&" in exchange.query, 401, "unauthorized")


@faulty_server("TW-JOB-006", "parameters.what_means_the_same_as_nothing_is_taken")
def parameters_are_judged_at_every_url(hooks):
    """A parameter of event streams is also validated at other URLs."""
    wrong = lambda exchange: exchange.path == "/v1" and b"diffs=2" in exchange.query  # noqa: E731
    refuse(hooks, wrong, 400, "bad_parameter")


@faulty_server("TW-JOB-007", "parameters.a_limit_is_a_number_from_1_to_1000")
def a_page_of_nothing_is_one_of_all(hooks):
    """`limit=0` is accepted and means no limit."""
    rewrite_query(hooks, rb"limit=0", b"")


@faulty_server("TW-JOB-007", "parameters.a_limit_is_a_number_from_1_to_1000")
def a_page_of_too_many_is_cut_silently(hooks):
    """A `limit` above 1000 is treated as 1000."""
    rewrite_query(hooks, rb"limit=1001", b"limit=1000")


@faulty_server("TW-JOB-007", "parameters.an_interval_is_a_number_without_a_sign")
def an_interval_below_nothing_is_taken(hooks):
    """A negative `min_interval_ms` is treated as 0."""
    rewrite_query(hooks, rb"min_interval_ms=-\d+", b"min_interval_ms=0")


@faulty_server("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def only_a_cursor_may_not_stand_twice(hooks):
    """A repeated `diffs` or `errors` parameter is accepted."""
    rewrite_query(hooks, rb"(diffs=1|errors=http)&\1", rb"\1")


@faulty_server("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def diffs_is_read_as_a_word(hooks):
    """`diffs=false` is accepted as `diffs=0`."""
    rewrite_query(hooks, rb"diffs=false", b"diffs=0")


@faulty_server("TW-JOB-006", "parameters.what_means_the_same_as_nothing_is_taken")
def a_submit_judges_a_cursor(hooks):
    """A submit validates `after`, although it has no cursor."""
    refuse(hooks, lambda exchange: exchange.is_submit and b"after=x" in exchange.query, 400, "bad_cursor")
