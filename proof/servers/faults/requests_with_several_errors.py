"""Faulty servers with errors in the handling of refused requests."""

import re

from proof.servers.fault_helpers import refuse
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server


def is_malformed(exchange):
    return exchange.method == "POST" and exchange.body and exchange.json is None


# fmt: off
fault("two_errors_get_500", "TW-ERR-010", "requests_with_several_errors.request_with_several_errors_reports_one",
      "A request with malformed JSON for an unknown resource is answered with 500.",
      instead=refuse(lambda exchange: is_malformed(exchange)
          and ("there-is-none" in exchange.path or "AAAAAAAA" in exchange.path), 500, "internal"))
fault("two_parameters_get_another_error", "TW-ERR-010", "requests_with_several_errors.request_with_several_errors_reports_one",
      "A request with an invalid cursor and an invalid parameter gets an error that it does not have.",
      instead=refuse(lambda exchange: b"after=x&diffs=2" in exchange.query, 422, "invalid_input"),
      also_fails={"a submission ignores both parameters":
          "parameters.default_parameter_values_are_accepted"})

fault("long_cursor_gets_500", "TW-RES-011", "requests_with_several_errors.long_numbers_are_refused",
      "A cursor with more digits than Python converts is answered with 500.",
      instead=refuse(lambda exchange: re.search(rb"after=.*\d{4301}", exchange.query), 500, "internal"))
fault("long_number_gets_500", "TW-JOB-087", "requests_with_several_errors.long_numbers_are_refused",
      "A JSON number with more digits than Python converts is answered with 500.",
      instead=refuse(lambda exchange: re.search(rb"\d{4301}", exchange.body), 500, "internal"))
# fmt: on


@faulty_server(
    "TW-JOB-022",
    "requests_with_several_errors.refused_submit_starts_no_job",
    also_fails={
        "the refusal is wrong in several ways": "refused_submits.accept_header_selects_json_or_stream idempotency.rejected_submit_does_not_use_up_its_key errors.errors_are_valid_problem_documents"
    },
)
def refused_submit_runs(hooks):
    """A submission that is refused because of its `Accept` starts a job."""

    def accept(exchange):
        if exchange.is_submit and exchange.header("accept") == "text/html":
            exchange.own["refused"] = True
            exchange.set_header("accept", "application/json")

    hooks.requests.append(accept)
    hooks.bodies.append(
        lambda exchange, status, body: (
            problem(406, "not_acceptable")[::2] if exchange.own.get("refused") and status < 300 else None
        )
    )
