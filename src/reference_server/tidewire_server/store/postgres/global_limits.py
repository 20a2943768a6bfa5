"""SQL statements for the setting `global_limit`, which limits the running calls of an endpoint over all servers.

A server that takes items locks the name of the limit (`Command.locks`), then counts the calls of all servers with a lease, and
adds its own in the same transaction. A server that dies no longer counts when its lease expires. If an answer of the database is
lost, the count of a server is wrong until its next beat, which writes the number of calls that it really runs.
"""

from typing import Final

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
"""Part of the statement that takes items. It counts the calls that begin."""

END_CALL: Final = """
    UPDATE global_call SET running = greatest(0, running - 1) WHERE name = %(limit_name)s AND server = %(me)s
"""
CORRECT: Final = """
    INSERT INTO global_call AS c (name, server, running)
    SELECT name, %(me)s, running FROM unnest(%(names)s::text[], %(running)s::int[]) AS r (name, running)
    ON CONFLICT (name, server) DO UPDATE SET running = EXCLUDED.running WHERE c.running <> EXCLUDED.running
"""
