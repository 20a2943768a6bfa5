"""Queue of waiting items in the database, which is fair between principals over all servers.

A *ticket* is one waiting item, and a *take* removes the next tickets of an endpoint. Items run in the order of their turns: a
new ticket of a principal gets the turn after the principal's last waiting ticket, or after the turn that was taken last,
whichever is later. Ten thousand waiting items of one principal therefore do not delay the first item of another principal.

A server can take items of its own jobs, and items of jobs without an owner. In the second case, it becomes the owner. If two
servers take items of one job at once, the second server waits for the commit of the first. It then gets no items of this job,
and notifies the first server of the items that it had locked.
"""

import asyncio
import contextlib
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from tidewire_server.errors import EndpointFunctionError
from tidewire_server.store.failure_log import FailureLog
from tidewire_server.store.postgres.coalesced_work import CoalescedWork
from tidewire_server.store.postgres.connections import Command, Rows
from tidewire_server.store.postgres.database_threads import Threads
from tidewire_server.store.postgres.global_limits import (
    COUNTED,
    END_CALL,
    ITEMS,
    ITEMS_OF_BATCH,
)
from tidewire_server.store.postgres.notifications import TICKETS, Notifier
from tidewire_server.store.records import (
    SHARED_ATTEMPTS,
    BatchBounds,
    BatchItem,
    BatchSlot,
    GlobalLimit,
    QueueEntry,
    RunningBatch,
)
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 1.0
"""Number of seconds to wait after a failure before items are taken again."""

_MAX_LOST_RACES: Final = 10
"""Number of times that a take is repeated because another server has claimed the jobs of all picked items."""

_ENDLESS: Final = 2**31 - 1

_AVAILABLE: Final = """
    (j.owner IS NULL OR j.owner = %(me)s) AND NOT j.held AND (j.refused IS NULL OR %(me)s <> ALL (j.refused))
"""
_ANY: Final = "t.principal <> ALL (%(skip)s::text[])"
# The planner finds a good plan for either condition, but not for IS NOT DISTINCT FROM.
_WITH_KEY: Final = "t.key = %(key)s"
_WITHOUT_KEY: Final = "t.key IS NULL"
# The first item that does not fit ends the batch.
_TAKE: Final = f"""
    WITH candidates AS MATERIALIZED (
        SELECT t.id, t.job, t.turn, t.cost, j.owner FROM ticket t JOIN job j ON j.number = t.job
        WHERE t.endpoint = %(endpoint)s AND {_AVAILABLE} AND {{which}}
        ORDER BY t.turn, t.id LIMIT {{n}} FOR UPDATE OF t SKIP LOCKED),
    picked AS MATERIALIZED (
        SELECT id, job, owner FROM (
            SELECT *, %(cost)s::float8 + sum(cost) OVER (ORDER BY turn, id) AS total,
                row_number() OVER (ORDER BY turn, id) + %(rows)s AS place FROM candidates) c
        WHERE total <= %(max_cost)s::float8 OR place = 1)
    , fresh AS MATERIALIZED (
        SELECT number FROM job WHERE number IN (SELECT job FROM picked WHERE owner IS NULL) AND owner IS NULL AND NOT held
        ORDER BY number FOR NO KEY UPDATE OF job),
    claimed AS (UPDATE job j SET owner = %(me)s FROM fresh f WHERE j.number = f.number RETURNING j.number),
    taken AS (
        DELETE FROM ticket WHERE id = ANY (ARRAY(
            SELECT id FROM picked WHERE owner IS NOT NULL OR job IN (SELECT number FROM claimed))) RETURNING *),
    turned AS (
        INSERT INTO endpoint AS e (name, turn) SELECT %(endpoint)s, max(turn) FROM taken HAVING count(*) > 0
        ON CONFLICT (name) DO UPDATE SET turn = greatest(e.turn, EXCLUDED.turn))
    {{counted}}
    SELECT p.n, j.id, t.item, t.principal, j.created_at, t.key, t.cost,
        extract(epoch FROM clock_timestamp() - t.arrived)::float8
    FROM (SELECT count(*) AS n FROM picked) p LEFT JOIN taken t ON true LEFT JOIN job j ON j.number = t.job
    ORDER BY t.turn, t.id
"""  # noqa: S608


