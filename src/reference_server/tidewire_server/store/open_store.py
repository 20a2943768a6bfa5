"""Open the store that the server's `log` setting names."""

from dataclasses import fields

from tidewire.install_command import install_command
from tidewire_server.settings import Settings
from tidewire_server.store.memory.memory_store import MemoryStore
from tidewire_server.store.records import Retention
from tidewire_server.store.store_errors import StoreError
from tidewire_server.store.store_interface import Store
from tidewire_server.user_paths import file_of, is_database, without_password


def memory_of(settings: Settings) -> Store:
    """Create an in-memory store with the retention limits in the settings."""
    return MemoryStore(_retention(settings))


def open_store(settings: Settings) -> Store:
    """Open the store that the `log` setting names, in memory, in a SQLite file or in a PostgreSQL database.

    Raises:
        StoreError: The store cannot be opened, or another server is using the file.
    """
    if is_database(settings.log):
        return _open_database(settings)
    path = file_of(settings.log)
    if path is None:
        return memory_of(settings)
    from tidewire_server.store.sqlite.sqlite_store import SqliteStore  # noqa: PLC0415 - some Pythons have no sqlite3

    return SqliteStore(path, _retention(settings), fsync=settings.log_fsync)


def _open_database(settings: Settings) -> Store:
    try:
        from tidewire_server.store.postgres.postgres_store import PostgresStore  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise StoreError(
            f"log {without_password(settings.log)}: the package psycopg is not installed ({error.msg}); run: "
            f"{install_command('postgres')}"
        ) from None
    return PostgresStore(settings.log, _retention(settings))


def _retention(settings: Settings) -> Retention:
    return Retention(**{each.name: getattr(settings, each.name) for each in fields(Retention)})
