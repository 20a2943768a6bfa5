"""Attacks of one caller on another: on its jobs, its idempotency keys and its share of the server.

The callers connect from different addresses of the loopback interface.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from support.callers import ANN, BOB, Caller, other_addresses_exist
from support.reference_server import QUICK, Peer, data, eventually
from support.server_address import address_of
from tidewire_server import Server
from tidewire_server.serving.serve import uvicorn_config
from tidewire_server.settings import Settings, share_of

pytestmark = pytest.mark.skipif(
    not other_addresses_exist(), reason="this system has only one loopback address"
)


class Gate:
    """Endpoint function that waits until the gate is open, and the names of the calls that wait."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.came: list[str] = []

    def wait(self, name: str = "") -> str:
        self.came.append(name)
        assert self.open.wait(30)
        return name


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@contextlib.contextmanager
def serving(gate: Gate, **settings: Any) -> Iterator[str]:
    """Run a server, by default for several anonymous callers. End the gate's calls before the server stops."""
    server = Server(**QUICK | {"single_user": False} | settings)
    server.endpoint(gate.wait, name="hold")
    server.endpoint(gate.wait, name="many", concurrency_limit=None)

    @server.endpoint(concurrency_limit=None)
    async def echo(text: str = "") -> str:
        return text

    with server.running() as url:
        try:
            yield url
        finally:
            gate.open.set()


@contextlib.contextmanager
def two_callers(url: str) -> Iterator[tuple[Caller, Caller]]:
    with Caller(url) as ann, Caller(url, BOB) as bob:
        yield ann, bob


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code")


def keyed(peer: Peer, key: str, text: str = "") -> httpx2.Response:
    header = {"idempotency-key": key}
    return peer.http.post("/v1/endpoints/echo/jobs", json={"input": {"text": text}}, headers=header)


# ---- jobs of anonymous callers


def test_an_anonymous_caller_finds_no_job_without_its_id(gate):
    with serving(gate) as url, two_callers(url) as (ann, bob):
        job = ann.start("echo")
        for peer in ann, bob:
            assert "list" not in peer.http.get("/v1").json()["capabilities"]
            assert refusal(peer.http.get("/v1/jobs")) == (404, "not_found")
        for method, place in [("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/events")]:
            unknown = bob.http.request(method, f"/v1/jobs/{'0' * 32}{place}")
            assert refusal(unknown) == (404, "job_not_found")
        assert ann.job(job)["id"] == job


def test_every_anonymous_caller_who_knows_the_id_may_use_a_job(gate):
    with serving(gate) as url, two_callers(url) as (ann, bob):
        job = ann.start("hold")
        assert bob.job(job)["id"] == job
        assert bob.http.post(f"/v1/jobs/{job}/cancel").status_code == 202
        assert bob.events(job)[-1].type == "done"
        token_url = bob.http.post(f"/v1/jobs/{job}/stream-token").json()["url"]
        assert bob.http.get(token_url).text.count("event:done") == 1
        assert bob.http.delete(f"/v1/jobs/{job}").status_code == 204
        assert refusal(ann.http.get(f"/v1/jobs/{job}")) == (410, "job_expired")


def test_an_idempotency_key_does_not_lead_to_a_job_of_another_anonymous_caller(gate):
    with serving(gate) as url, two_callers(url) as (ann, bob):
        first = keyed(ann, "order-1").json()["id"]
        other = keyed(bob, "order-1").json()["id"]
        assert other != first
        assert keyed(bob, "order-2", "x").status_code == 201
        assert keyed(ann, "order-2", "y").status_code == 201
        for peer, job in ((ann, first), (bob, other)):
            again = keyed(peer, "order-1")
            assert (again.json()["id"], again.headers["idempotency-replayed"]) == (job, "true")


@pytest.mark.parametrize("single_user", [None, True])
def test_a_single_user_lists_all_jobs(gate, single_user):
    with serving(gate, single_user=single_user) as url, two_callers(url) as (ann, bob):
        jobs = [ann.start("echo"), bob.start("echo")]
        assert "list" in ann.http.get("/v1").json()["capabilities"]
        assert [each["id"] for each in ann.http.get("/v1/jobs").json()["jobs"]] == jobs[::-1]


