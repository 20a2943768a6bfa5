"""PostgreSQL server of one test, which the test kills and starts again, and a TCP proxy in front of it."""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.free_port import free_port
from support.postgres_server import BINARIES, SETTINGS, START_LIMIT, USER
from support.reference_server import eventually
from tidewire_conformance.wire.fault_proxy import READ, TcpProxy, close, end_directions


class OwnPostgres:
    """Server with its own data, on a TCP port of 127.0.0.1. It does not sync files, because the machine does not fail."""

    def __init__(self, folder: Path, **settings: str) -> None:
        """Configure the server.

        Args:
            folder: Folder of the data and the Unix socket, which does not exist yet.
            settings: Settings of PostgreSQL.
        """
        self.folder = folder
        self.port = free_port()
        self.settings = SETTINGS | settings
        self._as_user = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def _run(self, program: str, *arguments: str) -> None:
        assert BINARIES is not None
        command = [str(BINARIES / program), *arguments]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, **self._as_user)

    def _make_folder(self) -> None:
        self.folder.mkdir(parents=True)
        if self._as_user:
            shutil.chown(self.folder, USER, USER)

    def create(self) -> None:
        """Create the data of a new server."""
        self._make_folder()
        self._run("initdb", "-D", "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
        (self.folder / "data" / "pg_hba.conf").write_text(
            "local all all trust\nhost all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
        )

    def copy_of(self, address: tuple[str, int], name: str) -> None:
        """Create the data of a standby.

        Args:
            address: Host and port of the primary, or of a proxy.
            name: Name of the standby in `synchronous_standby_names`.
        """
        self._make_folder()
        source = f"host={address[0]} port={address[1]} user={USER} application_name={name}"
        self._run("pg_basebackup", "-D", "data", "-R", "-X", "stream", "-c", "fast", "-N", "-d", source)

    def start(self) -> None:
        """Start the server, and wait until it accepts connections."""
        assert BINARIES is not None
        options = [f"-c{name}={value}" for name, value in self.settings.items()]
        folders = ["-D", "data", "-k", str(self.folder), "-h", "127.0.0.1", "-p", str(self.port)]
        command = [str(BINARIES / "postgres"), *folders, *options]
        give_up = time.monotonic() + START_LIMIT
        with (self.folder / "server.log").open("ab") as log:
            while True:
                process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, **self._as_user)
                while process.poll() is None:
                    if self._accepts():
                        self._process = process
                        return
                    assert time.monotonic() < give_up, "PostgreSQL did not start in time"
                    time.sleep(0.02)
                # The shared memory of the killed server may be in use until its last process has ended.
                assert time.monotonic() < give_up, (self.folder / "server.log").read_text()

    def _accepts(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Kill all processes of the server with SIGKILL."""
        if self._process is None:
            return
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def again(self) -> None:
        """Kill the server and start it again."""
        self.kill()
        self.start()

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement outside a transaction, and return its rows."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def until(self, condition: str) -> None:
        """Wait until a condition in SQL is true."""
        eventually(lambda: self.execute(f"SELECT {condition}")[0][0], within=START_LIMIT)


def _children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


@contextlib.contextmanager
def own_postgres(**settings: str) -> Iterator[OwnPostgres]:
    """Run a server with an empty database."""
    with tempfile.TemporaryDirectory(prefix="tidewire-postgres-") as folder:
        Path(folder).chmod(0o755)
        server = OwnPostgres(Path(folder) / "primary", **settings)
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.kill()


class DatabaseProxy(TcpProxy):
    """Proxy that a test switches between forwarding, holding all bytes, and refusing connections."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        super().__init__(upstream)
        self.held = 0
        """Number of pieces that arrived while the proxy held all bytes."""
        self.refused = 0
        """Number of connections that were refused."""
        self._refusing = False
        self._holding = False
        self._released = asyncio.Event()

    def url(self, url: str) -> str:  # type: ignore[override]
        """Return the URL of a database behind this proxy."""
        return f"postgresql://{USER}@127.0.0.1:{self.address[1]}/{urlsplit(url).path[1:]}"

    def hold(self) -> None:
        """Forward no more bytes. The connections stay open."""
        self.held = 0
        self._released.clear()
        self._holding = True

    def cut(self) -> None:
        """Close all connections, and refuse new ones."""
        self.refused = 0
        self._refusing = True
        self.break_all()

    def pass_on(self) -> None:
        """Forward bytes, and accept connections."""
        self._refusing = self._holding = False
        self._loop.call_soon_threadsafe(self._released.set)

    async def serve(self, _number: int, reader: StreamReader, writer: StreamWriter) -> None:
        if self._refusing:
            self.refused += 1
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self.upstream)
        except OSError:
            return
        directions = [
            asyncio.ensure_future(self._forward(reader, server_writer)),
            asyncio.ensure_future(self._forward(server_reader, writer)),
        ]
        try:
            await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await end_directions(directions)
            finally:
                close(server_writer)

    async def _forward(self, reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(READ):
            if self._holding:
                self.held += 1
                await self._released.wait()
            writer.write(data)
            await writer.drain()
