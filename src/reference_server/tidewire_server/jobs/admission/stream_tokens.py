"""Stream tokens: URLs that let an EventSource, which cannot set headers, read the stream of one job for some minutes.

A token is signed, not stored: the time at which it ends and an HMAC over that time and the job's id. It names no
principal and opens nothing but that one stream; any process with the same secret takes it.
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
_LENGTH: Final = 43
"""Characters of a token: base64url without padding."""


class StreamTokens:
    """Makes stream tokens and judges them."""

    def __init__(self, secret: bytes, ttl: float, clock: Callable[[], float] = time.time) -> None:
        """Begin.

        Args:
            secret: What tokens are signed with; whoever knows it can make them.
            ttl: Seconds that a token opens its stream.
            clock: Gives seconds since the Unix epoch.
        """
        self._key = secret
        self._ttl = ttl
        self._clock = clock

    def make(self, job: str) -> tuple[str, float]:
        """A token for the stream of a job, and when it ends, in seconds since the Unix epoch."""
        until = int(self._clock() + self._ttl)
        expiry = _EXPIRY.pack(until)
        return base64.urlsafe_b64encode(expiry + self._mac(expiry, job)).decode().rstrip("="), until

    def check(self, token: str, job: str) -> None:
        """Let a token in.

        Raises:
            ProblemError: It is none of ours, of another job, or its time is over.
        """
        expiry, mac = _parts(token)
        # A wrong token and one that has expired are told apart only to whoever had a right one.
        if not hmac.compare_digest(mac, self._mac(expiry, job)):
            raise refuse("unauthorized", "this token does not open this stream", headers=_CHALLENGE)
        if self._clock() >= _EXPIRY.unpack(expiry)[0]:
            raise refuse(
                "unauthorized",
                "this stream token has expired: POST to the job's stream-token for another",
                headers=_CHALLENGE,
            )

    def _mac(self, expiry: bytes, job: str) -> bytes:
        message = _PURPOSE + expiry + job.encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).digest()[:_MAC_BYTES]


_CHALLENGE: Final = {"www-authenticate": 'Bearer realm="tidewire"'}


def _parts(token: str) -> tuple[bytes, bytes]:
    """The expiry and the HMAC of a token; of what is no token, parts that fit no secret."""
    try:
        content = base64.b64decode(f"{token}=".encode("ascii"), altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        content = b""
    if len(token) != _LENGTH or len(content) != _EXPIRY.size + _MAC_BYTES:
        content = bytes(_EXPIRY.size + _MAC_BYTES)
    return content[: _EXPIRY.size], content[_EXPIRY.size :]
