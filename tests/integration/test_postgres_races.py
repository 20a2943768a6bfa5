"""Races between servers that share a PostgreSQL database: appends, submits and takes."""

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.postgres_server import needs_postgres
from support.server_leases import expire_lease, trust
from support.store_log_writer import NO_LIMITS, ROOMY, Clock, Writer, everything
from tidewire.protocol.cursor import Cursor
from tidewire_server.errors import EndpointFunctionError
from tidewire_server.store.database import thread_tasks
from tidewire_server.store.database.cached_log import AppendResult, record_columns
from tidewire_server.store.database.state_checkpoints import CheckpointPlan
from tidewire_server.store.log_interface import Block, StateAt, extent_after
from tidewire_server.store.records import BatchBounds, BatchSlot, Key, QueueLimits, RunningBatch, Tombstone
from tidewire_server.store.store_errors import HeadMovedError, KeyUsedError, QueueFullError, TooManyJobsError

pytestmark = needs_postgres

ROUNDS = [30, pytest.param(300, marks=pytest.mark.slow)]


@pytest.fixture
def open_stores(database_url: str) -> Any:
    """Function that opens stores of several servers on one database, which serve endpoints."""
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    @contextlib.asynccontextmanager
    async def opened(number: int, **endpoints: BatchBounds | None) -> AsyncIterator[list[Any]]:
        stores = [PostgresStore(database_url, ROOMY) for _ in range(number)]
        try:
            for store in stores:
                store.queue.serve(endpoints or {"e": None}, lambda _: None)
            yield stores
        finally:
            for store in stores:
                await store.close()

    return opened


# ---- appends -------------------------------------------------------------------------------------------------------


def block_after(writer: Writer, head: Cursor, events: int, name: int) -> Block:
    """Return a block of some events, which differs from those of other writers."""
    last = Cursor(head.epoch, head.seq + events)
    frames = [
        f"id:{head.epoch}-{head.seq + each}\ndata:[{name}]\n\n".encode() for each in range(1, events + 1)
    ]
    return Block(frames, StateAt(last, writer.document.columns, writer.document.mark()))


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", ROUNDS)
async def test_of_twelve_appends_after_one_event_exactly_one_succeeds(
    database_url: str, open_stores: Any, rounds: int
) -> None:
    from tidewire_server.store.postgres.append_statements import BlockAppend, append_block
    from tidewire_server.store.postgres.connections import Database
    from tidewire_server.store.postgres.database_threads import DatabaseThread

    draw = random.Random(rounds)

    async with open_stores(1) as (store,):
        writer = await Writer().add(store)
        log, extent, head = writer.log, writer.log.extent(), writer.head
        writers = [
            DatabaseThread(Database(database_url), f"writer-{each}", together=True, durable=True)
            for each in range(12)
        ]
        for each in writers:
            each.start()
        stored, record = list(writer.frames), record_columns(writer.record)
        for step in range(rounds):
            appends = []
            for name in range(len(writers)):
                block = block_after(writer, head, draw.randrange(1, 6), name)
                # Appends that change only the log, and appends with a checkpoint, are different statements.
                plan = CheckpointPlan(write=draw.random() < 0.3, cut=None)
                appends.append(
                    BlockAppend(
                        log.number, head, block, plan, record, False, None, extent_after(extent, block)
                    )
                )
            found = await asyncio.gather(
                *(
                    append_block(each, append, lambda _: None)
                    for each, append in zip(writers, appends, strict=True)
                ),
                return_exceptions=True,
            )
            won = [
                append
                for append, result in zip(appends, found, strict=True)
                if not isinstance(result, Exception)
            ]
            assert len(won) == 1, (step, found)
            assert all(
                isinstance(result, HeadMovedError) for result in found if isinstance(result, Exception)
            )
            head = won[0].block.last
            stored += won[0].block.frames
        for each in writers:
            await each.close()
        store.replicas.stop_writing("a")
        reader = await store.jobs.log("a")
        assert (await reader.read(Cursor(1, 0), 10**9)).frames == b"".join(stored)


