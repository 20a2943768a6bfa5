"""The headers that carry credentials: asked for once, however many requests wait for them, and once more when refused."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from tidewire.options import check_headers

Auth = Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
"""Gives the headers that carry credentials; called before the first request and once more after a refusal."""

_NONE: Final[Mapping[str, str]] = {}


class Credentials:
    """See the top of this file.

    Attributes:
        now: Those that were given last; None before they were asked for.

    Raises:
        TypeError: `auth` is no function.
    """

    def __init__(self, auth: Auth | None) -> None:
        if auth is not None and not callable(auth):
            what = f"auth is a function that gives headers, not {type(auth).__name__}"
            raise TypeError(f"{what}: credentials that stay the same go into headers={{…}}")
        self.now: Mapping[str, str] | None = None
        self._auth = auth
        self._lock: anyio.Lock | None = None

    async def given(self) -> Mapping[str, str]:
        """Those to send."""
        if self._auth is None:
            return _NONE
        if self.now is None:
            await self.renew(None)
        return self.now or _NONE

    async def renew(self, refused: Mapping[str, str] | None) -> bool:
        """Ask for others than those that were refused, unless another request has done so; whether there are some to try."""
        if self._auth is None:
            return False
        # Made here: a lock is of the library of the event loop that runs.
        self._lock = self._lock or anyio.Lock()
        async with self._lock:
            if self.now is refused:
                given: Any = self._auth()
                if inspect.isawaitable(given):
                    given = await given
                check_headers("what auth gave", given)
                # A mapping of its own: it is told from the one before by its identity.
                self.now = dict(given)
        return True
