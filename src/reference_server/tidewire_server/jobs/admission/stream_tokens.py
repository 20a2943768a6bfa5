"""Stream tokens, which are short-lived credentials in the URL of one job's event stream.

Browsers need them because `EventSource` cannot send an Authorization header. The server does not store tokens. A token
consists of its expiry time and an HMAC over that time and the job's id. A token gives access to a single stream, and
every server process with the same secret accepts the token.
"""

import base64
import binascii
import hashlib
import hmac
import struct
import time
from collections.abc import Callable
from typing import Final

from tidewire_server.errors import refuse

_PURPOSE: Final = b"tidewire stream token\0"
_EXPIRY: Final = struct.Struct(">Q")
_MAC_BYTES: Final = 24


class StreamTokens:
    """Creates and verifies stream tokens."""

    def __init__(self, secret: bytes, ttl: float, clock: Callable[[], float] | None = None) -> None:
        """Set the signing key and the lifetime of tokens.

        Args:
            secret: Signing key. Anyone who has it can create tokens.
            ttl: Lifetime of a token in seconds.
            clock: Function that returns the time in seconds since the Unix epoch. The default is `time.time`.
        """
        self._key = secret
        self._ttl = ttl
        self._clock = clock or time.time

    def make(self, job: str) -> tuple[str, float]:
        """Create a token for a job's stream. Return the token and its expiry time. The time is in seconds since the
        Unix epoch.
        """
        expires_at = int(self._clock() + self._ttl)
        expiry = _EXPIRY.pack(expires_at)
        return _encoded(expiry + self._mac(expiry, job)), expires_at

    def check(self, token: str, job: str) -> Callable[[], float]:
        """Verify a token.

        Returns:
            A function that returns the number of seconds until the token expires. It reads the wall clock each time,
            because that clock may be set while a stream is open.

        Raises:
            ProblemError: The token is malformed, forged, for another job, or expired.
        """
        expiry, mac = _parts(token)
        # Verify the HMAC before the expiry time. Only a client with a genuine token may learn that the token has
        # expired.
        if not hmac.compare_digest(mac, self._mac(expiry, job)):
            raise refuse("unauthorized", "the stream token is not valid for this stream", headers=_CHALLENGE)
        expires_at: int = _EXPIRY.unpack(expiry)[0]
        if self._clock() >= expires_at:
            raise refuse(
                "unauthorized",
                "the stream token has expired; to get a new one, POST to the job's stream-token URL",
                headers=_CHALLENGE,
            )
        return lambda: expires_at - self._clock()

    def _mac(self, expiry: bytes, job: str) -> bytes:
        message = _PURPOSE + expiry + job.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_MAC_BYTES]


_CHALLENGE: Final = {"www-authenticate": 'Bearer realm="tidewire"'}


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _parts(token: str) -> tuple[bytes, bytes]:
    """Split a token into its expiry time and its HMAC.

    For a malformed token, return an HMAC of zero bytes, which matches no real HMAC.
    """
    try:
        content = base64.b64decode(f"{token}=".encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        content = b""
    # The last character has bits that decoding ignores. Accept only one spelling of a token.
    if len(content) != _EXPIRY.size + _MAC_BYTES or _encoded(content) != token:
        content = bytes(_EXPIRY.size + _MAC_BYTES)
    return content[: _EXPIRY.size], content[_EXPIRY.size :]
