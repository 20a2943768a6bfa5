"""Refusals and descriptions that are wrong."""

import json
import re

from conformance.suite.meddling import problem
from conformance.suite.mutants import mutant
from tidewire_conformance import strict_json

REGISTRY = "errors.errors_are_problems_of_the_registry"
JSON = {"content-type": "application/json", "cache-control": "no-store"}


@mutant("TW-ERR-001", REGISTRY, "errors.what_there_is_not_is_refused")
def errors_in_plain_text(hooks):
    """The body of an error is no problem document."""
    hooks.bodies.append(lambda talk, status, body: (status, b"error") if status >= 400 else None)


@mutant("TW-ERR-002", REGISTRY, "errors.what_there_is_not_is_refused")
def errors_as_json(hooks):
    """Problems come as `application/json`."""

    def head(talk, status, headers):
        if status >= 400:
            headers["content-type"] = "application/json"

    hooks.heads.append(head)


@mutant("TW-ERR-008", "errors.nothing_of_the_insides_gets_out", "errors.what_there_is_not_is_refused")
def stack_trace_leaked(hooks):
    """A stack trace stands in `detail`."""

    def leak(talk, status, body):
        if status < 400:
            return None
        trace = 'Traceback (most recent call last):\n  File "/srv/app/server.py", line 7'
        return status, json.dumps(json.loads(body) | {"detail": trace}).encode()

    hooks.bodies.append(leak)


@mutant("TW-ERR-004", REGISTRY, "errors.what_there_is_not_is_refused")
def everything_is_400(hooks):
    """Every refusal is 400."""

    def flatten(talk, status, body):
        return (400, json.dumps(json.loads(body) | {"status": 400}).encode()) if 400 <= status < 500 else None

    hooks.bodies.append(flatten)


@mutant("TW-ERR-003", REGISTRY, "submits.a_submit_of_another_shape_is_refused")
def the_body_names_another_status(hooks):
    """The status of the answer is not that of its body."""
    hooks.heads.append(lambda talk, status, headers: 400 if status == 422 else status)


@mutant("TW-ERR-020", REGISTRY, "errors.what_there_is_not_is_refused")
def a_code_of_its_own(hooks):
    """A code that is neither of the registry nor a name with a dot."""
    hooks.bodies.append(lambda talk, status, body: (status, body.replace(b'"not_found"', b'"nothing_here"')))


@mutant("TW-JOB-043", "errors.what_there_is_not_is_refused")
def unknown_job_is_empty(hooks):
    """An unknown job is answered with 200 and nothing."""
    hooks.bodies.append(
        lambda talk, status, body: (200, b"{}") if status == 404 and "/v1/jobs/" in talk.path else None
    )


@mutant("TW-JOB-013", "errors.what_there_is_not_is_refused")
def unknown_endpoint_is_500(hooks):
    """A submit to an unknown endpoint is answered with 500."""
    hooks.instead.append(lambda talk: problem(500, "internal") if "there-is-none/jobs" in talk.path else None)


@mutant("TW-JOB-003", "errors.what_there_is_not_is_refused")
def no_allow(hooks):
    """405 without `Allow`."""
    hooks.heads.append(lambda talk, status, headers: headers.pop("allow", None) and None)


@mutant("TW-JOB-014", "submits.an_input_that_does_not_fit_is_refused")
def invalid_input_is_taken(hooks):
    """An input that breaks the schema is taken, and fails later."""
    good = {"input": {"script": [{"fail": "a wrong input"}]}}

    def forgive(talk):
        if (
            talk.is_submit
            and isinstance(talk.json, dict)
            and set(talk.json) == {"input"}
            and "script" in talk.path
            and not _fits(talk.json["input"])
        ):
            talk.body = json.dumps(good).encode()

    hooks.requests.append(forgive)


def _fits(given):
    return (
        isinstance(given, dict)
        and isinstance(given.get("script"), list)
        and set(given) <= {"script", "initial", "columns"}
    )


@mutant("TW-OVR-009", "parameters.parameters_and_members_are_read_as_said")
def unknown_members_are_refused(hooks):
    """A member that is not known is refused."""
    hooks.instead.append(
        lambda talk: problem(422, "invalid_input", pointer="/x.colour") if b"x.colour" in talk.body else None
    )


@mutant("TW-JOB-007", "parameters.parameters_and_members_are_read_as_said")
def the_first_of_two_parameters_counts(hooks):
    """A parameter that stands twice is taken once."""

    def once(talk):
        query = talk.scope["query_string"]
        talk.scope["query_string"] = query.partition(b"&after=")[0] if query.count(b"after=") > 1 else query

    hooks.requests.append(once)


@mutant("TW-OVR-008", "bodies.a_body_that_breaks_json_is_refused")
def json_is_read_kindly(hooks):
    """JSON is read by a kind reader, which takes NaN and two members of one name."""

    def kind(talk):
        if talk.is_submit and talk.json is not None and strict_json.read(talk.body).faults:
            talk.body = json.dumps({"input": {"script": []}}).encode()

    hooks.requests.append(kind)


@mutant("TW-BAT-001", "batch.each_input_becomes_an_item_in_its_place")
def bodies_are_not_read(hooks):
    """The body of a submit is not read: each runs an empty script."""

    def empty(talk):
        if talk.is_submit and talk.json is not None:
            talk.body = json.dumps({"input": {"script": []}}).encode()

    hooks.requests.append(empty)


