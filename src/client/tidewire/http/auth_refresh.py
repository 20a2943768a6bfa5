"""Credentials from the `auth` callback: fetched once for all concurrent requests, and again when the server rejects them."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from tidewire.options import check_headers

Auth = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Callback that returns the headers carrying credentials. Called before the first request and after a rejection."""

_NONE: Final[Mapping[str, str]] = {}


class Credentials:
    """Fetches and caches the headers that the `auth` callback returns.

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
        """Return the headers with the current credentials. The first call calls the callback."""
        if self._auth is None:
            return _NONE
        if self.current is None:
            await self.renew(None)
        return self.current or _NONE

    async def renew(self, refused: Mapping[str, str] | None) -> bool:
        """Call the callback again after a rejection, unless another request has already done so.

        Args:
            refused: The headers that the server rejected.

        Returns:
            Whether there are credentials to retry with: False if the client has no callback.
        """
        if self._auth is None:
            return False
        # Create the lock here and not in the constructor: it belongs to the running event loop.
        self._lock = self._lock or anyio.Lock()
        async with self._lock:
            if self.current is refused:
                headers: Any = self._auth()
                if inspect.isawaitable(headers):
                    headers = await headers
                check_headers("the result of auth", headers)
                # Copy the mapping: `renew` distinguishes new credentials from rejected ones by identity.
                self.current = dict(headers)
        return True
