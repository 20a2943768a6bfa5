"""The arguments `url` and `token` of a client, stream URLs, and the environment variables `TIDEWIRE_URL` and `TIDEWIRE_TOKEN`."""

import logging

import pytest

from support.scripted_server import ScriptedServer, answer, discovery, problem
from tidewire import AsyncClient, Client
from tidewire.errors import AuthenticationError, JobNotFoundError, ProtocolError, RequestError
from tidewire.http.url_and_token import url_of_environment
from tidewire.testing import FakeServer
from tidewire_conformance import parse_option_values
from tidewire_server import Server

pytestmark = pytest.mark.anyio

NOWHERE = "http://127.0.0.1:1"
SECRET = "sesame-4711"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """A function that sets `TIDEWIRE_URL` and `TIDEWIRE_TOKEN`, which are unset at first."""
    monkeypatch.delenv("TIDEWIRE_URL", raising=False)
    monkeypatch.delenv("TIDEWIRE_TOKEN", raising=False)
    return lambda **values: [monkeypatch.setenv(f"TIDEWIRE_{name}", value) for name, value in values.items()]


@pytest.fixture
def fake():
    with FakeServer(token=SECRET) as server:
        server.endpoint("shout").returns("HELLO")
        yield server


def test_token_is_sent_as_a_bearer_token(fake):
    with Client(fake.url, token=SECRET) as client:
        assert client.run("shout") == "HELLO"
    assert fake.submits[0].headers["authorization"] == f"Bearer {SECRET}"


async def test_url_and_token_of_an_async_client_come_from_the_environment(fake, environment):
    environment(URL=fake.url, TOKEN=SECRET)
    async with AsyncClient() as client:
        assert await client.run("shout") == "HELLO"


def test_url_and_token_come_from_the_environment(fake, environment):
    environment(URL=fake.url, TOKEN=SECRET)
    with Client() as client:
        assert (client.url, client.run("shout")) == (fake.url, "HELLO")
    with Client(fake.url + "/v1/") as client:
        assert client.run("shout") == "HELLO"


def test_whitespace_around_the_variables_is_ignored(fake, environment):
    environment(URL=f" {fake.url}\n", TOKEN=f" {SECRET}\n")
    for client in Client(), Client(fake.url):
        with client:
            assert (client.url, client.run("shout")) == (fake.url, "HELLO")
    assert url_of_environment() == parse_option_values.server_url("") == fake.url
    assert parse_option_values.caller(fake.url, []) == [f"Authorization: Bearer {SECRET}"]


def test_a_url_of_only_whitespace_counts_as_unset(fake, environment):
    environment(URL=" \n", TOKEN=SECRET)
    with Client(fake.url) as client:
        assert client.run("shout") == "HELLO"
    with pytest.raises(ValueError, match="no server URL"):
        Client()
    assert url_of_environment() is None
    assert parse_option_values.server_url("") == ""
    assert parse_option_values.caller(fake.url, []) == [f"Authorization: Bearer {SECRET}"]


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_without_a_url_the_error_names_the_argument_and_the_variable(client, environment):
    with pytest.raises(ValueError, match=r"no server URL: pass one, such as .* TIDEWIRE_URL"):
        client()
    environment(URL="gpu:8000")
    with pytest.raises(ValueError, match=r"^TIDEWIRE_URL: 'gpu:8000' is not a valid server URL: write it"):
        client()


@pytest.mark.parametrize(
    ("url", "arguments", "other"),
    [
        (NOWHERE, {"auth": dict}, "auth"),
        (NOWHERE, {"headers": {"authorization": "Basic x"}}, r"headers\['Authorization'\]"),
        ("http://ada:pw@127.0.0.1:1", {}, "a user in the URL"),
    ],
)
def test_token_excludes_other_credentials_and_a_token_of_the_environment_gives_way(
    url, arguments, other, environment
):
    with pytest.raises(ValueError, match=f"token and {other} are mutually exclusive") as caught:
        Client(url, token=SECRET, **arguments)
    assert SECRET not in str(caught.value)
    environment(TOKEN=SECRET)
    with ScriptedServer(lambda _: iter([problem(401, "unauthorized")])) as server:
        own = server.url.replace("http://", "http://ada:pw@") if "@" in url else server.url
        with Client(own, **arguments) as client, pytest.raises(AuthenticationError):
            client.discover()
        assert all(SECRET not in each.headers.get("authorization", "") for each in server.requests)


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "token is empty; pass a token, or omit the argument"),
        ("Bearer x", "token must consist of"),
        ("a\r\nX-Evil: 1", "token must consist of"),
        (f"{SECRET}é", "token must consist of"),
        (5, "token must be a string"),
    ],
)
def test_invalid_token_is_refused_without_showing_it(token, message, environment):
    with pytest.raises((TypeError, ValueError), match=f"^{message}") as caught:
        Client(NOWHERE, token=token)
    assert "Evil" not in str(caught.value)
    assert SECRET not in str(caught.value)
    environment(TOKEN=f"{SECRET} x")
    with pytest.raises(ValueError, match="^TIDEWIRE_TOKEN must consist") as caught:
        Client(NOWHERE)
    assert SECRET not in str(caught.value)


