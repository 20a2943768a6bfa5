"""Details of the specification that the server once handled too leniently."""

import httpx2
import pytest

from tidewire_server import Server


@pytest.fixture(scope="module")
def http():
    server = Server(shutdown_timeout=0.1)

    @server.endpoint
    def double(n: int = 1) -> int:
        return 2 * n

    with server.running() as url, httpx2.Client(base_url=url) as client:
        job = client.post("/v1/endpoints/double/jobs", json={"input": {}}).json()["id"]
        client.headers["x-job"] = job
        yield client


def events(http, query="", **headers):
    return http.get(f"/v1/jobs/{http.headers['x-job']}/events{query}", headers=headers)


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/event-stream;q=0, */*", 406),
        ("*/*, text/event-stream; q=0.0", 406),
        ("text/*;q=0, text/event-stream", 200),
        ("text/event-stream;q=0.1", 200),
        ("*/*", 200),
    ],
)
def test_the_most_specific_media_range_applies(http, accept, status):
    assert events(http, accept=accept).status_code == status


@pytest.mark.parametrize("query", ["?min_interval_ms=x", "?min_interval_ms=-1", "?diffs=0&min_interval_ms=x"])
def test_an_invalid_min_interval_ms_is_refused(http, query):
    answer = events(http, query)
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_parameter"


def test_two_idempotency_key_headers_are_refused(http):
    headers = [("idempotency-key", "a"), ("idempotency-key", "b")]
    answer = http.post("/v1/endpoints/double/jobs", json={"input": {}}, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["code"] == "bad_parameter"