@pytest.mark.heavy
async def test_an_append_whose_answer_was_lost_succeeds_again_and_another_block_does_not(
    open_stores: Any,
) -> None:
    from tidewire_server.store.postgres.append_statements import BlockAppend, append_block

    async with open_stores(1) as (store,):
        writer = await Writer().add(store)
        extent, number, thread = writer.log.extent(), writer.log.number, store._threads.appends
        for write, size in ((False, 3), (True, 2), (False, 40_000)):
            block = block_after(writer, extent.head, size, 1)
            changed = extent_after(extent, block)
            plan, record = CheckpointPlan(write, None), record_columns(writer.record)
            append = BlockAppend(number, extent.head, block, plan, record, False, None, changed)
            sizes: list[AppendResult] = []
            await append_block(thread, append, sizes.append)
            await append_block(thread, append, sizes.append)
            assert sizes[0] == sizes[1]
            for other in (
                block_after(writer, extent.head, size, 2),
                block_after(writer, extent.head, size + 1, 1),
            ):
                with pytest.raises(HeadMovedError):
                    await append_block(thread, append._replace(block=other), sizes.append)
            extent = changed


async def test_an_append_after_a_broken_connection_is_repeated(
    database_url: str, postgres_of_the_run: Any, open_stores: Any
) -> None:
    async with open_stores(1) as (store,):
        writer = await Writer().add(store)
        name = urlsplit(database_url).path[1:]
        for text in ("one", "two"):
            await asyncio.to_thread(
                postgres_of_the_run.execute,
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'",
            )
            await writer.write(text)
        assert (await store.jobs.get("a")).status == "queued"
        assert await store.jobs.unfinished("ada") == 1
        assert writer.log.extent().head == Cursor(1, 3)


@pytest.mark.heavy
async def test_every_task_may_run_again_after_its_commit(
    monkeypatch: pytest.MonkeyPatch, open_stores: Any
) -> None:
    """The answer to each first COMMIT of a task that may be repeated is lost, so that the task runs again."""
    import psycopg

    from tidewire_server.store.postgres import connections, database_threads

    commits = 0

    def lossy(connection: Any, tasks: list[Any]) -> None:
        nonlocal commits
        connections.run_commands(connection, tasks)
        if not all(task.work.repeat for task in tasks):
            return
        commits += 1
        if commits % 2:
            for task in tasks:
                task.outcome = thread_tasks._UNFINISHED
            connection.close()
            raise psycopg.OperationalError("the connection was lost")

    monkeypatch.setattr(database_threads, "run_commands", lossy)

    async with open_stores(2) as (first, second):
        clock = Clock()
        key = Key("ada", "e", "k")
        await (writer := Writer()).submit(first, items=2, key=key)
        assert await first.jobs.unfinished("ada") == 1
        assert (await second.jobs.find_key(key)).job == "a"
        assert len(await second.queue.waiting("e")) == 2
        assert await first.jobs.save_cancelled("a", [1])
        assert await first.jobs.adopt({"e"}) == ["a"]
        reopened = await first.jobs.reopen("a")
        writer.log, writer.record = reopened.log, reopened.record
        await writer.write("one", "two")
        await writer.write("x" * 2000)
        await writer.reopen(7)
        assert await first.jobs.release("a", writer.entries(1))
        assert [entry.index for entry in await second.queue.waiting("e")] == [0]
        assert await second.jobs.claim("a")
        reopened = await second.jobs.reopen("a")
        writer.log, writer.record = reopened.log, reopened.record
        await writer.write("three")
        await writer.end(clock)
        log = await first.jobs.log("a")
        assert await everything(log, Cursor(1, 0)) == b"".join(writer.frames)
        assert await first.jobs.get("a") == writer.record
        assert await second.queue.waiting("e") == []
        await first.jobs.delete_job("a")
        assert await second.jobs.get("a") == Tombstone("a", "ada")
        assert commits > 20


