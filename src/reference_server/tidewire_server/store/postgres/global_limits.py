"""Limits on the running calls of an endpoint over all servers (`global_limit`).

A server that takes items locks the row of the limit, then counts the calls of all servers with a lease, and adds its own in the
same transaction. A server that dies no longer counts when its lease expires. If an answer of the database is lost, the count of
a server is wrong until its next beat, which writes the number of calls that it really runs.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from tidewire_server.store.postgres.connections import Command, Rows
from tidewire_server.store.postgres.database_threads import DatabaseThread
from tidewire_server.store.records import GlobalLimit

_RUNNING: Final = """
    SELECT coalesce(sum(c.running), 0)::int FROM global_call c JOIN server s ON s.id = c.server
    WHERE c.name = %(limit_name)s AND s.until >= now()
"""
ITEMS: Final = f"greatest(0, least(%(n)s::int, %(limit)s::int - ({_RUNNING})))"
"""Maximum number of items to take if each item is a call."""

ITEMS_OF_BATCH: Final = f"CASE WHEN ({_RUNNING}) < %(limit)s::int THEN %(n)s::int ELSE 0 END"
"""Maximum number of items to take for a new batch, which is one call."""

COUNTED: Final = """
    , counted AS (
        INSERT INTO global_call AS c (name, server, running) SELECT %(limit_name)s, %(me)s, {calls} FROM taken
        HAVING count(*) > 0
        ON CONFLICT (name, server) DO UPDATE SET running = c.running + EXCLUDED.running)
"""
"""Part of a take that counts the calls."""

_CREATE: Final = "INSERT INTO global_limit (name) VALUES (%(limit_name)s) ON CONFLICT DO NOTHING"
_LOCK: Final = "SELECT FROM global_limit WHERE name = %(limit_name)s FOR UPDATE"
_END: Final = """
    UPDATE global_call SET running = greatest(0, running - 1) WHERE name = %(limit_name)s AND server = %(me)s
"""
CORRECT: Final = """
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
        self._in_flight = 0
        """Number of takes and ends of calls whose result is not known yet."""

    async def take(
        self, limit: GlobalLimit, sql: str, parameters: Mapping[str, Any], most_calls: int
    ) -> Rows:
        """Run a take, and return its rows. Each of their items is one call, but at most `most_calls`."""

        def then(found: Rows) -> None:
            self._running[limit.name] += min(most_calls, sum(row[1] is not None for row in found))

        named = {**parameters, "limit_name": limit.name, "limit": limit.calls}
        # One pipeline is one transaction.
        return await self._run(Command([_CREATE, _LOCK, sql], named, repeat=False), then)

    async def end_call(self, limit: GlobalLimit) -> None:
        """Store that a call has ended.

        Raises:
            StoreError: The database failed. The next beat stores the number of calls.
        """
        self._running[limit.name] -= 1
        await self._run(Command([_END], {"limit_name": limit.name, "me": self._server}, repeat=False))

    async def _run(self, command: Command, then: Callable[[Rows], None] | None = None) -> Rows:
        self._in_flight += 1
        try:
            found: Rows = await self._control.do(command, then)
        finally:
            self._in_flight -= 1
        return found

    def correction(self) -> dict[str, list[Any]]:
        """Return the parameters of `CORRECT` that store the number of running calls. They are empty if a statement is in flight,
        whose change would be stored twice.
        """
        running = {} if self._in_flight else self._running
        return {"names": [*running], "running": [*running.values()]}

    def endpoints_of(self, limit: GlobalLimit) -> list[str]:
        """Return the endpoints to which a limit applies."""
        return [endpoint for endpoint, each in self.limits.items() if each.name == limit.name]