@cache
def _take_sql(which: str, *, limited: bool) -> str:
    """Return the statement that takes items. The argument `which` is one of the conditions above."""
    n, calls = (ITEMS, "count(*)") if which is _ANY else (ITEMS_OF_BATCH, "1")
    if not limited:
        return _TAKE.format(which=which, n="%(n)s", counted="")
    return _TAKE.format(which=which, n=n, counted=COUNTED.format(calls=calls))


_REFUSED: Final = """
    SELECT j.id FROM job j WHERE j.endpoint = %(endpoint)s AND j.refused IS NOT NULL AND j.ended_at IS NULL AND j.owner IS NULL
        AND NOT EXISTS (
            SELECT FROM server s WHERE s.until >= now() AND s.endpoints ? %(endpoint)s AND s.id <> ALL (j.refused))
"""
_GROUPS: Final = f"""
    SELECT t.key, count(*), sum(t.cost), extract(epoch FROM clock_timestamp() - min(t.arrived))::float8
    FROM ticket t JOIN job j ON j.number = t.job
    WHERE t.endpoint = %(endpoint)s AND {_AVAILABLE}
    GROUP BY t.key ORDER BY min(ARRAY[t.turn, t.id])
"""  # noqa: S608
# Items that had started run before those items of their job that had only waited, to keep the order. The text of the key is
# that of `encode_key((key, job.id))` after `SHARED_ATTEMPTS`, see `slot_of_attempt`.
PUT: Final = f"""
    INSERT INTO ticket (endpoint, principal, turn, job, item, key, cost)
    SELECT j.endpoint, j.principal, least((SELECT min(turn) FROM ticket WHERE job = j.number) - 1,
            coalesce((SELECT turn FROM endpoint WHERE name = j.endpoint), 0) + i.n),
        j.number, i.item,
        CASE WHEN j.attempt <= {SHARED_ATTEMPTS} THEN j.keys[i.item + 1]
            ELSE '[' || coalesce(j.keys[i.item + 1], 'null') || ',"' || j.id || '"]' END,
        coalesce(j.costs[i.item + 1], 0)
    FROM job j, unnest(%(items)s::int[]) WITH ORDINALITY AS i (item, n)
    WHERE j.id = %(id)s AND j.owner = %(me)s
    ON CONFLICT DO NOTHING
"""  # noqa: S608
_DISCARD: Final = """
    DELETE FROM ticket t USING job j WHERE t.job = j.number AND j.id = %(job)s AND t.item = %(item)s
"""
_WAITING: Final = """
    SELECT j.id, t.item, t.principal, j.created_at FROM ticket t JOIN job j ON j.number = t.job
    WHERE t.endpoint = %(endpoint)s AND t.principal <> ALL (%(skip)s::text[])
    ORDER BY t.turn, t.id LIMIT %(n)s
"""
_POLL: Final = f"""
    SELECT t.endpoint, count(*), bool_or({_AVAILABLE})
    FROM ticket t JOIN job j ON j.number = t.job GROUP BY t.endpoint
"""  # noqa: S608


def endless(limit: float) -> int:
    """Return a limit as an integer for SQL, where infinity is a large number."""
    return _ENDLESS if limit >= _ENDLESS else int(limit)


def encode_key(key: Hashable) -> str | None:
    """Return a batch key as text, so that equal keys have equal texts at all servers.

    Raises:
        EndpointFunctionError: The key contains a value other than None, a string, a number, a bool or a tuple.
    """
    return None if key is None else json.dumps(key, separators=(",", ":"), default=_refuse_part)


def _refuse_part(part: object) -> None:
    raise EndpointFunctionError(
        f"the endpoint's key function returned a {type(part).__name__}; with a log in PostgreSQL, a batch key consists of "
        "None, strings, numbers, bools and tuples of these"
    )


