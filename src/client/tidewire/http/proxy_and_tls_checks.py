"""What a client is told of the way to its server: the proxy, and whose certificates are good. Refused where it is given."""

import ssl
from importlib.util import find_spec
from typing import Any, Final

from tidewire.http.transport import origin
from tidewire.http.urls import shown

_SOCKS: Final = frozenset({"socks5", "socks5h"})
_EXAMPLE: Final = "write it like http://proxy.example:3128"


def check_proxy(given: Any) -> str | None:
    """The address of a proxy, as it was given.

    Raises:
        TypeError: It is no text.
        ValueError: It is no address of one. Its password is not repeated.
        ImportError: It is a SOCKS proxy, and the package for these is not installed.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        raise TypeError(f"proxy is an address such as 'http://proxy.example:3128', not {given!r}")
    try:
        scheme, host, port = origin(given)
    except ValueError:
        scheme, host, port = "", "", None
    if (
        scheme not in {"http", "https"} | _SOCKS
        or not host
        or not 0 < (1080 if port is None else port) < 2**16
    ):
        raise ValueError(f"{shown(given)!r} is no address of a proxy: {_EXAMPLE}")
    if scheme in _SOCKS and find_spec("socksio") is None:
        what = f"the proxy {shown(given)} speaks SOCKS, and socksio is not installed"
        raise ImportError(f"{what}: pip install socksio")
    return given


def check_verify(given: Any) -> bool | ssl.SSLContext:
    """Whether certificates are checked, or the context that does.

    Raises:
        TypeError: It is neither.
        ValueError: It is a server's context.
    """
    if isinstance(given, ssl.SSLContext):
        if given.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("verify is the context of a server: make one with ssl.create_default_context()")
        return given
    if isinstance(given, bool):
        return given
    advice = "for a file of certificates, ssl.create_default_context(cafile=…)"
    raise TypeError(f"verify is True, False or an ssl.SSLContext, not {given!r}: {advice}")
