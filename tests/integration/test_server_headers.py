"""CORS, caching and security headers on the responses of every route and status."""

import httpx2
import pytest

from support.reference_server import JSON, QUICK, STREAM, Peer, serving
from tidewire_server import Server
from tidewire_server.http.cors import Cors

PAGE = "https://app.example.com"
OTHER_ORIGIN = "https://evil.example"
EXPOSED = ["Location", "Content-Location", "Retry-After", "Idempotency-Replayed"]
AUTH = {"authorization": "Bearer sesame"}


def make_server(cors_origins: tuple[str, ...] = (PAGE,)) -> Server:
    server = Server(
        **QUICK,
        tokens=("me:sesame",),
        operator_tokens=("operator",),
        cors_origins=cors_origins,
        max_body_bytes=2000,
        root_path="/under",
    )

    @server.endpoint
    def say(text: str = "hi") -> str:
        return text

    return server


@pytest.fixture(scope="module")
def known():
    server = make_server()
    with serving(server, **AUTH, origin=PAGE) as peer:
        ended = peer.ended(peer.start("say"))["id"]
        purged = peer.ended(peer.start("say"))["id"]
        peer.http.delete(f"/v1/jobs/{purged}")
        token = peer.http.post(f"/v1/jobs/{ended}/stream-token").json()["url"].partition("?")[2]
        yield server, peer, {"ended": ended, "purged": purged, "token": token}


SUBMIT = "/v1/endpoints/say/jobs"
BIG = b'{"input": {"text": "' + b"x" * 3000 + b'"}}'

JOBS = [
    ("GET", "/v1/jobs", {}, b"", 200),
    ("GET", "/v1/jobs?limit=0", {}, b"", 400),
    ("PUT", "/v1/jobs", {}, b"", 405),
    ("GET", "/v1/jobs", {"authorization": ""}, b"", 401),
    ("GET", "/v1/jobs", {"accept": "text/html"}, b"", 406),
    ("OPTIONS", "/v1/jobs", {"access-control-request-method": "GET"}, b"", 204),
    ("GET", "/v1/jobs/{ended}", {}, b"", 200),
    ("HEAD", "/v1/jobs/{ended}", {}, b"", 200),
    ("GET", "/v1/jobs/nothing", {}, b"", 404),
    ("GET", "/v1/jobs/{ended}/nothing", {}, b"", 404),
    ("GET", "/v1/jobs/{purged}", {}, b"", 410),
    ("DELETE", "/v1/jobs/{purged}", {}, b"", 410),
    ("GET", "/v1/jobs/{ended}/events", {}, b"", 200),
    ("GET", "/v1/jobs/{ended}/events?diffs=0", {}, b"", 200),
    ("HEAD", "/v1/jobs/{ended}/events", {}, b"", 200),
    ("GET", "/v1/jobs/{ended}/events", {"last-event-id": "0-1"}, b"", 204),
    ("GET", "/v1/jobs/{ended}/events", {"last-event-id": "x"}, b"", 400),
    ("GET", "/v1/jobs/{ended}/events", {"authorization": "Bearer no"}, b"", 401),
    ("GET", "/v1/jobs/{ended}/events", {"accept": "text/html"}, b"", 406),
    ("GET", "/v1/jobs/nothing/events?errors=inband", {}, b"", 200),
    ("GET", "/v1/jobs/{ended}/events?{token}", {"authorization": ""}, b"", 200),
    ("GET", "/v1/jobs/{ended}/events?{token}x", {"authorization": ""}, b"", 200),
    ("POST", "/v1/jobs/{ended}/events?{token}", {}, b"", 405),
    ("POST", "/v1/jobs/{ended}/stream-token", {}, b"", 200),
    ("POST", "/v1/jobs/nothing/stream-token", {}, b"", 404),
    ("POST", "/v1/jobs/{ended}/cancel", {}, b"", 200),
    ("POST", "/v1/jobs/{ended}/cancel", JSON, b'{"items": [7]}', 422),
    ("POST", "/v1/jobs/{ended}/cancel", {"content-type": "text/plain"}, b"x", 415),
    ("POST", SUBMIT, JSON, b'{"input": {}}', 201),
    ("POST", SUBMIT, STREAM, b'{"input": {}}', 200),
    ("POST", SUBMIT, {**JSON, "idempotency-key": "a b"}, b'{"input": {}}', 400),
    ("POST", SUBMIT, JSON, b"{", 400),
    ("POST", SUBMIT, JSON, BIG, 413),
    ("POST", SUBMIT, {"content-type": "text/plain"}, b"{}", 415),
    ("POST", SUBMIT, JSON, b"{}", 422),
]
ELSEWHERE = [
    ("GET", "/v1", {}, b"", 200),
    ("GET", "/v1/endpoints/say", {}, b"", 200),
    ("GET", "/v1/endpoints/none", {}, b"", 404),
    ("GET", "/nowhere", {}, b"", 404),
    ("GET", "/healthz", {}, b"", 200),
    ("GET", "/metrics", {"authorization": "Bearer operator"}, b"", 200),
]


