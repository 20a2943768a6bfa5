"""Faulty servers with errors in the refusal of callers who may not use an endpoint."""

from proof.servers.fault_helpers import refuse
from proof.servers.faults import fault
from proof.servers.server_process import BOB


def is_forbidden(exchange):
    return exchange.is_submit and "square" in exchange.path and BOB in exchange.header("authorization")


# fmt: off
fault("listed_endpoint_gets_404", "TW-DSC-006", "endpoint_permissions.listed_endpoint_is_usable_or_forbidden",
      "A submission to an endpoint that the caller may not use, but sees in discovery, is answered with 404.",
      instead=refuse(is_forbidden, 404, "endpoint_not_found"))
fault("forbidden_endpoint_gets_401", "TW-SEC-004", "endpoint_permissions.listed_endpoint_is_usable_or_forbidden",
      "A caller with valid credentials who may not use an endpoint gets 401.",
      instead=refuse(is_forbidden, 401, "unauthorized"))
fault("forbidden_endpoint_gets_another_code", "TW-SEC-004", "endpoint_permissions.listed_endpoint_is_usable_or_forbidden",
      "The problem for a caller who may not use an endpoint has a code other than `forbidden`.",
      instead=refuse(is_forbidden, 403, "unauthorized"),
      also_fails={"the specification has another status for this code": "errors.errors_are_valid_problem_documents"})
# fmt: on