@pytest.mark.heavy
async def test_groups_with_the_same_jobs_in_reversed_order_do_not_deadlock(open_stores: Any) -> None:
    from tidewire_server.store.postgres.append_statements import BlockAppend, append_block

    async with open_stores(2) as (first, second):
        writers = [await Writer(f"j{number}").add(first) for number in range(30)]
        heads = {writer.log.number: writer.log.extent() for writer in writers}
        for step in range(10):
            appends = []
            for number, extent in heads.items():
                for name in range(2):
                    block = block_after(writers[0], extent.head, 1 + (step + name) % 2, name)
                    changed = extent_after(extent, block)
                    # Each block changes the row of its job, which the transaction therefore locks.
                    record = record_columns(
                        replace(writers[0].record, status="running", started_at=float(name))
                    )
                    plan = CheckpointPlan(step % 3 == 0, None)
                    appends.append(
                        (name, BlockAppend(number, extent.head, block, plan, record, True, None, changed))
                    )
            ordered = [each for each in appends if each[0] == 0] + [
                each for each in appends[::-1] if each[0] == 1
            ]
            threads = (first._threads.appends, second._threads.appends)
            found = await asyncio.gather(
                *(append_block(threads[name], append, lambda _: None) for name, append in ordered),
                return_exceptions=True,
            )
            won = [
                append
                for (_, append), each in zip(ordered, found, strict=True)
                if not isinstance(each, Exception)
            ]
            assert sorted(append.job for append in won) == sorted(heads)
            assert {type(each) for each in found if isinstance(each, Exception)} == {HeadMovedError}
            heads = {append.job: append.extent for append in won}


async def test_an_append_to_a_deleted_job_is_refused(open_stores: Any) -> None:
    async with open_stores(2) as (first, second):
        writer = await Writer().add(first)
        await second.jobs.delete_job("a")
        with pytest.raises(HeadMovedError):
            await writer.write("x")
        rival = await Writer("b").add(first)
        _, done = await asyncio.gather(second.jobs.delete_job("b"), rival.write("x"), return_exceptions=True)
        assert done is None or isinstance(done, HeadMovedError)
        assert await second.jobs.get("b") == Tombstone("b", "ada")
        assert await second.jobs.log("b") is None


# ---- submits -------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_an_idempotency_key_that_fifty_requests_race_for_gives_one_job(
    open_stores: Any, rounds: int
) -> None:
    async with open_stores(2) as stores:
        for step in range(rounds):
            key = Key("ada", "e", f"k{step}")

            async def submit(number: int, step: int = step, key: Key = key) -> str:
                writer = Writer(f"j{step}-{number}")
                try:
                    await writer.submit(stores[number % len(stores)], key=key)
                except KeyUsedError as error:
                    return str(error.use.job)
                return writer.record.id

            racers = 50 if step == 0 else 6
            found = await asyncio.gather(*(submit(number) for number in range(racers)))
            assert len(set(found)) == 1
            assert (await stores[0].jobs.find_key(key)).job == found[0]
        assert await stores[0].jobs.unfinished("ada") == rounds


@pytest.mark.heavy
async def test_parallel_submits_of_one_caller_at_two_servers_respect_the_limits_and_get_rising_turns(
    open_stores: Any,
) -> None:
    async with open_stores(2) as stores:

        async def submit(number: int, limits: QueueLimits, principal: str = "ada") -> str:
            try:
                await Writer(f"{principal}{number}", principal).submit(
                    stores[number % 2], items=2, limits=limits
                )
            except (QueueFullError, TooManyJobsError) as error:
                return type(error).__name__ + str(getattr(error, "of_principal", ""))
            return "added"

        async def count(limits: QueueLimits, principal: str) -> dict[str, int]:
            found = await asyncio.gather(*(submit(number, limits, principal) for number in range(100)))
            return {each: found.count(each) for each in sorted(set(found))}

        few = QueueLimits(10**6, 20, 10**6)
        assert await count(few, "ada") == {"QueueFullErrorTrue": 90, "added": 10}
        assert await count(QueueLimits(10**6, 10**6, 7), "bob") == {"TooManyJobsError": 93, "added": 7}
        assert await count(QueueLimits(34, 10**6, 10**6), "eve") == {"QueueFullErrorFalse": 100}
        waiting = await stores[0].queue.waiting("e")
        assert len(waiting) == 34
        order = [entry.principal for entry in waiting]
        assert order[:28] == ["ada", "bob"] * 14
        turns = await stores[0]._threads.control.run(
            "SELECT turn FROM ticket WHERE principal = 'ada' ORDER BY turn"
        )
        assert [turn for (turn,) in turns] == list(range(1, 21))


# ---- fair turns ----------------------------------------------------------------------------------------------------


