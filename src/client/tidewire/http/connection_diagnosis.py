"""Finds out why a server cannot be reached or is not a Tidewire server, and creates the corresponding errors."""

import contextlib
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import anyio

from tidewire.errors import NotATidewireServerError, TidewireError, TransportError, Where
from tidewire.following.request_policy import RequestFault

SNIFF_TIMEOUT: Final = 1.0
"""Seconds to wait for the greeting that servers of some other protocols send first, and for a TLS handshake.

The error message uses this greeting to identify the protocol.
"""

UNREACHABLE: Final = "Check that the server is running and that host and port are right. Check the firewall and proxy settings, too."
_NO_SOCKET: Final = "Check that the server is running and that the path of the socket is right."
_PRIVATE_AUTHORITY: Final = (
    "Check the host name and the certificate of the server. To trust a private certificate authority, set the environment "
    "variable SSL_CERT_FILE to the file with its certificate."
)

PROXY_ADVICE: Final = (
    "Check the argument proxy=… and the variables HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."
)


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


def unreachable(
    address: str,
    url: str,
    error: Exception,
    where: Where,
    *,
    proxy: str | None = None,
    by_proxy: bool = False,
    uds: str | None = None,
) -> TransportError:
    """Create the error for a connection that could not be opened.

    Args:
        address: Host and port of the server, or the path of the Unix domain socket.
        url: URL of the request.
        error: Exception that httpx raised.
        where: Context for the error message.
        proxy: URL of the proxy that the connection uses, without credentials; None if there is no proxy.
        by_proxy: Whether the client has reached the proxy, and the proxy did not connect to the server.
        uds: Path of the Unix domain socket; None if there is none.
    """
    text = text_of(error)
    causes = list(_causes(error))
    advice = PROXY_ADVICE if proxy is not None else UNREACHABLE if uds is None else _NO_SOCKET
    refused = any(isinstance(cause, ConnectionRefusedError) for cause in causes) or "attempts" in text
    if by_proxy:
        what = f"the proxy {proxy} did not connect to {address}: {text}"
    elif any(isinstance(cause, ssl.SSLError) for cause in causes):
        what = f"TLS with {address} failed: {text}"
        is_untrusted = any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes)
        without_tls = f"If the server does not use TLS, try http://{urlsplit(url).netloc}."
        advice = _PRIVATE_AUTHORITY if is_untrusted else without_tls
    elif proxy is not None:
        unknown = any(isinstance(cause, socket.gaierror) for cause in causes)
        why = (
            "its host name cannot be resolved"
            if unknown
            else "no proxy is listening there"
            if refused
            else text
        )
        what = f"cannot connect to the proxy {proxy}: {why}"
    elif any(isinstance(cause, socket.gaierror) for cause in causes):
        what = f"the host name of {url} cannot be resolved: {text}"
        advice = "Check the spelling of the host name."
    elif any(isinstance(cause, FileNotFoundError) for cause in causes):
        what = f"there is no Unix domain socket {address}"
        advice = _NO_SOCKET
    elif any(isinstance(cause, PermissionError) for cause in causes):
        what = f"this user may not connect to {address}"
        advice = (
            "Run the client as the user who runs the server, or change the permissions of the socket file."
        )
    elif refused:
        what = f"no server is listening at {address}"
    else:
        what = f"cannot connect to {address}: {text}"
    failed = TransportError(what, where=where, advice=advice)
    failed.sent = False
    return failed


def unusable_environment(error: Exception) -> TidewireError:
    """Create the error for unusable proxy or certificate settings in the environment variables."""
    if isinstance(error, OSError):
        what = f"cannot read the certificates in SSL_CERT_FILE or SSL_CERT_DIR: {error}"
        return TidewireError(what, advice="Correct or unset the variable, or pass verify=….")
    advice = "Correct or unset HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or pass proxy=…."
    # httpx's InvalidURL, which is none of these, may contain a part of the password.
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
    """Return the text of an exception, or that of its first cause that has one, or the name of its type."""
    return next(filter(None, map(str, _causes(error))), type(error).__name__)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
