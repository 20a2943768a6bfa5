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
import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson
import psycopg

from tidewire_server.store.interfaces import StoreError
from tidewire_server.store.postgres.connections import Command, Database, Statement
from tidewire_server.store.postgres.database_threads import DatabaseThread

_log = logging.getLogger(__name__)

CHANNEL: Final = "tidewire"

BLOCKS: Final = "b"
PROGRESS: Final = "p"
TICKETS: Final = "t"
REQUESTS: Final = "r"
LEFT: Final = "s"

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

    def send(self, kind: str, hint: int | str = 1) -> None:
        """Send a hint soon.

        Args:
            kind: Member of the payload.
            hint: Number of a job, or name of an endpoint.
        """
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
    """Receives the hints of other servers. All methods must be called on one event loop."""

    def __init__(
        self, database: Database, server: int, receive: Callable[[dict[str, list[Any]] | None], None]
    ) -> None:
        """Create a listener, which does not listen before `start`.

        Args:
            database: The database, reached without a pooler in transaction mode.
            server: Number of this server, whose own hints are ignored.
            receive: Function that is called with each payload, or with None after the connection was opened, because hints
                may have been lost before.
        """
        self._database = database
        self._server = server
        self._receive = receive
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        """Listen from now on."""
        if self._task is None and not self._closed:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Listen no more."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with await self._database.connect_async() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._receive(None)
                    async for notification in connection.notifies():
                        payload = _decode(notification.payload)
                        if payload.pop("from", None) != self._server:
                            # Not called here, because a payload of another program may be in any form.
                            loop.call_soon(self._receive, payload)
            except psycopg.Error as error:
                _log.debug("%s; polls replace notifications meanwhile", self._database.describe(error))
                await asyncio.sleep(_RETRY_SECONDS)
