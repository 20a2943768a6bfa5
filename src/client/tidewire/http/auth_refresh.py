"""Fetches credentials with the `auth` callback of a client, once for all concurrent requests, and again when the server
rejects the credentials.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from tidewire.options import check_headers

Auth = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Callback that returns the headers with the credentials. The client calls it before the first request, and when the
server has rejected the credentials."""

_NONE: Final[Mapping[str, str]] = {}


class Credentials:
    """Fetches the headers with the credentials from the `auth` callback and caches them.

    Attributes:
        current: The headers that the callback returned last; None before its first call.

    Raises:
        TypeError: `auth` is not callable.
    """

    def __init__(self, auth: Auth | None) -> None:
        if auth is not None and not callable(auth):
            what = f"auth must be a function that returns headers, not {type(auth).__name__}"
            raise TypeError(f"{what}: for constant credentials use headers={{…}}")
        self.current: Mapping[str, str] | None = None
        self._auth = auth
        self._lock: anyio.Lock | None = None

    async def get(self) -> Mapping[str, str]:
        """Return the headers with the current credentials. The first call of this method calls the callback."""
        if self._auth is None:
            return _NONE
        if self.current is None:
            await self.renew(None)
        return self.current or _NONE

    async def renew(self, refused: Mapping[str, str] | None) -> bool:
        """Call the callback again after the server has rejected the credentials, unless another request has already
        renewed them.

        Args:
            refused: The headers that the server rejected.

        Returns:
            Whether there are credentials for another attempt. False if the client has no callback.
        """
        if self._auth is None:
            return False
        # Create the lock here and not in the constructor, because a lock belongs to the running event loop.
        self._lock = self._lock or anyio.Lock()
        async with self._lock:
            if self.current is refused:
                headers: Any = self._auth()
                if inspect.isawaitable(headers):
                    headers = await headers
                check_headers("the result of auth", headers)
                # Copy the mapping, because `renew` compares the identity of mappings to distinguish new credentials
                # from rejected credentials.
                self.current = dict(headers)
        return True
