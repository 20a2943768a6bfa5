"""Faulty servers whose discovery or endpoint descriptions are wrong."""

import json

from proof.servers.fault_helpers import change_data, refuse, rewrite_body, rewrite_events
from proof.servers.faults import faulty_server


@faulty_server("TW-DSC-023", "discovery.text_is_not_taken_back_where_it_cannot_be", "state.texts_are_counted_in_code_points",
        "jobs.a_submit_is_answered_with_the_job")  # fmt: skip
def rollback_is_kept_secret(hooks):
    """An endpoint that retracts text declares that it does not."""
    rewrite_body(hooks, b'"rollback":true', b'"rollback":false')


@faulty_server(
    "TW-DSC-024",
    "discovery.a_value_comes_once_where_nothing_streams",
    "batch.the_company_of_an_item_changes_nothing",
)
def a_value_comes_early(hooks):
    """An endpoint that does not stream sets a value when it starts."""

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


@faulty_server("TW-OVR-012", "discovery.discovery_fits_its_schema")
def times_in_seconds_with_a_fraction(hooks):
    """Durations in milliseconds have a fraction."""
    rewrite_body(hooks, rb'("heartbeat_ms":\d+)', rb"\1.5", at="/v1")


@faulty_server(
    "TW-RES-026",
    "discovery.a_state_is_kept_as_long_as_discovery_says",
    "jobs.a_job_that_has_ended_tells_its_end",
)
def a_clock_that_is_an_hour_slow(hooks):
    """`expires_at` contradicts `ended_at` and `state_ttl_s`."""
    hooks.settings["state_ttl"] = 60.0
    rewrite_body(hooks, b'"state_ttl_s":60,', b'"state_ttl_s":3600,', at="/v1")


@faulty_server("TW-DSC-003", "discovery.capabilities_are_those_that_are_named")
def a_capability_is_kept_secret(hooks):
    """Discovery omits a capability that the server has."""
    rewrite_body(hooks, b'"delete",', b"", at="/v1")


@faulty_server("TW-DSC-003", "discovery.capabilities_are_those_that_are_named")
def a_capability_is_made_up(hooks):
    """Discovery declares a capability that the server lacks."""
    refuse(hooks, lambda exchange: exchange.path.endswith("/stream-token"), 404, "not_found")


@faulty_server("TW-DSC-001", "discovery.discovery_fits_its_schema")
def a_limit_is_missing(hooks):
    """Discovery omits a limit."""
    rewrite_body(hooks, b'"max_depth"', b'"depth"', at="/v1")


@faulty_server("TW-DSC-019", "discovery.examples_are_taken")
def an_example_that_does_not_fit(hooks):
    """An example does not match the input schema of its endpoint."""
    rewrite_body(hooks, b'{"words":8}', b'{"words":"8"}')


@faulty_server("TW-DSC-020", "discovery.values_fit_their_schema", "jobs.a_job_that_has_ended_tells_its_end")
def the_schema_tells_another_type(hooks):
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


@faulty_server("TW-DSC-005", "discovery.discovery_stays")
def discovery_changes(hooks):
    """Discovery returns something else each time."""

    def count(exchange, status, body):
        if (exchange.method, exchange.path) != ("GET", "/v1"):
            return None
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        return status, json.dumps(json.loads(body) | {"heartbeat_ms": 400 + hooks.shared["n"]}).encode()

    hooks.bodies.append(count)


@faulty_server("TW-SEC-014", "discovery.a_body_that_is_too_large_is_refused")
def a_large_body_in_chunks_is_taken(hooks):
    """The size limit of bodies is checked only against `Content-Length`."""

    def cut(exchange):
        if not exchange.header("content-length") and len(exchange.body) > 1024 * 1024:
            exchange.body = exchange.body.strip()

    hooks.requests.append(cut)


@faulty_server("TW-DSC-022", "discovery.endpoints_describe_themselves")
def a_schema_that_has_to_be_fetched(hooks):
    """A schema has a `$ref` to a remote document."""
    elsewhere = b'"value_schema":{"$ref":"https://schemas.example/value.json"}'
    rewrite_body(hooks, b'"value_schema":{"type":"integer"}', elsewhere, at=".*square.*")


@faulty_server("TW-DSC-017", "discovery.endpoints_describe_themselves")
def a_schema_that_is_none(hooks):
    """A schema uses a type that JSON Schema does not define."""
    rewrite_body(hooks, b'{"type":"integer"}', b'{"type":"int"}', at=".*square.*")


@faulty_server("TW-RES-026", "discovery.a_state_is_kept_as_long_as_discovery_says")
def done_tells_another_end_of_its_state(hooks):
    """`expires_at` of `done` lies in the past."""
    past = rb'("expires_at":")\d{4}'
    rewrite_events(hooks, past, rb"\g<1>2001")
    rewrite_body(hooks, rb'("done":\{.*?"expires_at":")\d{4}', rb"\g<1>2001")


@faulty_server("TW-DSC-017", "discovery.endpoints_describe_themselves")
def schemas_of_another_draft(hooks):
    """A `value_schema` declares an older JSON Schema draft."""
    of_old = b'"value_schema":{"$schema":"http://json-schema.org/draft-04/schema#",'
    rewrite_body(hooks, rb'"value_schema":\{', of_old, at="/v1/endpoints/square")
