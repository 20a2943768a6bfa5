"""Two servers on one PostgreSQL database, at the level of the store: submit on one, run on the other, read and cancel on both."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.postgres_server import needs_postgres
from support.reference_server import eventually, until
from support.server_leases import expire_lease, trust
from support.store_log_writer import ROOMY, Clock, Writer, everything
from tidewire.protocol.cursor import Cursor
from tidewire_server.store.records import BatchBounds, BatchSlot, GlobalLimit, QueueEntry, Tombstone
from tidewire_server.store.store_errors import HeadMovedError, StoreError

pytestmark = needs_postgres

WAIT = 10.0


@pytest.fixture
def servers(database_url: str) -> Any:
    """Function that opens two stores on one database, each with an endpoint `e` and a list of its wake-ups."""
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    @contextlib.asynccontextmanager
    async def opened() -> AsyncIterator[tuple[Any, Any]]:
        stores = [PostgresStore(database_url, ROOMY) for _ in range(2)]
        for store in stores:
            store.woken = []
            store.queue.serve({"e": None}, store.woken.append)
        try:
            yield stores[0], stores[1]
        finally:
            for store in stores:
                await store.close()

    return opened


async def start(store: Any, writer: Writer) -> Any:
    """Take the next item at a server, and open its job there."""
    (entry,) = await store.queue.take("e")
    assert entry.job == writer.record.id
    interrupted = await store.jobs.reopen(entry.job)
    writer.log, writer.record = interrupted.log, interrupted.record
    return interrupted


async def test_a_job_is_submitted_on_one_server_and_runs_on_the_other_while_the_first_one_reads_it(
    servers: Any,
) -> None:
    clock = Clock()
    async with servers() as (first, second):
        await second.replicas.beat()
        writer = Writer()
        await until(lambda: second._notifier._tasks)
        before = len(second.woken)
        await writer.submit(first, items=1, submit=b"[1]")
        await until(lambda: len(second.woken) > before)
        log = await first.jobs.log("a")
        assert log.extent().head == Cursor(1, 1)
        woken: list[Any] = []
        stop = log.watch(woken.append)
        log.set_ephemeral_event("queue", b"q")
        interrupted = await start(second, writer)
        assert (interrupted.submit, interrupted.crashed, interrupted.cancelled) == (
            b"[1]",
            False,
            frozenset(),
        )
        assert await second.jobs.submit_body("a") == b"[1]"
        await writer.write("one", "two")
        await until(lambda: log.extent().head == writer.head)
        assert log.ephemeral_events(0)[0] == []
        assert (await log.state()).view.value() == writer.states[3]
        await writer.write("three")
        await until(lambda: log.extent().head == writer.head)
        assert (await log.state()).view.value() == writer.states[4]
        assert await everything(log, Cursor(1, 0), 10) == b"".join(writer.frames)
        await writer.reopen(7)
        await until(lambda: log.extent().head == writer.head)
        assert log.extent() == writer.log.extent()
        await writer.end(clock)
        await until(lambda: log.extent().ended)
        assert await everything(log, Cursor(1, 2)) == b"".join(writer.frames[2:])
        assert woken == [None] * len(woken)
        stop()
        assert not first._logs._followed
        assert await first.jobs.get("a") == await second.jobs.get("a") == writer.record
        assert await first.queue.take("e") == []


async def test_a_reader_that_has_not_watched_gets_the_newest_events(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        log = await first.jobs.log("a")
        await start(second, writer)
        await writer.write("one")
        assert await first.jobs.log("a") is log
        assert log.extent().head == writer.head
        assert (await log.state()).view.value() == writer.states[2]


async def test_a_state_that_was_read_while_events_arrived_is_not_kept_as_the_newest_one(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        log = await first.jobs.log("a")
        await start(second, writer)
        await writer.write("one")
        await first.jobs.log("a")
        load = log._load_state

        async def load_slowly() -> Any:
            found = await load()
            monkeypatch.undo()
            await writer.write("two")
            await first.jobs.log("a")
            return found

        monkeypatch.setattr(log, "_load_state", load_slowly)
        assert (await log.state()).view.value() == writer.states[2]
        assert (await log.state()).view.value() == writer.states[3]


async def test_polls_replace_lost_notifications(servers: Any) -> None:
    async with servers() as (first, second):
        for store in (first, second):
            store._notifier.enabled = False
        await until(lambda: second._notifier._tasks)
        while second.queue.due("e") != float(
            "inf"
        ):  # The first poll, or the start of the listener, may be a hint.
            assert await second.queue.take("e") == []
            await asyncio.sleep(0.005)
        await (writer := Writer()).submit(first, items=1)
        log = await first.jobs.log("a")
        log.watch(lambda _: None)
        await until(lambda: second.queue.due("e") == float("-inf"))
        assert second.woken
        await start(second, writer)
        await writer.write("one")
        await until(lambda: log.extent().head == writer.head)


@pytest.mark.parametrize("fails", ["_poll", "_receive"])
async def test_polls_and_notifications_continue_after_an_internal_error(
    servers: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    async with servers() as (first, second):
        notifier, calls = second._notifier, []
        works = getattr(notifier, fails)

        def fail_once(*given: Any) -> None:
            calls.append(given)
            if len(calls) == 1:
                raise RuntimeError("File descriptor 7 is used by transport")
            works(*given)

        for task in notifier._tasks:
            task.cancel()
            await asyncio.wait([task])
        notifier._tasks = []
        monkeypatch.setattr(notifier, fails, fail_once)
        notifier.listen()
        await until(lambda: len(calls) > 1)
        await (writer := Writer()).submit(first, items=1)
        await start(second, writer)
    assert "used by transport" in caplog.text


async def test_a_trimmed_log_and_a_deleted_job_are_noticed_by_readers_elsewhere(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        log = await first.jobs.log("a")
        await start(second, writer)
        for _ in range(20):
            await writer.write("x" * 1000)
        assert writer.log.extent().base.seq > 1
        assert await (await first.jobs.log("a")).read(Cursor(1, 1), 100) is None
        assert log.extent() == writer.log.extent()
        assert (await log.state()).view.value() == writer.states[21]
        assert (await log.state(oldest=True)).cursor == log.extent().base
        await second.jobs.delete_job("a")
        assert await first.jobs.get("a") == Tombstone("a", "ada")
        assert await first.jobs.log("a") is None


async def test_a_cancellation_travels_to_the_owner(servers: Any) -> None:
    async with servers() as (first, second):
        requests: list[None] = []
        second.replicas.on_request(lambda: requests.append(None))
        await first.replicas.beat()
        await second.replicas.beat()
        await (writer := Writer()).submit(first, items=3)
        await start(second, writer)
        requests.clear()
        assert await first.jobs.save_cancelled("a", [2])
        await until(lambda: requests)
        beat = await second.replicas.beat()
        assert len(beat.others) == 1
        assert [(job.id, job.cancelled, job.purge) for job in beat.owned] == [("a", frozenset({2}), False)]
        assert await first.jobs.save_cancelled("a", [], purge=True)
        (job,) = (await second.replicas.beat()).owned
        assert (job.cancelled, job.purge) == (frozenset({0, 1, 2}), True)
        assert not await first.jobs.claim("a")
        await writer.end(Clock())
        assert not await first.jobs.save_cancelled("a", [1])
        assert not await first.jobs.save_cancelled("unknown", [1])
        assert not await first.jobs.save_cancelled("a", [], purge=True)
        assert not await first.jobs.claim("a")


async def test_a_waiting_job_is_claimed_to_cancel_some_items_and_released(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=4)
        assert await second.jobs.save_cancelled("a", [1])
        assert await second.jobs.claim("a")
        assert not await first.jobs.claim("a")
        assert await first.queue.take("e") == []
        interrupted = await second.jobs.reopen("a")
        assert interrupted.cancelled == frozenset({1})
        writer.log = interrupted.log
        await writer.write("item 1 was cancelled")
        entries = writer.entries(4)
        assert await second.jobs.release("a", [entries[0], entries[2], entries[3]])
        with pytest.raises(HeadMovedError):
            await writer.log.append(writer.head, None)
        assert [entry.index for entry in await first.queue.waiting("e")] == [0, 2, 3]
        assert await first.jobs.adopt({"e"}) == []
        assert len(await first.queue.take("e", limit=9)) == 3
        again = await first.jobs.reopen("a")
        assert (again.cancelled, again.log.extent().head) == (frozenset(), writer.head)


async def test_a_cancellation_during_a_release_is_not_lost(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=2)
        assert await second.jobs.claim("a")
        await second.jobs.reopen("a")
        assert await first.jobs.save_cancelled("a", [0])
        assert await second.jobs.release("a", writer.entries(2))
        assert await first.jobs.adopt({"e"}) == ["a"]
        assert (await first.jobs.reopen("a")).cancelled == frozenset({0})


@pytest.mark.parametrize("notices_at_beat", [True, False])
async def test_the_jobs_of_a_dead_server_are_adopted_and_the_zombie_is_refused(
    servers: Any, notices_at_beat: bool
) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=2)
        await start(second, writer)
        await writer.write("one")
        reader = await second.jobs.log("a")
        reader.watch(lambda _: None)
        await expire_lease(second)
        assert await first.jobs.adopt({"e"}) == []  # its own beats have not succeeded for a whole lease
        await first.replicas.beat()
        trust(first)
        first._server._until -= timedelta(seconds=5)
        # The statement has waited for the end of an outage, during which the leases of all servers expired.
        assert await first.jobs.adopt({"e"}) == []
        trust(first)
        assert await first.jobs.adopt({"e"}) == ["a"]
        assert await first.jobs.adopt({"e"}) == ["a"]  # until it is reopened
        # Until the adopter has appended, an append of the zombie still succeeds.
        await writer.write("two")
        adopted = await first.jobs.reopen("a")
        assert adopted.crashed
        assert adopted.log.extent().head == writer.head
        assert (await adopted.log.state()).view.value() == writer.states[3]
        new = Writer()
        new.log, new.head, new.frames = adopted.log, writer.head, list(writer.frames)
        await new.reopen(4711)
        if notices_at_beat:
            assert (await second.replicas.beat()).lost == ["a"]
        with pytest.raises(HeadMovedError):
            await writer.write("three")
        beat = await second.replicas.beat()
        assert (beat.owned, beat.lost) == ([], [])
        await until(lambda: reader.extent().head == new.head)
        assert reader.extent().starts == (Cursor(1, 1), Cursor(4711, 4))
        # The job returns to the queue, near the front, and each server may take it.
        await Writer("b", "bob").submit(first, items=1)
        assert await first.jobs.release("a", new.entries(2))
        order = [(entry.job, entry.index) for entry in await second.queue.waiting("e")]
        assert order == [("a", 0), ("a", 1), ("b", 0)]
        assert (await second.queue.take("e"))[0].job == "a"
        again = await second.jobs.reopen("a")
        assert again.log is reader
        assert again.crashed  # The job has not started since.
        assert again.log.extent().head == new.head


async def test_a_job_that_its_adopter_has_ended_is_lost_at_the_second_beat(servers: Any) -> None:
    """At the first one, the answer to an append of this server, which has ended the job, might be on its way."""
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        await start(second, writer)
        reader = await second.jobs.log("a")
        reader.watch(lambda _: None)
        await expire_lease(second)
        await first.replicas.beat()
        trust(first)
        assert await first.jobs.adopt({"e"}) == ["a"]
        writer.log = (await first.jobs.reopen("a")).log
        await writer.end(Clock())
        assert (await second.replicas.beat()).lost == []
        assert (await second.replicas.beat()).lost == ["a"]
        await until(lambda: reader.extent().ended)
        assert (await second.replicas.beat()).lost == []


async def test_a_server_whose_lease_may_have_expired_waits_for_its_next_beat(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidewire_server.store.postgres import server_rows

    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        await start(second, writer)
        assert await second.replicas.owns("a")
        second._server._renewed_at -= server_rows.LEASE_SECONDS
        waits = asyncio.create_task(second.replicas.owns("a"))
        await asyncio.wait([waits], timeout=0.1)
        assert not waits.done()
        await second.replicas.beat()
        assert await waits
        await writer.end(Clock())
        assert not await second.replicas.owns("a")
        monkeypatch.setattr(server_rows, "LEASE_SECONDS", 0.05)
        second._server._renewed_at -= 0.05
        with pytest.raises(StoreError, match=r"could not be renewed for 0\.05 s"):
            await second.replicas.owns("a")


async def test_a_job_whose_row_is_locked_delays_no_beat(servers: Any, database_url: str) -> None:
    """Another server may hold the lock during a large append, or be frozen with it."""
    import psycopg

    async with servers() as (first, second):
        await Writer().submit(first, items=1)
        with psycopg.connect(database_url) as connection:
            connection.execute("SELECT FROM tidewire.job FOR UPDATE")
            async with asyncio.timeout(WAIT / 5):
                await second.replicas.mark_read(["a"])
                await second.replicas.beat()


async def test_all_sessions_have_the_number_of_their_server(
    servers: Any, postgres_of_the_run: Any, database_url: str
) -> None:
    sql = f"""
        SELECT application_name, count(*) FROM pg_stat_activity WHERE datname = '{urlsplit(database_url).path[1:]}'
        GROUP BY 1
    """
    async with servers() as stores:
        expected = {f"tidewire #{store.replicas.id}": 8 for store in stores}
        await until(lambda: dict(postgres_of_the_run.execute(sql)) == expected)


async def test_the_sessions_of_a_server_that_is_frozen_in_a_transaction_end_with_its_lease(
    servers: Any, database_url: str
) -> None:
    import psycopg

    async with servers() as (first, second):
        await Writer().submit(first, items=1)
        names = f"tests #{first.replicas.id}", f"tests #{first.replicas.id}0"
        frozen, other = (psycopg.connect(database_url, application_name=name) for name in names)
        with frozen, other:
            frozen.execute("SELECT FROM tidewire.job FOR UPDATE")
            # This server may be the first one to start after the other has been frozen for long.
            other.execute(
                "UPDATE tidewire.server SET until = now() - interval '10 minutes' WHERE id = %s",
                [first.replicas.id],
            )
            other.commit()
            await second.replicas.beat()
            frozen.execute("SELECT 1")  # A lease that may have expired during an outage ends no session.
            trust(second)
            await second.replicas.beat()
            assert await second.jobs.save_cancelled("a", [0])
            other.execute("SELECT 1")
            with pytest.raises(psycopg.OperationalError):
                frozen.execute("SELECT 1")
        # The server is alive again, with new sessions.
        await first.replicas.beat()


async def test_a_server_that_has_been_alone_learns_at_once_that_another_one_joins(servers: Any) -> None:
    async with servers() as (first, second):
        due = asyncio.Event()
        first.replicas.on_request(due.set)
        await first.replicas.beat()
        await until(due.is_set)  # it listens
        due.clear()
        await second.replicas.beat()
        async with asyncio.timeout(WAIT):
            await due.wait()


async def test_a_job_that_its_old_owner_has_ended_is_not_reopened(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        await start(second, writer)
        await expire_lease(second)
        trust(first)
        assert await first.jobs.adopt({"e"}) == ["a"]
        await writer.end(Clock())
        assert await first.jobs.reopen("a") is None
        assert await first.jobs.adopt({"e"}) == []
        assert (await first.jobs.get("a")).status == "succeeded"


async def test_a_job_whose_owner_failed_to_open_or_release_it_is_opened_again(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        await start(second, writer)
        await writer.write("one")
        # The caller has failed after `reopen`, for example because the store failed.
        again = await second.jobs.reopen("a")
        assert again.log.extent().head == writer.head
        writer.log = again.log
        await writer.write("two")
        assert await second.jobs.release("a", writer.entries(1))
        assert await second.jobs.reopen("a") is None
        await start(first, writer)
        await writer.write("three")
        assert await second.jobs.reopen("a") is None
        await writer.end(Clock())


async def test_a_server_that_leaves_gives_up_its_jobs_at_once(servers: Any) -> None:
    async with servers() as (first, second):
        woken: list[None] = []
        first.replicas.on_request(lambda: woken.append(None))
        await (writer := Writer()).submit(first, items=1)
        await start(second, writer)
        woken.clear()
        await second.replicas.leave()
        await until(lambda: woken)
        assert await first.jobs.adopt({"e"}) == ["a"]
        assert not (await first.jobs.reopen("a")).crashed


async def test_waiting_jobs_whose_deadline_or_grace_has_expired_are_adopted(servers: Any) -> None:
    from tidewire_server.store.jobs_interface import NewJob
    from tidewire_server.store.log_interface import Block
    from tidewire_server.store.records import QueueLimits

    async with servers() as (first, second):
        for name, deadline, grace in (
            ("a", 0.0, None),
            ("b", None, 0.2),
            ("c", None, 60.0),
            ("d", 60.0, None),
        ):
            writer = Writer(name)
            block = Block(list(writer.frames), writer.at())
            limits = QueueLimits(99, 99, 99)
            new = NewJob(writer.record, b"{}", block, None, writer.entries(1), None, limits, deadline, grace)
            await first.jobs.add(new, writer.own)
        assert await second.jobs.adopt({"e"}) == ["a"]
        await second.replicas.beat()
        assert await second.replicas.unread_for("b") < 0
        while await second.replicas.unread_for("b") < 0.2:
            await second.replicas.beat()
        await first.replicas.mark_read(["b"])
        assert await second.jobs.adopt({"e"}) == ["a"]
        assert await second.replicas.unread_for("b") < 0
        while (unread := await second.replicas.unread_for("b")) < 0.2:
            await second.replicas.beat()
        assert await second.jobs.adopt({"e"}) == ["a", "b"]
        assert (await second.jobs.reopen("b")).unread >= unread


async def test_the_time_of_an_outage_does_not_count_as_without_readers(
    servers: Any, database_url: str
) -> None:
    """No server could record its readers during the outage. [TW-JOB-067]"""
    import psycopg

    async with servers() as (first, second):
        now = 100.0
        second._server._clock = lambda: now
        await Writer().submit(first, items=1)
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE tidewire.job SET grace = interval '5 s', read_at = now() - interval '9 s'"
            )
        await second.replicas.beat()
        # The outage has ended, and this server has not renewed its lease yet.
        now += 9
        assert await second.replicas.unread_for("a") == 0
        second._server._until -= timedelta(seconds=9)
        await second.replicas.beat()
        for _ in range(5):
            assert await second.replicas.unread_for("a") < 5
            assert await second.jobs.adopt({"e"}) == []
            now += 1
            await second.replicas.beat()
        assert await second.replicas.unread_for("a") == 5
        assert await second.jobs.adopt({"e"}) == ["a"]
        assert (await second.jobs.reopen("a")).unread == 5


async def test_retention_counts_over_all_servers(servers: Any) -> None:
    clock = Clock()
    async with servers() as (first, second):
        for store in (first, second):
            store.jobs._clock = clock
            await (writer := Writer(f"j{store._server.id}")).submit(store, items=1)
            await start(store, writer)
            await writer.end(clock)
        log = await second.jobs.log(f"j{first._server.id}")
        assert await first.jobs.expire(1010) == 1020
        assert await log.read(Cursor(1, 0), 100) is None  # the other server has deleted the events
        assert log.extent().base == Cursor(1, 1)
        clock.now = 1020
        await asyncio.gather(first.jobs.expire(1020), second.jobs.expire(1020))
        for store in (first, second):
            assert isinstance(await store.jobs.get(f"j{store._server.id}"), Tombstone)


async def test_a_job_that_two_servers_delete_at_once_is_deleted(servers: Any) -> None:
    """The second one raised a `StoreError`, because it wanted to keep the end of the job for its readers."""
    clock = Clock()
    async with servers() as (first, second):
        first.jobs._clock = second.jobs._clock = clock
        await (writer := Writer()).submit(first, items=1)
        await start(first, writer)
        await writer.end(clock)
        log = await second.jobs.log("a")
        stop = log.watch(lambda _block: None)
        await first._threads.control.run("DELETE FROM job WHERE id = 'a' RETURNING id")
        await second.jobs.delete_job("a")
        stop()


async def test_rows_of_servers_that_died_an_hour_ago_are_deleted_some_at_a_time(
    servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidewire_server.store.postgres import retention

    async with servers() as (first, second):
        await Writer().submit(first, items=1)

        async def rows(sql: str = "SELECT host FROM server ORDER BY host") -> list[str]:
            return [row[0] for row in await first._threads.control.run(sql)]

        await rows(
            "INSERT INTO server (host, until, endpoints) SELECT host, now() - age::interval, '[]' FROM (VALUES ('dead-1', "
            "'61 min'), ('dead-2', '9 days'), ('dead-3', '1 day'), ('owner', '1 day'), ('recent', '59 min')) s (host, age) "
            "RETURNING host"
        )
        await rows("UPDATE job SET owner = (SELECT id FROM server WHERE host = 'owner') RETURNING endpoint")
        monkeypatch.setattr(retention, "_MAX_AT_ONCE", 2)
        alive = {first.replicas.id, second.replicas.id}
        await first.jobs.expire(1000)
        assert len(await rows()) == 5
        await second.jobs.expire(1000)
        assert [host for host in await rows() if host in {"owner", "recent"} or "dead" in host] == [
            "owner",
            "recent",
        ]
        assert set(await rows("SELECT id FROM server")) > alive


async def test_a_job_that_is_deleted_elsewhere_is_invisible_and_its_readers_receive_its_end(
    servers: Any,
) -> None:
    clock = Clock()
    async with servers() as (first, second):
        for store in (first, second):
            store.jobs._clock = clock
            await store.replicas.beat()
        await first.replicas.beat()
        await (writer := Writer()).submit(first, items=2)
        reader = await first.jobs.log("a")
        reader.watch(lambda _: None)
        assert await first.jobs.save_cancelled("a", [], purge=True)
        await first.jobs.delete_job("a")
        for store in (first, second):
            assert await store.jobs.get("a") == Tombstone("a", "ada")
            assert await store.jobs.log("a") is None
            assert await store.jobs.list("ada", before=None, limit=9) == []
        assert await second.jobs.adopt({"e"}) == ["a"]
        interrupted = await second.jobs.reopen("a")
        assert (interrupted.cancelled, interrupted.purge) == (frozenset({0, 1}), True)
        writer.log, writer.record = interrupted.log, interrupted.record
        assert [(job.id, job.purge) for job in (await second.replicas.beat()).owned] == [("a", True)]
        await writer.end(clock)
        await second.jobs.delete_job("a")
        await until(lambda: reader.extent().ended)
        assert await everything(reader, Cursor(1, 0)) == b"".join(writer.frames)
        assert (await second.replicas.beat()).owned == []
        rows = "SELECT count(*) FROM job"
        assert await count(first, rows) == 1
        await first.jobs.expire(clock.now + 2)
        assert await count(first, rows) == 1
        await first.jobs.expire(clock.now + 4)
        assert await count(first, rows) == 0
        assert await first.jobs.get("a") == Tombstone("a", "ada")


async def count(store: Any, sql: str) -> int:
    return int((await store._threads.control.run(sql))[0][0])


async def test_entries_that_are_put_again_keep_their_positions(servers: Any) -> None:
    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=3)
        entries = writer.entries(3)
        (taken,) = await second.queue.take("e")
        await second.jobs.reopen("a")
        await second.queue.put([taken, *entries[1:]])
        assert [entry.index for entry in await second.queue.waiting("e")] == [0, 1, 2]
        assert await first.queue.take("e", limit=3) == []
        await second.queue.put([QueueEntry("e", "unknown", 0, "ada", 1.0)])
        assert len(await second.queue.take("e", limit=9)) == 3


async def test_ids_that_postgresql_cannot_store_are_unknown(servers: Any) -> None:
    async with servers() as (first, _):
        for job in ("a\0b", "\ud800", ""):
            assert await first.jobs.get(job) is None
            assert await first.jobs.list("ada", before=job, limit=1) == []


async def test_max_retained_bytes_counts_over_all_servers(database_url: str) -> None:
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    clock = Clock()
    retention = replace(ROOMY, max_retained_bytes=10_000)
    stores = [PostgresStore(database_url, retention) for _ in range(2)]
    try:
        for store in stores:
            store.jobs._clock = clock
        names = "abcdef"
        for at, name in enumerate(names):
            store = stores[at % 2]
            writer = await Writer(name, at=clock.now).add(store)
            await writer.write("x" * 1000)  # in the events, and in the state
            await writer.end(clock)
            clock.now += 1
        for _ in range(2):
            for store in stores:
                await store.jobs.expire(clock.now)
        for store in stores:
            kept = [name for name in names if not isinstance(await store.jobs.get(name), Tombstone)]
            # Each server alone would keep all of its three jobs.
            assert kept == list("cdef")
    finally:
        for store in stores:
            await store.close()


async def test_a_sweep_does_not_wait_for_a_job_that_another_server_deletes(
    servers: Any, database_url: str
) -> None:
    """Two servers that waited for each other's jobs deadlocked, and their submits waited for a second."""
    import psycopg

    clock = Clock()
    async with servers() as (first, _), await psycopg.AsyncConnection.connect(database_url) as other:
        first.jobs._clock = clock
        for name in "ab":
            await (await Writer(name).add(first)).end(clock)

        async def measured() -> list[str]:
            await first.jobs.expire(clock.now)
            rows = await first._threads.reads.run("SELECT id FROM job WHERE kept_bytes > 0 ORDER BY id")
            return [job for (job,) in rows]

        await other.execute("SELECT FROM tidewire.job WHERE id = 'a' FOR UPDATE")
        async with asyncio.timeout(3):
            assert await measured() == ["b"]
        await other.rollback()
        assert await measured() == ["a", "b"]