@pytest.mark.heavy
async def test_a_hundred_tickets_of_ten_callers_behind_2900_of_one_run_early(open_stores: Any) -> None:
    async with open_stores(2) as (first, second):
        for number in range(3):
            await Writer(f"big{number}", "crowd").submit(first, items=966 + number)
        for number in range(100):
            await Writer(f"small{number}", f"p{number % 10}").submit(second, items=1)
        waiting = await second.queue.waiting("e")
        assert len(waiting) == 3001
        last = max(place for place, entry in enumerate(waiting, 1) if entry.principal != "crowd")
        assert last <= 120
        taken = await second.queue.take("e", limit=120)
        assert taken == waiting[:120]
        assert sum(entry.principal != "crowd" for entry in taken) == 100


async def test_a_newcomers_flood_does_not_delay_a_long_time_caller(open_stores: Any) -> None:
    async with open_stores(2) as (first, second):
        for number in range(50):
            await Writer(f"old{number}", "old").submit(first, items=1)
            assert len(await first.queue.take("e")) == 1
        await Writer("flood", "new").submit(second, items=200)
        await Writer("late", "old").submit(first, items=1)
        order = [entry.principal for entry in await first.queue.waiting("e")]
        assert order.index("old") <= 2
        await Writer("cancelled", "eve").submit(second, items=100)
        for entry in [each for each in await first.queue.waiting("e") if each.principal == "eve"]:
            await first.queue.discard(entry)
        await Writer("again", "eve").submit(second, items=1)
        order = [entry.principal for entry in await second.queue.waiting("e")]
        assert order.index("eve") <= 3


@pytest.mark.heavy
@pytest.mark.parametrize(("rounds", "jobs"), [(5, 30), pytest.param(300, 10, marks=pytest.mark.slow)])
@pytest.mark.timeout(300)
async def test_concurrent_takes_return_each_item_once_and_a_job_has_one_owner(
    open_stores: Any, rounds: int, jobs: int
) -> None:
    async with open_stores(3) as stores:
        draw = random.Random(rounds)
        for step in range(rounds):
            writers = [Writer(f"j{step}-{each}", draw.choice(["ada", "bob", "eve"])) for each in range(jobs)]
            items = [draw.choice([1, 1, 5, 20]) for _ in writers]
            await asyncio.gather(
                *(writer.submit(stores[0], items=n) for writer, n in zip(writers, items, strict=True))
            )
            expected = {
                entry for writer, n in zip(writers, items, strict=True) for entry in writer.entries(n)
            }
            owners: dict[str, int] = {}
            taken: list[Any] = []

            async def drain(server: int, owners: dict[str, int] = owners, taken: list[Any] = taken) -> None:
                while True:
                    found = await stores[server].queue.take("e", limit=draw.randrange(1, 6))
                    for entry in found:
                        assert owners.setdefault(entry.job, server) == server
                    taken.extend(found)
                    if not found:
                        return

            await asyncio.gather(*(drain(server) for server in range(3) for _ in range(4)))
            # A take does not see the items that a rival has locked, and is notified if the rival does not get them.
            async with asyncio.timeout(10):
                while len(taken) < len(expected):
                    await asyncio.sleep(0.01)
                    for server, store in enumerate(stores):
                        if store.queue.due("e") == float("-inf"):
                            await drain(server)
            assert len(taken) == len(expected)
            assert set(taken) == expected


@pytest.mark.heavy
@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.timeout(300)
async def test_of_twelve_adoptions_of_a_dead_servers_jobs_each_job_has_one_adopter(
    open_stores: Any, rounds: int
) -> None:
    async with open_stores(4) as (dead, *others):
        for step in range(rounds):
            for store in (dead, *others):
                await store.replicas.beat()
            jobs = {f"j{step}-{each}" for each in range(4)}
            for job in sorted(jobs):
                await Writer(job).submit(dead, items=1)
            assert {entry.job for entry in await dead.queue.take("e", limit=4)} == jobs
            await expire_lease(dead)
            for store in others:
                trust(store)
            adopted = await asyncio.gather(*(others[number % 3].jobs.adopt({"e"}) for number in range(12)))
            by_store = [{job for found in adopted[at::3] for job in found} & jobs for at in range(3)]
            assert sum(map(len, by_store)) == len(jobs)
            assert set().union(*by_store) == jobs


