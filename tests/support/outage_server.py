"""The server of `killable_server`, which waits for a shorter time for its database."""

from typing import Any

from support.killable_server import killable_server
from tidewire_server import Server


def outage_server(wait_limit: float = 10.0, **settings: Any) -> Server:
    from tidewire_server.store.postgres import database_threads

    database_threads.WAIT_LIMIT = wait_limit  # type: ignore[misc]
    return killable_server(**settings)
