"""Checks of the arguments of a client's connections (`proxy`, `uds` and `verify`), which run when the client is created."""

import os
import ssl
from importlib.util import find_spec
from typing import Any, Final

from tidewire.http.links_and_origins import origin, without_credentials

_SOCKS: Final = frozenset({"socks5", "socks5h"})
_EXAMPLE: Final = "write it like http://proxy.example:3128"


def check_proxy(proxy: Any) -> str | None:
    """Check the URL of a proxy and return the URL unchanged. Error messages never contain the password in the URL.

    Raises:
        TypeError: The argument is not a string.
        ValueError: The string is not a valid proxy URL.
        ImportError: The URL is for a SOCKS proxy and the package `socksio` is not installed.
    """
    if proxy is None:
        return None
    if not isinstance(proxy, str):
        raise TypeError(f"proxy must be a URL such as 'http://proxy.example:3128', not {proxy!r}")
    try:
        scheme, host, port = origin(proxy)
    except ValueError:
        scheme, host, port = "", "", None
    if (
        scheme not in {"http", "https"} | _SOCKS
        or not host
        or not 0 < (1080 if port is None else port) < 2**16
    ):
        shown = without_credentials(proxy)
        # Mention the password, because the URL may be invalid only because of an unencoded "/" or "#" in it.
        hint = "" if shown == proxy else "; percent-encode special characters of its password"
        raise ValueError(f"{shown!r} is not a valid proxy URL: {_EXAMPLE}{hint}")
    if scheme in _SOCKS and find_spec("socksio") is None:
        what = f"the proxy {without_credentials(proxy)} needs the package socksio, which is not installed"
        raise ImportError(f"{what}: run `pip install socksio`")
    return proxy


def check_uds(uds: Any, proxy: str | None) -> str | None:
    """Check the path of a Unix domain socket and return it as a string.

    Raises:
        TypeError: The argument is not a path.
        ValueError: The path is empty, or there is also a proxy.
    """
    if uds is None:
        return None
    path = os.fspath(uds) if isinstance(uds, str | os.PathLike) else None
    if not isinstance(path, str):
        raise TypeError(f"uds must be the path of a Unix domain socket such as '/run/ai.sock', not {uds!r}")
    if not path:
        raise ValueError("uds is an empty path: write it like '/run/ai.sock'")
    if proxy is not None:
        raise ValueError("uds and proxy are mutually exclusive: pass only one of them")
    return path


def check_verify(verify: Any) -> bool | ssl.SSLContext:
    """Check the argument `verify` of a client and return it unchanged.

    Raises:
        TypeError: The argument is neither a bool nor an `ssl.SSLContext`.
        ValueError: The argument is a TLS context for servers.
    """
    if isinstance(verify, ssl.SSLContext):
        if verify.protocol == ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("verify is a TLS context for servers: use ssl.create_default_context()")
        return verify
    if isinstance(verify, bool):
        return verify
    advice = "for a certificate file use ssl.create_default_context(cafile=…)"
    raise TypeError(f"verify must be True, False or an ssl.SSLContext, not {verify!r}: {advice}")
