"""Every URL of the server and its responses to valid, invalid and hostile requests."""

import asyncio
import json
import socket
import threading
import time

import httpx2
import pytest
import uvicorn
from pydantic import BaseModel, Field

from support.reference_server import JSON, QUICK, Peer, data, eventually, logged, serving
from support.server_address import address_of
from tidewire.protocol.problems import REGISTRY
from tidewire.protocol.resources import Discovery, EndpointDescription, JobResource
from tidewire_server import Server, Stream
from tidewire_server.jobs.admission import job_submitter


class Picture(BaseModel):
    """What to draw."""

    caption: str
    size: int = Field(default=8, ge=1, le=64)
    palette: list[str] = []


class TooLongError(ValueError):
    member = "text"
    code = "input_too_long"


def make_server(**settings: object) -> Server:
    server = Server(**(QUICK | {"max_body_bytes": 100_000, "default_concurrency_limit": None} | settings))

    @server.endpoint
    async def greet(name: str = "you", times: int = 1) -> str:
        """Greet somebody.

        As often as is asked for.
        """
        return f"hello {name} " * times

    @server.endpoint(examples=[{"caption": "a cat"}])
    async def draw(picture: Picture) -> dict[str, int]:
        return {picture.caption: picture.size}

    async def check_length(value: BaseModel) -> None:
        await asyncio.sleep(0)
        if len(value.text) > 10:
            raise TooLongError("ten letters at most")
        if value.text == "gated":
            entered.set()
            await asyncio.to_thread(released.wait, 10)

    @server.endpoint(
        validate=check_length,
        columns=["/text"],
        initial=lambda value: {"text": value.text},
        capabilities={"logprobs": {"max_top": 7}},
        links={"vocabulary": lambda: {"hash": "abc", "tokens": []}, "weights": b"\x00\x01"},
    )
    async def extend(text: str, stream: Stream[dict[str, str]]) -> None:
        stream.append("!")

    @server.endpoint
    async def wait() -> None:
        await asyncio.Event().wait()

    return server


entered, released = threading.Event(), threading.Event()


@pytest.fixture(scope="module")
def peer():
    with serving(make_server()) as peer:
        yield peer


def refused(answer: httpx2.Response, code: str) -> dict[str, object]:
    body = answer.json()
    assert (answer.status_code, body["code"]) == (REGISTRY[code].status, code), body
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["cache-control"] == "no-store"
    assert ("retry-after" in answer.headers) == (answer.status_code in {409, 429, 503})
    assert body["title"] == REGISTRY[code].title
    return body


# ---- discovery ------------------------------------------------------------------------------------------------------


def test_discovery_lists_capabilities_limits_and_endpoints(peer):
    answer = peer.http.get("/v1")
    found = Discovery.model_validate(answer.json())
    assert found.protocol == "tidewire/1"
    assert found.durability == "process"
    assert found.limits.max_body_bytes == 100_000
    assert {
        "batches",
        "deadlines",
        "delete",
        "disconnect",
        "idempotency",
        "inband_problems",
        "list",
        "logprobs",
        "snapshots_only",
        "stream_tokens",
    } == set(found.capabilities)
    first = found.endpoints[0]
    assert (first.name, first.summary, first.defaults) == ("greet", "Greet somebody.", True)
    for each in found.endpoints:
        assert peer.http.get(each.href).status_code == 200


def test_an_endpoint_description_has_schemas_and_examples(peer):
    found = EndpointDescription.model_validate(peer.http.get("/v1/endpoints/greet").json())
    assert found.description == "As often as is asked for."
    assert found.input_schema["properties"]["times"] == {"default": 1, "title": "times", "type": "integer"}
    assert found.input_schema["additionalProperties"] is False
    assert found.value_schema == {"type": "string"}
    assert found.examples == [{}]
    assert found.capabilities.streams is False
    drawn = EndpointDescription.model_validate(peer.http.get("/v1/endpoints/draw").json())
    assert drawn.input_schema["required"] == ["caption"]
    assert drawn.examples == [{"caption": "a cat"}]
    assert peer.http.post(drawn.links["jobs"], json={"input": drawn.examples[0]}).status_code == 201


