"""Authentication with bearer tokens. Each token belongs to a principal.

A principal has access only to its own jobs. A request for another principal's job gets the same response as a request
for an unknown job. If the server has no tokens, all clients are the same anonymous principal.
"""

import hashlib
import hmac
from collections.abc import Iterable

from tidewire_server.errors import refuse

ANONYMOUS = "anonymous"


class TokenPrincipals:
    """Bearer tokens that the server accepts, with the principal of each token."""

    def __init__(self, tokens: Iterable[str]) -> None:
        """Parse tokens of the form `TOKEN` or `PRINCIPAL:TOKEN`.

        Raises:
            ValueError: A token is empty, occurs twice, or contains a character that is not allowed in an Authorization
                header.
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
            digest = hashlib.sha256(token.encode()).digest()
            if digest in self._principals:
                raise ValueError(
                    f"a token occurs twice; it already belongs to principal {self._principals[digest]!r}"
                )
            self._principals[digest] = principal or f"token-{digest.hex()[:12]}"

    def __bool__(self) -> bool:
        return bool(self._principals)

    def principal(self, authorization: str | None) -> str:
        """Return the principal whose token an Authorization header contains.

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
            raise refuse("unauthorized", detail, headers={"www-authenticate": 'Bearer realm="tidewire"'})
        return found[0]
