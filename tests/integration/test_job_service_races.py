"""Requests, new attempts and stops that meet at one job. Each test stops at the moment between two awaits that matters."""

import asyncio
import sqlite3
from pathlib import Path

import pytest

from support.job_service import ended, job_service, judge_lost_workers, lost_worker_server, submit, until
from tidewire_server import Server, Stream
from tidewire_server.errors import ProblemError, RunLaterError
from tidewire_server.jobs import job_service as job_service_module
from tidewire_server.store.sqlite import event_log

LARGE = 400_000
"""Size of a state whose digest is computed in a thread."""


@pytest.fixture(params=["memory", "sqlite"])
def log(request, tmp_path):
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path / 'log.db'}"


# ---- requests that are cancelled ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, LARGE])
@pytest.mark.parametrize("request_", ["cancel", "delete"])
async def test_a_request_that_is_cancelled_ends_the_job_all_the_same(log, size, request_):
    server = Server(log=log, cancel_timeout=0.2)

    @server.endpoint
    async def write(n: int, stream: Stream[str]) -> None:
        stream.append("x" * n)
        await asyncio.sleep(3600)

    async with job_service(server) as service:
        record = await submit(service, "write", size)
        reader = await service.log(record)
        await until(lambda: reader.extent().head.seq > 1)
        ask = service.purge(record) if request_ == "delete" else service.cancel(record, None)
        asking = asyncio.create_task(ask)
        for _ in range(3):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: reader.extent().ended)
        assert await service.store.jobs.unfinished("ada") == 0
        async with asyncio.timeout(5):
            await service.outcome(record)


# ---- cancels and deletes that meet a new attempt ---------------------------------------------------------------


async def test_a_cancel_that_meets_a_new_attempt_ends_it(tmp_path, monkeypatch):
    server, calls = lost_worker_server(f"sqlite:///{tmp_path / 'log.db'}")
    begins, real = asyncio.Event(), job_service_module.next_epoch

    def next_epoch(*arguments):
        begins.set()
        return real(*arguments)

    monkeypatch.setattr(job_service_module, "next_epoch", next_epoch)
    async with job_service(server) as service:
        record = await submit(service, "f", 0, 1)
        await begins.wait()
        assert await service.cancel(record, None)
        assert (await ended(service, record)).status == "cancelled"
        assert len(calls) == 1


async def test_a_delete_that_meets_a_new_attempt_ends_it(log):
    server, _ = lost_worker_server(log)
    async with job_service(server) as service:
        record = await submit(service, "f", 0, 1)
        reader, job = await service.log(record), service._live[record.id]
        await until(lambda: job._suspended)
        await service.purge(record)
        assert reader.extent().ended
        assert record.id not in service._live
        with pytest.raises(ProblemError, match="was deleted"):
            await service.find("ada", record.id)


def test_an_input_that_kills_its_workers_fails_only_its_own_job(log):
    calls = asyncio.run(judge_lost_workers(log))
    assert calls[:2] == [[0, 1, 2]] * 2
    assert sorted(calls[2:]) == [[0], [1], [1], [2]]


# ---- errors at the beginning of a new attempt --------------------------------------------------------------------


async def test_a_disk_that_is_full_when_a_new_attempt_begins_delays_the_job(tmp_path: Path, monkeypatch):
    server, calls = lost_worker_server(f"sqlite:///{tmp_path / 'log.db'}")
    real, refused = event_log.write_block, []

    def write_block(connection, append):
        if append.block.first.epoch != append.after.epoch and not refused:
            refused.append(append)
            raise sqlite3.OperationalError("database or disk is full")
        return real(connection, append)

    monkeypatch.setattr(event_log, "write_block", write_block)
    async with job_service(server) as service:
        found = await ended(service, await submit(service, "f", 0, 1))
        assert (found.status, found.attempt, len(refused)) == ("succeeded", 2, 1)
        assert calls == [[0, 1], [0, 1]]


async def test_a_disk_that_stays_full_does_not_keep_a_server_that_stops(tmp_path: Path, monkeypatch):
    server, _ = lost_worker_server(f"sqlite:///{tmp_path / 'log.db'}")
    real, refused = event_log.write_block, []

    def write_block(connection, append):
        if append.block.first.epoch != append.after.epoch:
            refused.append(append)
            raise sqlite3.OperationalError("database or disk is full")
        return real(connection, append)

    monkeypatch.setattr(event_log, "write_block", write_block)
    async with job_service(server) as service:
        await submit(service, "f", 0, 1)
        await until(lambda: refused)
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, within=5)


# ---- stops -------------------------------------------------------------------------------------------------------


async def test_a_drain_does_not_wait_for_a_job_whose_item_waits_again(tmp_path):
    server, gate = Server(log=f"sqlite:///{tmp_path / 'log.db'}"), asyncio.Event()

    @server.endpoint
    async def f(n: int) -> int:
        await gate.wait()
        raise RunLaterError("the engine is busy")

    async with job_service(server) as service:
        record = await submit(service, "f", 0)
        await until(lambda: service.scheduler.depth("f")[0] == 1)
        await asyncio.sleep(0.05)
        draining = asyncio.create_task(service.shutdown.drain(3600))
        await asyncio.sleep(0.05)
        assert not draining.done()
        gate.set()
        async with asyncio.timeout(20):
            await draining
        assert (await service.find("ada", record.id)).done is None
