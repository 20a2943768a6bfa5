"""Subscriptions to a log, and the log's ephemeral events. Ephemeral events are sent to readers, but not stored."""

from collections.abc import Callable

from tidewire_server.store.log_interface import Block


class Subscribers:
    """Subscribers and ephemeral events of one log. All methods must be called on one event loop."""

    __slots__ = ("_ephemeral", "_version", "_watchers")

    def __init__(self) -> None:
        self._watchers: dict[object, Callable[[Block | None], None]] = {}
        self._ephemeral: dict[str, tuple[int, bytes]] = {}
        self._version = 0

    def ephemeral_events(self, since: int) -> tuple[list[bytes], int]:
        """Return the ephemeral events that are newer than a version. See `LogReader.ephemeral_events`."""
        if since == self._version:
            return [], since
        return [frame for version, frame in self._ephemeral.values() if version > since], self._version

    def watch(self, wake: Callable[[Block | None], None]) -> Callable[[], None]:
        """Subscribe a callback. See `LogReader.watch`."""
        key = object()
        self._watchers[key] = wake

        def stop() -> None:
            self._watchers.pop(key, None)

        return stop

    def set_ephemeral_event(self, key: str, frame: bytes | None) -> None:
        """Set or remove the ephemeral event of a key. See `Log.set_ephemeral_event`."""
        if frame is None:
            self._ephemeral.pop(key, None)
            return
        self._version += 1
        self._ephemeral[key] = (self._version, frame)
        self.deliver(None)

    def clear_ephemeral_events(self) -> None:
        self._ephemeral.clear()

    def deliver(self, block: Block | None) -> None:
        """Call every subscriber with the appended block, or with None for an ephemeral event."""
        # Callbacks may start and end subscriptions, so they must not be called while iterating over the dict.
        for wake in tuple(self._watchers.values()):
            wake(block)
