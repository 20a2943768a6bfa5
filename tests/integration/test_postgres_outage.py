"""Outages of the database: what waits, what fails, what the log says, and that nothing is lost or done twice afterwards."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.checked_reader import Reader, check_reader
from support.job_service import job_service
from support.killable_server import Killed
from support.own_postgres import DatabaseProxy, OwnPostgres, own_postgres
from support.postgres_server import needs_postgres
from support.reference_server import eventually, until
from support.sample_server import sentence
from support.store_log_writer import ROOMY, Writer, everything, until_ready
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.sse import encode
from tidewire_conformance.wire.fault_proxy import Cut, FaultProxy
from tidewire_server import Server
from tidewire_server.store.database import write_probe
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.store_errors import StoreError

pytestmark = needs_postgres

PATIENCE = 60.0

OUTAGE = "running functions continue, and what they write waits for the database"
RETURN = "the database can be used again"


def name_of(url: str) -> str:
    return urlsplit(url).path[1:]


@pytest.fixture
def proxy(postgres_of_the_run: Any) -> Iterator[DatabaseProxy]:
    with DatabaseProxy(("127.0.0.1", postgres_of_the_run.port)) as found:
        yield found


@contextlib.asynccontextmanager
async def opened(url: str) -> AsyncIterator[Any]:
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    store = PostgresStore(url, ROOMY)
    try:
        yield store
    finally:
        await store.close()


def shorten_waits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    from tidewire_server.store.postgres import database_threads

    monkeypatch.setattr(database_threads, "WAIT_LIMIT", seconds)


def set_time_after_a_full_disk(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    from tidewire_server.store.postgres import database_threads

    monkeypatch.setattr(database_threads, "FULL_SECONDS", seconds)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages of all warnings and errors."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# ---- the store ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["hold", "cut"])
async def test_reads_and_appends_wait_during_a_short_outage_and_continue(
    how: str, proxy: DatabaseProxy, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(proxy.url(database_url)) as store:
        writer = await Writer().add(store)
        await writer.write("before")
        getattr(proxy, how)()
        append = asyncio.ensure_future(writer.write("during"))
        read = asyncio.ensure_future(store.jobs.get("unknown"))
        await until(lambda: (proxy.held if how == "hold" else proxy.refused) >= 2, within=PATIENCE)
        assert not append.done()
        assert not read.done()
        proxy.pass_on()
        await append
        assert await read is None
        await writer.write("after")
        assert await everything(writer.log, Cursor(1, 0)) == b"".join(writer.frames)
    messages = lines(caplog)
    assert len(messages) in ({0} if how == "hold" else {2}), messages


@pytest.mark.parametrize("how", ["hold", "cut"])
async def test_after_the_limit_reads_and_appends_fail_and_then_an_append_is_repeated(
    how: str,
    proxy: DatabaseProxy,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_waits(monkeypatch, 1.0)
    async with opened(proxy.url(database_url)) as store:
        writer = await Writer().add(store)
        await writer.write("before")
        getattr(proxy, how)()
        block, head = writer_block(writer), writer.head
        tries = [asyncio.ensure_future(writer.log.append(head, block))]
        # The others do not run yet, because the thread of the first one gets no answer.
        tries += [asyncio.ensure_future(store.jobs.get(f"unknown-{each}")) for each in range(50)]
        found = await asyncio.gather(*tries, return_exceptions=True)
        assert all(isinstance(each, StoreError) and each.outage and each.logged for each in found)
        assert writer.log.extent().head == head
        proxy.pass_on()
        while True:
            try:
                await writer.log.append(head, block)
                break
            except StoreError:
                await asyncio.sleep(0.01)
        assert writer.log.extent().head == block.last
        assert (await store.jobs.get("unknown")) is None
        stored = b"".join([*writer.frames, *block.frames])
        assert await everything(writer.log, Cursor(1, 0)) == stored
    async with opened(database_url) as other:
        log = await other.jobs.log("a")
        assert await everything(log, Cursor(1, 0)) == stored
    messages = lines(caplog)
    assert sum(OUTAGE in each for each in messages) == 1, messages
    assert sum(RETURN in each for each in messages) == 1, messages
    assert len(messages) == 2, messages


@pytest.fixture
def few_connections(postgres_of_the_run: Any, database_url: str) -> Iterator[Any]:
    """Yield the URL of a role, and a function that sets how many connections the role may have."""
    server, role = postgres_of_the_run, f"few_{name_of(database_url)}"
    server.execute(f"CREATE ROLE {role} LOGIN")
    server.execute(f"GRANT CREATE ON DATABASE {name_of(database_url)} TO {role}")
    url = f"postgresql://{role}@/{name_of(database_url)}?host={server.folder}&port={server.port}"
    yield url, lambda limit: server.execute(f"ALTER ROLE {role} CONNECTION LIMIT {limit}")
    server.execute(f"REVOKE CREATE ON DATABASE {name_of(database_url)} FROM {role}")
    server.execute(f"DROP OWNED BY {role} CASCADE", name_of(database_url))
    server.execute(f"DROP ROLE {role}")


@pytest.mark.parametrize("lost", ["reads", "listener"])
async def test_a_server_with_too_few_connections_says_so_once(
    lost: str,
    postgres_of_the_run: Any,
    few_connections: Any,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_waits(monkeypatch, 1.0)
    monkeypatch.setattr(write_probe, "PROBE_INTERVAL", 0.0)
    url, limit = few_connections
    listens = "SELECT pid FROM pg_stat_activity WHERE usename = '{}' AND query LIKE 'LISTEN%'"
    ends = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}' AND query {} 'LISTEN%'"
    )
    role = urlsplit(url).username
    async with opened(url) as store:
        store.queue.serve({}, lambda _: None)
        await until(lambda: postgres_of_the_run.execute(listens.format(role)), within=PATIENCE)
        await store.check()
        limit(7 if lost == "listener" else 3)
        if lost == "listener":
            postgres_of_the_run.execute(ends.format(role, "LIKE"))
            await until(lambda: lines(caplog), within=PATIENCE)
            assert "up to 1 s late" in lines(caplog)[0]
            await store.check()
        else:
            postgres_of_the_run.execute(ends.format(role, "NOT LIKE"))
            # Until the sessions have ended, they count.
            await until_ready(store)
            await store.replicas.beat()
            caplog.clear()
            with pytest.raises(StoreError, match="CONNECTION LIMIT"):
                await store.jobs.get("unknown")
            await until(lambda: lines(caplog), within=PATIENCE)
            assert "CONNECTION LIMIT" in lines(caplog)[0]
        for _ in range(5):
            with contextlib.suppress(StoreError):
                await store.replicas.beat()
            if lost == "reads":
                with pytest.raises(StoreError, match="CONNECTION LIMIT"):
                    await store.check()
        assert len(lines(caplog)) == 1, lines(caplog)
        limit(-1)
        if lost == "listener":
            await until(lambda: postgres_of_the_run.execute(listens.format(role)), within=PATIENCE)
        else:
            await until(lambda: RETURN in lines(caplog)[-1], within=PATIENCE)
            assert len(lines(caplog)) == 2, lines(caplog)
            await store.check()


def writer_block(writer: Writer) -> Block:
    """Return a block with one event that follows the last event of a log."""
    cursor = Cursor(writer.head.epoch, writer.head.seq + 1)
    writer.document.apply("late")
    return Block(
        [encode('"late"', id=str(cursor))], StateAt(cursor, writer.document.columns, writer.document.mark())
    )


async def test_an_append_whose_answer_was_lost_is_repeated_and_compared(
    postgres_of_the_run: Any, database_url: str
) -> None:
    def plan(number: int) -> Cut | None:
        return Cut(mark=b"INSERT 0", occurrence=3, how="rst") if number < 60 else None

    with FaultProxy(("127.0.0.1", postgres_of_the_run.port), plan) as faulty:
        place = f"127.0.0.1:{faulty.address[1]}/{name_of(database_url)}"
        url = f"postgresql://postgres@{place}?sslmode=disable"  # the proxy reads the results
        async with opened(url) as store:
            writers = [await Writer(f"job-{each}").add(store) for each in range(3)]
            for _ in range(20):
                await asyncio.gather(*(writer.write("x") for writer in writers))
            for writer in writers:
                assert await everything(writer.log, Cursor(1, 0)) == b"".join(writer.frames)
                assert (await writer.log.state()).view.value() == writer.document.value()
        assert faulty.faults["rst of a response"] >= 5


async def test_a_full_disk_is_told_apart_from_an_outage_in_one_line(
    postgres_of_the_run: Any, database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    """The database itself raises SQLSTATE 53100, from a trigger: a test cannot fill a disk everywhere."""
    trigger = """
        CREATE FUNCTION tidewire.no_space() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'could not extend file "base/1/2": No space left on device' USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER no_space BEFORE INSERT ON tidewire.block EXECUTE FUNCTION tidewire.no_space()
    """
    set_time_after_a_full_disk(monkeypatch, PATIENCE)
    async with opened(database_url) as store:
        writers = [await Writer(f"job-{each}").add(store) for each in range(20)]
        postgres_of_the_run.execute(trigger, name_of(database_url))
        blocks = [(writer, writer.head, writer_block(writer)) for writer in writers]
        appends = [writer.log.append(head, block) for writer, head, block in blocks]
        found = await asyncio.gather(*appends, return_exceptions=True)
        for error in found:
            assert isinstance(error, StoreError)
            assert "No space left on device; free some space on the disk of the database" in str(error)
            assert error.logged
            assert not error.outage
        assert (await store.jobs.get("job-1")) is not None
        # The test write succeeds, because the table of the servers has space.
        with pytest.raises(StoreError, match="free some space") as refused:
            await store.check()
        assert refused.value.logged
        set_time_after_a_full_disk(monkeypatch, 0.0)
        await store.check()
        postgres_of_the_run.execute("DROP TRIGGER no_space ON tidewire.block", name_of(database_url))
        for writer, head, block in blocks:
            await writer.log.append(head, block)
    (message,) = lines(caplog)
    assert "free some space" in message


async def test_a_failed_statement_does_not_make_later_runs_of_the_others_fail(database_url: str) -> None:
    """The failed run was the one in which psycopg prepares the second statement, which PostgreSQL then skipped."""
    from tidewire_server.store.database.thread_tasks import Task
    from tidewire_server.store.postgres import connections

    sql = ["SELECT 1 / %(n)s::int", "SELECT 2 + %(n)s::int"]
    with connections.Database(database_url).connect(durable=False, schema_exists=False) as connection:
        for n in (1, 1, 1, 0, 1, 1):
            task = Task(connections.Command(sql, {"n": n}), None)
            with contextlib.nullcontext() if n else pytest.raises(Exception, match="division by zero"):
                connections.run_commands(connection, [task])
                assert task.outcome == [[(1,)], [(3,)]]


async def test_a_connection_without_its_prepared_statements_is_replaced(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The heartbeat of a server failed with SQLSTATE 26000 until the server was restarted."""
    async with opened(database_url) as store:
        for _ in range(5):
            await store.replicas.beat()
        # psycopg does not see a DEALLOCATE in a DO statement.
        await store._threads.control.run("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
        await store.replicas.beat()
    assert lines(caplog) == []


async def test_a_server_whose_lease_the_database_refuses_logs_the_reason_and_is_not_ready(
    postgres_of_the_run: Any,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A role lost its privileges on one table: the server logged nothing, and ran no jobs although it was ready."""
    from tidewire_server.store.postgres import server_rows

    trigger = """
        CREATE FUNCTION tidewire.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'permission denied for table server' USING ERRCODE = '42501'; END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON tidewire.server EXECUTE FUNCTION tidewire.refuse()
    """
    monkeypatch.setattr(server_rows, "LEASE_SECONDS", 1.0)

    async def until_ready(store: Any, *, ready: bool) -> None:
        async with asyncio.timeout(PATIENCE):
            found = not ready
            while found is not ready:
                await asyncio.sleep(0.01)
                try:
                    await store.check()
                except StoreError as error:
                    found = "the lease of this server has expired" not in str(error)
                else:
                    found = True

    async with job_service(Server(log=database_url)) as service:
        postgres_of_the_run.execute(trigger, name_of(database_url))
        await until_ready(service.store, ready=False)
        postgres_of_the_run.execute("DROP TRIGGER refuse ON tidewire.server", name_of(database_url))
        await until_ready(service.store, ready=True)
    (message,) = lines(caplog)
    assert message.startswith("a beat of this server failed; when its lease has expired")
    assert message.endswith(
        "give the role of the URL all privileges on the schema tidewire and its tables, and "
        "CREATE on the database"
    )


async def test_a_server_that_stops_during_an_outage_tries_once_to_give_up_its_lease(
    proxy: DatabaseProxy,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopping server waited twice for a database that was down, 10 s each time."""
    shorten_waits(monkeypatch, 1.0)
    async with opened(proxy.url(database_url)) as store:
        proxy.cut()
        await store.replicas.leave()
    assert sum("cannot give up the lease" in line for line in lines(caplog)) == 1


async def test_after_a_short_outage_a_server_does_not_trust_leases(database_url: str) -> None:
    """The beat of this server may come before the beats of the others, whose leases have run out meanwhile."""
    async with opened(database_url) as store:
        now = 100.0
        store._server._clock = lambda: now
        for _ in range(7):
            await store.replicas.beat()
            now += 1
        assert store._server.trusted_until is not None
        # The answer to the beat before the outage of 3.5 s, which is less than a lease, has arrived late: just now.
        store._server._until -= timedelta(seconds=3.5)
        await store.replicas.beat()
        assert store._server.trusted_until is None


# ---- a standby ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def replicated() -> Iterator[tuple[OwnPostgres, OwnPostgres, DatabaseProxy]]:
    """Run a primary with a synchronous standby, and yield both and the proxy of the replication."""
    with own_postgres(synchronous_standby_names="standby", wal_level="replica") as primary:
        with DatabaseProxy(primary.address) as link:
            standby = OwnPostgres(primary.folder.parent / "standby")
            standby.copy_of(link.address, "standby")
            standby.start()
            try:
                primary.until("count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
                yield primary, standby, link
            finally:
                standby.kill()


@pytest.mark.slow
async def test_a_failover_after_the_replication_was_cut_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_waits(monkeypatch, 2.0)
    with replicated() as (primary, standby, link), DatabaseProxy(primary.address) as front:
        async with opened(front.url(primary.url)) as store, opened(front.url(primary.url)) as other:
            assert store.durability == "replicated"
            writer = await Writer().add(store)
            reader = await other.jobs.log("a")
            seen: list[bytes] = []
            at = Cursor(1, 0)

            async def read() -> None:
                nonlocal at
                while reader.extent().head > at:
                    chunk = await reader.read(at, 1 << 20)
                    assert chunk is not None
                    seen.append(chunk.frames)
                    at = chunk.last

            reader.watch(lambda _: None)
            for _ in range(20):
                await writer.write("x")
            await until(lambda: reader.extent().head == writer.head, within=PATIENCE)
            await read()
            link.cut()
            head, block = writer.head, writer_block(writer)
            append = asyncio.ensure_future(writer.log.append(head, block))
            # The primary has committed the block, but no reader sees it, because the standby does not have it.
            condition = "count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            await asyncio.to_thread(primary.until, condition)
            await read()
            assert not append.done()
            front.cut()
            primary.kill()
            await asyncio.to_thread(standby.execute, "SELECT pg_promote()")
            front.upstream = standby.address
            front.pass_on()
            with contextlib.suppress(StoreError):
                await append
            while writer.log.extent().head == head:
                with contextlib.suppress(StoreError):
                    await writer.log.append(head, block)
            stored = await everything(writer.log, Cursor(1, 0))
            assert stored == b"".join([*writer.frames, *block.frames])
            await until(lambda: reader.extent().head == block.last, within=PATIENCE)
            await read()
            assert b"".join(seen) == stored


@pytest.mark.slow
async def test_after_a_crash_of_the_primary_no_read_is_served_before_the_standby_confirms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_waits(monkeypatch, 1.0)
    with replicated() as (primary, _, link):
        async with opened(primary.url) as store:
            writer = await Writer().add(store)
            link.cut()
            head, block = writer.head, writer_block(writer)
            append = asyncio.ensure_future(writer.log.append(head, block))
            condition = "count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            await asyncio.to_thread(primary.until, condition)
            await asyncio.to_thread(primary.again)
            # After the crash, the primary shows the block, which the standby does not have.
            assert primary.execute("SELECT max(last) FROM tidewire.block") == [(block.last.seq,)]
            with pytest.raises(StoreError) as caught:
                await store.jobs.get("unknown")
            assert caught.value.outage
            with pytest.raises(StoreError):
                await append
            link.pass_on()
            while True:
                try:
                    assert await store.jobs.get("unknown") is None
                    break
                except StoreError:
                    pass
            while writer.log.extent().head == head:
                with contextlib.suppress(StoreError):
                    await writer.log.append(head, block)
            assert await everything(writer.log, head) == b"".join(block.frames)


# ---- servers -----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server_on(url: str, folder: Path, **settings: Any) -> Iterator[Killed]:
    """Run a server in its own process, with a database as its log."""
    folder.mkdir(exist_ok=True)
    function = "support.outage_server:outage_server"
    with Killed(folder, function, log=url, once=str(folder / "journal"), **settings) as server:
        yield server


def count(server: Killed, text: str) -> int:
    return server.errors().count(text)


@pytest.mark.heavy
def test_streams_continue_without_gap_or_repeat_when_the_database_is_killed(tmp_path: Path) -> None:
    with own_postgres() as database, server_on(database.url, tmp_path) as server:
        jobs = [server.submit("talk", input={"words": 250, "pause": 0.01}).json()["id"] for _ in range(3)]
        readers = [Reader([server], job) for job in jobs]
        for reader in readers:
            reader.start()
        for _ in range(2):
            last = [reader.at for reader in readers]
            eventually(
                lambda last=last: all(a.at != b for a, b in zip(readers, last, strict=True)), within=PATIENCE
            )
            database.again()
        for reader, job in zip(readers, jobs, strict=True):
            check_reader(reader, server, job, sentence(250))
            assert server.job(job)["attempt"] == 1
        assert count(server, OUTAGE) <= 2
        assert len(server.errors().splitlines()) <= 4, server.errors()


@pytest.mark.heavy
def test_a_long_outage_ends_functions_and_on_restart_decides_when_the_database_is_back(
    tmp_path: Path,
) -> None:
    with own_postgres() as database:
        server = server_on(database.url, tmp_path, wait_limit=2.0, store_outage_timeout=2)
        with server as server:
            talk = server.submit("talk", input={"words": 120, "pause": 0.02}).json()["id"]
            pay = server.submit("pay").json()["id"]
            waiting = server.submit("pay").json()["id"]
            journal = tmp_path / "journal"
            eventually(lambda: journal.exists() and journal.read_text(), within=PATIENCE)
            reader = Reader([server], talk)
            reader.start()
            eventually(lambda: reader.at is not None and reader.at.seq > 3, within=PATIENCE)
            database.kill()
            answer = server.submit("talk", input={"words": 1})
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["code"] == "unavailable"
            answer = server.http.get("/v1/jobs")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            eventually(lambda: count(server, "store_outage_timeout"), within=PATIENCE)
            database.start()
            check_reader(reader, server, talk, sentence(120))
            assert server.ended(talk)["attempt"] == 2
            assert server.ended(pay)["done"]["error"]["code"] == "worker_lost"
            # The item that had not started runs now.
            eventually(lambda: journal.read_text() == "paid\npaid\n", within=PATIENCE)
            assert server.http.delete(f"/v1/jobs/{waiting}").status_code in {200, 202, 204}
            assert (count(server, OUTAGE), count(server, RETURN)) == (1, 1)
            assert len(server.errors().splitlines()) == 3, server.errors()


@pytest.mark.heavy
def test_a_stream_that_must_read_the_database_ends_with_goaway(tmp_path: Path) -> None:
    with own_postgres() as database:
        with server_on(database.url, tmp_path, wait_limit=2.0) as server:
            job = server.submit("churn", input={"chunks": 5000}).json()["id"]
            # More than the newest 256 KiB of the log, which the server has in memory.
            server.until(job, lambda found: Cursor.parse(found["cursor"]).seq > 20)
            database.kill()
            with server.http.stream(
                "GET", f"/v1/jobs/{job}/events", headers={"last-event-id": "1-1"}
            ) as answer:
                assert answer.status_code == 200
                assert any(b"event:goaway" in chunk for chunk in answer.iter_raw())


@pytest.mark.heavy
def test_after_an_outage_longer_than_the_lease_no_job_runs_twice(tmp_path: Path) -> None:
    with own_postgres() as database, DatabaseProxy(database.address) as proxy:
        url = proxy.url(database.url)
        with server_on(url, tmp_path / "a") as first, server_on(url, tmp_path / "b") as second:
            servers, jobs = (first, second), []
            for number in range(4):
                server = servers[number % 2]
                body = {"number": number, "pause": 9.0}
                jobs.append(server.submit("journaled", input=body).json()["id"])
            journals = [tmp_path / "a" / "journal", tmp_path / "b" / "journal"]

            def runs() -> list[str]:
                return sorted(
                    line for each in journals if each.exists() for line in each.read_text().splitlines()
                )

            eventually(lambda: len(runs()) == 4, within=PATIENCE)
            # A crash of the database may lose the start of a function that may run again (`Job.commits_starts`).
            database.until("count(*) = 4 FROM tidewire.job WHERE status = 'running'")
            proxy.cut()
            database.again()
            # All leases have expired, and whichever server comes first must not adopt.
            database.until("max(until) < now() FROM tidewire.server")
            proxy.pass_on()
            for number, job in enumerate(jobs):
                found = first.ended(job)
                assert found["state"]["items"] == [{"status": "succeeded", "value": 2 * number}]
                assert found["attempt"] == 1
            assert runs() == ["0", "1", "2", "3"]