def ask(peer: Peer, names: dict, method: str, path: str, headers: dict, body: bytes) -> httpx2.Response:
    return peer.http.request(method, path.format_map(names), headers=headers, content=body)


@pytest.mark.parametrize(("method", "path", "headers", "body", "status"), [*JOBS, *ELSEWHERE])
def test_every_response_allows_the_configured_origin_only(known, method, path, headers, body, status):
    _, peer, names = known
    answer = ask(peer, names, method, path, headers, body)
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "Origin" in answer.headers["vary"]
    exposed = answer.headers["access-control-expose-headers"]
    assert {"Location", "Content-Location", "Retry-After", "Idempotency-Replayed"} <= set(exposed.split(", "))
    assert "access-control-allow-credentials" not in answer.headers
    other_origin = ask(peer, names, method, path, {**headers, "origin": "https://evil.example"}, body)
    assert "access-control-allow-origin" not in other_origin.headers


@pytest.mark.parametrize(("method", "path", "headers", "body", "status"), JOBS)
def test_responses_about_jobs_are_not_cached(known, method, path, headers, body, status):
    _, peer, names = known
    answer = ask(peer, names, method, path, headers, body)
    assert answer.status_code == status
    assert "no-store" in answer.headers["cache-control"].split(", ")
    assert ("token" in path and "stream-token" not in path) == ("referrer-policy" in answer.headers)


def test_preflights_are_answered_for_every_route(known):
    _, peer, names = known
    requested = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
    for path in {
        path.partition("?")[0]
        for _, path, *_ in [*JOBS, *ELSEWHERE]
        if "noth" not in path and path != "/nowhere"
    }:
        answer = peer.http.options(path.format_map(names), headers={**requested, "authorization": ""})
        assert answer.status_code == 204, path
        allowed = answer.headers["access-control-allow-headers"].split(", ")
        assert {"Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"} <= set(allowed)
        assert "POST" in answer.headers["access-control-allow-methods"].split(", ")
        assert int(answer.headers["access-control-max-age"]) >= 600


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
PROBLEMS = [
    ("GET", "/nowhere", {}, 404, "not_found"),
    ("OPTIONS", "/nowhere", {}, 404, "not_found"),
    ("GET", "/v1/jobs/", {}, 404, "not_found"),
    ("PATCH", "/v1/jobs/any", {}, 405, "method_not_allowed"),
    ("GET", SUBMIT, {}, 405, "method_not_allowed"),
    ("POST", "/v1/endpoints/broken/jobs", JSON, 424, "endpoint.function_failed"),
    ("POST", "/v1/endpoints/broken/jobs", STREAM, 424, "endpoint.function_failed"),
    ("OPTIONS", "/v1/jobs", PREFLIGHT | {"access-control-request-method": "PUT"}, 400, "bad_parameter"),
    ("OPTIONS", "/v1/jobs", PREFLIGHT | {"access-control-request-headers": "x-own"}, 400, "bad_parameter"),
]


@pytest.fixture(scope="module", params=[(), (PAGE,), ("*",)])
def by_origins(request):
    server = make_server(cors_origins=request.param)

    @server.endpoint(columns=lambda value: 1 / 0)
    def broken() -> str:
        return ""

    with serving(server, **AUTH, origin=PAGE) as peer:
        yield request.param, peer