def test_linked_resources_of_an_endpoint_are_immutable_per_version(peer):
    links = peer.http.get("/v1/endpoints/extend").json()["links"]
    answer = peer.http.get(links["vocabulary"])
    assert answer.json() == {"hash": "abc", "tokens": []}
    assert answer.headers["etag"] == '"abc"'
    assert "immutable" in answer.headers["cache-control"]
    assert peer.http.get("/v1/endpoints/extend/vocabulary").headers["cache-control"] == "no-cache"
    again = peer.http.get(links["vocabulary"], headers={"if-none-match": '"abc"'})
    assert (again.status_code, again.content) == (304, b"")
    weights = peer.http.get(links["weights"])
    assert (weights.content, weights.headers["content-type"]) == (b"\x00\x01", "application/octet-stream")
    refused(peer.http.get("/v1/endpoints/extend/nothing"), "not_found")


@pytest.mark.parametrize("stripped_prefix", ["/ai", ""])
def test_links_have_the_root_path_with_and_without_a_stripping_proxy(stripped_prefix):
    with serving(make_server(root_path="/ai")) as peer:
        http = httpx2.Client(base_url=peer.url.removesuffix(stripped_prefix))
        with http:
            assert http.get("/v1").json()["endpoints"][0]["href"] == "/ai/v1/endpoints/greet"
            answer = http.post("/v1/endpoints/greet/jobs", json={"input": {}})
            assert answer.headers["location"].startswith("/ai/v1/jobs/")
            job = answer.json()["id"]
            events = http.get(f"/v1/jobs/{job}/events").text
            assert f'"events":"/ai/v1/jobs/{job}/events"' in events


# ---- submit -----------------------------------------------------------------------------------------------------------


def test_submit_returns_the_job_resource(peer):
    answer = peer.submit("greet", {"name": "Ada"})
    assert answer.status_code == 201
    job = JobResource.model_validate(answer.json())
    assert answer.headers["location"] == job.links.self == f"/v1/jobs/{job.id}"
    assert len(job.id) >= 22
    assert (job.endpoint, job.batch, job.attempt, job.columns) == ("greet", False, 1, ["/items/0/value"])
    ended = peer.ended(job.id)
    assert ended["status"] == ended["state"]["status"] == ended["done"]["status"] == "succeeded"
    assert ended["cursor"] == "1-4"
    assert ended["state"]["items"] == [{"status": "succeeded", "value": "hello Ada "}]
    assert ended["created_at"] <= ended["started_at"] <= ended["ended_at"] < ended["expires_at"]


def test_a_value_that_does_not_stream_is_sent_with_the_end_of_its_item(peer):
    job = peer.start("greet")
    _, running, ended, done = logged(peer.events(job, after="0-0"))
    assert [op[1] for op in data(running)] == ["/items/0/status", "/status"]
    assert data(ended) == [["s", "/items/0/value", "hello you "], ["s", "/items/0/status", "succeeded"]]
    assert done.type == "done"


@pytest.mark.parametrize(
    ("accept", "status", "media_type"),
    [
        ("application/json", 201, "application/json"),
        ("*/*", 201, "application/json"),
        ("application/json, text/event-stream", 200, "text/event-stream"),
        ("text/event-stream;q=0.1, application/json", 200, "text/event-stream"),
        ("text/event-stream;q=0, */*", 201, "application/json"),
        ("text/html", 406, "application/problem+json"),
        ("text/event-stream;q=0", 406, "application/problem+json"),
    ],
)
def test_the_accept_header_selects_the_job_or_its_stream(peer, accept, status, media_type):
    answer = peer.http.post("/v1/endpoints/greet/jobs", json={"input": {}}, headers={"accept": accept})
    assert (answer.status_code, answer.headers["content-type"]) == (status, media_type)


