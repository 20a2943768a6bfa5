"""Who calls: bearer tokens and the principals they stand for.

A principal sees its own jobs and no others: a job of another one is answered exactly as an unknown one. Without any
token everybody is the same principal.
"""

import hashlib
import hmac
from collections.abc import Iterable

from tidewire_server.errors import refuse

ANONYMOUS = "anonymous"


class TokenPrincipals:
    """The tokens that are let in."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Read tokens, each `TOKEN` or `PRINCIPAL:TOKEN`.

        Raises:
            ValueError: A token is empty, stands twice, or holds what no Authorization header can carry.
        """
        self._principals: dict[bytes, str] = {}
        for entry in tokens:
            principal, colon, token = entry.rpartition(":")
            if not token or (colon and not principal):
                raise ValueError("a token is TOKEN or PRINCIPAL:TOKEN, and neither is empty")
            if not all("!" <= character <= "~" for character in token):
                raise ValueError(
                    "a token is carried by a header: it is visible ASCII characters, without spaces"
                )
            digest = hashlib.sha256(token.encode()).digest()
            if digest in self._principals:
                raise ValueError(f"a token stands twice (for {self._principals[digest]!r})")
            self._principals[digest] = principal or f"token-{digest.hex()[:12]}"

    def __bool__(self) -> bool:
        return bool(self._principals)

    def principal(self, authorization: str | None) -> str:
        """Whose credentials a request carries.

        Raises:
            ProblemError: They are missing or wrong.
        """
        if not self._principals:
            return ANONYMOUS
        scheme, _, token = (authorization or "").partition(" ")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        # All are compared, each in constant time: how long it takes tells nothing.
        found = [name for known, name in self._principals.items() if hmac.compare_digest(known, digest)]
        if scheme.lower() != "bearer" or not found:
            detail = "send 'Authorization: Bearer TOKEN' with a token of this server"
            raise refuse("unauthorized", detail, headers={"www-authenticate": 'Bearer realm="tidewire"'})
        return found[0]
