"""Faulty servers whose discovery or endpoint descriptions are wrong."""

import json

from proof.servers.fault_helpers import change_data, refuse, rewrite_body, rewrite_events
from proof.servers.faults import faulty_server


@faulty_server("TW-DSC-023", "discovery.text_is_never_retracted_without_rollback", "state.text_lengths_count_code_points",
        "jobs.submit_returns_the_job")  # fmt: skip
def rollback_not_declared(hooks):
    """An endpoint that may retract text declares that it never does."""
    rewrite_body(hooks, b'"rollback":true', b'"rollback":false')


@faulty_server(
    "TW-DSC-024",
    "discovery.value_is_set_once_without_streaming",
    "batch.results_do_not_depend_on_batching",
)
def non_streaming_value_set_early(hooks):
    """An endpoint that does not declare streaming sets a value when the item starts."""

    def early(exchange, kind, data):
        starts = isinstance(data, list) and data[:1] == [["s", "/items/0/status", "running"]]
        return (
            [*data, ["s", "/items/0/value", 0]]
            if starts and hooks.shared.get(exchange.path) == "square"
            else data
        )

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            found = json.loads(body)
            hooks.shared[f"/v1/jobs/{found['id']}/events"] = found["endpoint"]

    hooks.bodies.append(note)
    change_data(hooks, early)


@faulty_server("TW-OVR-012", "discovery.discovery_document_is_valid")
def fractional_milliseconds(hooks):
    """Durations in milliseconds have a fraction."""
    rewrite_body(hooks, rb'("heartbeat_ms":\d+)', rb"\1.5", at="/v1")


@faulty_server(
    "TW-RES-052",
    "discovery.expires_at_respects_state_ttl_s",
    "jobs.ended_job_includes_done",
)
def expires_at_contradicts_ended_at(hooks):
    """`expires_at` contradicts `ended_at` and `state_ttl_s`."""
    hooks.settings["state_ttl"] = 60.0
    rewrite_body(hooks, b'"state_ttl_s":60,', b'"state_ttl_s":3600,', at="/v1")


@faulty_server("TW-DSC-003", "discovery.capabilities_match_discovery")
def capability_not_declared(hooks):
    """Discovery omits a capability that the server has."""
    rewrite_body(hooks, b'"delete",', b"", at="/v1")


@faulty_server("TW-DSC-003", "discovery.capabilities_match_discovery")
def missing_capability_declared(hooks):
    """Discovery declares a capability that the server lacks."""
    refuse(hooks, lambda exchange: exchange.path.endswith("/stream-token"), 404, "not_found")


@faulty_server("TW-DSC-001", "discovery.discovery_document_is_valid")
def limit_missing_in_discovery(hooks):
    """Discovery omits a limit."""
    rewrite_body(hooks, b'"max_depth"', b'"depth"', at="/v1")


@faulty_server("TW-DSC-019", "discovery.examples_are_accepted")
def example_violates_input_schema(hooks):
    """An example does not match the input schema of its endpoint."""
    rewrite_body(hooks, b'{"words":8}', b'{"words":"8"}')


@faulty_server("TW-DSC-020", "discovery.values_match_value_schema", "jobs.ended_job_includes_done")
def values_violate_value_schema(hooks):
    """Values do not match `value_schema`."""
    describes = b"/v1/endpoints/"

    def replace_schema(exchange, status, body):
        if exchange.method == "GET" and exchange.path.encode().startswith(describes) and status == 200:
            found = json.loads(body)
            return status, json.dumps(
                found | {"value_schema": {"type": "boolean"}}
            ).encode() if "value_schema" in found else body
        return None

    hooks.bodies.append(replace_schema)


@faulty_server("TW-DSC-005", "discovery.discovery_document_does_not_change")
def discovery_changes(hooks):
    """The discovery document has different content in each response."""

    def count(exchange, status, body):
        if (exchange.method, exchange.path) != ("GET", "/v1"):
            return None
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        return status, json.dumps(json.loads(body) | {"heartbeat_ms": 400 + hooks.shared["n"]}).encode()

    hooks.bodies.append(count)


@faulty_server("TW-SEC-014", "discovery.oversized_body_returns_413")
def chunked_body_size_not_limited(hooks):
    """The size limit for bodies is enforced only by `Content-Length`."""

    def cut(exchange):
        if not exchange.header("content-length") and len(exchange.body) > 1024 * 1024:
            exchange.body = exchange.body.strip()

    hooks.requests.append(cut)


@faulty_server("TW-DSC-022", "discovery.endpoint_descriptions_are_valid")
def schema_with_remote_ref(hooks):
    """A schema has a `$ref` to a remote document."""
    elsewhere = b'"value_schema":{"$ref":"https://schemas.example/value.json"}'
    rewrite_body(hooks, b'"value_schema":{"type":"integer"}', elsewhere, at=".*square.*")


@faulty_server("TW-DSC-017", "discovery.endpoint_descriptions_are_valid")
def schema_with_unknown_type(hooks):
    """A schema uses a type that JSON Schema does not define."""
    rewrite_body(hooks, b'{"type":"integer"}', b'{"type":"int"}', at=".*square.*")


@faulty_server("TW-RES-052", "discovery.expires_at_respects_state_ttl_s")
def done_expires_in_the_past(hooks):
    """The member `expires_at` of a `done` event is in the past."""
    past = rb'("expires_at":")\d{4}'
    rewrite_events(hooks, past, rb"\g<1>2001")
    rewrite_body(hooks, rb'("done":\{.*?"expires_at":")\d{4}', rb"\g<1>2001")


@faulty_server("TW-DSC-017", "discovery.endpoint_descriptions_are_valid")
def schema_of_older_draft(hooks):
    """A `value_schema` declares an older JSON Schema draft."""
    of_old = b'"value_schema":{"$schema":"http://json-schema.org/draft-04/schema#",'
    rewrite_body(hooks, rb'"value_schema":\{', of_old, at="/v1/endpoints/square")