@pytest.mark.parametrize(
    ("endpoint", "body", "pointer", "message"),
    [
        ("greet", {"input": {"nmae": "x"}}, "/input/nmae", "did you mean 'name'?"),
        ("greet", {"input": {"times": "3"}}, "/input/times", 'valid integer; received "3"'),
        ("greet", {"input": {"times": True}}, "/input/times", "valid integer; received true"),
        ("greet", {"input": []}, "/input", ""),
        ("greet", {"input": None}, "/input", ""),
        ("draw", {"input": {}}, "/input", "'caption' is missing"),
        (
            "draw",
            {"input": {"captoin": "x"}},
            "/input/captoin",
            "did you mean 'caption'? Also /input: the member 'caption' is missing",
        ),
        (
            "draw",
            {"input": {"caption": "x", "colour": 1}},
            "/input/colour",
            "known members: caption, size, palette",
        ),
        ("draw", {"input": {"caption": "x", "size": 65}}, "/input/size", "less than or equal to 64"),
        ("draw", {"input": {"caption": "x", "palette": ["a", 2]}}, "/input/palette/1", "valid string"),
        ("greet", {"inputs": [{}, {"times": "x"}]}, "/inputs/1/times", ""),
        ("greet", {"inputs": [{}], "shared": {"times": "x"}}, "/shared/times", ""),
        ("greet", {"inputs": [{"times": "x"}], "shared": {"times": 1}}, "/inputs/0/times", ""),
        ("greet", {"inputs": [{}, 5], "shared": {"times": 1}}, "/inputs/1", "an object"),
        ("greet", {}, "", "exactly one"),
        ("greet", {"input": {}, "inputs": [{}]}, "", "exactly one"),
        ("greet", {"inputs": []}, "/inputs", ""),
        ("greet", {"inputs": None}, "/inputs", ""),
        ("greet", {"inputs": {}}, "/inputs", ""),
        ("greet", {"input": {}, "deadline_ms": 0}, "/deadline_ms", ""),
        ("greet", {"input": {}, "deadline_ms": "1"}, "/deadline_ms", ""),
        ("greet", {"input": {}, "on_disconnect": "explode"}, "/on_disconnect", "'continue' or 'cancel'"),
        ("greet", {"input": {}, "grace_ms": -1}, "/grace_ms", ""),
        ("greet", {"input": {}, "shared": []}, "/shared", ""),
        ("greet", [], "", "object"),
        ("greet", "input", "", "object"),
    ],
)
def test_an_invalid_member_is_named(peer, endpoint, body, pointer, message):
    started = peer.metrics()
    problem = refused(peer.http.post(f"/v1/endpoints/{endpoint}/jobs", json=body), "invalid_input")
    assert problem["pointer"] == pointer
    assert message in problem["detail"]
    assert peer.metrics().get("tidewire_jobs_submitted_total") == started.get("tidewire_jobs_submitted_total")


def test_a_validate_function_refuses_before_the_job_is_queued(peer):
    problem = refused(peer.submit("extend", {"text": "x" * 11}), "input_too_long")
    assert (problem["pointer"], problem["detail"]) == ("/input/text", "/input/text: ten letters at most")
    assert peer.value("extend", {"text": "hi"}) == {"text": "hi!"}


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "not JSON"),
        (b'{"input": {}', "not JSON"),
        (b'{"input": {"name": "\xff"}}', "not UTF-8: byte 20"),
        (b'{"input": NaN}', "NaN"),
        (b'{"input": 1e400}', "too large"),
        (b'{"input": 9007199254740993}', "beyond"),
        (b'{"input": {"a": 1, "a": 2}}', "duplicate member"),
        (b'{"input": "\\ud83d"}', "surrogate"),
        (b"[" * 100_000, "deeper than 64"),
        (b'{"input":' * 10_000, "deeper than 64"),
        (b'{"input": ' + b"[" * 65 + b"]" * 65 + b"}", "deeper than 64"),
        (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)
def test_a_malformed_body_is_refused_with_its_location(peer, body, where):
    answer = peer.http.post("/v1/endpoints/greet/jobs", content=body, headers=JSON)
    assert where in refused(answer, "malformed_body")["detail"]