async def test_a_take_whose_thread_is_delayed_blocks_no_other_server(
    open_stores: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    sent, resume, send = threading.Event(), threading.Event(), psycopg.Connection.execute

    async with open_stores(2) as (first, second):
        delayed = first._threads.control._thread

        def execute(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            found = send(self, query, *arguments, **options)
            # A function that keeps the interpreter lock delays the thread here.
            if threading.current_thread() is delayed and "FOR UPDATE OF t" in query and not sent.is_set():
                sent.set()
                resume.wait(20)
            return found

        for name in ("a", "b"):
            await Writer(name).submit(first, items=1)
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        taken = asyncio.create_task(first.queue.take("e"))
        try:
            assert await asyncio.to_thread(sent.wait, 10)
            async with asyncio.timeout(3):
                others = await second.queue.take("e")
        finally:
            resume.set()
        assert [entry.job for entry in [*await taken, *others]] == ["a", "b"]


# ---- batches -------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
async def test_batches_follow_keys_costs_and_the_time_out(open_stores: Any) -> None:
    bounds = BatchBounds(max_size=4, max_cost=10.0, timeout=30.0)

    async with open_stores(2, e=bounds) as (first, second):
        queue, other = first.queue, second.queue
        slots = [BatchSlot("a", 1.0), BatchSlot(("b", 2), 1.0), BatchSlot("a", 1.0)]
        await Writer("x").submit(first, items=3, slots=slots)
        while queue.due("e") == float("-inf"):
            assert await queue.take_batch("e") == []
        loop_time = asyncio.get_running_loop().time()
        assert loop_time + 25 < queue.due("e") <= loop_time + 30
        joined = await queue.take_batch("e", RunningBatch(("b", 2), 3, 3.0))
        assert [(item.entry.index, item.slot) for item in joined] == [(1, slots[1])]
        assert await other.take_batch("e", RunningBatch("a", 1, 1.0)) == []  # the other server owns the job
        # The cost of the third item does not fit any more.
        await Writer("y", "bob").submit(first, items=4, slots=[BatchSlot("c", 4.0)] * 4)
        assert queue.due("e") == float("-inf")
        batch = await other.take_batch("e")
        assert [(item.entry.job, item.entry.index) for item in batch] == [("y", 0), ("y", 1)]
        assert await other.take_batch("e", RunningBatch("c", 2, 8.0)) == []
        assert len(await other.take_batch("e", RunningBatch("c", 1, 2.0))) == 2


@pytest.mark.heavy
async def test_an_item_returns_to_the_queue_with_its_batch_key_and_cost(open_stores: Any) -> None:
    async with open_stores(2, e=BatchBounds(4, 10.0, 0.0)) as (first, second):
        writer, slots = Writer("x"), [BatchSlot(("a", 1), 2.0), BatchSlot(None, 3.0)]
        await writer.submit(first, items=2, slots=slots)
        entries = writer.entries(2)
        assert len(await first.queue.take_batch("e")) == 1
        await first.jobs.reopen("x")
        # The answer to the take was lost.
        await first.queue.put(entries)
        assert [item.slot for item in await first.queue.take_batch("e")] == slots[:1]
        assert await first.jobs.release("x", entries)
        batches = [await second.queue.take_batch("e") for _ in range(2)]
        assert sorted((item.entry.index, item.slot) for (item,) in batches) == [*enumerate(slots)]


async def test_a_batch_key_that_cannot_be_stored_is_refused(open_stores: Any) -> None:
    async with open_stores(1, e=BatchBounds(4, 10.0, 0.0)) as (store,):
        with pytest.raises(EndpointFunctionError, match="a batch key consists of"):
            await Writer("x").submit(store, items=1, slots=[BatchSlot(frozenset({1}), 1.0)])
        assert await store.jobs.get("x") is None


async def test_limits_may_be_infinite(open_stores: Any) -> None:
    async with open_stores(1) as (store,):
        await Writer("x").submit(store, items=1, limits=NO_LIMITS)
        async with asyncio.timeout(10):
            while store.queue.size("e") != 1:  # A poll that began before the submit may overwrite the number.
                await asyncio.sleep(0.01)
