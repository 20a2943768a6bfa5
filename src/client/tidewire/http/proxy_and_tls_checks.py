"""Checks of a client's `proxy` and `verify` arguments, made when the client is created."""

import ssl
from importlib.util import find_spec
from typing import Any, Final

from tidewire.http.transport import origin
from tidewire.http.urls import shown

_SOCKS: Final = frozenset({"socks5", "socks5h"})
_EXAMPLE: Final = "write it like http://proxy.example:3128"


def check_proxy(given: Any) -> str | None:
    """Check a proxy URL and return it unchanged. Error messages never contain its password.

    Raises:
        TypeError: The argument is not a string.
        ValueError: The string is not a valid proxy URL.
        ImportError: The URL is for a SOCKS proxy and the package `socksio` is not installed.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        raise TypeError(f"proxy must be a URL such as 'http://proxy.example:3128', not {given!r}")
    try:
        scheme, host, port = origin(given)
    except ValueError:
        scheme, host, port = "", "", None
    if (
        scheme not in {"http", "https"} | _SOCKS
        or not host
        or not 0 < (1080 if port is None else port) < 2**16
    ):
        raise ValueError(f"{shown(given)!r} is not a valid proxy URL: {_EXAMPLE}")
    if scheme in _SOCKS and find_spec("socksio") is None:
        what = f"the proxy {shown(given)} needs the package socksio, which is not installed"
        raise ImportError(f"{what}: run `pip install socksio`")
    return given


def check_verify(given: Any) -> bool | ssl.SSLContext:
    """Check a `verify` argument and return it unchanged.

    Raises:
        TypeError: The argument is neither a bool nor an `ssl.SSLContext`.
        ValueError: The context is for servers.
    """
    if isinstance(given, ssl.SSLContext):
        if given.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("verify is a TLS context for servers: use ssl.create_default_context()")
        return given
    if isinstance(given, bool):
        return given
    advice = "for a certificate file use ssl.create_default_context(cafile=…)"
    raise TypeError(f"verify must be True, False or an ssl.SSLContext, not {given!r}: {advice}")
