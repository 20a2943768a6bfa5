"""Addresses and the links in answers: where they lead, and whether that is still the same server.

What a URL means is the HTTP library's to say: were it read in two ways, a link could show one host to the check and
lead the credentials to another.
"""

import re
from base64 import b64encode
from typing import Final
from urllib.parse import unquote, urlsplit

from tidewire.errors import ProtocolError, Where
from tidewire.http.transport import joined, origin
from tidewire.protocol.resources import API_ROOT

_ROOT: Final = re.compile(r"https?://[a-z0-9.-]+(?::[1-9][0-9]{0,4})?(?=/|\Z)")
"""Scheme, host and port as most URLs spell them; nothing of it means anything else."""
_PLAIN_PATH: Final = re.compile(r"/[A-Za-z0-9_-][A-Za-z0-9_/-]*")
"""Links that stand after such a root as they are: no host of their own, no dots, nothing to quote."""


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs have scheme, host and port in common.

    Raises:
        ValueError: One is no URL.
    """
    roots = _ROOT.match(one), _ROOT.match(other)
    # Two that are spelt alike need not be parsed, which costs more than all else that is done with a link.
    if roots[0] is not None and roots[1] is not None and roots[0][0] == roots[1][0]:
        return True
    return origin(one) == origin(other)


def resolve(base: str, reference: str) -> str:
    """A URI reference, resolved against the URL of the answer that carried it.

    Raises:
        ProtocolError: It is none.
    """
    root = _ROOT.match(base)
    if root is not None and _PLAIN_PATH.fullmatch(reference):
        return root[0] + reference
    try:
        return joined(base, reference)
    except ValueError as error:
        raise ProtocolError(f"{reference[:200]!r} is no link: {error}", where=Where(url=base)) from None


def last_segment(url: str) -> str:
    """What the path of a URL ends with: the id in a link to a job."""
    return unquote(urlsplit(url).path.rpartition("/")[2])


def shown(address: str) -> str:
    """An address for a message: without the user and password that it may name."""
    scheme, separator, rest = address.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def apart(url: str) -> tuple[str, dict[str, str]]:
    """A server's address without the user and password that it may name, and the header that carries those.

    Raises:
        ValueError: It is none.
    """
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    base = f"{scheme}://{host}{slash}{path}" if at else url
    try:
        parts = origin(base)
    except ValueError:
        parts = "", "", None
    if parts[0] not in {"http", "https"} or not parts[1] or not 0 < (parts[2] or 0) < 2**16:
        raise ValueError(f"{shown(url)!r} is no address of a server: write it like http://127.0.0.1:8000")
    base = base.partition("?")[0].partition("#")[0].rstrip("/").removesuffix(API_ROOT)
    if not at:
        return base, {}
    name, _, password = user.partition(":")
    pair = f"{unquote(name)}:{unquote(password)}"
    return base, {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
