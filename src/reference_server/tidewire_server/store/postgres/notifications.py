"""Notifications between the servers of one database. They are only hints: if one is lost, a poll finds the change.

A notification is sent after the commit, from a separate connection: a `NOTIFY` in the committing transaction takes a lock
over the whole database server. Hints that gather while a notification is being sent are sent together. The payload is a JSON
object:

  member | content                       | sent after
  -------+-------------------------------+---------------------------------------
  from   | number of the sending server  |
  b      | numbers of jobs               | an append, or new progress
  t      | names of endpoints            | new waiting items
  s      | –                             | a server has joined or left, or a client has cancelled or deleted a job
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import orjson
import psycopg

from tidewire_server.store.failure_log import FailureLog
from tidewire_server.store.postgres.coalesced_work import CoalescedWork
from tidewire_server.store.postgres.connections import Command, Database
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)

CHANNEL: Final = "tidewire"

EVENTS: Final = "b"
TICKETS: Final = "t"
BEAT: Final = "s"
"""Members of a payload. The last one makes the other servers renew their leases, and look for requests, at once."""

_MAX_HINTS: Final = 110
"""Maximum number of hints in one payload, whose size is limited to 7,999 bytes. A job number has up to 20 bytes, and the name of
an endpoint up to 64.
"""

_RETRY_SECONDS: Final = 1.0

POLL_SECONDS: Final = 1.0
"""Time between two polls, which find the changes of lost notifications, in seconds."""

_NOTIFY: Final = "SELECT pg_notify('tidewire', %(payload)s)"


class Notifier:
    """Sends hints to the other servers and receives theirs, and polls. All methods must be called on one event loop."""

    def __init__(
        self,
        database: Database,
        thread: DatabaseThread,
        server: int,
        receive: Callable[[dict[str, list[Any]] | None], None],
        poll: Callable[[], None],
    ) -> None:
        """Create the object, which receives nothing before `listen`.

        Args:
            database: The database. The connection must not use a pooler in transaction mode.
            thread: Thread that sends.
            server: Number of this server, whose own hints are ignored.
            receive: Function that is called with each payload. It is called with None after the connection was opened, because
                earlier hints may have been lost.
            poll: Function that is called each second.
        """
        self.server = server
        self.enabled = True
        """Whether there are other servers."""
        self._database = database
        self._thread = thread
        self._receive = receive
        self._poll = poll
        self._gathered: dict[tuple[str, int | str], None] = {}
        self._work = CoalescedWork(self._notify, "notify other servers")
        self._failures = FailureLog(
            _log, f"events and cancellations of other servers arrive up to {POLL_SECONDS:g} s late"
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    def send(self, kind: str, hint: int | str = 1) -> None:
        """Schedule a hint, which is sent together with others.

        Args:
            kind: Member of the payload.
            hint: Number of a job, or name of an endpoint.
        """
        if self.enabled:
            self._gathered[kind, hint] = None
            self._work.request()

    def listen(self) -> None:
        """Receive hints and poll from now on."""
        if not (self._tasks or self._closed):
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._listen()), loop.create_task(self._poll_on())]

    async def close(self) -> None:
        """Send the hints that have gathered, and receive nothing more."""
        await self._work.close(finish=True)
        self._closed = True
        for task in self._tasks:
            task.cancel()
            await asyncio.wait([task])

    async def _notify(self) -> None:
        gathered, self._gathered = [*self._gathered], {}
        for start in range(0, len(gathered), _MAX_HINTS):
            payload: dict[str, Any] = {"from": self.server}
            for kind, hint in gathered[start : start + _MAX_HINTS]:
                payload.setdefault(kind, []).append(hint)
            text = orjson.dumps(payload).decode()
            await self._thread.do(Command([_NOTIFY], {"payload": text}, repeat=False))

    async def _poll_on(self) -> None:
        while True:
            try:
                self._poll()
            except Exception:  # noqa: BLE001 - a bug of the server, but without polls its readers could wait forever
                _log.exception("internal server error while polling the database")
            await asyncio.sleep(POLL_SECONDS)

    async def _listen(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            try:
                async with await self._database.connect_async() as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    self._receive(None)
                    failures = 0
                    async for notification in connection.notifies():
                        payload = _decode(notification.payload)
                        if payload.pop("from", None) != self.server:
                            # Do not call `_receive` here: a payload of another program may cause an exception, which would end
                            # this loop.
                            loop.call_soon(self._receive, payload)
            except psycopg.Error as error:
                # The first failure may belong to an outage that no thread has noticed yet.
                failures = 0 if self._thread.outages.out else failures + 1
                found = StoreError(self._database.describe(error))
                found.logged = failures <= 1
                self._failures.failed(found)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:  # noqa: BLE001 - for example, uvloop rejects a descriptor that it has not released yet
                _log.exception("internal server error while listening; polls replace notifications meanwhile")
                await asyncio.sleep(_RETRY_SECONDS)


def _decode(payload: str) -> dict[str, Any]:
    """Return the members of a payload. The result is empty if another program has sent the payload."""
    try:
        found = orjson.loads(payload)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
