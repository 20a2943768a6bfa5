"""Statements that delete expired events, jobs, tombstones and idempotency keys, entries that exceed the limits of `Retention`,
and the rows of dead servers.

Only one server at a time runs these statements, under an advisory lock. The limits apply to all servers together.
"""

import math
from collections.abc import Sequence
from typing import Final

from tidewire_server.store.postgres.connections import Command, Rows
from tidewire_server.store.records import Retention

_MAX_AT_ONCE: Final = 500
"""Maximum number of rows of each kind that one call deletes. Submits wait until the call has finished."""

_LOCKED: Final = f"(SELECT pg_try_advisory_xact_lock({0x54696466}))"
"""Condition of all statements of `expire`, which delete nothing while another server holds the advisory lock."""

# A job that has just ended stays for a moment, so that its readers at all servers receive `done`. It is invisible because of
# its tombstone, and expires soon. An unfinished job stays until its owner has ended it, if the owner was asked to delete it.
_DELETE: Final = """
    WITH chosen AS MATERIALIZED (
        SELECT number, id, principal, CASE WHEN ended_at IS NULL THEN purge ELSE ended_at > %(recent)s END AS stays
        FROM job WHERE id = ANY (%(jobs)s::text[]) ORDER BY number FOR UPDATE),
    hidden AS (
        UPDATE job j SET expires_at = %(expires_at)s FROM chosen c
        WHERE j.number = c.number AND c.stays AND j.ended_at IS NOT NULL),
    gone AS (DELETE FROM job j USING chosen c WHERE j.number = c.number AND NOT c.stays),
    keys AS (DELETE FROM key k USING chosen c WHERE k.job = c.id AND k.until IS NULL AND NOT c.stays)
    INSERT INTO tombstone (id, principal, until) SELECT id, principal, %(until)s FROM chosen ON CONFLICT DO NOTHING
"""
# Keep the newest rows, which have the highest numbers.
_LIMIT_TOMBSTONES: Final = """
    DELETE FROM tombstone WHERE number <= (SELECT max(number) FROM tombstone) - %(max_tombstones)s
"""
_EXPIRE_LOGS: Final = f"""
    WITH due AS MATERIALIZED (
        SELECT j.number, h.epoch, h.last FROM job j LEFT JOIN LATERAL (
            SELECT epoch, last FROM block WHERE job = j.number AND done ORDER BY last DESC LIMIT 1) h ON true
        WHERE j.log_until <= %(now)s AND {_LOCKED} ORDER BY j.log_until LIMIT %(limit)s FOR UPDATE OF j),
    blocks AS (DELETE FROM block b USING due d WHERE b.job = d.number AND b.last < d.last),
    states AS (DELETE FROM state s USING due d WHERE s.job = d.number AND s.seq < d.last - 1),
    pieces AS (DELETE FROM piece p USING due d
        WHERE p.job = d.number AND (p.seq < d.last - 1 OR p.seq = d.last - 1 AND NOT p.is_state))
    UPDATE job j SET log_until = NULL, base_epoch = coalesce(d.epoch, j.base_epoch), base_seq = coalesce(d.last - 1, j.base_seq),
        kept_bytes = NULL
    FROM due d WHERE j.number = d.number RETURNING j.id
"""  # noqa: S608
# Measure here, and not in the append that ends a job, because the appends of other jobs would wait. Do not wait for a job that
# another server deletes: the two servers could deadlock.
_MEASURE: Final = f"""
    WITH due AS MATERIALIZED (
        SELECT number FROM job WHERE ended_at IS NOT NULL AND kept_bytes IS NULL AND {_LOCKED}
        ORDER BY number FOR NO KEY UPDATE SKIP LOCKED)
    UPDATE job j SET kept_bytes = (SELECT coalesce(sum(octet_length(frames)), 0) FROM block WHERE job = j.number)
        + (SELECT coalesce(sum(octet_length(state)), 0) FROM state WHERE job = j.number)
        + (SELECT coalesce(sum(octet_length(content)), 0) FROM piece WHERE job = j.number)
    FROM due d WHERE j.number = d.number
"""  # noqa: S608
_EXPIRED_JOBS: Final = f"""
    SELECT id FROM job WHERE expires_at <= %(now)s AND {_LOCKED} ORDER BY expires_at, number LIMIT %(limit)s
"""  # noqa: S608
_EXPIRE_TOMBSTONES: Final = f"DELETE FROM tombstone WHERE until <= %(now)s AND {_LOCKED}"  # noqa: S608
# An idempotency key is kept at least as long as its job [TW-JOB-027].
_EXPIRE_KEYS: Final = f"""
    WITH due AS MATERIALIZED (
        SELECT k.number, EXISTS (SELECT FROM job WHERE id = k.job) AS stays FROM key k
        WHERE k.until <= %(now)s AND {_LOCKED} LIMIT %(limit)s),
    gone AS (DELETE FROM key k USING due d WHERE k.number = d.number AND NOT d.stays)
    UPDATE key k SET until = NULL FROM due d WHERE k.number = d.number AND d.stays
"""  # noqa: S608
# Delete the oldest key of the principal with the most keys, again and again. These are the keys with the highest places.
_DELETE_EXCESS_KEYS: Final = f"""
    DELETE FROM key WHERE {_LOCKED} AND number IN (
        SELECT number FROM (
            SELECT number, row_number() OVER (PARTITION BY principal ORDER BY number DESC) AS place
            FROM key WHERE until IS NOT NULL) k
        ORDER BY place DESC, number LIMIT least(%(limit)s, greatest(0,
            (SELECT count(*) FROM key WHERE until IS NOT NULL) - %(max_keys)s)))
"""  # noqa: S608
# The jobs that `EndedJobs` chooses: the oldest job of the principal with the most jobs (the highest place), or with the most
# bytes in this job and its newer ones, again and again. The job that ended last is deleted only if it is the only one, and not
# because of its size.
_EXCESS_JOBS: Final = f"""
    WITH ranked AS MATERIALIZED (
        SELECT id, ended_at, number, size, row_number() OVER own AS place, sum(size) OVER own AS bytes,
            number = first_value(number) OVER (ORDER BY ended_at DESC, number DESC) AS is_newest
        FROM (SELECT *, coalesce(kept_bytes, 0) AS size FROM job
            WHERE {_LOCKED} AND ended_at IS NOT NULL AND NOT coalesce(expires_at <= %(now)s, false)
                AND (SELECT count(*) > %(max_jobs)s OR sum(kept_bytes) > %(max_bytes)s FROM job WHERE ended_at IS NOT NULL)) j
        WINDOW own AS (PARTITION BY principal ORDER BY ended_at DESC, number DESC)),
    too_many AS MATERIALIZED (
        SELECT id FROM ranked ORDER BY is_newest, place DESC, ended_at, number
        LIMIT greatest(0, (SELECT count(*) FROM ranked) - %(max_jobs)s)),
    kept AS MATERIALIZED (SELECT * FROM ranked WHERE id NOT IN (SELECT id FROM too_many)),
    too_large AS (
        SELECT id, coalesce(sum(size) OVER (
                ORDER BY bytes DESC, ended_at, number ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS freed
        FROM kept WHERE NOT is_newest)
    SELECT id FROM too_many UNION ALL
    SELECT id FROM too_large WHERE freed < (SELECT sum(size) FROM kept) - %(max_bytes)s
    LIMIT %(limit)s
"""  # noqa: S608
_DELETE_PROGRESS: Final = f"""
    DELETE FROM progress p WHERE {_LOCKED} AND NOT EXISTS (SELECT FROM job WHERE number = p.job AND owner = p.server)
"""  # noqa: S608
# No one needs the row of a dead server that owns no job. A server that was suspended for longer than an hour adds its row again
# with its next beat (`server_rows`).
_DELETE_SERVERS: Final = f"""
    DELETE FROM server WHERE {_LOCKED} AND id IN (
        SELECT id FROM server s WHERE until < now() - interval '1 hour' AND NOT EXISTS (SELECT FROM job WHERE owner = s.id)
        LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
"""  # noqa: S608
_DUE: Final = """
    SELECT least((SELECT min(log_until) FROM job WHERE log_until IS NOT NULL),
        (SELECT min(expires_at) FROM job WHERE expires_at > %(now)s),
        (SELECT min(until) FROM tombstone), (SELECT min(until) FROM key WHERE until IS NOT NULL))
"""