def test_a_body_above_max_body_bytes_is_refused_with_and_without_content_length(peer):
    large = b'{"input": {"name": "' + b"x" * 200_000 + b'"}}'
    refused(peer.http.post("/v1/endpoints/greet/jobs", content=large, headers=JSON), "body_too_large")

    def chunks():
        for start in range(0, len(large), 10_000):
            yield large[start : start + 10_000]

    found = refused(
        peer.http.post("/v1/endpoints/greet/jobs", content=chunks(), headers=JSON), "body_too_large"
    )
    assert "larger than the limit of 100000 bytes; send less" in found["detail"]
    assert "raise the setting max_body_bytes" in found["detail"]
    assert peer.submit("greet").status_code == 201
    just = json.dumps({"input": {"name": ""}}).encode()
    fits = just.replace(b'""', b'"' + b"x" * (100_000 - len(just)) + b'"')
    assert len(fits) == 100_000
    assert peer.http.post("/v1/endpoints/greet/jobs", content=iter([fits]), headers=JSON).status_code == 201


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": ""},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_a_body_with_another_media_type_or_coding_is_refused(peer, headers):
    answer = peer.http.post("/v1/endpoints/greet/jobs", content=b'{"input": {}}', headers=headers)
    refused(answer, "unsupported_media_type")


@pytest.mark.parametrize(
    "media_type", ["application/json; charset=UTF-8", "application/vnd.mine+json", "Application/JSON"]
)
def test_json_media_types_are_accepted(peer, media_type):
    answer = peer.http.post(
        "/v1/endpoints/greet/jobs", content=b'{"input": {}}', headers={"content-type": media_type}
    )
    assert answer.status_code == 201


def test_a_body_that_arrives_too_late_is_refused_with_408():
    with serving(make_server(body_timeout=0.1)) as peer:
        with connected(peer) as slow:
            # Head and first byte are one segment, so that the time-out cannot end between them.
            slow.sendall(head_of_a_submit(100) + b"\r\n{")
            answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        found = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert found["detail"] == "received only 1 bytes of 100 within 0.1 s (body_timeout)"
        assert (found["code"], found["retryable"]) == ("request.late", True)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_body_that_arrived_while_the_event_loop_was_blocked_is_accepted(loop, monkeypatch):
    server, waits, begun, sent = make_server(body_timeout=0.2), *(threading.Event() for _ in range(3))
    if loop == "asyncio":
        monkeypatch.setattr(uvicorn.Config, "get_loop_factory", lambda _: asyncio.new_event_loop)

    @server.endpoint
    async def block() -> None:
        while not waits.is_set():
            await asyncio.sleep(0)
        begun.set()
        sent.wait(10)
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            time.sleep(0.01)

    with serving(server) as peer, connected(peer) as other:
        peer.start("block")
        other.sendall(head_of_a_submit(60_000) + b"Expect: 100-continue\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 100 ")  # The server now waits for the body.
        waits.set()
        assert begun.wait(10)
        other.sendall(b'{"input": {}}'.ljust(60_000))
        sent.set()
        assert other.recv(4096).startswith(b"HTTP/1.1 201 ")


def connected(peer: Peer) -> socket.socket:
    return socket.create_connection(address_of(peer.url), timeout=20)


def head_of_a_submit(size: int) -> bytes:
    """Return the head of a request, without the empty line at its end."""
    return (
        b"POST /v1/endpoints/greet/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n" % size
    )


# ---- unknown URLs, methods, endpoints and jobs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/v1/", "/v2", "/v1/nothing", "/v1/jobs/x/y", "/v1/jobs/x/tokens", "/v1/../etc"]
)
def test_an_unknown_url_is_a_problem_that_names_the_start_url(peer, path):
    assert str(refused(peer.http.get(path), "not_found")["detail"]).endswith("starts at /v1")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("POST", "/v1", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/endpoints/greet/jobs", "POST, OPTIONS"),
        ("PUT", "/v1/jobs", "GET, HEAD, OPTIONS"),
        ("PATCH", "/v1/jobs/x", "GET, DELETE, HEAD, OPTIONS"),
        ("POST", "/v1/jobs/x/events", "GET, HEAD, OPTIONS"),
        ("GET", "/v1/jobs/x/cancel", "POST, OPTIONS"),
    ],
)
def test_a_disallowed_method_lists_the_allowed_ones(peer, method, path, allow):
    answer = peer.http.request(method, path)
    refused(answer, "method_not_allowed")
    assert answer.headers["allow"] == allow