async def test_token_of_the_environment_is_only_sent_to_the_origin_of_its_url(environment):
    environment(URL="http://gpu.example:8000", TOKEN=SECRET)
    with ScriptedServer(lambda _: iter([problem(401, "unauthorized")])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(
                AuthenticationError, match="TIDEWIRE_TOKEN was not sent, because TIDEWIRE_URL"
            ):
                await client.discover()
        assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("arguments", [{}, {"token": SECRET}])
async def test_token_is_not_sent_to_the_target_of_a_redirect(arguments, environment):
    if not arguments:
        environment(TOKEN=SECRET)
    with ScriptedServer(lambda _: iter([answer(200, discovery("count"))])) as other:
        moved = answer(307, Location=f"{other.url}/v1")
        with ScriptedServer(lambda _: iter([moved])) as server:
            async with AsyncClient(server.url, **arguments) as client:
                with pytest.raises(ProtocolError, match="another origin"):
                    await client.discover()
            assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
        assert other.requests == []


async def test_token_is_in_no_error_repr_or_log_line(caplog):
    caplog.set_level(logging.DEBUG)
    with ScriptedServer(lambda _: iter([problem(401, "unauthorized")])) as server:
        async with AsyncClient(server.url, token=SECRET) as client:
            with pytest.raises(AuthenticationError, match="token=…") as caught:
                await client.submit("count")
            shown = [str(caught.value), repr(caught.value), repr(client), repr(client.job("j1")), caplog.text]
    assert not any(SECRET in each for each in shown)
    assert client.job("j1").checkpoint().to_json().find(SECRET) == -1


NAMED = f"alice:{SECRET}"
OF_NAMED = {"Authorization": f"Bearer {NAMED}"}


@pytest.mark.parametrize(
    "arguments",
    [{"token": NAMED}, {"headers": {"authorization": f"bearer {NAMED}"}}, {"auth": lambda: OF_NAMED}, {}],
)
@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_line_of_the_servers_token_file_as_token_raises_with_a_hint(arguments, how, environment):
    if not arguments:
        environment(TOKEN=NAMED)
    with Server(tokens=[NAMED]).running() as url:
        async with AsyncClient(url, **arguments) as client:
            with pytest.raises(
                AuthenticationError, match="pass only the part after the first colon"
            ) as caught:
                await (client.discover() if how == "call" else client.job("j1").result())
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "arguments", [{}, {"token": SECRET}, {"headers": {"Authorization": f"Basic {NAMED}"}}]
)
async def test_other_rejected_credentials_raise_without_the_hint(arguments):
    with Server(tokens=["bob:open"]).running() as url:
        async with AsyncClient(url, **arguments) as client:
            with pytest.raises(AuthenticationError, match="Pass valid credentials"):
                await client.discover()


# ---- stream URLs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (problem(404, "not_found"), RequestError, "the server does not offer stream tokens"),
        (problem(404, "job_not_found"), JobNotFoundError, "job_not_found"),
        (
            answer(200, {"url": "https://evil.example/v1?token=t", "expires_at": "2026-01-01T00:00:00Z"}),
            ProtocolError,
            "points to another origin",
        ),
    ],
)
async def test_missing_stream_token_is_reported(reply, error, message):
    with ScriptedServer(lambda _: iter([reply])) as server:
        async with AsyncClient(server.url) as client:
            with pytest.raises(error, match=message) as caught:
                await client.job("j1").stream_url()
            assert type(caught.value) is error
