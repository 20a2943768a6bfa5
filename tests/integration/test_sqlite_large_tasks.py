"""Order of work in the thread of the SQLite store: small work never waits for more than one large value."""

import asyncio
import threading

import anyio.to_thread

from tidewire_server.store.sqlite.writer_thread import WriterThread


async def test_small_work_waits_for_one_large_value_at_most(tmp_path):
    file = WriterThread(tmp_path / "log.db", fsync=False)
    file.open(lambda db: None)
    order, running, gate = [], threading.Event(), threading.Event()

    def work(name, *, holds=False):
        def run(_):
            order.append(name)
            if holds:
                running.set()
                assert gate.wait(30)

        return run

    large = [
        asyncio.ensure_future(file.do(work(name, holds=name == "large 1"), large=True))
        for name in ("large 1", "large 2", "large 3")
    ]
    await anyio.to_thread.run_sync(running.wait, 30)
    small = [asyncio.ensure_future(file.do(work(f"small {number}"))) for number in (1, 2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*large, *small)
    await file.close(clean=True)
    assert order == ["large 1", "small 1", "small 2", "large 2", "large 3"]


async def test_large_work_that_waits_is_done_before_the_file_closes(tmp_path):
    file = WriterThread(tmp_path / "log.db", fsync=False)
    file.open(lambda db: None)
    done = []
    waiting = [
        asyncio.ensure_future(file.do(lambda _, at=at: done.append(at), large=True)) for at in range(5)
    ]
    await asyncio.sleep(0)
    await file.close(clean=True)
    await asyncio.gather(*waiting)
    assert done == [0, 1, 2, 3, 4]
