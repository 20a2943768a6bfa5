"""Notifications between the servers of one database. They are hints: polls find whatever a lost notification was about.

A notification is sent after the commit, from a separate connection: a `NOTIFY` in the committing transaction takes a lock
over the whole database server. Hints that gather while one call runs are sent together. The payload is a JSON object:

  member | content                       | sent after
  -------+-------------------------------+---------------------------------------
  from   | number of the sending server  |
  b      | numbers of jobs               | an append
  p      | numbers of jobs               | new progress
  t      | names of endpoints            | new tickets
  r      | numbers of jobs               | a request to cancel or delete the job
  s      | –                             | a server has left
"""

import asyncio
import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
import psycopg

from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.postgres.connections import Command, Connection, Database, Statement
from tidewire_server.store.postgres.database_threads import DatabaseThread

_log = logging.getLogger(__name__)

CHANNEL: Final = "tidewire"

_MAX_HINTS: Final = 250
"""Maximum number of hints in one payload, whose size is limited to 7,999 bytes. A job number has up to 20 bytes."""

_MAX_PAYLOAD: Final = 7_999

_RETRY_SECONDS: Final = 1.0

_NOTIFY: Final = "SELECT pg_notify('tidewire', %(payload)s)"


class Notifier:
    """Sends hints to the other servers. All methods must be called on one event loop."""

    def __init__(self, thread: DatabaseThread, server: int) -> None:
        self._thread = thread
        self._server = server
        self._gathered: dict[str, dict[int | str, None]] = {}
        self._task: asyncio.Task[None] | None = None
        self.enabled = True
        """Whether there are other servers."""

    def blocks(self, job: int) -> None:
        """Inform readers of a job at other servers that its log has new events."""
        self._send("b", job)

    def progress(self, job: int) -> None:
        """Inform readers of a job at other servers that its progress has changed."""
        self._send("p", job)

    def tickets(self, endpoint: str) -> None:
        """Inform servers that run an endpoint that items may be taken."""
        self._send("t", endpoint)

    def requests(self, job: int) -> None:
        """Inform the owner of a job that a client has cancelled or deleted the job."""
        self._send("r", job)

    def left(self) -> None:
        """Inform all servers that this server has left."""
        self._send("s", 1)

    def _send(self, kind: str, hint: int | str) -> None:
        if self.enabled:
            self._gathered.setdefault(kind, {})[hint] = None
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._gathered:
                gathered, self._gathered = self._gathered, {}
                for payload in _payloads(self._server, gathered):
                    await self._thread.do(Command([Statement(_NOTIFY, {"payload": payload})], repeat=False))
        except StoreError as error:
            _log.debug("cannot notify other servers: %s", error)
        finally:
            self._task = None

    async def close(self) -> None:
        """Send what is gathered."""
        while self._task is not None:
            await asyncio.wait([self._task])


def _payloads(server: int, gathered: dict[str, dict[int | str, None]]) -> Iterator[str]:
    """Divide hints into payloads."""
    flat = [(kind, hint) for kind, hints in gathered.items() for hint in hints]
    start, step = 0, _MAX_HINTS
    while start < len(flat):
        payload: dict[str, Any] = {"from": server}
        for kind, hint in flat[start : start + step]:
            payload.setdefault(kind, []).append(hint)
        text = orjson.dumps(payload)
        if len(text) <= _MAX_PAYLOAD:
            yield text.decode()
            start += step
        elif step == 1:  # The name of an endpoint is too long. Polls find its items.
            start += 1
        else:
            step = max(1, step // 2)


def _decode(payload: str) -> dict[str, Any]:
    """Return the members of a payload. There are none if another program has sent it."""
    try:
        found = orjson.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class Listener:
    """Thread that receives the hints of other servers."""

    def __init__(
        self, database: Database, server: int, receive: Callable[[dict[str, list[Any]] | None], None]
    ) -> None:
        """Prepare the thread.

        Args:
            database: The database, reached without a pooler in transaction mode.
            server: Number of this server, whose own hints are ignored.
            receive: Function that is called on the event loop with each payload, or with None after the connection was
                opened, because hints may have been lost before.
        """
        self._database = database
        self._server = server
        self._receive = receive
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._waker, self._wakes = socket.socketpair()

    def start(self) -> None:
        """Start the thread, if it does not run yet. The event loop must be running."""
        if self._thread is None and not self._closing.is_set():
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="tidewire-listener", daemon=True)
            self._thread.start()

    async def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._waker.send(b"\0")
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
        self._waker.close()
        self._wakes.close()

    # ---- in the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                with self._database.connect(durable=False) as connection:
                    connection.execute(f"LISTEN {CHANNEL}")
                    self._deliver(None)
                    self._listen(connection)
            except psycopg.Error as error:
                _log.debug("%s; polls replace notifications meanwhile", self._database.describe(error))
                self._closing.wait(_RETRY_SECONDS)

    def _listen(self, connection: Connection) -> None:
        while not self._closing.is_set():
            for notification in connection.notifies(timeout=0):
                payload = _decode(notification.payload)
                if payload.pop("from", None) != self._server:
                    self._deliver(payload)
            select.select([connection.fileno(), self._wakes.fileno()], [], [])

    def _deliver(self, payload: dict[str, list[Any]] | None) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The event loop is closed.
                self._loop.call_soon_threadsafe(self._receive, payload)
