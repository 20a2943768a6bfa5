"""In-memory reservations of idempotency keys, for a store that keeps used keys in a database."""

from abc import ABC, abstractmethod

from tidewire_server.store.records import Key, KeyUse


class KeyReservations(ABC):
    """Reserved keys of one process. All methods must be called on one event loop."""

    def __init__(self) -> None:
        self._in_flight: dict[Key, KeyUse] = {}

    @abstractmethod
    async def _find_key(self, key: Key) -> KeyUse | None:
        """Return the use of a key that is in the database."""

    async def reserve_key(self, key: Key, body: bytes) -> KeyUse | None:
        if key in self._in_flight:
            return self._in_flight[key]
        # Reserve the key before the first await. Otherwise two concurrent requests with the same key could both continue.
        self._in_flight[key] = KeyUse(body)
        try:
            known = await self._find_key(key)
        except BaseException:
            await self.release_key(key)
            raise
        if known is not None:
            await self.release_key(key)
        return known

    async def release_key(self, key: Key) -> None:
        self._in_flight.pop(key, None)