@pytest.mark.parametrize(("method", "path", "headers", "status", "code"), PROBLEMS)
def test_errors_outside_handlers_are_problems_with_cors_headers(
    by_origins, method, path, headers, status, code
):
    cors_origins, peer = by_origins
    answer = ask(peer, {}, method, path, headers, b'{"input": {}}')
    other_origin = ask(peer, {}, method, path, headers | {"origin": OTHER_ORIGIN}, b'{"input": {}}')
    preflight = "access-control-request-method" in headers
    if preflight and not cors_origins:
        assert (answer.status_code, other_origin.status_code) == (204, 204)
    else:
        for each in (answer, other_origin):
            assert (each.status_code, each.headers["content-type"]) == (status, "application/problem+json")
            assert (each.json()["code"], each.json()["status"]) == (code, status)
            assert each.headers["cache-control"] == "no-store"
            assert "1 / 0" not in each.text
            assert ("allow" in each.headers) == (status == 405)
    for each in (answer, other_origin):
        assert "access-control-allow-credentials" not in each.headers
    if not cors_origins:
        assert not any(
            name.startswith("access-control-") for name in [*answer.headers, *other_origin.headers]
        )
        return
    assert answer.headers["access-control-allow-origin"] == ("*" if cors_origins == ("*",) else PAGE)
    assert answer.headers["access-control-expose-headers"] == ", ".join(EXPOSED)
    assert "Origin" in answer.headers["vary"].split(", ")
    assert ("access-control-allow-origin" in other_origin.headers) == (cors_origins == ("*",))
    assert "Origin" in other_origin.headers["vary"].split(", ")


def test_a_preflight_of_a_disallowed_origin_is_refused_with_a_problem(known):
    _, peer, _ = known
    answer = peer.http.options("/v1/jobs", headers=PREFLIGHT | {"origin": OTHER_ORIGIN})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert (answer.json()["code"], answer.json()["retryable"]) == ("bad_parameter", False)
    assert "origin" in answer.json()["detail"]
    assert "cors_origins" in answer.json()["detail"]
    assert "access-control-allow-origin" not in answer.headers
    assert "Origin" in answer.headers["vary"].split(", ")


def test_only_the_head_of_a_stream_passes_through_the_cors_middleware(known, monkeypatch):
    _, peer, names = known
    message_types, send = [], Cors.send

    async def counted(cors, message, *others, **named):
        message_types.append(message["type"])
        await send(cors, message, *others, **named)

    monkeypatch.setattr(Cors, "send", counted)
    assert peer.events(names["ended"])[-1].type == "done"
    assert message_types == ["http.response.start"]
    message_types.clear()
    assert peer.http.get("/v1").status_code == 200
    assert message_types == ["http.response.start", "http.response.body"]


def test_links_use_root_path_and_ignore_forwarded_headers(known):
    _, peer, _ = known
    forwarded = {
        "x-forwarded-proto": "gopher",
        "x-forwarded-host": "evil.example",
        "x-forwarded-prefix": "/evil",
        "forwarded": "host=evil.example;proto=gopher",
        "host": "evil.example",
    }
    answer = peer.http.post(SUBMIT, json={"input": {}}, headers=forwarded)
    job = answer.json()
    assert answer.headers["location"] == job["links"]["self"] == f"/under/v1/jobs/{job['id']}"
    token = peer.http.post(f"/v1/jobs/{job['id']}/stream-token", headers=forwarded).json()["url"]
    assert token.startswith(f"/under/v1/jobs/{job['id']}/events?")
    with peer.http.stream("GET", f"/v1/jobs/{job['id']}/events", headers=forwarded) as stream:
        assert b"evil" not in stream.read()


def test_responses_of_a_stopping_server_have_the_same_headers(known):
    server, peer, names = known
    server.app.service.shutdown.began = True
    try:
        for method, path, status in [
            ("POST", SUBMIT, 503),
            ("GET", "/readyz", 503),
            ("GET", "/v1/jobs/{ended}/events", 200),
        ]:
            answer = ask(peer, names, method, path, JSON, b'{"input": {}}')
            assert answer.status_code == status
            assert "no-store" in answer.headers["cache-control"]
            assert answer.headers.get("retry-after") == ("1" if status == 503 else None)
            assert answer.headers["access-control-allow-origin"] == PAGE
    finally:
        server.app.service.shutdown.began = False


@pytest.mark.parametrize("path", ["/v1/jobs/nothing/events?errors=inband", "/v1/jobs/{ended}/events"])
def test_an_event_stream_has_no_content_length(known, path):
    _, peer, ids = known
    response = peer.http.get(path.format(**ids), headers={"accept": "text/event-stream"})
    assert response.status_code == 200
    assert "content-length" not in response.headers