def test_unknown_endpoints_and_unknown_jobs_have_different_codes(peer):
    assert (
        "this server has: greet, draw"
        in refused(peer.http.get("/v1/endpoints/gret"), "endpoint_not_found")["detail"]
    )
    refused(peer.submit("gret"), "endpoint_not_found")
    for path in ("", "/events", "/cancel"):
        method = "POST" if path == "/cancel" else "GET"
        refused(peer.http.request(method, f"/v1/jobs/no-such-job{path}"), "job_not_found")
    refused(peer.http.delete("/v1/jobs/no-such-job"), "job_not_found")


@pytest.mark.parametrize("name", ["/greet", "greet/"])
def test_a_slash_in_the_name_of_an_endpoint_is_a_wrong_name(peer, name):
    """Names with a slash are those of other libraries, such as `/predict`."""
    encoded = name.replace("/", "%2F")
    says = f"endpoint '{name}' does not exist; did you mean 'greet'?"
    assert says in refused(peer.http.get(f"/v1/endpoints/{encoded}"), "endpoint_not_found")["detail"]
    assert says in refused(peer.submit(encoded), "endpoint_not_found")["detail"]


def test_an_unacceptable_accept_header_is_refused_with_406(peer):
    job = peer.start("greet")
    refused(peer.http.get(f"/v1/jobs/{job}/events", headers={"accept": "application/json"}), "not_acceptable")
    refused(peer.http.get(f"/v1/jobs/{job}", headers={"accept": "text/html"}), "not_acceptable")
    refused(peer.http.get("/v1", headers={"accept": "image/png"}), "not_acceptable")


# ---- listing --------------------------------------------------------------------------------------------------------


def test_jobs_are_listed_in_pages_newest_first():
    with serving(make_server()) as peer:
        made = [peer.start("greet") for _ in range(5)]
        peer.ended(made[-1])
        page = peer.http.get("/v1/jobs?limit=2").json()
        found = list(page["jobs"])
        while "next" in page:
            page = peer.http.get(page["next"]).json()
            found += page["jobs"]
        assert [job["id"] for job in found] == made[::-1]
        assert not any("state" in job for job in found)
        for limit in ("0", "1001", "x", "-1", "1e3"):
            refused(peer.http.get(f"/v1/jobs?limit={limit}"), "bad_parameter")


# ---- idempotency ----------------------------------------------------------------------------------------------------


def keyed(peer: Peer, key: str, body: object, endpoint: str = "greet", **headers: str) -> httpx2.Response:
    content = json.dumps(body).encode()
    return peer.http.post(
        f"/v1/endpoints/{endpoint}/jobs", content=content, headers=JSON | {"idempotency-key": key} | headers
    )


def test_the_same_key_and_body_return_the_same_job(peer):
    first = keyed(peer, "key-1", {"input": {}})
    again = keyed(peer, "key-1", {"input": {}})
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json()["id"] == first.json()["id"]
    assert again.headers["location"] == first.headers["location"]
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    peer.ended(first.json()["id"])
    streamed = keyed(peer, "key-1", {"input": {}}, accept="text/event-stream")
    assert streamed.status_code == 200
    assert streamed.headers["idempotency-replayed"] == "true"
    assert "event:snapshot" in streamed.text
    assert "event:done" in streamed.text


def test_a_key_applies_to_one_body_and_one_endpoint(peer):
    keyed(peer, "key-2", {"input": {}})
    refused(keyed(peer, "key-2", {"input": {"name": "x"}}), "idempotency_key_reused")
    assert keyed(peer, "key-2", {"input": {"caption": "x"}}, "draw").status_code == 201


def test_a_refused_submit_releases_its_key(peer):
    refused(keyed(peer, "key-3", {"input": {"times": "x"}}), "invalid_input")
    assert keyed(peer, "key-3", {"input": {}}).status_code == 201


def test_a_key_is_in_flight_until_its_first_request_is_committed(peer):
    answers: list[httpx2.Response] = []
    with Peer(peer.url) as other:
        first = threading.Thread(
            target=lambda: answers.append(keyed(other, "key-4", {"input": {"text": "gated"}}, "extend"))
        )
        first.start()
        assert entered.wait(10)
        refused(keyed(peer, "key-4", {"input": {"text": "gated"}}, "extend"), "idempotency_in_flight")
        released.set()
        first.join()
    assert answers[0].status_code == 201
    assert (
        keyed(peer, "key-4", {"input": {"text": "gated"}}, "extend").json()["id"] == answers[0].json()["id"]
    )