@mutant("TW-JOB-009", "bodies.a_body_of_another_media_type_is_refused")
def codings_are_ignored(hooks):
    """A content coding of a body is ignored."""
    hooks.requests.append(lambda talk: talk.set_header("content-encoding", None))


@mutant("TW-JOB-017", "submits.accept_decides_the_form_of_the_answer")
def accept_is_searched_for_a_word(hooks):
    """`Accept` is searched for the media type, whatever its weight."""

    def search(talk):
        if "text/event-stream" in talk.header("accept"):
            talk.set_header("accept", "text/event-stream")

    hooks.requests.append(search)


@mutant("TW-JOB-016", "submits.a_submit_of_another_shape_is_refused")
def no_pointer(hooks):
    """422 without a pointer."""

    def drop(talk, status, body):
        found = json.loads(body) if status == 422 else {}
        return (
            (status, json.dumps({name: found[name] for name in found if name != "pointer"}).encode())
            if found
            else None
        )

    hooks.bodies.append(drop)


@mutant("TW-DSC-003", "discovery.capabilities_are_those_that_are_named")
def a_capability_is_kept_secret(hooks):
    """Discovery does not name a capability that is there."""
    hooks.bodies.append(
        lambda talk, status, body: (status, body.replace(b'"delete",', b"")) if talk.path == "/v1" else None
    )


@mutant("TW-DSC-003", "discovery.capabilities_are_those_that_are_named")
def a_capability_is_made_up(hooks):
    """Discovery names a capability that is not there."""
    hooks.instead.append(
        lambda talk: problem(404, "not_found") if talk.path.endswith("/stream-token") else None
    )


@mutant("TW-DSC-001", "discovery.discovery_fits_its_schema")
def a_limit_is_missing(hooks):
    """Discovery lacks a limit."""
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, body.replace(b'"max_depth"', b'"depth"')) if talk.path == "/v1" else None
        )
    )


@mutant("TW-DSC-019", "discovery.examples_are_taken")
def an_example_that_does_not_fit(hooks):
    """An example that the endpoint's own schema refuses."""
    hooks.bodies.append(lambda talk, status, body: (status, body.replace(b'{"words":8}', b'{"words":"8"}')))


@mutant("TW-DSC-020", "discovery.values_fit_their_schema", "jobs.a_job_that_has_ended_tells_its_end")
def the_schema_tells_another_type(hooks):
    """Values do not fit the `value_schema`."""
    describes = b"/v1/endpoints/"

    def lie(talk, status, body):
        if talk.method == "GET" and talk.path.encode().startswith(describes) and status == 200:
            found = json.loads(body)
            return status, json.dumps(
                found | {"value_schema": {"type": "boolean"}}
            ).encode() if "value_schema" in found else body
        return None

    hooks.bodies.append(lie)


@mutant("TW-DSC-005", "discovery.discovery_stays")
def discovery_changes(hooks):
    """Discovery says something else each time."""

    def count(talk, status, body):
        if talk.path != "/v1":
            return None
        hooks.shared["n"] = hooks.shared.get("n", 0) + 1
        return status, json.dumps(json.loads(body) | {"heartbeat_ms": 400 + hooks.shared["n"]}).encode()

    hooks.bodies.append(count)


@mutant("TW-SEC-014", "discovery.a_body_that_is_too_large_is_refused")
def a_large_body_in_chunks_is_taken(hooks):
    """Only `Content-Length` is held against the limit."""

    def cut(talk):
        if not talk.header("content-length") and len(talk.body) > 1024 * 1024:
            talk.body = talk.body.strip()

    hooks.requests.append(cut)


@mutant("TW-JOB-008", "bodies.both_framings_of_a_body_are_taken")
def a_body_needs_its_length(hooks):
    """A body in chunks is refused."""
    hooks.instead.append(
        lambda talk: (
            problem(411, "x.length_required") if talk.header("transfer-encoding") and talk.is_submit else None
        )
    )


@mutant("TW-DSC-022", "discovery.endpoints_describe_themselves")
def a_schema_that_has_to_be_fetched(hooks):
    """A schema refers to another document."""
    elsewhere = b'"value_schema":{"$ref":"https://schemas.example/value.json"}'
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, body.replace(b'"value_schema":{"type":"integer"}', elsewhere))
            if "square" in talk.path
            else None
        )
    )


@mutant("TW-DSC-017", "discovery.endpoints_describe_themselves")
def a_schema_that_is_none(hooks):
    """A schema names a type that JSON Schema has not."""
    hooks.bodies.append(
        lambda talk, status, body: (
            (status, body.replace(b'{"type":"integer"}', b'{"type":"int"}'))
            if "square" in talk.path
            else None
        )
    )


@mutant("TW-OVR-018", "framing.a_job_ends_by_one_done")
def a_failure_is_a_success_without_a_value(hooks):
    """A job that failed ends as one that has succeeded with null."""

    def hide(talk, frame):
        frame = re.sub(rb'\["s","/items/0/error",\{[^}]*\}\]', b'["s","/items/0/value",null]', frame)
        return frame.replace(b'"status":"failed","usage"', b'"status":"succeeded","usage"').replace(
            b'"failed"', b'"succeeded"'
        )

    hooks.frames.append(hide)
