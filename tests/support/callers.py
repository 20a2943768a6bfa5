"""Clients that connect to a server from different addresses of the loopback interface."""

import socket

import httpx2

from support.reference_server import Peer

ANN, BOB = "127.0.0.1", "127.0.0.2"


def other_addresses_exist() -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((BOB, 0))
        except OSError:
            return False
    return True


class Caller(Peer):
    """Client that connects from its own address."""

    def __init__(self, url: str, address: str = ANN, **headers: str) -> None:
        self.url = url
        # Without `verify=False`, each client would load the certificates of all authorities.
        transport = httpx2.HTTPTransport(local_address=address, verify=False)
        self.http = httpx2.Client(base_url=url, headers=headers, timeout=20, transport=transport)