@pytest.mark.parametrize("keys", [[""], ["with space"], ["x" * 256], ["schlüssel"], ["a", "b"]])
def test_an_invalid_key_or_two_keys_are_refused(peer, keys):
    headers = [*JSON.items(), *(("idempotency-key", key.encode("latin-1")) for key in keys)]
    answer = peer.http.post("/v1/endpoints/greet/jobs", content=b'{"input": {}}', headers=headers)
    refused(answer, "bad_parameter")


def test_a_deleted_job_and_its_key_answer_job_expired(peer):
    job = keyed(peer, "key-5", {"input": {}}).json()["id"]
    peer.ended(job)
    answer = peer.http.delete(f"/v1/jobs/{job}")
    assert (answer.status_code, answer.content, answer.headers["cache-control"]) == (204, b"", "no-store")
    refused(peer.http.delete(f"/v1/jobs/{job}"), "job_expired")
    refused(peer.http.get(f"/v1/jobs/{job}"), "job_expired")
    refused(peer.http.get(f"/v1/jobs/{job}/events"), "job_expired")
    refused(peer.http.post(f"/v1/jobs/{job}/cancel"), "job_expired")
    refused(keyed(peer, "key-5", {"input": {}}), "job_expired")


# ---- authentication and origins --------------------------------------------------------------------------------------


def test_bearer_tokens_authenticate_and_separate_principals():
    with serving(make_server(tokens=["ada:secret-a", "bob:secret-b"])) as nobody:
        answer = nobody.http.get("/v1")
        refused(answer, "unauthorized")
        assert answer.headers["www-authenticate"].startswith("Bearer")
        for header in ("Bearer wrong", "Basic secret-a", "secret-a", "Bearer", "Bearer sécret"):
            raw = {"authorization": header.encode("latin-1")}
            refused(nobody.http.get("/v1", headers=raw), "unauthorized")
        assert nobody.http.get("/healthz").status_code == 200
        with (
            Peer(nobody.url, authorization="Bearer secret-a") as ada,
            Peer(nobody.url, authorization="bearer secret-b") as bob,
        ):
            job = ada.start("greet")
            assert ada.ended(job)["status"] == "succeeded"
            refused(nobody.http.get(f"/v1/jobs/{job}/events"), "unauthorized")
            unknown = bob.http.get("/v1/jobs/unknown-job").json()
            for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/events"), ("POST", "/cancel")):
                found = refused(bob.http.request(method, f"/v1/jobs/{job}{path}"), "job_not_found")
                assert found | {"detail": ""} == unknown | {"detail": ""}
            assert bob.http.get("/v1/jobs").json() == {"jobs": []}
            assert [each["id"] for each in ada.http.get("/v1/jobs").json()["jobs"]] == [job]
            ada.http.delete(f"/v1/jobs/{job}")
            refused(bob.http.get(f"/v1/jobs/{job}"), "job_not_found")
            with nobody.stream(job, errors="inband") as reading:
                assert data(next(reading))["code"] == "unauthorized"


def test_cors_allows_no_origin_by_default(peer):
    answer = peer.http.get("/v1", headers={"origin": "https://page.example"})
    assert "access-control-allow-origin" not in answer.headers


# ---- limits and operations --------------------------------------------------------------------------------------------


def test_max_inputs_and_max_jobs_per_principal_are_enforced():
    with serving(make_server(max_inputs=2, max_jobs_per_principal=2)) as peer:
        assert peer.submit("greet", inputs=[{}, {}]).status_code == 201
        problem = refused(peer.submit("greet", inputs=[{}, {}, {}]), "batch_too_large")
        assert (problem["pointer"], problem["limit"]) == ("/inputs", 2)
        eventually(lambda: all(job.get("done") for job in peer.http.get("/v1/jobs").json()["jobs"]))
        held = [peer.start("wait"), peer.start("wait")]
        answer = peer.submit("greet")
        refused(answer, "too_many_jobs")
        peer.http.post(f"/v1/jobs/{held[0]}/cancel")
        peer.events(held[0])
        assert peer.submit("greet").status_code == 201