@pytest.mark.parametrize(
    ("on_loopback", "settings", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (False, {"single_user": True}, True),
        (True, {"single_user": False}, False),
        (True, {"forwarded_allow_ips": ["127.0.0.1"]}, False),
        (True, {"forwarded_allow_ips": ["127.0.0.1"], "single_user": True}, True),
        (True, {"tokens": ["a:b"]}, False),
        (True, {"tokens": ["a:b"], "single_user": True}, False),
    ],
)
def test_callers_are_one_user_by_default_only_on_loopback(on_loopback, settings, expected):
    assert Settings(**settings).is_single_user(on_loopback=on_loopback) is expected


def test_a_server_in_another_application_lists_no_anonymous_jobs():
    server = Server()
    assert server.app.single_user is False
    assert Server(single_user=True).app.single_user is True
    assert Server(single_user=True, tokens=["a:b"]).app.single_user is False


# ---- limits per client address


def test_limits_on_jobs_and_streams_count_per_client_address(gate):
    limits = {"max_jobs_per_principal": 2, "max_streams_per_principal": 1}
    with serving(gate, **limits) as url, two_callers(url) as (ann, bob):
        jobs = [bob.start("many") for _ in range(2)]
        assert refusal(bob.submit("many")) == (429, "too_many_jobs")
        job = ann.start("many")
        with bob.stream(jobs[0]):
            assert refusal(bob.http.get(f"/v1/jobs/{jobs[0]}/events")) == (429, "too_many_streams")
            # The stream counts for its reader, even if the job is another caller's.
            token_url = bob.http.post(f"/v1/jobs/{job}/stream-token").json()["url"]
            assert "too_many_streams" in bob.http.get(token_url).text
            with ann.stream(jobs[0]), ann.http.stream("GET", f"/v1/jobs/{job}/events") as second:
                assert second.status_code == 429


def test_x_forwarded_for_has_no_effect_without_a_named_proxy(gate, monkeypatch):
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")  # uvicorn reads this variable
    with serving(gate, max_jobs_per_principal=1) as url, Caller(url) as ann:
        ann.start("many")
        for forged in ("10.0.0.7", "10.0.0.8, 127.0.0.1", "[::1]:80", ""):
            ann.http.headers["x-forwarded-for"] = forged
            assert refusal(ann.submit("many")) == (429, "too_many_jobs")


def test_x_forwarded_for_of_a_named_proxy_tells_callers_apart(gate):
    limits = {"max_jobs_per_principal": 1, "forwarded_allow_ips": (f"{ANN}/32",)}
    with serving(gate, **limits) as url, two_callers(url) as (proxy, direct):
        for client in ("10.0.0.7", "10.0.0.8:1234", "2001:db8:0:1::5"):
            proxy.http.headers["x-forwarded-for"] = client
            proxy.start("many")
            assert refusal(proxy.submit("many")) == (429, "too_many_jobs")
        # The proxy has added the last entry. The entries before it come from the client.
        for forged in ("10.0.0.9, 10.0.0.7", "10.0.0.8:99", "2001:db8:0:1:ffff::6"):
            proxy.http.headers["x-forwarded-for"] = forged
            assert refusal(proxy.submit("many")) == (429, "too_many_jobs")
        direct.start("many")
        direct.http.headers["x-forwarded-for"] = "10.0.0.10"
        assert refusal(direct.submit("many")) == (429, "too_many_jobs")


def test_a_named_ipv4_proxy_is_recognized_on_an_ipv6_socket():
    server = Server(forwarded_allow_ips=("10.0.0.0/8", "192.0.2.1", "fd00::/8"))
    config = uvicorn_config(server.app, server.settings, 10)
    proxies = ProxyHeadersMiddleware(server.app, config.forwarded_allow_ips).trusted_hosts
    trusted = ["10.1.2.3", "::ffff:10.1.2.3", "192.0.2.1", "::ffff:192.0.2.1", "fd00::1"]
    assert all(each in proxies for each in trusted)
    assert not any(each in proxies for each in ["11.1.2.3", "::ffff:11.1.2.3", "::ffff:192.0.2.2", "::1"])


# ---- shares


