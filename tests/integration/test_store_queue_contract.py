"""The contract of new jobs, their items in the queue, and their owners, tested against every implementation of the store."""

import asyncio
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.store_log_writer import ROOMY, Writer
from support.stores import OF_ONE_PROCESS, PARAMS, opened_store, prepare
from tidewire_server.store.records import BatchBounds, BatchSlot, JobRecord, Key, QueueLimits, RunningBatch
from tidewire_server.store.store_errors import KeyUsedError, QueueFullError, TooManyJobsError
from tidewire_server.store.store_interface import Store

BOUNDS = BatchBounds(max_size=3, max_cost=10, timeout=60)


@pytest.fixture(params=PARAMS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    prepare(request, request.param)
    return partial(opened_store, request.param, tmp_path, ROOMY)


@pytest.fixture
def of_one_process(request: pytest.FixtureRequest) -> bool:
    return request.node.callspec.params["opened"] in OF_ONE_PROCESS


def serve(store: Store, bounds: BatchBounds | None = None) -> None:
    """Make the store take items of the endpoint `e`."""
    store.queue.serve({"e": bounds}, lambda _: None)


async def add(store: Store, job: str, items: int = 1, *, by: str = "ada", **more: Any) -> Writer:
    return await Writer(job, by).add(store, items=items, **more)


async def taken(store: Store, limit: int = 100, **more: Any) -> list[str]:
    """Take items, and return them as job and index, such as `a0`."""
    return [f"{entry.job}{entry.index}" for entry in await store.queue.take("e", limit=limit, **more)]


async def taken_batch(store: Store, running: RunningBatch | None = None) -> list[str]:
    batch = await store.queue.take_batch("e", running)
    return [f"{item.entry.job}{item.entry.index}" for item in batch]


async def waiting(store: Store, **more: Any) -> list[str]:
    return [f"{entry.job}{entry.index}" for entry in await store.queue.waiting("e", **more)]


# ---- add ------------------------------------------------------------------------------------------------------------


async def test_a_new_job_is_owned_before_its_items_can_be_taken(opened: Any, of_one_process: bool) -> None:
    async with opened() as (store, _):
        serve(store)
        owned: list[tuple[float, bool]] = []

        class Owner(Writer):
            def own(self, log: Any) -> None:
                super().own(log)
                owned.append((store.queue.due("e"), store.jobs.log_in_use("a") is log))

        writer = await Owner().add(store, items=2)
        assert owned == ([(math.inf, True)] if of_one_process else [])
        assert await waiting(store) == ["a0", "a1"]
        assert await taken(store) == ["a0", "a1"]
        reopened = await store.jobs.reopen("a")
        assert (reopened is None) == (writer.log is not None)


async def test_a_job_that_exceeds_a_limit_is_not_added(opened: Any) -> None:
    async with opened() as (store, clock):
        serve(store)
        first = await add(store, "a", 2)
        limits = QueueLimits(5, 3, 2)
        with pytest.raises(QueueFullError) as error:
            await add(store, "b", 2, limits=limits)
        assert (error.value.waiting, error.value.of_principal) == (2, True)
        with pytest.raises(QueueFullError) as error:
            await add(store, "c", 4, by="bob", limits=limits)
        assert (error.value.waiting, error.value.of_principal) == (2, False)
        await add(store, "d", 1, limits=limits)
        with pytest.raises(TooManyJobsError):
            await add(store, "e", 9, limits=limits)
        assert [await store.jobs.get(job) for job in "bce"] == [None] * 3
        assert await waiting(store) == ["a0", "a1", "d0"]
        assert (await store.jobs.unfinished("ada"), await store.jobs.unfinished("bob")) == (2, 0)
        # Neither an item that was taken nor a job that has ended counts.
        assert await taken(store, 1) == ["a0"]
        if first.log is None:
            reopened = await store.jobs.reopen("a")
            assert reopened is not None
            first.log, first.record = reopened.log, reopened.record
        await first.end(clock)
        await store.queue.discard(first.entries(2)[1])
        await add(store, "f", 2, limits=limits)


@pytest.mark.heavy
async def test_concurrent_jobs_of_a_principal_do_not_exceed_a_limit_together(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        limits = QueueLimits(100, 6, 100)
        adds = [add(store, f"a{number}", 2, limits=limits) for number in range(8)]
        errors = [
            each
            for each in await asyncio.gather(*adds, return_exceptions=True)
            if not isinstance(each, Writer)
        ]
        assert [type(error) for error in errors] == [QueueFullError] * 5
        assert len(await waiting(store)) == 6
        adds = [add(store, f"b{number}", 0, by="bob", limits=QueueLimits(9, 9, 3)) for number in range(8)]
        results = await asyncio.gather(*adds, return_exceptions=True)
        assert sum(isinstance(each, TooManyJobsError) for each in results) == 5
        assert await store.jobs.unfinished("bob") == 3


@pytest.mark.heavy
async def test_a_second_job_with_an_idempotency_key_is_not_added(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        key = Key("ada", "e", "k")
        assert await store.jobs.find_key(key) is None
        await add(store, "a", key=key)
        with pytest.raises(KeyUsedError) as error:
            await add(store, "b", key=key)
        assert (error.value.use.job, error.value.use.body) == ("a", b"h")
        assert await store.jobs.get("b") is None
        assert await waiting(store) == ["a0"]
        assert await store.jobs.unfinished("ada") == 1
        use = await store.jobs.find_key(key)
        assert use is not None
        assert use.job == "a"


async def test_a_cancelled_caller_leaves_a_job_that_can_run_or_no_job(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        for number in range(20):
            adding = asyncio.create_task(add(store, f"a{number}"))
            for _ in range(number % 4):
                await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait([adding])
        await add(store, "last")  # commits after the jobs above
        added = [f"a{number}" for number in range(20) if await store.jobs.get(f"a{number}") is not None]
        assert await taken(store) == [*(f"{job}0" for job in added), "last0"]
        assert await store.jobs.unfinished("ada") == len(added) + 1


# ---- take -----------------------------------------------------------------------------------------------------------


@pytest.mark.heavy
async def test_principals_take_turns(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        await add(store, "a", 4)
        await add(store, "b", 1, by="bob")
        assert await taken(store, 1) == ["a0"]
        await add(store, "c", 2, by="eve")
        shown = await waiting(store)
        assert shown[:2] == ["b0", "a1"] or shown[:2] == ["a1", "b0"]
        assert shown.index("c0") <= 3
        assert await taken(store, 0) == []
        assert await taken(store, 2) + await taken(store) == shown


async def test_the_items_of_skipped_principals_keep_their_positions(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        await add(store, "a", 2)
        await add(store, "b", 2, by="bob")
        assert await waiting(store, limit=1) == ["a0"]
        assert await waiting(store, limit=1, skip={"ada"}) == ["b0"]
        assert await waiting(store, skip={"ada", "bob"}) == []
        assert await taken(store, skip={"ada"}) == ["b0", "b1"]
        assert await waiting(store, limit=9) == ["a0", "a1"]


async def test_discarded_items_are_not_taken(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        entries = (await add(store, "a", 3)).entries(3)
        await store.queue.discard(entries[1])
        await store.queue.discard(entries[1])
        assert await taken(store) == ["a0", "a2"]
        await store.queue.discard(entries[0])


async def test_an_item_that_was_put_twice_is_taken_once(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        entries = (await add(store, "a", 2)).entries(2)
        await store.queue.put(entries)
        assert await taken(store) == ["a0", "a1"]
        await store.queue.put(entries[:1])
        assert await taken(store) == ["a0"]


async def test_all_items_are_taken_by_the_owner_of_their_job(opened: Any, of_one_process: bool) -> None:
    async with opened() as (store, _):
        serve(store)
        for job in "abc":
            await add(store, job, 2)
        assert sorted(await taken(store)) == ["a0", "a1", "b0", "b1", "c0", "c1"]
        opened_jobs = [await store.jobs.reopen(job) for job in "abc"]
        assert all((each is None) == of_one_process for each in opened_jobs)
        # This process runs the jobs, so they cannot be claimed or adopted.
        assert [await store.jobs.claim(job) for job in "abc"] == [False] * 3
        assert list(await store.jobs.adopt({"e"})) == []


async def test_an_endpoint_is_due_while_its_items_can_be_taken(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store)
        assert store.queue.due("e") == math.inf
        entries = (await add(store, "a", 2)).entries(2)
        assert store.queue.due("e") <= asyncio.get_running_loop().time()
        await taken(store, 1)
        assert store.queue.due("e") <= asyncio.get_running_loop().time()
        await store.queue.discard(entries[1])
        assert await taken(store) == []
        while store.queue.due("e") == -math.inf:  # after a poll of the database
            assert await taken(store) == []
        assert store.queue.due("e") == math.inf


# ---- batches --------------------------------------------------------------------------------------------------------


async def test_a_batch_is_taken_when_it_is_full(opened: Any, of_one_process: bool) -> None:
    async with opened() as (store, _):
        serve(store, BOUNDS)
        loop = asyncio.get_running_loop()
        before = loop.time()
        await add(store, "a", 2, slots=[BatchSlot("x", 1), BatchSlot("y", 1)])
        while not of_one_process and store.queue.due("e") == -math.inf:
            assert await taken_batch(store) == []  # Only a take shows how long the items have waited.
        assert before + BOUNDS.timeout - 1 < store.queue.due("e") <= loop.time() + BOUNDS.timeout
        assert await taken_batch(store) == []
        await add(store, "b", 2, by="bob", slots=[BatchSlot("x", 2), BatchSlot("x", 3)])
        assert store.queue.due("e") <= loop.time()
        batch = await store.queue.take_batch("e")
        assert sorted(item.entry.job for item in batch) == ["a", "b", "b"]
        assert [(item.slot.key, item.waited >= 0) for item in batch] == [("x", True)] * 3
        assert sorted(item.slot.cost for item in batch) == [1, 2, 3]
        assert await taken_batch(store) == []
        assert await waiting(store) == ["a1"]


@pytest.mark.heavy
async def test_the_cost_of_a_batch_is_limited_and_makes_it_full(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store, BOUNDS)
        await add(store, "a", 3, slots=[BatchSlot(None, 6), BatchSlot(None, 6), BatchSlot(None, 1)])
        # The third item fits, but must not overtake the second item of its principal.
        assert await taken_batch(store) == ["a0"]
        assert await taken_batch(store) == []
        assert await waiting(store) == ["a1", "a2"]


async def test_a_batch_is_taken_when_its_oldest_item_has_waited_long_enough(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store, BOUNDS._replace(timeout=0.05))
        await add(store, "a", 1, slots=[BatchSlot("x")])
        loop = asyncio.get_running_loop()
        while not (batch := await store.queue.take_batch("e")):
            await asyncio.sleep(max(store.queue.due("e") - loop.time(), 0))
        (item,) = batch
        assert item.waited >= 0.04


async def test_late_joiners_have_the_key_of_their_batch_and_fit_it(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store, BOUNDS)
        await add(store, "a", 2, slots=[BatchSlot("x", 4), BatchSlot("y", 1)])
        await add(store, "b", 1, by="bob", slots=[BatchSlot("x", 4)])
        assert await taken_batch(store, RunningBatch("x", 3, 0)) == []
        assert await taken_batch(store, RunningBatch("x", 1, 7)) == []
        assert await taken_batch(store, RunningBatch("x", 2, 5)) == ["a0"]
        assert await taken_batch(store, RunningBatch("x", 1, 0)) == ["b0"]
        assert await waiting(store) == ["a1"]


@pytest.mark.parametrize("opened", sorted(OF_ONE_PROCESS), indirect=True)
async def test_an_item_gets_its_batch_key_later_and_keeps_its_position(opened: Any) -> None:
    async with opened() as (store, _):
        serve(store, BOUNDS._replace(max_size=1))
        entries = (await add(store, "a", 2)).entries(2)
        assert await taken_batch(store) == []
        await store.queue.put(entries[1:], [BatchSlot()])
        assert await waiting(store) == ["a0", "a1"]
        assert await taken_batch(store) == ["a1"]
        await store.queue.put(entries[:1], [BatchSlot()])
        assert await taken_batch(store) == ["a0"]


# ---- owners ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", sorted(OF_ONE_PROCESS), indirect=True)
async def test_a_store_of_one_process_neither_claims_nor_releases_jobs(opened: Any) -> None:
    async with opened() as (store, clock):
        serve(store)
        writer = await add(store, "a", 2)
        assert await store.jobs.claim("a") is False
        assert await store.jobs.claim("unknown") is False
        assert await store.jobs.reopen("a") is None
        assert await store.jobs.release("a", writer.entries(2)) is False
        assert await waiting(store) == ["a0", "a1"]
        assert await store.jobs.adopt({"e"}) == ()
        await writer.write("x")  # This process still owns the job.
        await writer.end(clock)
        assert await store.jobs.claim("a") is False
        assert isinstance(await store.jobs.get("a"), JobRecord)
