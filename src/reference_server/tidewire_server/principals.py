"""Identity of callers. A caller is a principal, identified by a bearer token or by the application, or is anonymous.

A principal has access only to its own jobs. A request for another principal's job gets the same response as a request
for an unknown job.

If the server has neither tokens nor a function `principal` of the application, all callers are anonymous:

mode                          | who may use a job             | list of jobs | limits count
------------------------------+-------------------------------+--------------+-----------------------
several users                 | every caller who knows its id | no           | each client address
`single_user`                 | every caller                  | yes          | all callers as one
"""

import asyncio
import hashlib
import hmac
import inspect
import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, Final

from tidewire_server.errors import ProblemError, refuse

ANONYMOUS: Final = "anonymous"
"""Principal of all anonymous callers if the server treats these callers as one user.

Otherwise, the principal of an anonymous caller is this text, followed by a space and the client's address.
"""

CALLER: Final[ContextVar[str]] = ContextVar("caller", default=ANONYMOUS)
"""Principal for which the current task validates an input or calls a function. Shared resources have limits per principal."""

PrincipalFunction = Callable[[MutableMapping[str, Any]], "str | Awaitable[str | None] | None"]
"""Function of the application that gets the ASGI scope of a request, and returns the caller's name or None."""

MAX_NAME_LENGTH: Final = 256
"""Maximum length of a name that a `PrincipalFunction` returns, in code points. Names are stored with each job."""

_BEARER: Final = {"www-authenticate": 'Bearer realm="tidewire"'}

_APPLICATION: Final = {"www-authenticate": 'Application realm="tidewire"'}
"""Challenge of a server with a function `principal`. It must not be `Bearer`, because the web page would then ask for a token."""

_UNKNOWN_ADDRESS: Final = "unknown"

_IPV6_PREFIX: Final = 64
"""Length of the IPv6 prefix that counts as one client address. A single host can usually use all addresses of a /64."""


@lru_cache(maxsize=4096)
def client_address(host: str | None) -> str:
    """Convert the host that the ASGI server reports to a client address. Limits are counted per client address.

    All texts that are not IP addresses count as the same unknown address. Otherwise, a client behind a proxy that
    forwards arbitrary text could use a new address for each request.
    """
    try:
        address = ipaddress.ip_address(host or "")
    except ValueError:
        return _UNKNOWN_ADDRESS
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), _IPV6_PREFIX), strict=False))
    return str(address)


def anonymous_at(host: str | None) -> str:
    """Return the principal of an anonymous caller on a server with several users."""
    return f"{ANONYMOUS} {client_address(host)}"


def is_anonymous(principal: str) -> bool:
    """Return whether a principal is an anonymous caller."""
    return principal == ANONYMOUS or principal.startswith(f"{ANONYMOUS} ")


def may_use(principal: str, owner: str) -> bool:
    """Return whether a principal that knows the id of a job may use the job [TW-SEC-001, TW-SEC-005]."""
    return principal == owner or (is_anonymous(principal) and is_anonymous(owner))


class TokenPrincipals:
    """Bearer tokens that the server accepts, with the principal of each token."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Parse tokens of the form `TOKEN` or `PRINCIPAL:TOKEN`.

        Raises:
            ValueError: A token is empty, occurs twice, or contains a character that is not allowed in an Authorization
                header. The same error is raised if a principal has the name of anonymous callers.
        """
        self._principals: dict[bytes, str] = {}
        for entry in tokens:
            principal, colon, token = entry.rpartition(":")
            if not token or (colon and not principal):
                raise ValueError("a token must be TOKEN or PRINCIPAL:TOKEN, with neither part empty")
            if not all("!" <= character <= "~" for character in token):
                raise ValueError(
                    "a token must consist of visible ASCII characters without spaces, because it is sent in a header"
                )
            if is_anonymous(principal):
                raise ValueError(
                    f"{principal!r} is the name of callers without tokens, whose jobs the principal could use; choose "
                    "another name"
                )
            digest = hashlib.sha256(token.encode()).digest()
            if digest in self._principals:
                raise ValueError(
                    f"a token occurs twice; it already belongs to principal {self._principals[digest]!r}"
                )
            self._principals[digest] = principal or f"token-{digest.hex()[:12]}"

    def __bool__(self) -> bool:
        return bool(self._principals)

    @property
    def names(self) -> frozenset[str]:
        """Names of all principals. Empty if the server has no tokens."""
        return frozenset(self._principals.values())

    def sharing_token(self, other: "TokenPrincipals") -> str | None:
        """Return a principal of which a token is also in `other`. Return None if no token is in both."""
        return next((name for known, name in self._principals.items() if known in other._principals), None)

    def principal(self, authorization: str | None) -> str:
        """Return the principal whose token an Authorization header contains, or `ANONYMOUS` if there are no tokens.

        Raises:
            ProblemError: The header is missing, or its token is not accepted.
        """
        if not self._principals:
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        # Compare the received token with all accepted tokens, each in constant time. Otherwise the response time would
        # reveal information about the accepted tokens.
        found = [name for known, name in self._principals.items() if hmac.compare_digest(known, digest)]
        if scheme.lower() != "bearer" or not found:
            detail = "send 'Authorization: Bearer TOKEN' with a token that this server accepts"
            raise refuse("unauthorized", detail, headers=_BEARER)
        return found[0]


class PrincipalFunctionError(RuntimeError):
    """The function `principal` of the application has failed. The cause is the exception that it raised."""


async def principal_from(function: PrincipalFunction, scope: MutableMapping[str, Any], timeout: float) -> str:
    """Call the function of the application that identifies the caller.

    Args:
        function: The function, which may be synchronous or asynchronous.
        scope: ASGI scope of the request.
        timeout: Maximum number of seconds that an asynchronous function may take.

    Raises:
        ProblemError: The function returned None (401), or a name that no principal may have (403).
        PrincipalFunctionError: The function raised an exception, took too long, or returned another type.
    """
    try:
        name = function(scope)
        if inspect.isawaitable(name):
            async with asyncio.timeout(timeout):
                name = await name
    except TimeoutError as error:
        raise PrincipalFunctionError(
            f"the function `principal` raised TimeoutError, or took longer than {timeout:g} s (principal_timeout)"
        ) from error
    except (Exception, SystemExit) as error:
        raise PrincipalFunctionError(f"the function `principal` raised {type(error).__name__}") from error
    if name is None:
        raise refuse(
            "unauthorized", "this server does not know the caller; sign in, and retry", headers=_APPLICATION
        )
    if not isinstance(name, str):
        raise PrincipalFunctionError(
            f"the function `principal` must return a name or None, not {type(name).__name__}"
        )
    name = str.__str__(name)  # str(name) would differ from the text of an enum member
    _check_name(name)
    return name


def _check_name(name: str) -> None:
    """Validate the name of a caller, which the caller may have chosen itself, for example in a sign-up form.

    An invalid name is rejected instead of altered. Otherwise two callers could get the same name.
    """
    if not name or len(name) > MAX_NAME_LENGTH:
        raise _bad_name(f"has {len(name)} characters; from 1 to {MAX_NAME_LENGTH} are allowed")
    if not name.isprintable():
        raise _bad_name("contains control characters or others that cannot be printed")
    if is_anonymous(name):
        raise _bad_name(f"is that of callers without a name: {ANONYMOUS!r}")


def _bad_name(reason: str) -> ProblemError:
    return refuse("forbidden", f"the name of this caller {reason}; use an account with another name")
