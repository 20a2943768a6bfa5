"""Faulty servers with errors in idempotency keys."""

import asyncio
import json

from proof.servers.expected_side_failures import NEW_STREAM
from proof.servers.fault_helpers import change_key, drop_events, drop_header, refuse, set_request_header
from proof.servers.fault_proxy import problem
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("idempotency_key_ignored", "TW-JOB-028", "idempotency.repeated_submit_returns_the_same_job",
      "Idempotency keys are ignored, so that a repeated request starts another job.",
      requests=set_request_header("idempotency-key", None),
      also_fails={"the check repeats a submit with the same key after the job has expired":
          "durable.expired_job_returns_410"})
fault("replay_without_idempotency_replayed", "TW-JOB-029", "idempotency.repeated_submit_returns_the_same_job",
      "The response to a repeated request lacks `Idempotency-Replayed`.",
      heads=drop_header("idempotency-replayed"))

fault("replayed_stream_has_only_done", "TW-JOB-030", "idempotency.repeated_submit_returns_the_ended_job",
      "The stream in response to a repeated request contains only `done`.",
      frames=drop_events(b'"reason":"compacted"', lambda exchange: exchange.key),
      also_fails=NEW_STREAM)


fault("key_with_spaces_accepted", "TW-JOB-025", "idempotency.invalid_key_returns_400",
      "An idempotency key with spaces is accepted.",
      requests=change_key(lambda exchange: exchange.key.replace(" ", "-")))


fault("keys_case_insensitive", "TW-JOB-026", "idempotency.keys_are_case_sensitive_and_scoped_to_the_endpoint",
      "Idempotency keys are compared case-insensitively.",
      requests=change_key(lambda exchange: exchange.key.lower()))

fault("keys_cut_at_64_characters", "TW-JOB-026", "idempotency.keys_are_compared_in_full",
      "Only the first 64 characters of an idempotency key are compared.",
      requests=change_key(lambda exchange: exchange.key[:64] + exchange.key[255:]),
      also_fails={"a long invalid key becomes the valid key of an earlier request":
          "requests_with_several_errors.request_with_several_errors_reports_one"})
fault("keys_unquoted", "TW-JOB-026", "idempotency.keys_are_compared_in_full",
      "Quotation marks around an idempotency key are removed.",
      requests=change_key(lambda exchange: exchange.key.strip('"')))
# fmt: on


@faulty_server("TW-JOB-019", "idempotency.repeated_submit_returns_the_ended_job", hook="heads")
def replayed_stream_without_content_location(exchange, status, headers):
    """The stream in response to a repeated request lacks `Content-Location`."""
    if "idempotency-replayed" in headers:
        headers.pop("content-location", None)


@faulty_server("TW-JOB-031", "idempotency.key_reuse_with_another_body_returns_422", hook="requests")
def reused_key_with_another_body_accepted(exchange):
    """If an idempotency key is reused with another body, the server returns the first job."""
    if key := exchange.header("idempotency-key"):
        exchange.body = exchange.shared.setdefault(key, exchange.body)


@faulty_server("TW-JOB-034", "idempotency.rejected_submit_does_not_use_up_its_key")
def refused_submit_uses_up_its_key(hooks):
    """A rejected request to submit a job uses up its idempotency key."""

    def burn(exchange, status, body):
        if status == 422 and exchange.header("idempotency-key"):
            hooks.shared[exchange.header("idempotency-key")] = True

    is_burnt = lambda exchange: hooks.shared.get(exchange.header("idempotency-key"))  # noqa: E731
    hooks.bodies.append(burn)
    hooks.instead.append(refuse(is_burnt, 422, "idempotency_key_reused"))


@faulty_server("TW-JOB-033", "idempotency.key_of_purged_job_returns_410")
def purge_frees_the_key(hooks):
    """The idempotency key of a purged job can be used again."""

    def other_key(exchange):
        if exchange.key in hooks.shared.get("free", ()):
            exchange.set_header("idempotency-key", f"{exchange.key}-again")
        if exchange.method == "DELETE":
            hooks.shared.setdefault("free", set()).add(hooks.shared.get(exchange.path.rpartition("/")[2]))

    def note(exchange, status, body):
        if exchange.key and status == 201:
            hooks.shared[json.loads(body)["id"]] = exchange.key

    hooks.requests.append(other_key)
    hooks.bodies.append(note)


@faulty_server("TW-JOB-028", "idempotency.repeated_submit_returns_the_ended_job")
def key_forgotten_when_job_ends(hooks):
    """An idempotency key is forgotten when its job ends."""

    def other_key(exchange):
        if exchange.key in hooks.shared.get("ended", ()):
            exchange.set_header("idempotency-key", f"{exchange.key}-again")

    def note(exchange, frame):
        if b"event:done" in frame and exchange.key:
            hooks.shared.setdefault("ended", set()).add(exchange.key)
        return frame

    hooks.requests.append(other_key)
    hooks.frames.append(note)


@faulty_server("TW-JOB-028", "idempotency.concurrent_submits_start_one_job", hook="requests")
async def concurrent_submits_start_several_jobs(exchange):
    """Concurrent requests with the same idempotency key start several jobs."""
    if key := exchange.key:
        flying = exchange.shared.setdefault("flying", [])
        flying.append(key)
        await asyncio.sleep(0.05)
        if flying.count(key) > 1:
            exchange.set_header("idempotency-key", f"{key}-{flying.count(key)}")
        flying.remove(key)


@faulty_server("TW-JOB-026", "idempotency.keys_are_case_sensitive_and_scoped_to_the_endpoint", hook="instead")
def keys_shared_by_all_endpoints(exchange):
    """Idempotency keys are shared by all endpoints."""
    first = (
        exchange.shared.setdefault((exchange.header("authorization"), exchange.key), exchange.path)
        if exchange.key
        else ""
    )
    return problem(422, "idempotency_key_reused") if first not in {"", exchange.path} else None


@faulty_server("TW-JOB-034", "idempotency.rejected_submit_does_not_use_up_its_key", hook="instead")
def wrong_media_type_uses_up_key(exchange):
    """A request to submit a job with a wrong media type uses up its idempotency key."""
    if exchange.key and "json" not in exchange.header("content-type"):
        exchange.shared[exchange.key] = "kept"
    elif exchange.key and exchange.shared.get(exchange.key) == "kept":
        return problem(422, "idempotency_key_reused")
    return None


@faulty_server(
    "TW-JOB-034",
    "idempotency.rejected_submit_does_not_use_up_its_key",
    also_fails={
        "a refused submission starts a job": "requests_with_several_errors.refused_submit_starts_no_job"
    },
)
def unacceptable_submit_runs_its_job(hooks):
    """A request to submit a job is rejected because of its `Accept` header, but the job runs anyway."""
    late = lambda exchange: exchange.own.get("accept") == "text/html"  # noqa: E731

    def remember(exchange):
        exchange.own["accept"] = exchange.header("accept") if exchange.is_submit else ""
        if late(exchange):
            exchange.set_header("accept", "application/json")

    hooks.requests.append(remember)
    hooks.heads.append(
        lambda exchange, status, headers: headers.update(problem(406, "")[1]) if late(exchange) else None
    )
    hooks.bodies.append(
        lambda exchange, status, body: problem(406, "not_acceptable")[::2] if late(exchange) else None
    )