def test_a_caller_that_fills_its_share_of_the_queue_leaves_the_rest_to_others(gate):
    with serving(gate, max_queue_size=4) as url, two_callers(url) as (ann, bob):
        for _ in range(3):  # one runs, two wait
            bob.start("hold", {"name": "bob"})
        refused = bob.submit("hold")
        assert refusal(refused) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1
        assert "waiting items of this caller: 2" in refused.json()["detail"]
        for _ in range(2):
            ann.start("hold", {"name": "ann"})
        assert refusal(ann.submit("hold")) == (429, "queue_full")
        gate.open.set()
        eventually(lambda: len(gate.came) == 5)
        assert gate.came == ["bob", "bob", "ann", "bob", "ann"]


def test_a_job_may_have_as_many_inputs_as_the_callers_share_of_the_queue(gate):
    with serving(gate, max_queue_size=4) as url, Caller(url) as ann:
        described = ann.http.get("/v1/endpoints/hold").json()
        assert described["capabilities"]["batch"]["max_items"] == 3
        assert refusal(ann.submit("hold", inputs=[{}] * 4)) == (422, "batch_too_large")
        assert ann.submit("hold", inputs=[{}] * 3).status_code == 201


def test_a_caller_that_fills_its_share_of_the_input_memory_leaves_the_rest_to_others(gate):
    body = {"name": "x" * 60}
    size = len(httpx2.Request("POST", "http://a", json={"input": body}).content)
    with serving(gate, max_input_bytes=4 * size) as url, two_callers(url) as (ann, bob):
        for _ in range(2):
            bob.start("many", body)
        refused = bob.submit("many", {"name": ""})
        assert refusal(refused) == (429, "queue_full")
        assert "(max_input_bytes, max_share)" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) >= 1
        ann.start("many", body)
        ann.start("many", body)
        gate.open.set()
        eventually(lambda: bob.submit("many", body).status_code == 201)


def test_plain_functions_of_one_caller_do_not_occupy_all_worker_threads(gate):
    with serving(gate, max_threads=4) as url, two_callers(url) as (ann, bob):
        jobs = [bob.start("many", {"name": "bob"}) for _ in range(5)]
        eventually(lambda: gate.came == ["bob"] * 2)
        # A cancelled function occupies its thread until it returns.
        for job in jobs[:2]:
            bob.http.post(f"/v1/jobs/{job}/cancel")
            assert bob.ended(job)["status"] == "cancelled"
        for endpoint in ("many", "hold"):
            ann.start(endpoint, {"name": "ann"})
        eventually(lambda: gate.came == ["bob", "bob", "ann", "ann"])
        gate.open.set()
        assert {bob.ended(job)["status"] for job in jobs[2:]} == {"succeeded"}


def test_endpoints_of_one_group_skip_a_caller_that_uses_its_share_of_the_threads(gate):
    server = Server(**QUICK, max_threads=2, single_user=False)
    for name in "AB":
        server.endpoint(gate.wait, name=name, concurrency_group="gpu", concurrency_limit=5)
    with server.running() as url, two_callers(url) as (ann, bob):
        for name in "AAB":
            bob.start(name, {"name": "bob"})
        ann.start("B", {"name": "ann"})
        eventually(lambda: gate.came == ["bob", "ann"])
        gate.open.set()


def test_one_address_cannot_take_all_connections(gate):
    with serving(gate, max_connections=8) as url, ExitStack() as stack:
        held = [
            stack.enter_context(socket.create_connection(address_of(url), 20, source_address=(BOB, 0)))
            for _ in range(30)
        ]
        refused = held[4].recv(65536)
        assert refused.startswith(b"HTTP/1.1 503")
        assert b"this client address has 4 open connections" in refused
        with Caller(url) as ann:
            assert ann.http.get("/healthz").status_code == 200
        held[3].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[3].recv(65536).startswith(b"HTTP/1.1 200")
        held[0].close()

        def served() -> bool:
            with socket.create_connection(address_of(url), 20, source_address=(BOB, 0)) as again:
                again.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                return again.recv(65536).startswith(b"HTTP/1.1 200")

        eventually(served)


