"""Faulty servers that cancel a job because its readers have disconnected."""

from proof.servers.fault_helpers import rewrite_body
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault

MIN_GRACE_IN_DISCOVERY = rewrite_body(b'"min_grace_ms":1000', b'"min_grace_ms":5000', at="/v1")


def cancel_after_a_second(condition):
    """Add `on_disconnect: cancel` and a grace period of a second to the submissions that satisfy a condition."""

    def add(exchange):
        body = exchange.json
        if exchange.is_submit and isinstance(body, dict) and "grace_ms" not in body and condition(exchange):
            exchange.body = exchange.body.rstrip().removesuffix(b"}") + b',"x":0}'
            exchange.body = exchange.body.replace(b'"on_disconnect":"continue"', b'"x":1')
            exchange.body = exchange.body.replace(b'"x":0', b'"on_disconnect":"cancel","grace_ms":1000')
            exchange.own["cancels"] = True

    return add


def _asks_for_a_stream(exchange):
    return "event-stream" in exchange.header("accept")


def _has_member(exchange):
    body = exchange.json if exchange.is_submit and isinstance(exchange.json, dict) else {}
    return "on_disconnect" in body or "grace_ms" in body


def _refuse_members(exchange):
    if not _has_member(exchange) or exchange.own.get("cancels"):
        return None
    return problem(
        422, "invalid_input", pointer="/on_disconnect" if "on_disconnect" in exchange.json else "/grace_ms"
    )


def _respond_with_json(exchange):
    if exchange.is_submit:
        exchange.set_header("accept", "application/json")
    cancel_after_a_second(lambda exchange: not _has_member(exchange))(exchange)


WITHOUT_DISCONNECT = {
    "settings": {"min_grace": 1.0},
    "bodies": rewrite_body(rb'"disconnect",|"min_grace_ms":1000,|,"min_grace_ms":1000', b"", at="/v1"),
    "instead": _refuse_members,
}
"""Hooks of a server that does not declare the capability `disconnect` and refuses its members."""


# fmt: off
fault("job_cancelled_a_second_after_its_reader_left", "TW-JOB-063", "disconnects.job_runs_on_without_its_readers",
      "A job whose submission asked for a stream is cancelled a second after its reader has disconnected.",
      settings={"min_grace": 1.0}, bodies=MIN_GRACE_IN_DISCOVERY,
      requests=cancel_after_a_second(_asks_for_a_stream),
      also_fails={"the fault changes the body of a repeated submission that asks for a stream": "idempotency.*"})
fault("job_cancelled_without_the_capability", "TW-JOB-063", "disconnects.job_runs_on_without_its_readers",
      "The server does not declare `disconnect`, and cancels a job a second after its reader has disconnected.",
      requests=cancel_after_a_second(lambda exchange: _asks_for_a_stream(exchange) and not _has_member(exchange)),
      **WITHOUT_DISCONNECT,
      also_fails={"the fault changes the body of a repeated submission that asks for a stream": "idempotency.*"})
fault("job_submitted_for_json_is_cancelled", "TW-JOB-063", "disconnects.job_runs_on_without_its_readers",
      "The server does not declare `disconnect`, responds to each submission with JSON, and cancels a job a second after "
      "its reader has disconnected.",
      requests=_respond_with_json, **WITHOUT_DISCONNECT,
      also_fails={"checks that submit a job need the stream in the response": "*"})
# fmt: on
