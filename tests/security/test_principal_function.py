"""`Server(principal=f)`: the function of an application names the callers, in place of tokens."""

import asyncio
import enum
import json
import logging
import signal

import pytest

from support.reference_server import Peer, serving
from support.serve_command import run, served
from tidewire_server import Server
from tidewire_server.principals import MAX_NAME_LENGTH
from tidewire_server.setting_errors import SettingsError


def named(scope):
    """Return the name in the header `x-user`."""
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


def server_with(principal, **options):
    server = Server(principal=principal, default_concurrency_limit=None, **options)

    @server.endpoint
    async def double(n: int = 1) -> int:
        return 2 * n

    return server


def test_each_caller_has_only_the_jobs_of_its_name():
    with serving(server_with(named), **{"x-user": "ann"}) as ann, Peer(ann.url, **{"x-user": "bob"}) as bob:
        job = ann.start("double", {"n": 3})
        assert ann.ended(job)["state"]["items"][0]["value"] == 6
        assert [each["id"] for each in ann.http.get("/v1/jobs").json()["jobs"]] == [job]
        assert bob.http.get("/v1/jobs").json()["jobs"] == []
        for path in (f"/v1/jobs/{job}", f"/v1/jobs/{job}/events"):
            assert bob.http.get(path).json()["code"] == "job_not_found"
        assert bob.http.post(f"/v1/jobs/{job}/cancel").status_code == 404


def test_none_is_401_for_every_resource_but_the_health_checks():
    with serving(server_with(named)) as peer:
        answers = [
            peer.http.get(path)
            for path in ("/v1", "/v1/endpoints/double", "/v1/jobs", "/v1/jobs/x", "/v1/jobs/x/events")
        ]
        for answer in [*answers, peer.submit("double")]:
            assert answer.status_code == 401
            assert answer.json()["code"] == "unauthorized"
            assert not answer.headers["www-authenticate"].startswith("Bearer"), (
                "a client would ask for a token"
            )
        assert peer.http.get("/healthz").status_code == peer.http.get("/readyz").status_code == 200
        assert peer.http.get("/metrics").status_code == 403


def test_the_function_may_be_async_and_a_stream_token_needs_no_name():
    async def principal(scope):
        await asyncio.sleep(0)
        return named(scope)

    with serving(server_with(principal), **{"x-user": "ann"}) as ann:
        job = ann.start("double")
        url = ann.http.post(f"/v1/jobs/{job}/stream-token").json()["url"]
        with Peer(ann.url) as reader:
            assert "event:done" in reader.http.get(url).text.replace(": ", ":")


class BrokenError(Exception):
    pass


@pytest.mark.parametrize("kind", [BrokenError, SystemExit, TimeoutError])
def test_an_exception_is_logged_and_gives_500_without_its_message_and_the_server_goes_on(kind, caplog):
    def principal(scope):
        if dict(scope["headers"]).get(b"x-user") == b"broken":
            raise kind("password hunter2")
        return named(scope)

    with (
        serving(server_with(principal), **{"x-user": "ann"}) as ann,
        Peer(ann.url, **{"x-user": "broken"}) as broken,
    ):
        for answer in (broken.submit("double"), broken.http.get("/v1/jobs/x/events")):
            assert answer.status_code == 500
            assert answer.headers["content-type"] == "application/problem+json"
            assert answer.json()["code"] == "internal"
            assert "hunter2" not in answer.text
            assert kind.__name__ not in answer.text
        in_band = broken.http.get("/v1/jobs/x/events?errors=inband")
        assert '"internal"' in in_band.text
        assert "hunter2" not in in_band.text
        assert ann.value("double", {"n": 2}) == 4
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 3
    assert "hunter2" in caplog.text  # in the traceback
    assert "the function `principal` raised" in caplog.text


def test_an_http_exception_of_starlette_is_an_exception_like_others(caplog):
    from starlette.exceptions import HTTPException

    def principal(scope):
        raise HTTPException(418, "hunter2")

    with serving(server_with(principal)) as peer:
        answer = peer.http.get("/v1")
        assert (answer.status_code, answer.json()["code"]) == (500, "internal")
        assert "hunter2" not in answer.text


@pytest.mark.parametrize("returned", [1, b"ann", ["ann"], True])
def test_another_type_than_a_name_is_a_fault_of_the_function(returned, caplog):
    with serving(server_with(lambda scope: returned)) as peer:
        assert peer.http.get("/v1").json()["code"] == "internal"
    assert f"must return a name or None, not {type(returned).__name__}" in caplog.text


