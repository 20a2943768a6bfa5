"""A server without tokens does not serve other machines unless the user asks for it."""

import logging
import socket

import pytest

from support.reference_server import Peer
from tidewire_server import Server
from tidewire_server.serving.exposure_check import ExposedServerError, check_exposure
from tidewire_server.settings import Settings


@pytest.mark.heavy
@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_wildcard_address_without_tokens_is_refused(host):
    with pytest.raises(SystemExit, match="refusing to serve on .* without tokens") as ended:
        Server().run(host=host, port=0)
    for remedy in ("--token-file", "TIDEWIRE_TOKENS", "--allow-anonymous"):
        assert remedy in str(ended.value)
    with pytest.raises(ExposedServerError), Server().running(host=host):
        pass


@pytest.mark.heavy
def test_given_listener_is_judged_by_its_address():
    with socket.create_server(("", 0)) as listener:
        with pytest.raises(SystemExit, match=r"refusing to serve on 0\.0\.0\.0:"):
            Server().run(listener=listener)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "::1"])
def test_loopback_address_is_served_without_tokens(host):
    with Server().running(host=host) as url, Peer(url) as peer:
        assert peer.http.get("/v1").status_code == 200


def test_server_with_tokens_is_served_on_all_addresses():
    with Server(tokens=["sesame"]).running(host="0.0.0.0") as url, Peer(url) as peer:
        assert peer.http.get("/v1").status_code == 401


def test_allow_anonymous_serves_all_addresses_with_a_warning(caplog):
    with Server(allow_anonymous=True).running(host="0.0.0.0") as url, Peer(url) as peer:
        assert peer.http.get("/v1").status_code == 200
        # A web page must not reach the server through this machine's loopback address.
        assert peer.http.get("/v1", headers={"host": "evil.example"}).status_code == 421
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "everyone who can reach this address has access" in record.getMessage()


def test_address_of_a_network_is_refused():
    class Listener:
        family = socket.AF_INET6

        def getsockname(self):
            return ("2001:db8::1", 8000, 0, 0)

    settings = Settings(operator_tokens=("only metrics".replace(" ", "-"),))
    with pytest.raises(ExposedServerError, match=r"on \[2001:db8::1\]:8000 without"):
        check_exposure(Listener(), settings, authenticates=False)
