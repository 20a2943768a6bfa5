"""Limits on the running calls of an endpoint over all servers (`global_limit`).

A server that takes items locks the row of the limit, then counts the calls of all other servers with a lease, and stores the number
of its own in the same transaction. A server that dies no longer counts when its lease expires. If an answer of the database is lost,
the stored number of a server is wrong until it takes items again, ends a call, or beats.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tidewire_server.store.postgres.connections import Command, Rows, Statement
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.records import GlobalLimit

_RUNNING: Final = """
    SELECT %(own)s::int + coalesce(sum(c.running), 0)::int FROM global_call c JOIN server s ON s.id = c.server
    WHERE c.name = %(limit_name)s AND c.server <> %(me)s AND s.until >= now()
"""
ITEMS: Final = f"greatest(0, least(%(n)s::int, %(limit)s::int - ({_RUNNING})))"
"""Maximum number of items to take if each item is a call."""

ITEMS_OF_BATCH: Final = f"CASE WHEN ({_RUNNING}) < %(limit)s::int THEN %(n)s::int ELSE 0 END"
"""Maximum number of items to take for a new batch, which is one call."""

COUNTED: Final = """
    , counted AS (
        INSERT INTO global_call AS c (name, server, running) SELECT %(limit_name)s, %(me)s, %(own)s::int + {calls} FROM taken
        HAVING count(*) > 0
        ON CONFLICT (name, server) DO UPDATE SET running = EXCLUDED.running)
"""
"""Part of a take that stores the number of calls."""

_CREATE: Final = "INSERT INTO global_limit (name) VALUES (%(limit_name)s) ON CONFLICT DO NOTHING"
_LOCK: Final = "SELECT FROM global_limit WHERE name = %(limit_name)s FOR UPDATE"
_STORE: Final = """
    INSERT INTO global_call AS c (name, server, running)
    SELECT name, %(me)s, running FROM unnest(%(names)s::text[], %(running)s::int[]) AS r (name, running)
    ON CONFLICT (name, server) DO UPDATE SET running = EXCLUDED.running WHERE c.running <> EXCLUDED.running
"""


class GlobalCalls:
    """Calls of this server that count towards limits over all servers. All methods must be called on one event loop."""

    def __init__(self, control: DatabaseThread, server: int) -> None:
        self._control = control
        self._server = server
        self.limits: Mapping[str, GlobalLimit] = {}
        """Limits by the name of the endpoint."""
        self._running: Counter[str] = Counter()
        """Number of running calls by the name of the limit."""
        self._lock = asyncio.Lock()
        """Lock that is held while a statement stores a number, so that no other statement stores an older number."""

    async def take(
        self, limit: GlobalLimit, sql: str, parameters: Mapping[str, Any], most_calls: int
    ) -> Rows:
        """Run a take, and return its rows. Each of their items is one call, but at most `most_calls`."""
        async with self._lock:
            own = {"limit_name": limit.name, "limit": limit.calls, "own": self._running[limit.name]}
            # One pipeline is one transaction.
            statements = [Statement(each, {**parameters, **own}) for each in (_CREATE, _LOCK, sql)]

            def then(found: Rows) -> None:
                self._running[limit.name] += min(most_calls, sum(row[1] is not None for row in found))

            found: Rows = await self._control.do(Command(statements, repeat=False), then)
            return found

    async def end_call(self, limit: GlobalLimit) -> None:
        """Store that a call has ended.

        Raises:
            StoreError: The database failed. The next beat stores the number of calls.
        """
        self._running[limit.name] -= 1
        async with self._lock:
            await self._control.do(Command(self._store(), repeat=False))

    def correction(self) -> list[Statement]:
        """Return the statement that stores the numbers of running calls, unless another statement is doing so."""
        return [] if self._lock.locked() else self._store()

    def _store(self) -> list[Statement]:
        if not self._running:
            return []
        names, running = [*self._running], [*self._running.values()]
        return [Statement(_STORE, {"me": self._server, "names": names, "running": running})]

    def endpoints_of(self, limit: GlobalLimit) -> list[str]:
        """Return the endpoints to which a limit applies."""
        return [endpoint for endpoint, each in self.limits.items() if each.name == limit.name]
