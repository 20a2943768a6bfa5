"""Parameters of the query that mean something else than is said."""

from proof.servers.fault_helpers import refuse, rewrite_query
from proof.servers.faults import faulty_server


@faulty_server("TW-OVR-009", "parameters.parameters_and_members_are_read_as_said")
def unknown_members_are_refused(hooks):
    """A member that is not known is refused."""
    refuse(hooks, lambda exchange: b"x.colour" in exchange.body, 422, "invalid_input", pointer="/x.colour")


@faulty_server("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def the_first_of_two_parameters_counts(hooks):
    """A parameter that stands twice is taken once."""

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
    """`token=` is taken for a token."""
    refuse(hooks, lambda exchange: b"token=&" in exchange.query, 401, "unauthorized")


@faulty_server("TW-JOB-006", "parameters.what_means_the_same_as_nothing_is_taken")
def parameters_are_judged_at_every_url(hooks):
    """A parameter of event streams is judged at other URLs as well."""
    wrong = lambda exchange: exchange.path == "/v1" and b"diffs=2" in exchange.query  # noqa: E731
    refuse(hooks, wrong, 400, "bad_parameter")


@faulty_server("TW-JOB-007", "parameters.a_limit_is_a_number_from_1_to_1000")
def a_page_of_nothing_is_one_of_all(hooks):
    """`limit=0` means no limit."""
    rewrite_query(hooks, rb"limit=0", b"")


@faulty_server("TW-JOB-007", "parameters.a_limit_is_a_number_from_1_to_1000")
def a_page_of_too_many_is_cut_silently(hooks):
    """A `limit` above 1000 is taken for 1000."""
    rewrite_query(hooks, rb"limit=1001", b"limit=1000")


@faulty_server("TW-JOB-007", "parameters.an_interval_is_a_number_without_a_sign")
def an_interval_below_nothing_is_taken(hooks):
    """A `min_interval_ms` below 0 is taken for 0."""
    rewrite_query(hooks, rb"min_interval_ms=-\d+", b"min_interval_ms=0")


@faulty_server("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def only_a_cursor_may_not_stand_twice(hooks):
    """Of `diffs` and `errors` that stand twice the first counts."""
    rewrite_query(hooks, rb"(diffs=1|errors=http)&\1", rb"\1")


@faulty_server("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def diffs_is_read_as_a_word(hooks):
    """`diffs=false` means `diffs=0`, as a framework reads it."""
    rewrite_query(hooks, rb"diffs=false", b"diffs=0")


@faulty_server("TW-JOB-006", "parameters.what_means_the_same_as_nothing_is_taken")
def a_submit_judges_a_cursor(hooks):
    """`after` of a submit, which has no cursor, is judged."""
    refuse(hooks, lambda exchange: exchange.is_submit and b"after=x" in exchange.query, 400, "bad_cursor")
