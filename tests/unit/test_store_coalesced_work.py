"""Background work that runs once for all requests that arrive while it runs."""

import asyncio

from tidewire_server.store.postgres.coalesced_work import CoalescedWork
from tidewire_server.store.store_errors import StoreError


async def test_requests_during_a_run_share_the_next_run_even_if_the_first_fails():
    runs, go_on = 0, asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        await go_on.wait()
        if runs == 1:
            raise StoreError("the database is away")

    coalesced = CoalescedWork(work, "work")
    coalesced.request()
    await asyncio.sleep(0)
    for _ in range(5):
        coalesced.request()
    go_on.set()
    await coalesced.close(finish=True)
    assert runs == 2
    coalesced.request()
    await asyncio.sleep(0)
    assert runs == 2


async def test_closing_cancels_the_work():
    coalesced = CoalescedWork(asyncio.Event().wait, "wait")
    coalesced.request()
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await coalesced.close()
