"""The file: its tables, its version, and who may open it.

`application_id` says that the file is ours, `user_version` which version of the tables it has. A file is made and
brought up to date in one transaction, under the lock of its one server, before anything else is done with it.
"""

import contextlib
import os
import secrets
import sqlite3
from pathlib import Path
from typing import Final

from tidewire_server.store.interfaces import SECRET_BYTES, StoreError

APPLICATION_ID: Final = 0x54696465
"""What marks a file as a log of this program: "Tide"."""

MIGRATIONS: Final = (
    """
    -- clean: whether the server that had the file last let go of it in order; tried: writes made to see if one can.
    CREATE TABLE server (clean INTEGER NOT NULL, tried INTEGER NOT NULL);
    INSERT INTO server VALUES (1, 0);

    -- base: the event after which all are held, where some were trimmed.
    CREATE TABLE job (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        batch INTEGER NOT NULL,
        created_at REAL NOT NULL,
        attempt INTEGER NOT NULL,
        status TEXT NOT NULL,
        started_at REAL,
        usage BLOB NOT NULL,
        base_epoch INTEGER,
        base_seq INTEGER,
        log_until REAL,
        ended_at REAL,
        expires_at REAL,
        done BLOB
    );
    CREATE INDEX job_of_principal ON job (principal, number);
    CREATE INDEX job_with_log ON job (log_until) WHERE log_until IS NOT NULL;
    CREATE INDEX job_ended ON job (ended_at, number) WHERE ended_at IS NOT NULL;
    CREATE INDEX job_expires ON job (expires_at) WHERE expires_at IS NOT NULL;
    CREATE INDEX job_unfinished ON job (number) WHERE ended_at IS NULL;

    -- The body of a job's submit, until the job has ended.
    CREATE TABLE submit (job INTEGER PRIMARY KEY, body BLOB NOT NULL);

    -- Events that were logged together, under the id of the last one; ends: where each ends, 4 bytes each.
    -- With a rowid: a row of some kilobytes costs three times as much inside an index, where most of it overflows.
    CREATE TABLE block (
        job INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        done INTEGER NOT NULL,
        ends BLOB NOT NULL,
        frames BLOB NOT NULL,
        PRIMARY KEY (job, seq)
    );

    -- The state up to and including an event that ends a block: from there on a reader folds.
    CREATE TABLE state (
        job INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        columns BLOB NOT NULL,
        state BLOB NOT NULL,
        PRIMARY KEY (job, seq)
    );

    CREATE TABLE epoch (
        job INTEGER NOT NULL,
        seq INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        PRIMARY KEY (job, seq)
    ) WITHOUT ROWID;

    CREATE TABLE tombstone (
        number INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        principal TEXT NOT NULL,
        until REAL NOT NULL
    );
    CREATE INDEX tombstone_until ON tombstone (until);

    -- until: NULL where the key is kept for its job's sake alone.
    CREATE TABLE key (
        number INTEGER PRIMARY KEY,
        principal TEXT NOT NULL,
        endpoint TEXT NOT NULL,
        text TEXT NOT NULL,
        body BLOB NOT NULL,
        job TEXT NOT NULL,
        until REAL,
        UNIQUE (principal, endpoint, text)
    );
    CREATE INDEX key_until ON key (until) WHERE until IS NOT NULL;
    CREATE INDEX key_of_job ON key (job) WHERE until IS NULL;
    """,
    """
    -- secret: drawn by the first server that has the file; what its servers sign outlives each of them.
    ALTER TABLE server ADD COLUMN secret BLOB;
    """,
)
"""What brings a file from each version to the next; a file's version is how many of them it has seen."""

_WAL_BYTES: Final = 64 * 1024 * 1024
"""What the write-ahead log beside the file is cut back to once it was copied."""


class Owner:
    """The lock by which one server at a time has a file. The kernel lets go of it when the process ends, however."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        Raises:
            StoreError: Another server has it, or it cannot be made here.
        """
        try:
            import fcntl  # noqa: PLC0415 - not everywhere; only who wants a file needs it
        except ImportError:
            raise StoreError("a log in a file needs a system with flock") from None
        beside = path.with_name(f"{path.name}-owner")
        try:
            self._lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"log {path}: {beside.name} cannot be written beside it: {error.strerror}"
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            by = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
            self.release()
            raise StoreError(
                f"log {path}: another server has it (process {by or 'unknown'}); "
                "one file has one server: stop that one, or give this one a file of its own"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go of it."""
        os.close(self._lock)


def check_place(path: Path) -> None:
    """Judge where a file is to be.

    Raises:
        StoreError: There it cannot be.
    """
    if path.is_dir():
        raise StoreError(f"log {path}: that is a folder; name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"log {path}: there is no folder {path.parent}")


def connect(path: Path, *, fsync: bool) -> sqlite3.Connection:
    """Open a file, and make it or bring it up to date first. The caller has its lock.

    Raises:
        StoreError: It is no log, is newer than this program, is damaged, or cannot be read and written.
    """
    connection = None
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        _migrate(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(
                f"log {path}: its file system takes no write-ahead log; name a file on a local disk"
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
        connection.execute("PRAGMA secure_delete = FAST")
    except BaseException as error:
        if connection is not None:
            connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(explain(path, error)) from None
        raise
    return connection


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    (marked,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if marked != APPLICATION_ID and (tables or version or marked):
        raise StoreError(f"log {path}: that is a file of another program; name one of its own")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"log {path}: a newer version of this program made it (format {version}, this one knows "
            f"{len(MIGRATIONS)}); take that version, or another file"
        )
    # One transaction, also where a write is all that is tested: a file that cannot be written is found out now.
    steps = "".join(MIGRATIONS[version:])
    connection.executescript(
        f"BEGIN IMMEDIATE; {steps} PRAGMA application_id = {APPLICATION_ID}; "
        f"PRAGMA user_version = {len(MIGRATIONS)}; COMMIT;"
    )


def take_over(connection: sqlite3.Connection) -> tuple[bool, bytes]:
    """Note that a server has the file; whether the one before it had let go of it in order, and the file's secret."""
    drawn = secrets.token_bytes(SECRET_BYTES)
    (clean,) = connection.execute("SELECT clean FROM server").fetchone()
    connection.execute("UPDATE server SET clean = 0, secret = coalesce(secret, ?)", (drawn,))
    (secret,) = connection.execute("SELECT secret FROM server").fetchone()
    return bool(clean), secret


def write_something(connection: sqlite3.Connection) -> None:
    """Write something, to see whether it can be done. What was there already would not be written."""
    connection.execute("UPDATE server SET tried = tried + 1")


def hand_back(connection: sqlite3.Connection, *, clean: bool) -> None:
    """Close the file; noted, if `clean`, as let go of in order."""
    if clean:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("UPDATE server SET clean = 1")
    connection.close()


def explain(path: Path, error: sqlite3.Error) -> str:
    """What went wrong with a file, and what to do."""
    text = str(error)
    advice = next((advice for part, advice in _ADVICE.items() if part in text), None)
    return f"log {path}: {text}" + (f"; {advice}" if advice else "")


_ADVICE: Final = {
    "full": "make room on its disk: what waits is written then",
    "readonly": "it and its folder must be writable",
    "unable to open": "it and its folder must be readable and writable",
    "locked": "another program has it open and writes to it",
    "not a database": "that is a file of another program, or damaged; name another",
    "malformed": "it is damaged: restore a copy, or name another file",
    "disk I/O": "its disk fails, or it was removed under the server",
}
