"""Several servers on one database, each a process of the command `tidewire serve`."""

import contextlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx2

from proof.forked_process import Forked
from support import reference_server
from support.killable_server import Killed
from tidewire.protocol.sse import Decoder, Event

LIMIT = 40.0
"""Time limit of each wait, in seconds. The lease of a killed server ends after five."""

eventually = partial(reference_server.eventually, within=LIMIT)

APP = Path(__file__).with_name("replicated_app.py")


class Replica(Killed):
    """One of the servers. Its settings are variables of its environment."""

    def __init__(self, folder: Path, url: str, files: Path, name: str, **settings: Any) -> None:
        """Configure the server.

        Args:
            folder: Folder of this server.
            url: URL of the database.
            files: Folder of the app's journal and gates, which all servers share.
            name: Name of the server, which the journal contains.
            settings: Settings of the server.
        """
        folder.mkdir()
        super().__init__(folder, str(APP), **{"log": url, "shutdown_timeout": 20} | settings)
        self.name = name
        self._files = files

    def _spawn(self, settings: dict[str, Any]) -> Forked:
        self._port_file.unlink(missing_ok=True)
        errors = os.open(self.folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        variables = {
            f"TIDEWIRE_{name.upper()}": str(value) for name, value in (self.settings | settings).items()
        }
        self._process = Forked(
            "tidewire_server",
            str(APP),
            *("--port", str(self.port), "--port-file", str(self._port_file)),
            cwd=self.folder,
            env=os.environ | variables | {"REPLICA_FILES": str(self._files), "REPLICA_NAME": self.name},
            streams=(os.open(os.devnull, os.O_WRONLY), errors),
        )
        return self._process

    def signal(self, number: int) -> None:
        """Send a signal to the process, which continues to exist."""
        os.kill(self.pid, number)

    def exit_code(self) -> int:
        """Wait until the process has ended after a signal, and return its exit code."""
        return self._end(None)

    def start_job(self, endpoint: str, **body: Any) -> str:
        """Submit a job, and return its id."""
        answer = self.submit(endpoint, **body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def cancel(self, job: str, *items: int) -> httpx2.Response:
        """Cancel items of a job, or the whole job."""
        body = {"items": [*items]} if items else None
        return self.http.post(f"/v1/jobs/{job}/cancel", json=body)

    def delete(self, job: str) -> httpx2.Response:
        return self.http.delete(f"/v1/jobs/{job}")

    def status(self, job: str) -> int:
        """Return the HTTP status of a request for a job."""
        return self.http.get(f"/v1/jobs/{job}").status_code

    @contextlib.contextmanager
    def stream(self, job: str, after: str | None = None) -> Iterator[Iterator[Event]]:
        """Open the stream of a job, and yield its events."""
        headers = {} if after is None else {"last-event-id": after}
        with self.http.stream("GET", f"/v1/jobs/{job}/events", headers=headers, timeout=LIMIT) as answer:
            assert answer.status_code == 200, answer.read()
            yield _events(answer)


def _events(answer: httpx2.Response) -> Iterator[Event]:
    decoder = Decoder()
    for chunk in answer.iter_raw():
        yield from decoder.feed(chunk)


class Replicas:
    """Servers on one database, and the files of their app. See `replicated_app`."""

    def __init__(self, folder: Path, url: str, **settings: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.url = url
        self.settings = settings
        self._servers: list[Replica] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._closing.close()
        for server in self._servers:
            print(f"---- {server.name}\n{server.errors()}")

    def add(self, **settings: Any) -> Replica:
        """Start another server."""
        name = f"server-{len(self._servers)}"
        server = Replica(self.folder / name, self.url, self.folder, name, **self.settings | settings)
        self._servers.append(self._closing.enter_context(server))
        return server

    def open(self, gate: str) -> None:
        """Let a function of the app continue that waits at a gate."""
        (self.folder / f"{gate}.go").touch()

    def journal(self) -> list[list[str]]:
        """Return what the functions have noted: what happened, the name of the call, and the name of the server."""
        file = self.folder / "journal"
        return [line.split() for line in file.read_text().splitlines()] if file.exists() else []

    def noted(self, what: str, name: str) -> list[str]:
        """Return the names of the servers that have noted an event of a call."""
        return [server for event, call, server in self.journal() if (event, call) == (what, name)]

    def runner(self, name: str, number: int = 1) -> Replica:
        """Wait until a call has started for the given time, and return its server."""
        started = eventually(lambda: len(found := self.noted("start", name)) >= number and found)
        return next(server for server in self._servers if server.name == started[number - 1])

    @property
    def any(self) -> Replica:
        """One of the servers that run."""
        return next(server for server in self._servers if server.pid)

    def other(self, server: Replica) -> Replica:
        """Return another server that runs."""
        return next(each for each in self._servers if each is not server and each.pid)

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement in the database, and return its rows."""
        import psycopg  # an extra

        with psycopg.connect(self.url, autocommit=True, options="-c search_path=tidewire") as connection:
            cursor = connection.execute(sql, parameters)
            return cursor.fetchall() if cursor.description is not None else []