def test_ended_jobs_tombstones_and_keys_expire():
    ttls = {"log_ttl": 0.1, "state_ttl": 0.4, "tombstone_ttl": 0.4, "idempotency_ttl": 0.5}
    with serving(make_server(**ttls)) as peer:
        job = keyed(peer, "k", {"input": {}}).json()["id"]
        whole = logged(peer.events(job, after="0-0"))
        assert len(whole) == 4
        trimmed = eventually(lambda: len(found := logged(peer.events(job, after="0-0"))) == 2 and found)
        assert [event.type for event in trimmed] == ["snapshot", "done"]
        assert trimmed[1] == whole[-1]
        assert [event.type for event in logged(peer.events(job, whole[0].id))] == ["snapshot", "done"]
        eventually(lambda: peer.http.get(f"/v1/jobs/{job}").status_code == 410)
        eventually(lambda: peer.http.get(f"/v1/jobs/{job}").status_code == 404)
        eventually(lambda: keyed(peer, "k", {"input": {"name": "other"}}).status_code == 201)


def test_retained_jobs_and_tombstones_are_bounded_in_number():
    with serving(make_server(max_retained_jobs=2, max_tombstones=1)) as peer:
        jobs = [peer.start("greet") for _ in range(4)]
        for job in jobs:
            eventually(lambda job=job: peer.http.get(f"/v1/jobs/{job}").json().get("done") or job in jobs[:2])
        eventually(
            lambda: [peer.http.get(f"/v1/jobs/{job}").status_code for job in jobs] == [404, 410, 200, 200]
        )


def test_counters_of_each_endpoint_begin_at_zero():
    """Otherwise the rules in docs/how-to/monitor.md do not notice an endpoint whose first job never ends, or fails."""
    with serving(make_server()) as peer:
        counters = peer.metrics()
    for status in ("succeeded", "partially_failed", "failed", "cancelled"):
        assert counters[f'tidewire_jobs_ended_total{{endpoint="greet",status="{status}"}}'] == 0
    for name in ("jobs_submitted", "jobs_started", "items_started"):
        assert counters[f'tidewire_{name}_total{{endpoint="greet"}}'] == 0
    assert counters['tidewire_problems_total{code="internal"}'] == 0
    assert counters['tidewire_problems_total{code="unavailable"}'] == 0


def test_metrics_count_jobs_events_and_stream_requests(peer):
    before = peer.metrics()
    job = peer.start("greet")
    peer.events(job)
    peer.events(job, "1-1")
    peer.events(job, after="1-1")
    after = peer.metrics()

    def increase(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert increase('tidewire_jobs_started_total{endpoint="greet"}') == 1
    assert increase('tidewire_jobs_ended_total{endpoint="greet",status="succeeded"}') == 1
    assert increase('tidewire_stream_requests_total{cursor="no"}') == 1
    assert increase('tidewire_stream_requests_total{cursor="yes"}') == 2
    assert increase("tidewire_events_logged_total") == 4
    assert after["tidewire_open_streams"] == 0
    assert after['tidewire_items_waiting{endpoint="greet"}'] == 0


def test_an_exception_in_a_handler_is_a_problem_without_a_traceback(caplog, monkeypatch):
    with serving(make_server()) as peer:
        with monkeypatch.context() as patch:
            patch.setattr(job_submitter, "prepare_job", lambda *_: 1 / 0)
            answer = peer.submit("greet")
        assert "ZeroDivision" not in answer.text
        refused(answer, "internal")
        assert peer.submit("greet").status_code == 201
    assert "ZeroDivisionError" in caplog.text


def test_head_and_options_are_answered(peer):
    assert peer.http.head("/v1").status_code == 200
    head = peer.http.head(f"/v1/jobs/{peer.start('wait')}/events")
    assert (head.status_code, head.headers["content-type"], head.content) == (200, "text/event-stream", b"")
    answer = peer.http.options("/v1/jobs")
    assert (answer.status_code, answer.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


def test_a_stream_is_served_to_http_1_0_clients(peer):
    job = peer.start("greet")
    peer.ended(job)
    with socket.create_connection(address_of(peer.url)) as old:
        old.sendall(f"GET /v1/jobs/{job}/events HTTP/1.0\r\n\r\n".encode())
        received = b""
        while chunk := old.recv(65536):
            received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert body.endswith(b"\n\n")
    assert b"event:done" in body