def decode_key(text: str | None) -> Hashable:
    """Return the batch key of a text that `encode_key` has returned."""
    return None if text is None else _with_tuples(json.loads(text))


def _with_tuples(value: Any) -> Hashable:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


class KeyGroup(NamedTuple):
    """Waiting items with the same batch key."""

    key: str | None
    items: int
    cost: float
    waited: float
    """Number of seconds that the oldest item has waited."""

    def is_ready(self, bounds: BatchBounds) -> bool:
        """Return whether a batch of these items may start now."""
        return bounds.are_reached(self.items, self.cost) or self.waited >= bounds.timeout


def choose_group(
    groups: Sequence[KeyGroup], bounds: BatchBounds, running: RunningBatch | None
) -> KeyGroup | None:
    """Choose the items for a new batch, or for a running one, by the rules in `memory_batches`.

    Args:
        groups: All groups of an endpoint, in the order of their first items.
        bounds: Limits of the batches.
        running: The running batch that the items join, or None.
    """
    if running is None:
        return next((group for group in groups if group.is_ready(bounds)), None)
    key = encode_key(running.key)
    oldest = max(groups, key=lambda group: group.waited, default=None)
    if oldest is not None and oldest.key != key and oldest.is_ready(bounds):
        return None
    return next((group for group in groups if group.key == key), None)


@dataclass(slots=True)
class _Endpoint:
    """Endpoint whose items this server takes."""

    bounds: BatchBounds | None = None
    due: float = math.inf
    hints: int = 0
    """Number of hints so far. A hint that arrives during a take must not be forgotten."""

    def hint(self) -> None:
        """Allow items of the endpoint to be taken at once."""
        self.hints += 1
        self.due = -math.inf

    def wait(self, seconds: float) -> None:
        """Take no items of the endpoint for this time, unless a hint arrives."""
        self.due = asyncio.get_running_loop().time() + seconds


