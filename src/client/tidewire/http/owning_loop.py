"""The event loop that a client and its jobs belong to: the one on which they were first used.

Connections and locks work on one event loop only. Use on another one, of the same library or not, raises an error
at once, where it would otherwise hang or fail deep inside of a connection.
"""

import asyncio
from typing import Any

from anyio.lowlevel import current_token

from tidewire.errors import EventLoopError


class OwningLoop:
    """The event loop of the first `check`."""

    def __init__(self) -> None:
        self._loop: object = None

    def check(self) -> None:
        """Take the running event loop as the owner, or compare it with the owner.

        Raises:
            EventLoopError: It is another one, also if the owner has ended.
        """
        loop = _running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise EventLoopError("this client was first used on another event loop, and belongs to that one")


def _running_loop() -> object:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        token: Any = current_token()
        return getattr(token, "native_token", token)
