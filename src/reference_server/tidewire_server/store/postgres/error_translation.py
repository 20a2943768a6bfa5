"""Translate errors of psycopg into `StoreError`, with advice and without passwords.

SQLSTATE              | meaning                            | effect
----------------------+------------------------------------+-----------------------------------------------------
none, 08, 57P, 53300, | outage: the database cannot be     | the connection is opened again, and the statement is
25006               |   reached, restarts, or is a standby |   repeated
26                  | the session lacks a prepared       | same
                    |   statement                        |
40001, 40P01, 55P03   | conflict with another transaction  | the transaction is repeated
23503                 | the job was deleted                | `HeadMovedError`
53100                 | a disk of the database is full     | `StoreError` at once, because waiting does not help
23503 of job.owner    | the row of this server was deleted | `StoreError`; the next beat inserts the row again
all others            | the statement cannot succeed now   | `StoreError`
"""

from typing import Final, TypeGuard

import psycopg

_OUTAGE_CLASSES: Final = ("08", "26", "57P")
_OUTAGE_CODES: Final = frozenset({"53300", "25006"})
_CONFLICTS: Final = frozenset({"40001", "40P01", "55P03"})
_MISSING_JOB: Final = "23503"
_OWNER_CONSTRAINT: Final = "job_owner_fkey"
_DISK_FULL: Final = "53100"

_ADVICE_BY_CODE: Final = {
    _DISK_FULL: "free some space on the disk of the database; the server then retries the pending writes",
    "53200": "the database server has no free memory",
    "42501": "give the role of the URL all privileges on the schema tidewire and its tables, and CREATE on the database",
    "42P01": "connect directly to the database, not through a pooler in transaction mode; if a table is missing, restart the "
    "server, which creates the schema, or restore a backup",
    "42P05": "connect directly to the database, not through a pooler in transaction mode",
    "28P01": "check the password in PGPASSWORD, in ~/.pgpass or in the URL",
}

_ADVICE_BY_TEXT: Final = {
    "password authentication failed": "check the user, and the password in PGPASSWORD, in ~/.pgpass or in the URL",
    "no password supplied": "set PGPASSWORD, or add an entry to ~/.pgpass",
    "pg_hba.conf": "allow this user and host in the file pg_hba.conf of the database",
    "certificate": "check sslmode and sslrootcert in the URL, or PGSSLMODE and PGSSLROOTCERT",
    "does not exist": "create it, or correct the URL",
    "Connection refused": "start the database, or correct the host and the port in the URL",
    "No such file": "start the database, or correct the folder of the Unix socket in the URL",
    "could not translate host name": "correct the host in the URL",
    "failed to resolve host": "correct the host in the URL",
    "timeout expired": "check that the host and the port in the URL are right and that no firewall blocks them",
    "timed out": "check that the host and the port in the URL are right and that no firewall blocks them",
    "session is read-only": "use the URL of the primary, not of a standby, and a role and a database without "
    "default_transaction_read_only",
    "does not support SSL": "turn on TLS in the database, or remove sslmode from the URL",
    "remaining connection slots": "raise max_connections of the database: each server uses 8 connections",
    "too many clients": "raise max_connections of the database: each server uses 8 connections",
    "too many connections for": "raise the CONNECTION LIMIT of this role or database: each server uses 8 connections",
}
"""Advice on errors of an attempt to connect, most of which have no SQLSTATE. The first entry whose text occurs in the error
applies. The order matters, because an error about a missing certificate file also contains "does not exist"."""

_CONNECT_CLASSES: Final = ("28", "3D", "53300")
"""SQLSTATEs of errors of an attempt to connect. In other errors, the same texts have other causes."""


def is_outage(error: Exception) -> TypeGuard[psycopg.Error]:
    """Return whether the database may accept the same statement on a new connection."""
    code = error.sqlstate if isinstance(error, psycopg.Error) else None
    if code is None:
        # libpq reports a broken connection without a code. Other errors without a code are caused by an invalid parameter.
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return code.startswith(_OUTAGE_CLASSES) or code in _OUTAGE_CODES


def is_conflict(error: Exception) -> TypeGuard[psycopg.Error]:
    """Return whether a conflict with another transaction has rolled the transaction back, so that it can be repeated."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _CONFLICTS


def is_disk_full(error: Exception) -> bool:
    """Return whether the database has no space left."""
    return isinstance(error, psycopg.Error) and error.sqlstate == _DISK_FULL


def is_missing_job(error: psycopg.Error) -> bool:
    """Return whether a job was deleted in the meantime."""
    return error.sqlstate == _MISSING_JOB and error.diag.constraint_name != _OWNER_CONSTRAINT


def reason_and_advice(error: psycopg.Error) -> str:
    """Return one line about an error of psycopg. It may contain the password."""
    text = " ".join((error.diag.message_primary or str(error)).split())
    advice = _ADVICE_BY_CODE.get(error.sqlstate or "")
    if error.sqlstate is None or error.sqlstate.startswith(_CONNECT_CLASSES):
        advice = advice or next((advice for part, advice in _ADVICE_BY_TEXT.items() if part in text), None)
    return (text or type(error).__name__) + (f"; {advice}" if advice else "")