async def test_progress_travels_to_the_readers_of_other_servers(
    servers: Any, postgres_of_the_run: Any, database_url: str
) -> None:
    def rows() -> int:
        name = urlsplit(database_url).path[1:]
        (found,) = postgres_of_the_run.execute("SELECT count(*) FROM tidewire.progress", name)[0]
        return int(found)

    async with servers() as (first, second):
        await (writer := Writer()).submit(first, items=1)
        log = await first.jobs.log("a")
        stop = log.watch(lambda _: None)
        log.set_ephemeral_event("queue", b"place")
        await start(second, writer)
        for number in range(100):
            writer.log.set_ephemeral_event("progress-0", b"%d" % number)
        await until(lambda: log.ephemeral_events(0)[0] == [b"place", b"99"])
        writer.log.set_ephemeral_event("progress-1", b"one")
        writer.log.set_ephemeral_event("progress-0", None)
        await until(lambda: log.ephemeral_events(0)[0] == [b"place", b"one"])
        stop()
        # A new reader gets the latest progress, also after its server has forgotten it.
        log.set_ephemeral_event("progress-1", None)
        stop = log.watch(lambda _: None)
        await until(lambda: b"one" in log.ephemeral_events(0)[0])
        # The next owner does not show what the dead one has left, and deletes it.
        await writer.write("text")
        writer.record.status = "running"
        await writer.write("more")
        await expire_lease(second)
        trust(first)
        assert await first.jobs.adopt({"e"}) == ["a"]
        assert (await first.jobs.reopen("a")).record.status == "running"
        late = await second.jobs.log("a")
        stop_late = late.watch(lambda _: None)
        second.replicas.stop_writing("a")
        first.jobs.log_in_use("a").set_ephemeral_event("progress-2", b"two")
        await until(lambda: b"two" in late.ephemeral_events(0)[0])
        assert b"one" not in late.ephemeral_events(0)[0]
        await first.jobs.delete_job("a")
        await first.jobs.expire(0)
        await asyncio.to_thread(lambda: eventually(lambda: rows() == 0))
        stop_late()
        stop()


