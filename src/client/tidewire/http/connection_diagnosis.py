"""Diagnosis of a server that cannot be reached, or that is not a Tidewire server."""

import contextlib
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Final

import anyio

from tidewire.errors import NotATidewireServerError, TidewireError, TransportError, Where
from tidewire.protocol.request_policy import RequestFault

OVERHEAR_TIMEOUT: Final = 1.0
"""Seconds that a server that does not answer in HTTP has to say anything at all."""

UNREACHABLE: Final = (
    "Check that the server runs, the host and the port, and what stands between (firewall, proxy settings)."
)


def fault_of(error: TransportError | NotATidewireServerError) -> RequestFault:
    """The row of `FAULT_TABLE` for an error of the transport."""
    if isinstance(error, NotATidewireServerError):
        return RequestFault.NOT_TIDEWIRE
    return RequestFault.TIMEOUT if isinstance(error, TimeoutError) else RequestFault.NO_CONNECTION


async def sniff(host: str, port: int) -> bytes:
    """The first bytes that a server without TLS says to a GET, whatever it speaks; none where it says nothing.

    An HTTP parser waits for the end of what it takes for headers, and keeps to itself what it read.
    """
    with (
        anyio.move_on_after(OVERHEAR_TIMEOUT),
        contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream),
    ):
        async with await anyio.connect_tcp(host, port) as stream:
            await stream.send(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return await stream.receive(80)
    return b""


def goes_through_a_proxy(host: str, port: int) -> bool:
    """Whether the environment sends plain HTTP to a host through a proxy, of which a direct connection tells nothing."""
    proxies = urllib.request.getproxies()
    if not {"http", "all"} & proxies.keys():
        return False
    return not urllib.request.proxy_bypass(f"{host}:{port}")


def unreachable(address: str, url: str, error: Exception, where: Where) -> TransportError:
    """The error for a connection that did not come about.

    Args:
        address: Host and port.
        url: What was asked for.
        error: Why, as it was told.
        where: For the error.
    """
    text = str(error)
    causes = list(_causes(error))
    advice = UNREACHABLE
    if any(isinstance(cause, ssl.SSLError) for cause in causes):
        what = f"TLS with {address} failed: {text}"
        advice = "Check the scheme (a server without TLS is http://…) and the certificate (verify=…)."
    elif any(isinstance(cause, socket.gaierror) for cause in causes):
        what = f"the host of {url} is not known: {text}"
        advice = "Check the spelling of the host."
    elif any(isinstance(cause, ConnectionRefusedError) for cause in causes) or "attempts" in text:
        what = f"nothing listens at {address}"
    else:
        what = f"no connection to {address}: {text or type(error).__name__}"
    failed = TransportError(what, where=where, advice=advice)
    failed.sent = False
    return failed


def unusable_environment(error: Exception) -> TidewireError:
    """The error for proxies or certificates that the environment names, and that cannot be used."""
    if isinstance(error, OSError):
        what = f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read: {error}"
        return TidewireError(what, advice="Correct or unset these, or give verify=….")
    advice = "Correct or unset HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or give proxy=…."
    return TidewireError(f"the proxy that the environment names cannot be used: {error}", advice=advice)


def no_http(address: str, instead: str, where: Where) -> NotATidewireServerError:
    """The error for a server of another kind altogether."""
    return NotATidewireServerError(f"what listens at {address} does not speak HTTP: {instead}", where=where)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