def test_a_slow_async_function_gets_500_after_the_timeout():
    async def principal(scope):
        await asyncio.sleep(0 if dict(scope["headers"]).get(b"x-user") == b"ann" else 60)
        return "ann"

    server = server_with(principal, principal_timeout=0.05)
    with serving(server, **{"x-user": "ann"}) as ann, Peer(ann.url) as slow:
        assert slow.http.get("/v1").json()["code"] == "internal"
        assert ann.http.get("/v1").status_code == 200


BAD_NAMES = [
    "",
    "x" * (MAX_NAME_LENGTH + 1),
    "x" * 5_000_000,
    "ann\n",
    "ann\x00",
    "\x1b[2Jann",
    "ann\u202e",
    "\ud800",
    "anonymous",
    "anonymous 10.0.0.1",
]


@pytest.mark.parametrize("name", BAD_NAMES, ids=lambda name: repr(name[:20]))
def test_a_name_that_no_principal_may_have_is_403_and_is_neither_sent_nor_logged(name, caplog):
    with serving(server_with(lambda scope: name)) as peer:
        answer = peer.submit("double")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert len(answer.content) < 500
    assert not [each for each in caplog.records if each.name.startswith("tidewire")]


class Role(str, enum.Enum):  # noqa: UP042 - its text is not its value
    ADMIN = "x" * MAX_NAME_LENGTH


@pytest.mark.parametrize("name", ["x" * MAX_NAME_LENGTH, "Zoë 李", "anonymous-looking", Role.ADMIN])
def test_a_name_at_the_limit_is_kept_as_it_is(name, tmp_path):
    server = server_with(lambda scope: name, log=f"sqlite:///{tmp_path / 'log.db'}")
    with serving(server) as peer:
        job = peer.start("double")
        assert peer.ended(job)["status"] == "succeeded"
    with serving(
        server_with(lambda scope: str.__str__(name), log=f"sqlite:///{tmp_path / 'log.db'}")
    ) as peer:
        assert peer.job(job)["status"] == "succeeded"


def test_tokens_and_a_function_exclude_each_other():
    for build in (
        lambda: Server(principal=named, tokens=["sesame"]),
        lambda: Server(principal=named).configure(tokens=["sesame"]),
    ):
        with pytest.raises(ValueError, match="remove one of the two"):
            build()
    with pytest.raises(TypeError, match="principal must be a function"):
        Server(principal="ann")
    with pytest.raises(SettingsError, match="principal_timeout"):
        Server(principal=named, principal_timeout=0)


def test_a_server_with_a_function_may_serve_other_machines():
    with server_with(named).running(host="0.0.0.0") as url, Peer(url) as peer:
        assert peer.http.get("/v1").status_code == 401


def test_a_web_page_is_refused_on_loopback_although_the_function_accepts_everyone():
    with serving(server_with(lambda scope: "me")) as peer:
        assert peer.http.get("/v1", headers={"host": "evil.example"}).status_code == 421
        assert peer.http.get("/v1", headers={"origin": "http://evil.example"}).status_code == 403


APP = """
from tidewire_server import Server

server = Server(principal=lambda scope: None)

@server.endpoint
def double(n: int = 1) -> int:
    return 2 * n
"""


def test_the_command_names_the_function_in_its_banner_and_refuses_tokens(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    with served(tmp_path, "app.py", TIDEWIRE_TOKEN="of a client") as (process, peer):
        assert peer.http.get("/v1").status_code == 401
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=20)
    assert "as the function `principal` of the server names them" in out
    assert "authentication (--token-file)" not in out
    assert not errors
    (tmp_path / "tokens.txt").write_text("ann:sesame\n")
    process = run(tmp_path, "app.py", "--port", "0", "--token-file", "tokens.txt")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 2
    assert "must not have `tokens`" in errors


def test_one_caller_has_only_its_share_of_the_queue():
    server = Server(principal=named, default_concurrency_limit=1, max_queue_size=4)

    @server.endpoint
    async def forever() -> None:
        await asyncio.Event().wait()

    with serving(server, **{"x-user": "ann"}) as ann, Peer(ann.url, **{"x-user": "bob"}) as bob:
        answers = [ann.submit("forever") for _ in range(4)]
        assert [each.status_code for each in answers] == [201, 201, 201, 429]
        assert json.loads(answers[-1].text)["code"] == "queue_full"
        assert bob.submit("forever").status_code == 201