def test_a_named_proxy_may_take_all_connections(gate):
    settings = {"max_connections": 8, "forwarded_allow_ips": ("127.0.0.0/8",)}
    with serving(gate, **settings) as url, ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(address_of(url), 20)) for _ in range(9)]
        assert b"its limit of 8 open connections" in held[8].recv(65536)
        held[7].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert held[7].recv(65536).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("log", ["memory", "sqlite"])
def test_a_flood_of_jobs_and_keys_expires_only_the_flooders_jobs_and_keys(gate, log, tmp_path):
    limits = {"max_retained_jobs": 6, "max_tombstones": 6}
    if log == "sqlite":
        limits["log"] = f"sqlite:///{tmp_path}/log.db"
    with serving(gate, **limits) as url, two_callers(url) as (ann, bob):
        mine = [ann.ended(keyed(ann, f"key-{n}").json()["id"])["id"] for n in range(3)]
        theirs = [bob.ended(keyed(bob, f"key-{n}").json()["id"])["id"] for n in range(20)]
        assert [ann.job(job)["status"] for job in mine] == ["succeeded"] * 3
        assert [keyed(ann, f"key-{n}").json()["id"] for n in range(3)] == mine
        assert [bob.job(job)["status"] for job in theirs[-3:]] == ["succeeded"] * 3
        eventually(lambda: bob.http.get(f"/v1/jobs/{theirs[-4]}").status_code == 410)


@pytest.mark.parametrize("log", ["memory", "sqlite"])
def test_a_flood_of_large_results_expires_only_the_flooders_results(gate, log, tmp_path):
    settings = {"max_retained_bytes": 200_000}
    if log == "sqlite":
        settings["log"] = f"sqlite:///{tmp_path}/log.db"
    with serving(gate, **settings) as url, two_callers(url) as (ann, bob):
        mine = [ann.ended(keyed(ann, f"key-{n}").json()["id"])["id"] for n in range(3)]
        theirs = [bob.ended(keyed(bob, f"key-{n}", "x" * 20_000).json()["id"])["id"] for n in range(20)]
        assert [ann.job(job)["status"] for job in mine] == ["succeeded"] * 3
        assert bob.job(theirs[-1])["status"] == "succeeded"
        eventually(lambda: bob.http.get(f"/v1/jobs/{theirs[-6]}").status_code == 410)
        assert ann.http.get("/v1").json()["limits"]["max_retained_bytes"] == 200_000


@pytest.mark.parametrize(
    ("settings", "headers"),
    [({"single_user": True}, {}), ({"tokens": ["ann:one", "ann:two"]}, {"authorization": "Bearer one"})],
)
def test_an_only_caller_may_use_the_whole_queue(gate, settings, headers):
    with serving(gate, max_queue_size=4, **settings) as url, Caller(url, **headers) as ann:
        assert [ann.submit("hold").status_code for _ in range(6)] == [201] * 5 + [429]


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({}, 0.5),
        ({"max_share": 0.2}, 0.2),
        ({"tokens": ["ann:one", "bob:two"]}, 0.5),
        ({"tokens": ["ann:one", "ann:two"]}, 1),
    ],
)
def test_an_only_caller_has_no_share(settings, share):
    assert Settings(**settings).caller_share(single_user=False) == share
    assert Settings(**settings).caller_share(single_user=True) == 1


def test_a_share_is_rounded_down_but_lets_every_caller_do_something():
    assert [share_of(total, 0.5) for total in (0, 1, 2, 3, 4)] == [0, 1, 1, 1, 2]
    assert [share_of(total, 1) for total in (0, 1, 4)] == [0, 1, 4]
    assert share_of(10, 0.01) == 1


def test_principals_with_tokens_have_shares(gate):
    settings = {"max_queue_size": 2, "tokens": ["ann:one", "bob:two"]}
    with (
        serving(gate, **settings) as url,
        Caller(url, authorization="Bearer one") as ann,
        Caller(url, authorization="Bearer two") as bob,
    ):
        for _ in range(2):
            bob.start("hold")
        assert refusal(bob.submit("hold")) == (429, "queue_full")
        job = ann.start("hold")
        with ann.stream(job) as reading:
            assert data(reading.until("queue"))["position"] == 2
        gate.open.set()
        assert ann.ended(job)["status"] == "succeeded"