class PostgresQueue:
    """Queue in the database. All methods must be called on one event loop, except for `size`."""

    def __init__(self, threads: Threads, notifier: Notifier) -> None:
        """Create the queue.

        Args:
            threads: Threads of the store. Items are added in `submits`, because another server may have locked their job.
            notifier: Notifier that informs other servers.
        """
        self._control = threads.control
        self._submits = threads.submits
        self._notifier = notifier
        self._server = notifier.server
        self._endpoints: dict[str, _Endpoint] = {}
        self._limits: Mapping[str, GlobalLimit] = {}
        self._running: Counter[str] = Counter()
        """Number of running calls by the name of their limit over all servers."""
        self._in_flight = 0
        """Number of statements in flight that begin or end calls with a limit over all servers."""
        self._ends: set[asyncio.Task[None]] = set()
        """Tasks that store the ends of calls with a limit over all servers."""
        self._sizes: Counter[str] = Counter()
        """Number of waiting items of each endpoint, even if only other servers take its items."""
        self._wake: Callable[[str], None] = lambda _: None
        self._work = CoalescedWork(self._count_all, "read the queue")
        self._failures = FailureLog(_log, "no item is taken from the queue")

    def serve(
        self,
        endpoints: Mapping[str, BatchBounds | None],
        wake: Callable[[str], None],
        limits: Mapping[str, GlobalLimit] = MappingProxyType({}),
    ) -> None:
        self._limits = limits
        self._endpoints = {name: _Endpoint(bounds) for name, bounds in endpoints.items()}
        self._wake = wake
        self.poll()
        self._notifier.listen()

    async def put(self, entries: Sequence[QueueEntry], slots: Sequence[BatchSlot] | None = None) -> None:
        del slots
        endpoint, job, *_ = entries[0]
        items = [entry.index for entry in entries]
        try:
            await self._submits.run(PUT, me=self._server, id=job, items=items)
        except StoreError as error:
            level = logging.DEBUG if error.logged else logging.ERROR
            _log.log(level, "the items of job %s are not added to the queue now: %s", job, error)
            return
        self._added(endpoint, len(entries))

    async def take(self, endpoint: str, *, limit: int = 1, skip: Collection[str] = ()) -> list[QueueEntry]:
        found = self._find(endpoint)
        parameters = {"skip": [*skip], "n": limit, "rows": 0, "cost": 0.0, "max_cost": math.inf}
        items, hints = await self._take(endpoint, _ANY, parameters)
        # If principals were skipped, their items may be waiting.
        if len(items) < limit and not skip and found.hints == hints and found.due == -math.inf:
            found.due = math.inf
        return [item.entry for item in items]

    async def take_batch(self, endpoint: str, running: RunningBatch | None = None) -> list[BatchItem]:
        found = self._find(endpoint)
        bounds, hints = found.bounds, found.hints
        assert bounds is not None  # noqa: S101 - the endpoint is batched
        rows, cost = (0, 0.0) if running is None else (running.rows, running.cost)
        if rows >= bounds.max_size:
            return []
        try:
            groups = [KeyGroup(*row) for row in await self._query(_GROUPS, endpoint=endpoint)]
        except StoreError as error:
            self._failures.failed(error)
            found.wait(_RETRY_SECONDS)
            return []
        chosen = choose_group(groups, bounds, running)
        if chosen is None:
            if running is None and found.hints == hints:
                waits = [bounds.timeout - group.waited for group in groups]
                found.wait(max(min(waits, default=math.inf), 0.001))
            return []
        parameters = {
            "key": chosen.key,
            "n": bounds.max_size - rows,
            "rows": rows,
            "cost": cost,
            "max_cost": bounds.max_cost,
        }
        which = _WITHOUT_KEY if chosen.key is None else _WITH_KEY
        items, _ = await self._take(endpoint, which, parameters, joins=running is not None)
        if not items and running is None and endpoint in self._limits and found.hints == hints:
            # The maximum number of calls is running. When a call ends, a hint arrives.
            found.wait(_RETRY_SECONDS)
        return items

    async def _take(
        self, endpoint: str, which: str, parameters: dict[str, Any], *, joins: bool = False
    ) -> tuple[list[BatchItem], int]:
        """Take items, and return them with the number of hints when the take began. Never raise a `StoreError`."""
        found, limit = self._find(endpoint), None if joins else self._limits.get(endpoint)
        sql = _take_sql(which, limited=limit is not None)
        parameters |= {"endpoint": endpoint, "me": self._server}
        if limit is not None:
            parameters |= {"limit_name": limit.name, "limit": limit.calls}
        locks = () if limit is None else (f"limit {limit.name}",)
        command = Command([sql], parameters, locks=locks, repeat=False)

        def then(found: list[Rows]) -> None:
            if limit is not None:
                taken = sum(row[1] is not None for row in found[0])
                self._running[limit.name] += taken if which is _ANY else min(1, taken)

        for _ in range(_MAX_LOST_RACES):
            hints = found.hints
            try:
                with self._counted(limit):
                    (rows,) = await self._control.do(command, then)
            except StoreError as error:
                self._failures.failed(error)
                found.wait(_RETRY_SECONDS)
                return [], hints
            items = [
                BatchItem(
                    QueueEntry(endpoint, job, item, principal, at), BatchSlot(decode_key(key), cost), waited
                )
                for _, job, item, principal, at, key, cost, waited in rows
                if job is not None
            ]
            if len(items) < rows[0][0]:
                # The owner of the jobs could not see their items while this take had locked them.
                self._notifier.send(TICKETS, endpoint)
            if items or not rows[0][0]:
                break
        self._count(endpoint, -len(items))
        return items, hints

    def end_call(self, endpoint: str) -> None:
        limit = self._limits.get(endpoint)
        if limit is not None:
            task = asyncio.get_running_loop().create_task(self._end_call(limit))
            self._ends.add(task)
            task.add_done_callback(self._ends.discard)

    async def _end_call(self, limit: GlobalLimit) -> None:
        self._running[limit.name] -= 1
        try:
            with self._counted(limit):
                await self._query(END_CALL, limit_name=limit.name)
        except StoreError as error:  # The next beat stores the number of calls.
            _log.debug("cannot store the end of a call: %s", error)
            return
        endpoints = [endpoint for endpoint, each in self._limits.items() if each.name == limit.name]
        for endpoint in endpoints:
            self._notifier.send(TICKETS, endpoint)
        self.hint(endpoints)

    @contextlib.contextmanager
    def _counted(self, limit: GlobalLimit | None) -> Iterator[None]:
        self._in_flight += limit is not None
        try:
            yield
        finally:
            self._in_flight -= limit is not None

    def running_calls(self) -> dict[str, list[Any]]:
        """Return the parameters of `CORRECT`, which stores the numbers of running calls. The result is empty while a statement
        that changes these numbers is in flight, because its change would be stored twice.
        """
        running = {} if self._in_flight else self._running
        return {"names": [*running], "running": [*running.values()]}

    async def refused(self, endpoint: str) -> Collection[str]:
        return [job for (job,) in await self._read(_REFUSED, endpoint=endpoint)]

    async def discard(self, entry: QueueEntry) -> None:
        try:
            await self._control.run(_DISCARD, job=entry.job, item=entry.index)
        except StoreError as error:  # The item is dropped when it is taken.
            _log.debug("cannot remove an item from the queue: %s", error)
        self._count(entry.endpoint, -1)

    def due(self, endpoint: str) -> float:
        return self._find(endpoint).due

    def size(self, endpoint: str) -> int:
        return self._sizes[endpoint]

    async def waiting(
        self, endpoint: str, *, limit: int | None = None, skip: Collection[str] = ()
    ) -> list[QueueEntry]:
        rows = await self._read(_WAITING, endpoint=endpoint, n=limit, skip=[*skip])
        return [QueueEntry(endpoint, *row) for row in rows]

    # ---- hints and polls -----------------------------------------------------------------------------------------

    def added(self, endpoint: str, items: int) -> None:
        """Update the data in memory after this server has added items that any server may take, and inform the others."""
        self._added(endpoint, items)
        self._notifier.send(TICKETS, endpoint)

    def _added(self, endpoint: str, items: int) -> None:
        self._count(endpoint, items)
        self._find(endpoint).hint()

    def hint(self, endpoints: Iterable[str] | None) -> None:
        """Let the scheduler take items of endpoints, or of all endpoints, because other servers may have added some."""
        for endpoint in [*self._endpoints] if endpoints is None else endpoints:
            if endpoint in self._endpoints:
                self._endpoints[endpoint].hint()
                self._wake(endpoint)

    def poll(self) -> None:
        """Count the waiting items soon, and find items whose notification was lost."""
        self._work.request()

    def _count(self, endpoint: str, change: int) -> None:
        self._sizes[endpoint] = max(0, self._sizes[endpoint] + change)

    def _find(self, endpoint: str) -> _Endpoint:
        return self._endpoints.get(endpoint) or _Endpoint()

    async def _query(self, sql: str, **parameters: Any) -> Rows:
        command = Command([sql], {"me": self._server, **parameters}, repeat=False)
        return (await self._control.do(command))[-1]

    async def _read(self, sql: str, **parameters: Any) -> Rows:
        """Return the rows of a query, or none if the database failed."""
        try:
            return await self._query(sql, **parameters)
        except StoreError as error:
            _log.debug("cannot read the queue: %s", error)
            return []

    async def _count_all(self) -> None:
        rows = await self._query(_POLL)
        self._sizes = Counter({endpoint: number for endpoint, number, _ in rows})
        self.hint([endpoint for endpoint, _, available in rows if available])

    async def close(self) -> None:
        """Stop the polls."""
        if self._ends:
            await asyncio.wait(self._ends)
        await self._work.close()
