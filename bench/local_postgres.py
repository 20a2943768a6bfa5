"""PostgreSQL server for measurements, in a temporary folder and with the settings that PostgreSQL has after its installation.

In particular, each commit waits until the disk has stored it (`fsync` and `synchronous_commit` are on).
"""

import contextlib
import getpass
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_LIMIT = 60.0
USER = "postgres"
"""User that runs the server if the measurement runs as root, because PostgreSQL refuses to."""


class LocalPostgres:
    """Running server, which only the programs of this machine can reach."""

    def __init__(self, folder: Path, role: str, port: int, pid: int) -> None:
        self._folder = folder
        self._role = role
        self._port = port
        self._pid = pid
        self._databases = 0

    def url(self, database: str = "postgres") -> str:
        """URL of a database."""
        return f"postgresql://{self._role}@/{database}?host={self._folder}&port={self._port}"

    def new_database(self) -> str:
        """Create an empty database, and return its URL."""
        self._databases += 1
        name = f"bench{self._databases}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8'")
        return self.url(name)

    def execute(self, statement: str, url: str | None = None) -> list[tuple[Any, ...]]:
        """Run one statement, and return its rows."""
        import psycopg

        with psycopg.connect(url or self.url(), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def version(self) -> str:
        """Version of PostgreSQL."""
        return str(self.execute("SHOW server_version")[0][0]).split()[0]

    def cpu_seconds(self) -> float:
        """CPU time of all processes of the server so far, in seconds."""
        ticks, children = 0, Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text().split()
        for process, fields in ((self._pid, 4), *((int(child), 2) for child in children)):
            with contextlib.suppress(OSError):
                found = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(int(field) for field in found[11 : 11 + fields])
        return ticks / os.sysconf("SC_CLK_TCK")


def missing() -> str | None:
    """Return why there can be no server, or None."""
    if _binaries() is None:
        return "the programs of PostgreSQL are not installed: apt install postgresql"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed: pip install -e '.[postgres]'"
    return None


@contextlib.contextmanager
def local_postgres() -> Iterator[LocalPostgres | None]:
    """Run a server during a `with` block. Without PostgreSQL, print the reason, and yield None."""
    reason = missing()
    if reason is not None:
        print(f"PostgreSQL is not measured, because {reason}", file=sys.stderr, flush=True)
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="tidewire-bench-"))
    try:
        with _running(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _running(folder: Path) -> Iterator[LocalPostgres]:
    binaries = _binaries()
    assert binaries is not None
    user = USER if os.getuid() == 0 else None
    role = user or getpass.getuser()
    if user is not None:
        shutil.chown(folder, user, user)
    as_user: dict[str, Any] = {"user": user, "group": user, "extra_groups": []} if user else {}
    data = folder / "data"
    initdb = [
        str(binaries / "initdb"),
        "-D",
        str(data),
        "-U",
        role,
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
    ]
    subprocess.run(initdb, check=True, cwd=folder, stdout=subprocess.DEVNULL, **as_user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # An empty address: the server listens only on its Unix socket.
    command = [str(binaries / "postgres"), "-D", str(data), "-k", str(folder), "-h", "", "-p", str(port)]
    log = folder / "log"
    with log.open("w") as stream, subprocess.Popen(command, cwd=folder, stderr=stream, **as_user) as process:
        try:
            server = LocalPostgres(folder, role, port, process.pid)
            _wait_until_ready(server, process, log)
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)


def _wait_until_ready(server: LocalPostgres, process: "subprocess.Popen[bytes]", log: Path) -> None:
    import psycopg

    give_up = time.monotonic() + START_LIMIT
    while True:
        try:
            server.execute("SELECT 1")
        except psycopg.OperationalError:
            if process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}") from None
            time.sleep(0.05)
        else:
            return


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None
