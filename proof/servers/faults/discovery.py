"""Faulty servers whose discovery or endpoint descriptions are wrong."""

import json

from proof.servers.expected_side_failures import REPLICA_FEATURES
from proof.servers.fault_helpers import change_data, change_json, refuse, rewrite_body, rewrite_events
from proof.servers.faults import fault, faulty_server

# fmt: off
fault("rollback_not_declared", "TW-DSC-023", "discovery.text_is_never_retracted_without_rollback",
      "An endpoint that may retract text declares that it never does.",
      bodies=rewrite_body(b'"rollback":true', b'"rollback":false'),
      also_run="state.text_lengths_count_code_points jobs.submit_returns_the_job")

fault("fractional_milliseconds", "TW-OVR-012", "discovery.discovery_document_is_valid",
      "Durations in milliseconds have a fraction.",
      bodies=rewrite_body(rb'("heartbeat_ms":\d+)', rb"\1.5", at="/v1"),
      also_fails={"every response is checked for fractional integers":
          "json_and_times.nulls_and_times_are_well_formed jobs.response_bodies_fit_their_schemas"})
fault("too_many_ops_declared", "TW-DSC-026", "discovery.discovery_document_is_valid",
      "Discovery declares that a diff may have 20,000 ops.",
      bodies=rewrite_body(b'"max_event_ops":100,', b'"max_event_ops":20000,', at="/v1"),
      also_fails={"all bodies are compared with their schemas": "jobs.response_bodies_fit_their_schemas"})
fault("limit_missing_in_discovery", "TW-DSC-027", "discovery.discovery_document_is_valid",
      "Discovery omits a limit that the profile `core` requires.",
      bodies=rewrite_body(b'"max_depth"', b'"depth"', at="/v1"))

fault("expires_at_contradicts_ended_at", "TW-RES-052", "discovery.expires_at_respects_state_ttl_s",
      "`expires_at` contradicts `ended_at` and `state_ttl_s`.",
      settings={"state_ttl": 60.0},
      bodies=rewrite_body(b'"state_ttl_s":60,', b'"state_ttl_s":3600,', at="/v1"),
      also_run="jobs.ended_job_includes_done")
fault("done_expires_in_the_past", "TW-RES-052", "discovery.expires_at_respects_state_ttl_s",
      "The member `expires_at` of a `done` event is in the past.",
      frames=rewrite_events(rb'("expires_at":")\d{4}', rb"\g<1>2001"),
      bodies=rewrite_body(rb'("done":\{.*?"expires_at":")\d{4}', rb"\g<1>2001"),
      also_run="jobs.ended_job_includes_done")

fault("capability_not_declared", "TW-DSC-003", "discovery.capabilities_match_discovery",
      "Discovery omits a capability that the server has.",
      bodies=rewrite_body(b'"delete",', b"", at="/v1"))
fault("undeclared_deadline_accepted", "TW-DSC-011", "discovery.capabilities_match_discovery",
      "Discovery omits `deadlines`, but a submission with `deadline_ms` is accepted.",
      bodies=rewrite_body(b'"deadlines",', b"", at="/v1"))
fault("undeclared_on_disconnect_accepted", "TW-DSC-011", "discovery.capabilities_match_discovery",
      "Discovery omits `disconnect`, but a submission with `on_disconnect` is accepted.",
      bodies=rewrite_body(b'"disconnect",', b"", at="/v1"))
fault("missing_capability_declared", "TW-DSC-003", "discovery.capabilities_match_discovery",
      "Discovery declares a capability that the server lacks.",
      instead=refuse(lambda exchange: exchange.path.endswith("/stream-token"), 404, "not_found"),
      also_fails=REPLICA_FEATURES | {"checks use the declared capability":
          "browser.* errors.unknown_resources_return_404 purges.purged_job_returns_410"})

fault("example_violates_input_schema", "TW-DSC-019", "discovery.examples_are_accepted",
      "An example does not match the input schema of its endpoint.",
      bodies=rewrite_body(b'{"words":8}', b'{"words":"8"}'))

fault("schema_with_remote_ref", "TW-DSC-022", "discovery.endpoint_descriptions_are_valid",
      "A schema has a `$ref` to a remote document.",
      bodies=rewrite_body(b'"value_schema":{"type":"integer"}',
          b'"value_schema":{"$ref":"https://schemas.example/value.json"}', at=".*square.*"))
fault("schema_with_unknown_type", "TW-DSC-017", "discovery.endpoint_descriptions_are_valid",
      "A schema uses a type that JSON Schema does not define.",
      bodies=rewrite_body(b'{"type":"integer"}', b'{"type":"int"}', at=".*square.*"))
fault("schema_of_older_draft", "TW-DSC-017", "discovery.endpoint_descriptions_are_valid",
      "A `value_schema` declares an older JSON Schema draft.",
      bodies=rewrite_body(rb'"value_schema":\{',
          b'"value_schema":{"$schema":"http://json-schema.org/draft-04/schema#",', at="/v1/endpoints/square"))

fault("values_violate_value_schema", "TW-DSC-020", "discovery.values_match_value_schema",
      "Values do not match `value_schema`.",
      bodies=change_json("/v1/endpoints/[^/]+", lambda found: found | {"value_schema": {"type": "boolean"}}),
      also_run="jobs.ended_job_includes_done")
# fmt: on


@faulty_server(
    "TW-DSC-024",
    "discovery.value_is_set_once_without_streaming",
    also_run="batch.results_do_not_depend_on_batching",
)
def non_streaming_value_set_early(hooks):
    """An endpoint that does not declare streaming sets a value when the item starts."""

    def early(exchange, kind, data):
        starts = isinstance(data, list) and data[:1] == [["s", "/items/0/status", "running"]]
        is_square = hooks.shared.get(exchange.path) == "square"
        return [*data, ["s", "/items/0/value", 0]] if starts and is_square else data

    def note(exchange, status, body):
        if exchange.is_submit and status == 201:
            found = json.loads(body)
            hooks.shared[f"/v1/jobs/{found['id']}/events"] = found["endpoint"]

    hooks.bodies.append(note)
    hooks.frames.append(change_data(early))


@faulty_server("TW-DSC-005", "discovery.discovery_document_does_not_change", hook="bodies")
def discovery_changes(exchange, status, body):
    """The discovery document has different content in each response."""
    exchange.shared["n"] = exchange.shared.get("n", 0) + 1
    longer = b'"heartbeat_ms":%d' % (400 + exchange.shared["n"])
    return (status, body.replace(b'"heartbeat_ms":400', longer)) if exchange.path == "/v1" else None


@faulty_server("TW-SEC-014", "discovery.oversized_body_returns_413", hook="requests")
def chunked_body_size_not_limited(exchange):
    """The size limit for bodies is enforced only by `Content-Length`."""
    if not exchange.header("content-length") and len(exchange.body) > 1024 * 1024:
        exchange.body = exchange.body.strip()
