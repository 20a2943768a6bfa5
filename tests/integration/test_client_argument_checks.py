"""Invalid arguments and environment variables raise at the first call, with messages that contain no secrets."""

import pytest

from support.scripted_server import ScriptedServer, answer, discovery
from tidewire import Client
from tidewire.errors import TidewireError

CLOSED_PORT_URL = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("url", "variable", "value", "message"),
    [
        (
            CLOSED_PORT_URL,
            "HTTP_PROXY",
            "ftp://proxy.example",
            "cannot use the proxy in the environment .* pass proxy=",
        ),
        (
            CLOSED_PORT_URL,
            "ALL_PROXY",
            "http://[::1",
            "cannot use the proxy in the environment .* pass proxy=",
        ),
        (
            "https://127.0.0.1:1",
            "SSL_CERT_FILE",
            "/nowhere",
            "cannot read the certificates in SSL_CERT_FILE .* pass verify=",
        ),
    ],
)
def test_an_invalid_proxy_or_certificate_variable_raises_at_the_first_request(
    url, variable, value, message, monkeypatch
):
    monkeypatch.setenv(variable, value)
    with Client(url) as client, pytest.raises(TidewireError, match=message):
        client.discover()


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "HTTPS_PROXY"])
@pytest.mark.parametrize(
    "proxy", ["http://ada:sec/ret@proxy.example:3128", "http://ada:secret@proxy.example:99999"]
)
def test_a_proxy_variable_that_is_not_valid_raises_without_the_password_in_the_message(
    variable, proxy, monkeypatch
):
    monkeypatch.setenv(variable, proxy)
    url = CLOSED_PORT_URL.replace("http", variable.partition("_")[0].lower())
    message = (
        "cannot use the proxy in the environment variables: 'http://proxy.example.* is not a valid proxy URL"
        ".*; percent-encode special characters of its password"
    )
    with Client(url) as client, pytest.raises(TidewireError, match=message) as caught:
        client.discover()
    assert "sec" not in str(caught.value)


def test_the_password_of_a_proxy_for_other_urls_is_not_part_of_the_message(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://ada:sec/ret@proxy.example:3128")
    with (
        Client(CLOSED_PORT_URL) as client,
        pytest.raises(TidewireError, match="its URL is not valid") as caught,
    ):
        client.discover()
    assert "sec" not in str(caught.value)


def test_certificates_are_not_read_for_a_server_without_tls(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    with ScriptedServer(lambda _: [answer(200, discovery("count"))]) as server, Client(server.url) as client:
        assert client.discover().endpoints


@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        (None, "the result of auth .* not NoneType"),
        ({"Authorization": "Bearer secret\n"}, "the result of auth: the value of 'Authorization'"),
    ],
)
def test_invalid_credentials_raise_without_the_secret_in_the_message(credentials, message):
    with Client(CLOSED_PORT_URL, auth=lambda: credentials) as client:
        with pytest.raises((TypeError, ValueError), match=message) as caught:
            client.discover()
    assert "secret" not in str(caught.value)


def test_header_names_are_case_insensitive_when_replaced():
    with ScriptedServer(lambda _: [answer(200, discovery("count"))]) as server:
        with Client(server.url, headers={"Authorization": "old", "User-agent": "mine"}) as client:
            client.with_options(headers={"authorization": "new"}).discover()
        # A recipient joins header lines that are sent twice, or takes the later line.
        (request,) = server.requests
        assert request.lines.count("authorization") == 1
        assert request.lines.count("user-agent") == 1
        assert (request.headers["authorization"], request.headers["user-agent"]) == ("new", "mine")


@pytest.mark.parametrize(
    ("name", "message"), [(5, "name must be a string, not 5"), ("", "name must not be empty")]
)
def test_submit_with_an_invalid_endpoint_name_raises_before_sending(name, message):
    with Client(CLOSED_PORT_URL) as client, pytest.raises((TypeError, ValueError), match=message):
        client.submit(name)


@pytest.mark.parametrize("inputs", ["abc", {"a": 1}, 5])
def test_submit_batch_refuses_inputs_that_are_not_a_list(inputs):
    with (
        Client(CLOSED_PORT_URL) as client,
        pytest.raises(TypeError, match="inputs must be a list or another iterable"),
    ):
        client.submit_batch("count", inputs)
