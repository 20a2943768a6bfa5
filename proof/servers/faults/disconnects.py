"""Faulty servers that cancel a job because its readers have disconnected."""

from proof.servers.fault_helpers import rewrite_body
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

    return add


# fmt: off
fault("job_cancelled_a_second_after_its_reader_left", "TW-JOB-063", "disconnects.job_runs_on_without_its_readers",
      "A job whose submission asked for a stream is cancelled a second after its reader has disconnected.",
      settings={"min_grace": 1.0}, bodies=MIN_GRACE_IN_DISCOVERY,
      requests=cancel_after_a_second(lambda exchange: "event-stream" in exchange.header("accept")),
      also_fails={"a submission that asks for a stream has another body than the one that it repeats": "idempotency.*"})
# fmt: on
