"""PostgreSQL server for tests: one per test run, in a temporary folder, with a new database for each test.

All pytest processes of a run share the server. Each of them holds a shared lock on one file while it uses the server. A
supervisor process, which runs this module as a program, waits for an exclusive lock on the file, and then stops the server
and removes its folder. The server therefore also stops if the pytest processes are killed.
"""

import contextlib
import fcntl
import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from support.free_port import free_port

START_LIMIT = 60.0
DATABASE_URL = "database-url"
"""File in the folder of a test that contains the URL of the test's database. The fixture `database_url` writes it."""
USER = "postgres"
"""User that runs the server if the tests run as root, because PostgreSQL refuses to."""

PASSWORD_USER = "guarded"
"""Role that needs a password on the TCP port. All other roles do not."""
PASSWORD = "pa55-word-of-the-test"

AUTHORITY = "authority.pem"
"""File in the server's folder with the authority of the server's certificate, for `sslrootcert`."""

SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "400",
    "shared_buffers": "64MB",
    "lc_messages": "C",
    "log_min_messages": "error",
}


TLS_SETTINGS = {"ssl": "on", "ssl_cert_file": "../server.pem", "ssl_key_file": "../server.key"}


def find_binaries() -> Path | None:
    """Return the folder with `initdb` and `postgres`, or None if PostgreSQL is not installed."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


BINARIES = find_binaries()

needs_postgres = [
    pytest.mark.postgres,
    pytest.mark.skipif(BINARIES is None, reason="PostgreSQL is not installed: apt install postgresql"),
]
"""Marks of a test that needs the server."""


@dataclass(frozen=True)
class PostgresServer:
    """Running server. Roles need no password, except for `PASSWORD_USER` on the TCP port."""

    folder: Path
    port: int
    user: str

    def url(self, database: str) -> str:
        """Return the URL of a database through the Unix socket."""
        return f"postgresql://{self.user}@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, database: str, user: str | None = None) -> str:
        """Return the URL of a database through the TCP port."""
        return f"postgresql://{user or self.user}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run one statement outside a transaction, and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        """Create an empty database, which is dropped at the end, and yield its URL."""
        name = f"test_{os.getpid()}_{time.monotonic_ns()}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextlib.contextmanager
def postgres_server(shared: Path) -> Iterator[PostgresServer]:
    """Use the server of a test run, and start it if no other process of the run has.

    Args:
        shared: Folder that all processes of the run share.
    """
    with (shared / "postgres-users").open("w") as users, (shared / "postgres-start").open("w") as starting:
        fcntl.flock(starting, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        place = shared / "postgres-place.json"
        if not place.exists():
            _supervise(shared, place)
        fcntl.flock(starting, fcntl.LOCK_UN)
        found = json.loads(place.read_text())
        yield PostgresServer(Path(found["folder"]), found["port"], found["user"])


def _supervise(shared: Path, place: Path) -> None:
    program = [sys.executable, __file__, str(shared)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with (shared / "postgres-supervisor.log").open("w") as log:
        # The process outlives this one, so that it can stop the server whatever happens here.
        process = subprocess.Popen(
            program, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    give_up = time.monotonic() + START_LIMIT
    while not place.exists():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(
                f"PostgreSQL did not start: {(shared / 'postgres-supervisor.log').read_text()}"
            )
        time.sleep(0.05)
    process.returncode = 0  # Nobody waits for it. Without this line, Python warns that it still runs.


def _run(shared: Path) -> None:
    """Start the server, wait until no test process uses it any more, and stop it."""
    assert BINARIES is not None
    user = USER if os.getuid() == 0 else None
    role = user or getpass.getuser()
    folder = Path(tempfile.mkdtemp(prefix="tidewire-postgres-"))
    try:
        if user is not None:
            shutil.chown(folder, user, user)
        data, port = folder / "data", free_port()
        as_user = {"user": user, "group": user, "extra_groups": []} if user else {}
        initdb = [
            BINARIES / "initdb",
            "-D",
            data,
            "-U",
            role,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "-N",
        ]
        subprocess.run(initdb, check=True, cwd=folder, **as_user)
        _write_certificates(folder, user)
        (data / "pg_hba.conf").write_text(
            f"local all all trust\nhost all {PASSWORD_USER} 127.0.0.1/32 scram-sha-256\n"
            "host all all 127.0.0.1/32 trust\nlocal replication all trust\nhost replication all 127.0.0.1/32 trust\n"
        )
        options = [f"-c{name}={value}" for name, value in (SETTINGS | TLS_SETTINGS).items()]
        command = [
            BINARIES / "postgres",
            "-D",
            data,
            "-k",
            folder,
            "-h",
            "127.0.0.1",
            "-p",
            str(port),
            *options,
        ]
        with subprocess.Popen(command, cwd=folder, **as_user) as server:
            server_ready(folder, port, role)
            _create_role(folder, port, role)
            place = shared / "postgres-place.json"
            unfinished = place.with_suffix(".new")
            unfinished.write_text(json.dumps({"folder": str(folder), "port": port, "user": role}))
            unfinished.rename(place)
            try:
                _wait_for_the_last_user(shared)
                place.unlink(missing_ok=True)
            finally:
                server.send_signal(signal.SIGQUIT)  # an immediate stop, because nobody needs the data
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_certificates(folder: Path, user: str | None) -> None:
    """Write the files of the server's TLS. PostgreSQL refuses a key that others may read."""
    import trustme

    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / AUTHORITY))
    certificate.cert_chain_pems[0].write_to_path(str(folder / "server.pem"))
    key = folder / "server.key"
    key.touch(mode=0o600)
    certificate.private_key_pem.write_to_path(str(key))
    if user is not None:
        for path in (folder / "server.pem", key):
            shutil.chown(path, user, user)


def server_ready(folder: Path, port: int, role: str) -> None:
    """Wait until the server accepts connections."""
    import psycopg

    give_up = time.monotonic() + START_LIMIT
    while True:
        try:
            psycopg.connect(host=str(folder), port=port, user=role, dbname="postgres").close()
        except psycopg.OperationalError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.05)
        else:
            return


def _create_role(folder: Path, port: int, role: str) -> None:
    import psycopg

    with psycopg.connect(
        host=str(folder), port=port, user=role, dbname="postgres", autocommit=True
    ) as connection:
        connection.execute(f"CREATE ROLE {PASSWORD_USER} LOGIN PASSWORD '{PASSWORD}'")


def _wait_for_the_last_user(shared: Path) -> None:
    users: IO[str]
    with (shared / "postgres-users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_EX)
        (shared / "postgres-place.json").unlink(missing_ok=True)


if __name__ == "__main__":
    _run(Path(sys.argv[1]))