def delete_jobs(jobs: Sequence[str], retention: Retention, *, now: float, last: float = 0.0) -> Command:
    """Return the command that deletes jobs and inserts a tombstone for each of them.

    Args:
        jobs: Ids of the jobs.
        retention: Limits of the tombstones.
        now: The current time.
        last: Number of seconds for which a job that has just ended stays in the database, invisible to clients.
    """
    parameters = {
        "jobs": [*jobs],
        "until": now + retention.tombstone_ttl,
        "max_tombstones": retention.max_tombstones,
        "recent": now - last if last else math.inf,
        "expires_at": now + last,
    }
    return Command([_DELETE, _LIMIT_TOMBSTONES], parameters)


def expire(retention: Retention, now: float) -> Command:
    """Return the command that deletes expired entries. See `expired`."""
    parameters = {
        "now": now,
        "limit": _MAX_AT_ONCE,
        "max_jobs": retention.max_retained_jobs,
        "max_bytes": retention.max_retained_bytes,
        "max_keys": retention.max_tombstones,
    }
    choices = (_EXPIRE_LOGS, _EXPIRED_JOBS, _MEASURE, _EXCESS_JOBS)
    deletions = (_EXPIRE_TOMBSTONES, _EXPIRE_KEYS, _DELETE_EXCESS_KEYS, _DELETE_PROGRESS, _DELETE_SERVERS)
    return Command([*choices, *deletions, _DUE], parameters)


def expired(found: list[Rows], now: float) -> tuple[list[str], list[str], float | None]:
    """Return the results of the command `expire`: the jobs whose events were deleted, the jobs to delete, and the time at which
    the next entry expires. The time is None if no entry remains.
    """
    choices = [[job for (job,) in rows] for rows in found[:4]]
    logs, *jobs = choices
    is_more = max(map(len, choices)) >= _MAX_AT_ONCE
    return logs, [job for rows in jobs for job in rows], now if is_more else found[-1][0][0]
