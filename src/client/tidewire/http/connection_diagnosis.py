"""Diagnoses why a server cannot be used: another protocol, TLS, or unusable proxies in the environment variables."""

import contextlib
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import anyio

from tidewire.errors import NotATidewireServerError, TidewireError, TransportError, Where
from tidewire.following.request_policy import RequestFault

SNIFF_TIMEOUT: Final = 1.0
"""Time limit for a TLS handshake, and for the greeting that servers of some other protocols send first, in seconds.

The error message uses this greeting to identify the protocol.
"""


def fault_of(error: TransportError | NotATidewireServerError) -> RequestFault:
    """Return the kind of fault in `FAULT_TABLE` that corresponds to an error of the transport."""
    if isinstance(error, NotATidewireServerError):
        return RequestFault.NOT_TIDEWIRE
    if isinstance(error, TimeoutError):
        return RequestFault.TIMEOUT if error.sent else RequestFault.CONNECT_TIMEOUT
    return RequestFault.LOST if error.sent else RequestFault.UNREACHABLE


async def sniff(host: str, port: int, uds: str | None = None) -> bytes:
    """Send a GET request without TLS and return the first bytes that the server sends, in any protocol. Returns empty
    bytes if the server sends nothing. If `uds` is passed, it is the Unix domain socket of the server.

    This function does not use an HTTP parser, because a parser waits for the end of the headers and does not return
    bytes that it cannot parse.
    """
    with (
        anyio.move_on_after(SNIFF_TIMEOUT),
        contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream),
    ):
        connecting = anyio.connect_tcp(host, port) if uds is None else anyio.connect_unix(uds)
        async with await connecting as stream:
            await stream.send(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return await stream.receive(80)
    return b""


async def speaks_tls(host: str, port: int) -> bool:
    """Whether a server accepts a TLS connection. The client sends no request and does not verify the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        anyio.move_on_after(SNIFF_TIMEOUT),
        contextlib.suppress(OSError, anyio.BrokenResourceError, anyio.EndOfStream),
    ):
        async with await anyio.connect_tcp(
            host, port, tls=True, ssl_context=context, tls_standard_compatible=False
        ):
            return True
    return False


def environment_proxy(scheme: str, host: str, port: int) -> str | None:
    """Return the URL of the proxy that environment variables set for requests to this server; None if they set none."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(scheme) or proxies.get("all")
    return None if proxy is None or urllib.request.proxy_bypass(f"{host}:{port}") else proxy


def unusable_environment(error: Exception) -> TidewireError:
    """Create the error for unusable proxy or certificate settings in the environment variables."""
    if isinstance(error, OSError):
        what = f"cannot read the certificates in SSL_CERT_FILE or SSL_CERT_DIR: {error}"
        return TidewireError(what, advice="Correct or unset the variable, or pass verify=….")
    advice = "Correct or unset HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or pass proxy=…."
    # Do not show other errors, because httpx2's InvalidURL may contain a part of the password.
    why = str(error) if isinstance(error, ValueError | ImportError) else "its URL is not valid"
    return TidewireError(f"cannot use the proxy in the environment variables: {why}", advice=advice)


def not_http(address: str, instead: str, where: Where) -> NotATidewireServerError:
    """Create the error for a server that does not speak HTTP."""
    return NotATidewireServerError(f"the server at {address} does not speak HTTP: {instead}", where=where)


def needs_tls(address: str, url: str, where: Where) -> NotATidewireServerError:
    """Create the error for a request without TLS to a server with TLS."""
    what = f"the server at {address} uses TLS, but the URL begins with http://"
    return NotATidewireServerError(what, where=where, advice=f"Try https://{urlsplit(url).netloc}.")


def text_of(error: BaseException) -> str:
    """Return the first non-empty text of an exception and its causes, or the name of its type."""
    return next(filter(None, map(str, causes(error))), type(error).__name__)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Iterate over an exception and its causes."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
