"""The event loop that connections and locks belong to. It may end before the client does, as that of each `asyncio.run`
does; the next one may be of another library.
"""

import asyncio
from typing import Any, Final

import anyio
from anyio.lowlevel import current_token

from tidewire.errors import TidewireError

_ADVICE: Final = "Make a client for each event loop; a tidewire.Client may be used from any thread."


def running_loop() -> object:
    """What tells the event loop that runs here from others."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        token: Any = current_token()
        return getattr(token, "native_token", token)


class HomeLoop:
    """Knows on which event loop it was asked last."""

    def __init__(self) -> None:
        self._loop: Any = None

    def moved(self) -> bool:
        """Whether this is another event loop than the last time, and that one is over.

        Raises:
            TidewireError: It is another one, and that is not over.
        """
        last, self._loop = self._loop, running_loop()
        if last is None or last is self._loop:
            return False
        if not _is_over(last):
            self._loop = last
            raise TidewireError("this client is in use on another event loop", advice=_ADVICE)
        return True


class HomeLock:
    """A lock that is made anew on each event loop: one belongs to the library and the tasks of that on which it is made."""

    __slots__ = ("_fast", "_lock", "_loop")

    def __init__(self, *, fast_acquire: bool = False) -> None:
        self._fast = fast_acquire
        self._loop: object = None
        self._lock: anyio.Lock | None = None

    def here(self) -> anyio.Lock:
        """The lock of the event loop that runs here.

        Raises:
            TidewireError: It is held on another one, which is not over.
        """
        loop = running_loop()
        if self._lock is None or self._loop is not loop:
            if self.locked() and not _is_over(self._loop):
                raise TidewireError("this is in use on another event loop", advice=_ADVICE)
            self._loop, self._lock = loop, anyio.Lock(fast_acquire=self._fast)
        return self._lock

    def locked(self) -> bool:
        """Whether somebody holds it; may be asked from any thread."""
        return self._lock is not None and self._lock.locked()


def _is_over(loop: Any) -> bool:
    # asyncio's way to speak to a loop from elsewhere, and trio's; both refuse it with a RuntimeError once it is over.
    say = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    try:
        say(_nothing)
    except RuntimeError:
        return True
    return False


def _nothing() -> None: ...
