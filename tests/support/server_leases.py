"""Leases of servers that share a PostgreSQL database, for tests that let a server die without waiting for it."""

from datetime import UTC, datetime, timedelta
from typing import Any


async def expire_lease(store: Any) -> None:
    """Let the lease of a server expire, as if it had been dead for some seconds."""
    sql = "UPDATE server SET until = now() - interval '1 second' WHERE id = %(id)s"
    await store._threads.control.run(sql, id=store._server.id)


def trust(store: Any) -> None:
    """Act as if the beats of a server had succeeded for a whole lease, the last one just now."""
    store._server._first_beat = -1e9
    store._server._until = datetime.now(UTC) + timedelta(seconds=5)
