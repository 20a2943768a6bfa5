"""Implementations of the store, for the tests of the store contract. A further implementation is one more entry."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from support.store_log_writer import RETENTION, Clock
from tidewire_server.store.interfaces import Store
from tidewire_server.store.memory_store import MemoryStore
from tidewire_server.store.records import Retention
from tidewire_server.store.sqlite.sqlite_store import SqliteStore

STORES: dict[str, Callable[[Path, Retention], Store]] = {
    "memory": lambda _, retention: MemoryStore(retention),
    "sqlite": lambda folder, retention: SqliteStore(folder / "log.db", retention),
}

OF_ONE_PROCESS = frozenset({"memory", "sqlite"})
"""Stores that only one process uses. This process owns every job that it adds."""


@contextlib.asynccontextmanager
async def opened_store(
    kind: str, folder: Path, retention: Retention = RETENTION
) -> AsyncIterator[tuple[Store, Clock]]:
    """Open a new store with a clock that the test sets."""
    store, clock = STORES[kind](folder, retention), Clock()
    store.jobs._clock = clock
    try:
        yield store, clock
    finally:
        await store.close()
