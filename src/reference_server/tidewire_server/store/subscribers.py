"""Those who follow a log: who is to be woken, and what was told to them that is not logged."""

from collections.abc import Callable

from tidewire_server.store.interfaces import Block


class Subscribers:
    """The readers of one log, on one event loop."""

    __slots__ = ("_told", "_version", "_watchers")

    def __init__(self) -> None:
        self._watchers: tuple[Callable[[Block | None], None], ...] = ()
        self._told: dict[str, tuple[int, bytes]] = {}
        self._version = 0

    def told(self, since: int) -> tuple[list[bytes], int]:
        """See `LogReader.told`."""
        if since == self._version:
            return [], since
        return [frame for version, frame in self._told.values() if version > since], self._version

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """See `LogReader.watch`."""
        self._watchers = (*self._watchers, wake)

        def stop() -> None:
            self._watchers = tuple(watcher for watcher in self._watchers if watcher != wake)

        return stop

    def tell(self, key: str, frame: bytes | None) -> None:
        """See `Log.tell`."""
        if frame is None:
            self._told.pop(key, None)
            return
        self._version += 1
        self._told[key] = (self._version, frame)
        self.wake()

    def forget_told(self) -> None:
        """Nothing that was told is of use any more."""
        self._told.clear()

    def wake(self, block: Block | None = None) -> None:
        """Something has happened; `block` if it is that this was logged."""
        for wake in self._watchers:
            wake(block)
