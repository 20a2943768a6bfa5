"""The PostgreSQL store: bad input, the schema and its versions, passwords, outages, and `check`."""

import asyncio
import logging
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
import trustme

from support.postgres_server import AUTHORITY, PASSWORD, PASSWORD_USER, needs_postgres
from support.store_log_writer import ROOMY, Writer, everything, until_ready
from tidewire.protocol.cursor import Cursor
from tidewire_server.commands.flags import shown
from tidewire_server.settings import Settings
from tidewire_server.store.fair_eviction import EndedJobs
from tidewire_server.store.open_store import open_store
from tidewire_server.store.store_errors import StoreError
from tidewire_server.user_paths import without_password

SECRET = "s3cr3t-w0rd"

HIDE_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
from tidewire_server.settings import Settings
from tidewire_server.store.store_errors import StoreError
from tidewire_server.store.open_store import open_store
try:
    open_store(Settings(log="postgresql://ada:{secret}@db/tidewire"))
except StoreError as error:
    print(error)
"""


def error_of(url: str) -> str:
    """Return the error with which a database cannot be opened, which has one line and no password."""
    with pytest.raises(StoreError) as caught:
        open_store(Settings(log=url))
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    assert PASSWORD not in text
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return text


def named(url: str) -> str:
    return urlsplit(url).path[1:]


# ---- passwords -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"postgresql://ada:{SECRET}@db/jobs", "postgresql://ada:***@db/jobs"),
        (f"postgres://ada:p@/{SECRET}@db/jobs", "postgres://ada:***@db/jobs"),
        (
            f"postgresql://ada@db/jobs?password={SECRET}&sslmode=require",
            "postgresql://ada@db/jobs?password=***&sslmode=require",
        ),
        (f"postgresql://db/jobs?sslpassword={SECRET}", "postgresql://db/jobs?sslpassword=***"),
        (f"postgresql://ada@db/jobs?pasword={SECRET}", "postgresql://ada@db/jobs?pasword=***"),
        (f"postgresql://ada:{SECRET}", "postgresql://ada:***"),
        (f"postgresql://ada:{SECRET}/jobs", "postgresql://ada:***"),
        ("postgresql://ada@db:5432/jobs", "postgresql://ada@db:5432/jobs"),
        *(
            (url, url)
            for url in (
                "postgresql://db:5432",
                "postgresql://db:5432,b:5433/jobs",
                "postgresql://[::1]:5432/jobs",
            )
        ),
        ("sqlite:///log.db", "sqlite:///log.db"),
        ("memory", "memory"),
    ],
)
def test_a_password_is_never_shown(url: str, expected: str) -> None:
    assert without_password(url) == expected
    assert shown("log", url) == expected
    assert SECRET not in repr(Settings(log=url))


@pytest.mark.parametrize("start", ["postgress://", "postgresql:/", "Postgresql://"])
def test_a_password_is_not_part_of_an_error_about_the_setting(start: str) -> None:
    with pytest.raises(ValueError, match="is not a valid log; use .* or postgresql://") as caught:
        Settings().replace(log=f"{start}ada:{SECRET}@db/jobs")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql://ada@db/jobs?nosuch=1", 'invalid URI query parameter: "nosuch"'),
        (f"postgresql://ada:a@{SECRET}@db/jobs", "this URL is not valid"),
        (f"postgresql://ada:{SECRET}/jobs", "this URL is not valid"),
    ],
)
def test_an_error_about_a_url_has_its_reason_without_the_password(url: str, reason: str) -> None:
    from tidewire_server.store.postgres.connections import Database

    with pytest.raises(StoreError) as caught:
        Database(url)
    assert reason in str(caught.value)
    assert SECRET not in str(caught.value)


def test_show_config_and_its_errors_hide_the_password(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tidewire_server.commands.configuration import ConfigurationError, configure

    upstreams = (f"http://ada:{SECRET}@10.0.0.1/v1", "http://10.0.0.2/v1")
    configured = configure({"log": f"postgresql://ada:{SECRET}@db/jobs", "upstream": upstreams})
    table = list(configured.table(Settings(**configured.settings)))
    assert SECRET not in str(table)
    assert ("log", "postgresql://ada:***@db/jobs", "--log") in table
    assert ("upstream", "http://ada:***@10.0.0.1/v1, http://10.0.0.2/v1", "--upstream") in table
    monkeypatch.setenv("TIDEWIRE_LOG", f"postgress://ada:{SECRET}@db/jobs")
    with pytest.raises(ConfigurationError) as caught:
        configure({})
    assert SECRET not in str(caught.value)


# ---- bad input -----------------------------------------------------------------------------------------------------


def test_a_missing_psycopg_is_reported_with_the_command_that_installs_it() -> None:
    program = HIDE_PSYCOPG.format(secret=SECRET)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=True
    )
    assert re.fullmatch(
        r"log postgresql://ada:\*\*\*@db/tidewire: the package psycopg is not installed \(.*\); run: pip install .*\n",
        done.stdout,
    )
    assert "[postgres]" in done.stdout


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"postgresql://ada:{SECRET}%@127.0.0.1/jobs", "this URL is not valid; use postgresql://"),
        (f"postgresql://ada:{SECRET}@127.0.0.1/jobs?nonsense=1", 'invalid URI query parameter: "nonsense"'),
        (
            f"postgresql://ada:{SECRET}@127.0.0.1:1/jobs",
            "start the database, or correct the host and the port",
        ),
        (f"postgresql://ada:{SECRET}@no-such-host.invalid/jobs", "correct the host in the URL"),
        ("postgresql:///jobs?host=/no/such/folder", "correct the folder of the Unix socket in the URL"),
    ],
)
def test_a_wrong_url_is_reported_in_one_line(url: str, expected: str) -> None:
    assert expected in error_of(url)


class TestWithServer:
    """Tests that need a running server."""

    pytestmark = needs_postgres

    def test_a_wrong_password_user_or_database_is_reported_in_one_line(
        self, postgres_of_the_run: Any, monkeypatch: Any
    ) -> None:
        url = postgres_of_the_run.tcp_url("postgres", f"{PASSWORD_USER}:{SECRET}")
        assert "password authentication failed" in error_of(url)
        assert "check the user, and the password in PGPASSWORD" in error_of(url)
        assert "set PGPASSWORD" in error_of(postgres_of_the_run.tcp_url("postgres", PASSWORD_USER))
        assert "create it, or correct the URL" in error_of(postgres_of_the_run.tcp_url("no_such_database"))
        assert "create it, or correct the URL" in error_of(
            postgres_of_the_run.tcp_url("postgres", "no_such_role")
        )

    @pytest.mark.parametrize(
        ("setting", "advice"),
        [
            ("CONNECTION LIMIT 0", "raise the CONNECTION LIMIT of this role or database"),
            ("SET default_transaction_read_only = on", "a database without default_transaction_read_only"),
        ],
    )
    @pytest.mark.parametrize("kind", ["ROLE", "DATABASE"])
    def test_a_setting_that_refuses_connections_is_reported_with_advice(
        self, kind: str, setting: str, advice: str, postgres_of_the_run: Any, database_url: str
    ) -> None:
        role = f"role_of_{named(database_url)}"
        postgres_of_the_run.execute(f"CREATE ROLE {role} LOGIN")
        try:
            name = {"ROLE": role, "DATABASE": named(database_url)}[kind]
            postgres_of_the_run.execute(f"ALTER {kind} {name} {setting}")
            assert advice in error_of(postgres_of_the_run.tcp_url(named(database_url), role))
        finally:
            postgres_of_the_run.execute(f"DROP ROLE {role}")

    def test_a_missing_privilege_is_reported_in_one_line(
        self, postgres_of_the_run: Any, database_url: str
    ) -> None:
        url = postgres_of_the_run.tcp_url(named(database_url), f"{PASSWORD_USER}:{PASSWORD}")
        text = error_of(url)
        assert "permission denied" in text
        assert "CREATE on the database" in text
        open_and_close(database_url)
        assert "all privileges on the schema tidewire" in error_of(url)
        postgres_of_the_run.execute(f"GRANT USAGE ON SCHEMA tidewire TO {PASSWORD_USER}", named(database_url))
        assert "all privileges on the schema tidewire" in error_of(url)
        postgres_of_the_run.execute(
            f"GRANT ALL ON ALL TABLES IN SCHEMA tidewire TO {PASSWORD_USER}", named(database_url)
        )
        open_and_close(url)

    def test_the_password_may_come_from_the_environment(
        self, postgres_of_the_run: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        postgres_of_the_run.execute(f"GRANT CREATE ON DATABASE {named(database_url)} TO {PASSWORD_USER}")
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        monkeypatch.setenv("PGUSER", PASSWORD_USER)
        open_and_close(f"postgres://127.0.0.1:{postgres_of_the_run.port}/{named(database_url)}")

    @pytest.mark.parametrize("by_environment", [False, True])
    def test_tls_is_configured_by_the_url_or_the_environment(
        self,
        postgres_of_the_run: Any,
        database_url: str,
        monkeypatch: pytest.MonkeyPatch,
        *,
        by_environment: bool,
    ) -> None:
        authority = str(postgres_of_the_run.folder / AUTHORITY)
        url = postgres_of_the_run.tcp_url(named(database_url))
        if by_environment:
            monkeypatch.setenv("PGSSLMODE", "verify-full")
            monkeypatch.setenv("PGSSLROOTCERT", authority)
        else:
            url += f"?sslmode=verify-full&sslrootcert={authority}"
        store = open_store(Settings(log=url))
        connections = (
            "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename IS NOT NULL"
        )
        with_tls = postgres_of_the_run.execute(f"{connections} AND datname = '{named(database_url)}'")
        asyncio.run(store.close())
        assert len(with_tls) > 1
        assert set(with_tls) == {(True,)}

    def test_an_unknown_certificate_is_reported_in_one_line(
        self, postgres_of_the_run: Any, database_url: str, tmp_path: Any
    ) -> None:
        other = tmp_path / "other.pem"
        trustme.CA().cert_pem.write_to_path(str(other))
        url = postgres_of_the_run.tcp_url(named(database_url)) + "?sslmode=verify-full&sslrootcert="
        assert "check sslmode and sslrootcert in the URL" in error_of(f"{url}{other}")
        assert "check sslmode and sslrootcert in the URL" in error_of(f"{url}{tmp_path}/no-such-file")

    def test_a_newer_schema_is_refused_and_left_alone(
        self, postgres_of_the_run: Any, database_url: str
    ) -> None:
        open_and_close(database_url)
        postgres_of_the_run.execute("UPDATE tidewire.meta SET version = 99", named(database_url))
        text = error_of(database_url)
        assert "a newer version of Tidewire migrated this database (schema 99, supported up to" in text
        assert "upgrade Tidewire" in text
        assert postgres_of_the_run.execute("SELECT version FROM tidewire.meta", named(database_url)) == [
            (99,)
        ]

    def test_an_old_server_and_another_encoding_are_refused(
        self, postgres_of_the_run: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidewire_server.store.postgres import schema

        monkeypatch.setattr(schema, "MIN_SERVER", 990_000)
        assert "is too old; use PostgreSQL 99 or newer" in error_of(database_url)
        monkeypatch.undo()
        name = named(database_url) + "_latin"
        postgres_of_the_run.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'")
        try:
            assert "ENCODING 'UTF8'" in error_of(postgres_of_the_run.url(name))
        finally:
            postgres_of_the_run.execute(f"DROP DATABASE {name}")

    def test_a_standby_is_refused(self, postgres_of_the_run: Any, database_url: str) -> None:
        name = named(database_url)
        postgres_of_the_run.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        assert "use the URL of the primary" in error_of(database_url)

    @pytest.mark.parametrize(
        ("shift", "expected"),
        [
            (3600, "3600 s ahead of that of the database, so the ended jobs of all servers"),
            # Other servers compare the times that this server stores with their own clocks.
            (-3600, "3600 s behind that of the database, so the jobs that end at this server"),
        ],
    )
    def test_a_wrong_clock_is_reported_once(
        self, shift: float, expected: str, database_url: str, monkeypatch: Any, caplog: Any
    ) -> None:
        now = time.time
        open_and_close(database_url)
        assert not caplog.records
        monkeypatch.setattr(time, "time", lambda: now() + shift)
        open_and_close(database_url)
        (message,) = [record.getMessage() for record in caplog.records]
        assert f"{expected} are deleted that much too early" in message

    def test_servers_that_start_together_create_the_schema_once(self, database_url: str) -> None:
        found: list[Any] = []

        def start() -> None:
            try:
                found.append(open_store(Settings(log=database_url)))
            except StoreError as error:
                found.append(error)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({store.secret for store in found}) == 1
        assert len({store._server.id for store in found}) == 4
        for store in found:
            asyncio.run(store.close())

    def test_an_older_schema_is_migrated(
        self, postgres_of_the_run: Any, database_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from tidewire_server.store.postgres import schema

        open_and_close(database_url)
        added = "ALTER TABLE job ADD COLUMN note text"
        monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, added))
        open_and_close(database_url)
        open_and_close(database_url)
        newest = len(schema.MIGRATIONS)
        assert postgres_of_the_run.execute("SELECT version FROM tidewire.meta", named(database_url)) == [
            (newest,)
        ]
        monkeypatch.undo()
        assert "a newer version of Tidewire" in error_of(database_url)

    # ---- while it runs ---------------------------------------------------------------------------------------------

    def test_check_reports_a_database_that_cannot_be_written_once(
        self,
        postgres_of_the_run: Any,
        database_url: str,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        from tidewire_server.store.postgres import database_threads

        monkeypatch.setattr(database_threads, "WAIT_LIMIT", 1.0)

        async def body() -> None:
            store: Any = open_store(Settings(log=database_url))
            writer = await Writer().add(store)
            await store.check()
            name = named(database_url)
            other = postgres_of_the_run.execute
            await asyncio.to_thread(other, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS false")
            kill = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            await asyncio.to_thread(other, kill)
            with pytest.raises(StoreError, match="is not currently accepting connections") as appended:
                await writer.write("x")
            assert "\n" not in str(appended.value)
            assert await store.queue.take("e") == []
            assert store.queue.due("e") > asyncio.get_running_loop().time()
            for _ in range(2):
                with pytest.raises(StoreError) as caught:
                    await store.check()
                assert caught.value.logged
                assert caught.value.outage
            await asyncio.to_thread(other, f"ALTER DATABASE {name} WITH ALLOW_CONNECTIONS true")
            await writer.log.append(writer.log.extent().head, again(writer))
            await until_ready(store)
            await store.close()

        def again(writer: Writer) -> Any:
            from tidewire_server.store.log_interface import Block

            return Block([b'id:1-2\ndata:"x"\n\n'], writer.at())

        with caplog.at_level(logging.DEBUG):
            asyncio.run(body())
        assert PASSWORD not in caplog.text
        levels = [record.levelname for record in caplog.records if record.levelno >= logging.WARNING]
        assert levels == ["ERROR", "WARNING"]  # The outage, and its end.

    def test_durability_depends_on_a_synchronous_standby(
        self, postgres_of_the_run: Any, database_url: str
    ) -> None:
        store: Any = open_store(Settings(log=database_url))
        assert (store.durability, store.may_have_lost, store.merge_window, store.sweep_interval) == (
            "host",
            False,
            0.05,
            1.0,
        )
        durable = store._threads.appends._database.connect(durable=True)
        fast = store._threads.appends._database.connect(durable=False)
        with durable, fast:
            assert durable.execute("SHOW synchronous_commit").fetchone() == ("on",)
            assert fast.execute("SHOW synchronous_commit").fetchone() == ("off",)
            assert durable.execute("SHOW statement_timeout").fetchone() == ("0",)
        asyncio.run(store.close())

    @pytest.mark.parametrize(
        ("setting", "value", "expected"),
        [
            ("standard_conforming_strings", "off", "on"),
            ("default_transaction_isolation", "serializable", "read committed"),
            # The statement that sets it runs under it, and may take longer than a shorter one.
            ("statement_timeout", "'1min'", "0"),
        ],
    )
    async def test_settings_of_the_database_do_not_change_what_is_stored(
        self, setting: str, value: str, expected: str, postgres_of_the_run: Any, database_url: str
    ) -> None:
        postgres_of_the_run.execute(f"ALTER DATABASE {named(database_url)} SET {setting} = {value}")
        first: Any = open_store(Settings(log=database_url))
        second: Any = open_store(Settings(log=database_url))
        with first._threads.appends._database.connect(durable=True) as connection:
            assert connection.execute(f"SHOW {setting}").fetchone() == (expected,)
        await (writer := Writer()).submit(first)
        await writer.take_over(first)
        await writer.write("one")
        log = await second.jobs.log("a")
        assert await everything(log, Cursor(1, 0)) == b"".join(writer.frames)
        await first.close()
        await second.close()

    async def test_the_session_for_notifications_stays_open_while_there_are_none(
        self, postgres_of_the_run: Any, database_url: str
    ) -> None:
        postgres_of_the_run.execute(f"ALTER DATABASE {named(database_url)} SET idle_session_timeout = '1min'")
        store: Any = open_store(Settings(log=database_url))
        async with await store._database.connect_async() as connection:
            cursor = await connection.execute("SHOW idle_session_timeout")
            assert await cursor.fetchone() == ("0",)
        await store.close()

    @pytest.mark.parametrize("statement", ["SELECT FROM job", "PREPARE a AS SELECT 1; PREPARE a AS SELECT 1"])
    def test_what_fails_behind_a_pooler_in_transaction_mode_is_reported_with_advice(
        self, statement: str, database_url: str
    ) -> None:
        import psycopg

        from tidewire_server.store.postgres.connections import Database

        database = Database(database_url)
        connection = database.connect(durable=True, schema_exists=False)
        with connection, pytest.raises(psycopg.Error) as caught:
            connection.execute(statement)
        assert "not through a pooler in transaction mode" in database.describe(caught.value)

    def test_a_thread_whose_new_connection_breaks_keeps_no_socket(
        self, database_url: str, monkeypatch: Any
    ) -> None:
        import psycopg

        from tidewire_server.store.postgres import connections
        from tidewire_server.store.postgres.database_threads import DatabaseThread

        monkeypatch.setattr(connections, "_CONFIRM", "SELECT pg_terminate_backend(pg_backend_pid())")
        database = connections.Database(database_url)
        thread = DatabaseThread(database, "appends", durable=True)
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            thread.start()
        assert thread._socket is None

    async def test_a_closed_store_refuses_further_work(self, database_url: str) -> None:
        store: Any = open_store(Settings(log=database_url))
        await store.close()
        with pytest.raises(StoreError, match="the store is closed"):
            await store.jobs.get("a")


@pytest.mark.parametrize("seed", range(3))
async def test_jobs_that_exceed_a_limit_are_those_that_the_other_stores_choose(
    database_url: str, seed: int
) -> None:
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    draw = random.Random(seed)
    jobs = [(f"p{draw.randrange(4)}", f"j{number}", draw.randrange(10**6)) for number in range(60)]
    insert = """
        INSERT INTO job (principal, id, kept_bytes, ended_at, expires_at, endpoint, batch, items, created_at, attempt, status, usage,
            starts, columns)
        SELECT p, j, b, n, CASE WHEN n = 30 THEN 99 ELSE 1000 END, 'e', false, 1, 0, 1, 'succeeded', '{}', '{1,1}', '[]'
        FROM unnest(%(p)s::text[], %(j)s::text[], %(b)s::bigint[]) WITH ORDINALITY AS r (p, j, b, n)
    """

    async def left(max_jobs: int, max_bytes: int) -> list[str]:
        limits = replace(ROOMY, max_retained_jobs=max_jobs, max_retained_bytes=max_bytes)
        store: Any = PostgresStore(database_url, limits)
        try:
            await store._threads.submits.run("DELETE FROM job")
            columns = zip("pjb", zip(*jobs, strict=True), strict=True)
            await store._threads.submits.run(
                insert + "RETURNING id", **{name: [*each] for name, each in columns}
            )
            await store.jobs.expire(100.0)
            return [row[0] for row in await store._threads.submits.run("SELECT id FROM job ORDER BY number")]
        finally:
            await store.close()

    def expected(max_jobs: int, max_bytes: int) -> list[str]:
        ended = EndedJobs(max_jobs, max_bytes)
        for number, job in enumerate(jobs):
            if number != 29:  # This job has expired.
                ended.add(*job)
        gone = {*ended.evict_excess(), "j29"}
        return [job for _, job, _ in jobs if job not in gone]

    total = sum(size for _, _, size in jobs)
    for max_bytes in (0, total // 3, total - 1, total):
        assert await left(100, max_bytes) == expected(100, max_bytes)
    for max_jobs in (0, 1, 20, 58, 59):
        found, others = await left(max_jobs, total), expected(max_jobs, total)
        # Principals with equally many jobs lose theirs in any order.
        counts = [
            sorted(Counter(name for name, job, _ in jobs if job in each).values()) for each in (found, others)
        ]
        assert counts[0] == counts[1]
        assert len(found) == max_jobs
        assert found[-1:] == (["j59"] if max_jobs else [])


def open_and_close(url: str) -> None:
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    asyncio.run(PostgresStore(url, ROOMY).close())
