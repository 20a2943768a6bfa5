"""DNS rebinding: a web page whose host name resolves to 127.0.0.1 cannot use a server without tokens."""

import socket

import pytest
from starlette.testclient import TestClient

from support.reference_server import Peer, serving
from tidewire_server import Server
from tidewire_server.http.host_check import is_loopback


@pytest.fixture(scope="module")
def peer():
    with serving(Server()) as peer:
        yield peer


def status_of(peer: Peer, *headers: str, version: str = "1.1") -> int:
    """Send a request with exactly these header lines, and return the status of the response."""
    port = int(peer.url.rpartition(":")[2])
    lines = [f"GET /v1 HTTP/{version}", *(each.replace("PORT", str(port)) for each in headers)]
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
        with connection.makefile("rb") as response:
            return int(response.readline().split()[1])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:PORT",
        "127.0.0.1",
        "localhost:PORT",
        "LocalHost",
        " \tlocalhost \t",
        "localhost.:1",
        "[::1]:PORT",
        "[::ffff:127.0.0.1]",
        "192.0.2.7:80",
    ],
)
def test_local_name_or_address_is_accepted_as_host(peer, host):
    assert status_of(peer, f"Host: {host}") == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:PORT",
        "EVIL.EXAMPLE.",
        "localhost.evil.example",
        "evil.localhost",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "localhost..",
        "2130706433",
        "0x7f.1",
        "::1",
        "[::1",
        "[::1].evil.example",
        "localhost:evil.example",
        "localhost, evil.example",
        "[evil.example]",
        "[",
        "",
        "local\xadhost",
    ],
)
def test_foreign_name_is_rejected_as_host(peer, host):
    assert status_of(peer, f"Host: {host}") == 421


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:PORT", 200),
        ("https://localhost:PORT", 200),  # a proxy may add TLS
        ("http://localhost", 403),
        ("http://localhost:1", 403),
        ("http://evil.example", 403),
        ("http://evil.example:PORT", 403),
        ("http://evil.example/localhost:PORT", 403),
        ("http://evil.example#http://localhost:PORT", 403),
        ("null", 403),
        ("", 403),
        ("localhost:PORT", 403),
        ("chrome-extension://localhost:PORT", 403),
        ("http://localhost:PORT http://evil.example", 403),
    ],
)
def test_page_of_another_origin_is_rejected(peer, origin, status):
    assert status_of(peer, "Host: localhost:PORT", f"Origin: {origin}") == status


def test_request_over_http_1_0_may_have_no_host(peer):
    # Health checks of proxies use HTTP/1.0, and no browser does.
    assert status_of(peer, version="1.0") == 200
    assert status_of(peer, "Host: localhost", version="1.0") == 200
    assert status_of(peer, "Host: evil.example", version="1.0") == 421


def test_any_of_several_origins_is_rejected(peer):
    origins = ("Origin: http://localhost:PORT", "Origin: http://evil.example")
    assert status_of(peer, "Host: localhost:PORT", *origins) == 403


@pytest.mark.parametrize("path", ["/v1", "/v1/jobs", "/v1/jobs/x/events", "/healthz", "/metrics", "/nothing"])
def test_every_route_is_checked_and_responds_with_a_problem(peer, path):
    response = peer.http.get(path, headers={"host": "evil.example"})
    assert response.status_code == 421
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["code"] == "request.foreign_host"
    assert "'evil.example'" in problem["detail"]
    assert "--allowed-host" in problem["detail"]
    response = peer.http.get(path, headers={"origin": "https://evil.example"})
    assert (response.status_code, response.json()["code"]) == (403, "request.foreign_origin")
    assert "--cors-origin" in response.json()["detail"]
    assert "access-control-allow-origin" not in response.headers


def test_refused_job_does_not_run(peer):
    response = peer.http.post("/v1/endpoints/x/jobs", json={"input": {}}, headers={"host": "evil.example"})
    assert response.status_code == 421
    assert peer.http.get("/v1/jobs").json() == {"jobs": []}


def test_names_of_proxies_and_allowed_origins_are_accepted():
    server = Server(allowed_hosts=["GPU.example.org"], cors_origins=["https://app.example"])
    with serving(server) as peer:
        for host in ("gpu.example.org", "gpu.EXAMPLE.org.:443", "localhost"):
            assert status_of(peer, f"Host: {host}") == 200
        assert status_of(peer, "Host: example.org") == 421
        assert status_of(peer, "Host: a.gpu.example.org") == 421
        for origin in ("https://app.example", "https://gpu.example.org"):
            assert status_of(peer, "Host: gpu.example.org", f"Origin: {origin}") == 200
        assert status_of(peer, "Host: gpu.example.org", "Origin: http://app.example") == 403


def test_page_of_an_allowed_origin_can_read_the_rejection():
    with serving(Server(cors_origins=["https://app.example"])) as peer:
        headers = {"host": "evil.example", "origin": "https://app.example"}
        response = peer.http.get("/v1", headers=headers)
        assert response.status_code == 421
        assert response.headers["access-control-allow-origin"] == "https://app.example"


def test_every_origin_may_be_allowed():
    with serving(Server(cors_origins=["*"])) as peer:
        for origin in ("https://app.example", "null"):
            assert status_of(peer, "Host: localhost", f"Origin: {origin}") == 200
        assert status_of(peer, "Host: evil.example", "Origin: https://app.example") == 421


def test_server_with_tokens_checks_only_if_allowed_hosts_are_set():
    for allowed, status in ([], 200), (["gpu.example.org"], 421):
        with serving(Server(tokens=["sesame"], allowed_hosts=allowed)) as peer:
            credentials = "Authorization: Bearer sesame"
            assert status_of(peer, "Host: other.example", credentials) == status


def test_a_star_turns_off_the_checks():
    with serving(Server(allowed_hosts=["*"])) as peer:
        assert status_of(peer, "Host: other.example", "Origin: https://app.example") == 200


def test_request_that_does_not_arrive_on_loopback_is_not_checked():
    with TestClient(Server().app) as client:  # sends the Host `testserver`
        assert client.get("/v1").status_code == 200
        assert client.get("/v1", headers={"origin": "https://app.example"}).status_code == 200


def test_loopback_addresses_are_recognized():
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert is_loopback(address)
    for address in ("0.0.0.0", "::", "192.168.1.1", "fe80::1%eth0", "::ffff:10.0.0.1", "localhost", ""):
        assert not is_loopback(address)
