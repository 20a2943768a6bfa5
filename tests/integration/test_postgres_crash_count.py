"""Count of the crashes of a job on several servers, which share one PostgreSQL database: a job that crashes its servers ends."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.postgres_server import needs_postgres
from support.reference_server import data
from support.server_roles import APP, Fleet
from support.store_log_writer import ROOMY, Writer

pytestmark = needs_postgres


@contextlib.asynccontextmanager
async def a_dead_server_with_a_job(
    url: str, *, started: bool = True
) -> AsyncIterator[tuple[Any, Any, Writer]]:
    """Open three stores of which the first one has died while its job was running. Yield the other two, and the job's writer."""
    from tidewire_server.store.postgres.postgres_store import PostgresStore

    dead, *others = (PostgresStore(url, ROOMY) for _ in range(3))
    try:
        for store in (dead, *others):
            store.queue.serve({"e": None}, lambda _: None)
            await store.replicas.beat({})
        await (writer := Writer()).submit(dead, items=1)
        assert await dead.queue.take("e")
        interrupted = await dead.jobs.reopen("a")
        writer.log, writer.record = interrupted.log, interrupted.record
        if started:
            writer.record.status = "running"
            await writer.write("one")
        expire = "UPDATE server SET until = now() - interval '1 second' WHERE id = %(id)s"
        await dead._threads.control.run(expire, id=dead.replicas.id)
        for store in others:
            # As if the beats of the server had succeeded for a whole lease.
            store._server._first_beat = -1e9
        yield (*others, writer)
    finally:
        for store in (dead, *others):
            await store.close()


async def test_a_crash_counts_until_the_job_was_opened(database_url: str) -> None:
    async with a_dead_server_with_a_job(database_url) as (first, second, writer):
        for _ in range(3):
            assert await first.jobs.adopt({"e"}) == ["a"]
            assert (await first.jobs.reopen("a")).crashed
            first.replicas.stop_writing("a")  # The server failed to open the job.
        await first.replicas.leave()
        assert await second.jobs.adopt({"e"}) == ["a"]
        adopted = await second.jobs.reopen("a")
        assert adopted.crashed
        # The new attempt ends without a crash.
        adopted.record.attempt, adopted.record.status = 2, "queued"
        writer.log, writer.record = adopted.log, adopted.record
        await writer.reopen(4711)
        assert await second.jobs.release("a", writer.entries(1))
        assert await second.queue.take("e")
        opened = await second.jobs.reopen("a")
        writer.log, writer.record = opened.log, opened.record
        writer.record.status = "running"
        await writer.write("two")
        assert not (await second.jobs.reopen("a")).crashed
        await second.replicas.leave()
        await first.replicas.beat({})
        assert await first.jobs.adopt({"e"}) == ["a"]
        assert not (await first.jobs.reopen("a")).crashed


async def test_a_crash_before_the_job_had_started_counts_until_it_starts(database_url: str) -> None:
    async with a_dead_server_with_a_job(database_url, started=False) as (first, second, writer):
        assert await first.jobs.adopt({"e"}) == ["a"]
        assert (await first.jobs.reopen("a")).crashed
        assert await first.jobs.release("a", writer.entries(1))
        assert await second.queue.take("e")
        assert (await second.jobs.reopen("a")).crashed


FATAL = (
    APP.replace("Server(", "Server(max_attempts=1, ")
    + """

@server.endpoint
async def fatal(ctx: Context) -> None:
    import os
    import signal

    with (HERE / "calls").open("a") as calls:
        calls.write("call ")
    os.kill(os.getpid(), signal.SIGKILL)
"""
)


@pytest.mark.heavy
def test_a_function_that_kills_its_server_at_once_is_not_called_without_end(tmp_path, database_url):
    fleet = Fleet(tmp_path, database_url, FATAL)
    with fleet.front() as (_, peer):
        job = peer.start("fatal")
        with peer.stream(job) as reading:
            for _ in range(2):  # The first process may die before the start of the function was stored.
                with fleet.worker() as worker:
                    worker.wait()
            with fleet.worker():
                assert data(reading.until("done"))["error"]["code"] == "worker_lost"
    assert len((tmp_path / "calls").read_text().split()) <= 2
