"""Arguments and environment that are checked with the first call: refused in words that say what is wrong, and repeat no secret."""

import pytest

from support.scripted_server import ScriptedServer, answer, discovery
from tidewire import Client
from tidewire.errors import TidewireError

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "variable", "value", "said"),
    [
        (
            NOWHERE,
            "HTTP_PROXY",
            "ftp://proxy.example",
            "cannot use the proxy in the environment .* pass proxy=",
        ),
        (NOWHERE, "ALL_PROXY", "http://[::1", "cannot use the proxy in the environment .* pass proxy="),
        (
            "https://127.0.0.1:1",
            "SSL_CERT_FILE",
            "/nowhere",
            "cannot read the certificates in SSL_CERT_FILE .* pass verify=",
        ),
    ],
)
def test_an_environment_that_cannot_be_used_is_told_with_the_first_request(
    url, variable, value, said, monkeypatch
):
    monkeypatch.setenv(variable, value)
    with Client(url) as client, pytest.raises(TidewireError, match=said):
        client.discover()


def test_certificates_are_not_read_for_a_server_without_tls(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    with ScriptedServer(lambda _: [answer(200, discovery("count"))]) as server, Client(server.url) as client:
        assert client.discover().endpoints


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "the result of auth .* not NoneType"),
        ({"Authorization": "Bearer secret\n"}, "the result of auth: the value of 'Authorization'"),
    ],
)
def test_credentials_that_cannot_be_sent_are_told_without_being_repeated(given, said):
    with Client(NOWHERE, auth=lambda: given) as client:
        with pytest.raises((TypeError, ValueError), match=said) as caught:
            client.discover()
    assert "secret" not in str(caught.value)


def test_a_header_is_replaced_whatever_the_case_of_its_name():
    with ScriptedServer(lambda _: [answer(200, discovery("count"))]) as server:
        with Client(server.url, headers={"Authorization": "old", "User-agent": "mine"}) as client:
            client.with_options(headers={"authorization": "new"}).discover()
        # What is sent twice is joined by who reads it, or the later one counts.
        (request,) = server.requests
        assert request.lines.count("authorization") == 1
        assert request.lines.count("user-agent") == 1
        assert (request.headers["authorization"], request.headers["user-agent"]) == ("new", "mine")


@pytest.mark.parametrize(
    ("name", "said"), [(5, "name must be a string, not 5"), ("", "name must not be empty")]
)
def test_an_endpoint_without_a_name_is_refused_before_anything_is_sent(name, said):
    with Client(NOWHERE) as client, pytest.raises((TypeError, ValueError), match=said):
        client.submit(name)


@pytest.mark.parametrize("inputs", ["abc", {"a": 1}, 5])
def test_one_value_is_no_batch(inputs):
    with (
        Client(NOWHERE) as client,
        pytest.raises(TypeError, match="inputs must be a list or another iterable"),
    ):
        client.submit_batch("count", inputs)
