"""Requests, new attempts and outages that meet at one job in a shared database. Each test stops at the moment between two
awaits that matters.
"""

import asyncio
import logging

from support.job_service import ended, job_service, judge_lost_workers, lost_worker_server, submit, until
from support.postgres_server import needs_postgres
from support.server_leases import expire_lease, trust
from tidewire_server import Context, Server
from tidewire_server.store.store_errors import StoreError

pytestmark = needs_postgres


async def test_a_submit_that_is_cancelled_keeps_no_call_of_a_global_limit(database_url):
    server = Server(log=database_url)

    @server.endpoint(global_limit=1)
    async def f(n: int) -> int:
        return n

    async with job_service(server) as service:
        queue, began = service.store.queue, asyncio.Event()
        take = queue.take

        async def watched(*arguments, **options):
            began.set()
            return await take(*arguments, **options)

        queue.take = watched
        asking = asyncio.create_task(submit(service, "f", 0))
        await began.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        assert (await ended(service, await submit(service, "f", 1))).status == "succeeded"
        await until(lambda: queue._running["endpoint f"] == 0)


async def test_an_item_that_is_cancelled_while_it_is_taken_does_not_start(database_url):
    server, gate, starts = Server(log=database_url), asyncio.Event(), []

    @server.endpoint(concurrency_limit=1)
    async def f(n: int) -> int:
        starts.append(n)
        if n == 0:
            await gate.wait()
        return n

    async with job_service(server) as service:
        record = await submit(service, "f", 0, 1)
        await until(lambda: starts)
        queue, taken, answered = service.store.queue, asyncio.Event(), asyncio.Event()
        take, discard = queue.take, queue.discard

        async def take_late(*arguments, **options):
            found = await take(*arguments, **options)
            if found:
                taken.set()
                await answered.wait()
            return found

        async def discard_later(entry):
            # The database answers in the order of the questions.
            await discard(entry)
            answered.set()
            await asyncio.sleep(0.05)

        queue.take, queue.discard = take_late, discard_later
        gate.set()
        await taken.wait()
        assert await service.cancel(record, [1])
        assert (await ended(service, record)).status == "partially_failed"
        await until(lambda: service.scheduler.depth("f") == (0, 0))
        assert starts == [0]


async def test_a_delete_that_meets_the_return_of_a_job_to_the_queue_ends_it(database_url):
    server = Server(log=database_url)

    @server.endpoint
    async def f(n: int) -> int:
        return n

    async with job_service(server, functions=False) as service:
        record = await submit(service, "f", 0, 1, 2)
        reader, discard = await service.log(record), service.store.queue.discard
        stop = reader.watch(lambda _: None)

        async def discard_late(entry):
            await discard(entry)
            await asyncio.sleep(0.1)

        service.store.queue.discard = discard_late
        cancelling = asyncio.create_task(service.cancel(record, [0]))
        await until(lambda: record.id in service._live and 0 not in service._live[record.id].unfinished())
        await service.purge(record)
        assert await cancelling
        await until(lambda: reader.extent().ended)
        stop()


async def test_a_cancel_after_an_outage_takes_no_job_from_a_server_whose_beat_is_on_its_way(database_url):
    server, gate, calls, cancelled = Server(log=database_url), asyncio.Event(), [], []

    @server.endpoint(concurrency_limit=2)
    async def f(n: int) -> int:
        calls.append(n)
        try:
            await gate.wait()
        except asyncio.CancelledError:
            cancelled.append(n)
            raise
        return n

    async with job_service(server) as runs, job_service(server, functions=False) as asks:
        record = await submit(runs, "f", 0, 1)
        await until(lambda: len(calls) == 2)
        # All leases have expired, so that no server knows yet which of the others are alive.
        await runs._heartbeat.stop()
        await expire_lease(runs.store)
        asks.store._server._first_beat = asyncio.get_running_loop().time() + 1e9
        assert await asks.cancel(await asks.find("ada", record.id), [0])
        await runs._heartbeat.start()
        await until(lambda: cancelled == [0])
        gate.set()
        found = await ended(asks, record)
        assert (found.attempt, found.status) == (1, "partially_failed")
        assert sorted(calls) == [0, 1]


async def test_a_server_logs_once_that_another_one_has_adopted_its_job(database_url, caplog):
    """Two lines said that a log rejected its writer, and that the end of the job cannot be logged; one named the job."""

    server, gate, calls = Server(log=database_url), asyncio.Event(), []

    @server.endpoint
    async def f(n: int) -> int:
        calls.append(n)
        await gate.wait()
        return n

    async with job_service(server) as runs, job_service(server, functions=False) as asks:
        record = await submit(runs, "f", 0)
        await until(lambda: calls)
        await runs._heartbeat.stop()
        await expire_lease(runs.store)
        trust(asks.store)
        assert await asks.cancel(await asks.find("ada", record.id), None)
        job = runs._live[record.id]
        gate.set()
        async with asyncio.timeout(20):
            await job.finished.wait()
    (message,) = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert message.startswith(
        f"job {record.id}: another server has adopted or deleted the job, so this server stops it: "
    )


async def test_a_job_that_cannot_return_to_the_queue_does_not_keep_the_others_of_its_batch(database_url):
    server, _ = lost_worker_server(database_url)
    async with job_service(server) as service:
        records = [await submit(service, "f", number) for number in (0, 1)]
        jobs = service.store.jobs
        release, refused = jobs.release, []

        async def refuse_once(job, entries):
            if not refused:
                refused.append(job)
                service.store._logs.written[job].stop_writing()  # as `release` does before it raises
                raise StoreError("the disk of the database is full")
            return await release(job, entries)

        jobs.release = refuse_once
        assert [(await ended(service, record)).status for record in records] == ["succeeded"] * 2
        assert refused


def test_an_input_that_kills_its_workers_fails_only_its_own_job(database_url):
    calls = asyncio.run(judge_lost_workers(database_url))
    assert sorted(calls[-4:]) == [[0], [1], [1], [2]]


async def test_progress_that_an_outage_refused_reaches_other_servers_afterwards(database_url):
    server, gate = Server(log=database_url), asyncio.Event()

    @server.endpoint
    async def f(n: int, ctx: Context) -> int:
        ctx.progress(n, 9)
        await gate.wait()
        return n

    async with job_service(server) as runs, job_service(server, functions=False) as reads:
        control, refused = runs.store._threads.control, []
        run = control.run

        async def refuse_once(*sql, **parameters):
            if parameters.get("events") and not refused:
                refused.append(sql)
                raise StoreError("the database has not answered")
            return await run(*sql, **parameters)

        control.run = refuse_once
        record = await submit(runs, "f", 5)
        reader = await reads.log(record)
        stop = reader.watch(lambda _: None)
        await until(lambda: "progress-0" in reader._ephemeral)
        assert refused
        gate.set()
        stop()
        assert (await ended(runs, record)).status == "succeeded"
