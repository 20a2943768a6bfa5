"""The event loop that connections belong to. It may end before the client does, as that of each `asyncio.run` does."""

from typing import Any, Final

from anyio.lowlevel import current_token

from tidewire.errors import TidewireError

_ADVICE: Final = "Make a client for each event loop; a tidewire.Client may be used from any thread."


class HomeLoop:
    """Knows on which event loop it was asked last."""

    def __init__(self) -> None:
        self._loop: Any = None

    def moved(self) -> bool:
        """Whether this is another event loop than the last time, and that one is over.

        Raises:
            TidewireError: It is another one, and that is not over.
        """
        token: Any = current_token()
        loop = getattr(token, "native_token", token)
        last, self._loop = self._loop, loop
        if last is None or last is loop:
            return False
        if not _is_over(last):
            self._loop = last
            raise TidewireError("this client is in use on another event loop", advice=_ADVICE)
        return True


def _is_over(loop: Any) -> bool:
    # asyncio's way to speak to a loop from elsewhere, and trio's; both refuse it with a RuntimeError once it is over.
    say = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    try:
        say(_nothing)
    except RuntimeError:
        return True
    return False


def _nothing() -> None: ...
