"""Converts the exceptions that httpx2 raises during a request to the client's errors."""

import re
import socket
import ssl
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import httpx2

from tidewire.errors import ConnectTimeoutError, ProtocolError, SilenceTimeoutError, TransportError, Where
from tidewire.http.connection_diagnosis import causes, environment_proxy, not_http, text_of
from tidewire.http.links_and_origins import origin, without_credentials
from tidewire.http.response import broken_connection

_UNREACHABLE: Final = "Check that the server is running and that host and port are right. Check the firewall and proxy settings, too."
_NO_SOCKET: Final = "Check that the server is running and that the path of the socket is right."
_PRIVATE_AUTHORITY: Final = (
    "Check the host name and the certificate of the server. To trust a private certificate authority, set the environment "
    "variable SSL_CERT_FILE to the file with its certificate."
)

_CLIENT_CERTIFICATE: Final = (
    "The server accepts only clients with a certificate that it trusts: pass verify=context, where context is an ssl.SSLContext "
    "that has loaded such a certificate with load_cert_chain()."
)
_CERTIFICATE_REFUSED: Final = re.compile(r"_ALERT_(?:\w*CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED)")
"""Matches the alerts with which a server refuses the certificate of the client, or a client without one."""
_PROXY_ADVICE: Final = (
    "Check the argument proxy=… and the variables HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY."
)


class Route(NamedTuple):
    """The way to the server: through a proxy, through a Unix domain socket, or a direct connection."""

    proxy: str | None
    """URL of the proxy that the client was created with. None: the environment variables may name one."""
    uds: str | None
    """Path of the Unix domain socket."""

    def address(self, url: str) -> str:
        """Return the address of the server for error messages."""
        _, host, port = origin(url)
        return f"{host}:{port}" if self.uds is None else self.uds

    def proxy_for(self, url: str) -> str | None:
        """Return the URL of the proxy for a request, without credentials. None if there is no proxy."""
        if self.uds is not None:
            return None
        scheme, host, port = origin(url)
        proxy = self.proxy or environment_proxy(scheme, host, port or 0)
        return None if proxy is None else without_credentials(proxy)


def request_error(
    error: Exception, where: Where, url: str, route: Route, connect_timeout: float
) -> Exception:
    """Convert an exception that httpx2 raised during a request to the client's error. All other exceptions are returned
    unchanged.

    The caller raises the error without a cause, because its message contains the text of the exception. The chained
    exceptions of httpx2 and httpcore2 would only make a traceback longer.

    Args:
        error: The exception.
        where: Context for the error message.
        url: URL of the request.
        route: The way to the server.
        connect_timeout: Time limit for opening the connection, in seconds.
    """
    match error:
        case httpx2.ConnectTimeout():
            proxy = route.proxy_for(url)
            to = route.address(url) if proxy is None else f"the proxy {proxy}"
            what = f"no connection to {to} within {connect_timeout:g} s"
            return ConnectTimeoutError(
                what, where=where, advice=_UNREACHABLE if proxy is None else _PROXY_ADVICE
            )
        case httpx2.ConnectError() | httpx2.ProxyError():
            return _unreachable(error, where, url, route)
        case httpx2.ReadTimeout():
            proxy = route.proxy_for(url)
            through = "" if proxy is None else f" through the proxy {proxy}"
            return SilenceTimeoutError(f"no response in time{through}", where=where)
        case httpx2.WriteTimeout():
            return SilenceTimeoutError("the request could not be sent in time", where=where)
        case httpx2.RemoteProtocolError() if str(error).startswith(_INVALID_LOCATION):
            return _invalid_link(error, where)
        case httpx2.RemoteProtocolError() if not str(error).startswith(_CUT):
            return not_http(route.address(url), str(error), where)
        case httpx2.HTTPError() | httpx2.StreamError() | ssl.SSLError():
            # httpcore2 converts an SSLError of the TLS handshake only. In TLS 1.3, the server refuses the certificate of a
            # client after the handshake. It then has not read the request, and repetitions rarely help.
            if _CERTIFICATE_REFUSED.search(text_of(error)):
                return _unreachable(error, where, url, route)
            return TransportError(broken_connection(error), where=where)
        case httpx2.InvalidURL():
            # The client's own URL was parsed before. The invalid URL is a link of the server that is too long for
            # httpx2, or the Location header of a response.
            return _invalid_link(error, where)
    return error


def _unreachable(error: Exception, where: Where, url: str, route: Route) -> TransportError:
    """Create the error for a connection that could not be opened."""
    address, proxy = route.address(url), route.proxy_for(url)
    text, chain = text_of(error), [*causes(error)]

    def has_cause(kind: type[Exception]) -> bool:
        return any(isinstance(cause, kind) for cause in chain)

    advice = _PROXY_ADVICE if proxy is not None else _UNREACHABLE if route.uds is None else _NO_SOCKET
    refused = has_cause(ConnectionRefusedError) or "attempts" in text
    if isinstance(error, httpx2.ProxyError):
        what = f"the proxy {proxy} did not connect to {address}: {text}"
    elif has_cause(ssl.SSLError):
        what = f"TLS with {address} failed: {text}"
        if _CERTIFICATE_REFUSED.search(text):
            advice = _CLIENT_CERTIFICATE
        elif has_cause(ssl.SSLCertVerificationError):
            advice = _PRIVATE_AUTHORITY
        else:
            advice = f"If the server does not use TLS, try http://{urlsplit(url).netloc}."
    elif proxy is not None:
        why = (
            "its host name cannot be resolved"
            if has_cause(socket.gaierror)
            else "no proxy is listening there"
            if refused
            else text
        )
        what = f"cannot connect to the proxy {proxy}: {why}"
    elif has_cause(socket.gaierror):
        what = f"the host name of {url} cannot be resolved: {text}"
        advice = "Check the spelling of the host name."
    elif has_cause(FileNotFoundError):
        what = f"there is no Unix domain socket {address}"
    elif has_cause(PermissionError):
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


_CUT = ("Server disconnected", "peer closed connection")
"""Start of httpcore2's messages for a connection that was closed before the status line or within the body. All other
messages come from h11 and concern bytes that are not valid HTTP."""
_INVALID_LOCATION = "Invalid URL in location header"
"""Start of httpx2's message for a Location header that is not a URL. httpx2 parses it even if it follows no redirects."""


def _invalid_link(error: Exception, where: Where) -> ProtocolError:
    return ProtocolError(f"the response contains an invalid link: {error}", where=where)
