"""Implementations of the store, for the tests of the store contract. A further implementation is one more entry."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from support.postgres_server import DATABASE_URL, needs_postgres
from support.store_log_writer import RETENTION, Clock
from tidewire_server.store.memory.memory_store import MemoryStore
from tidewire_server.store.records import Retention
from tidewire_server.store.sqlite.sqlite_store import SqliteStore
from tidewire_server.store.store_interface import Store


def open_postgres(folder: Path, retention: Retention) -> Store:
    """Open a store in the database of a test."""
    from tidewire_server.store.postgres.postgres_store import PostgresStore  # an extra

    return PostgresStore((folder / DATABASE_URL).read_text(), retention)


STORES: dict[str, Callable[[Path, Retention], Store]] = {
    "memory": lambda _, retention: MemoryStore(retention),
    "sqlite": lambda folder, retention: SqliteStore(folder / "log.db", retention),
    "postgres": open_postgres,
}

PARAMS = ["memory", "sqlite", pytest.param("postgres", marks=needs_postgres)]
"""The keys of `STORES` as parameters of a test or a fixture, which must call `prepare`."""


def prepare(request: pytest.FixtureRequest, kind: str) -> None:
    """Create the database of a test if a store needs one. Call this function outside an event loop."""
    if kind == "postgres":
        request.getfixturevalue("database_url")


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