@pytest.mark.parametrize("batched", [False, True])
async def test_a_limit_over_all_servers_is_never_exceeded(database_url: str, batched: bool) -> None:
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    limit, bounds = GlobalLimit("endpoint e", 3), BatchBounds(2, 10.0, 0.0) if batched else None
    stores = [PostgresStore(database_url, ROOMY) for _ in range(2)]
    running: list[Any] = []
    left = {str(number) for number in range(24)}

    async def take(store: Any) -> None:
        taken = await (store.queue.take_batch("e") if batched else store.queue.take("e", limit=2))
        for call in [taken] if batched and taken else [[item] for item in taken]:
            left.difference_update((item.entry if batched else item).job for item in call)
            running.append(store)
        assert len(running) <= limit.calls

    try:
        for store in stores:
            store.queue.serve({"e": bounds}, lambda _: None, {"e": limit})
        for job in sorted(left):
            await Writer(job).submit(stores[0], items=1, slots=[BatchSlot()] if batched else None)
        for store in stores:  # The calls of a server whose lease has expired do not count.
            await store.replicas.beat({})
        most = 0
        async with asyncio.timeout(3 * WAIT):
            while left:
                await asyncio.gather(*(take(store) for store in (*stores, *stores)))
                most = max(most, len(running))
                if running:
                    running.pop(0).queue.end_call("e")
            for store in stores:  # Each beat corrects the number of calls of its server.
                await store.replicas.beat({})
            stored = "SELECT sum(running)::int FROM global_call"
            while (await stores[0]._threads.control.run(stored))[0][0] != len(running):
                await asyncio.sleep(0.01)
            assert most == limit.calls
            await Writer("last").submit(stores[0], items=1, slots=[BatchSlot()] if batched else None)
            await take(stores[1])
            while len(running) < limit.calls:  # The other server is idle.
                await Writer(f"more-{len(running)}").submit(
                    stores[0], items=1, slots=[BatchSlot()] if batched else None
                )
                await take(stores[1])
            await Writer("extra").submit(stores[0], items=1, slots=[BatchSlot()] if batched else None)
            # The calls of a server without a lease do not count.
            running[:] = [store for store in running if store is stores[1]]
            await expire_lease(stores[0])
            await take(stores[1])
            assert len(running) <= limit.calls
    finally:
        for store in stores:
            await store.close()
