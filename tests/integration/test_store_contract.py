"""The contract of logs and jobs in a store, tested against every implementation."""

import asyncio
import gc
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.postgres_server import needs_postgres
from support.store_log_writer import RETENTION, ROOMY, Clock, Writer, everything
from support.stores import PARAMS, STORES, opened_store, prepare
from tidewire.protocol.cursor import Cursor
from tidewire_server.store.database import block_rows, state_checkpoints
from tidewire_server.store.log_interface import MAX_EPOCHS, Block
from tidewire_server.store.records import JobRecord, Key, Tombstone
from tidewire_server.store.store_errors import HeadMovedError
from tidewire_server.store.store_interface import Store

IN_PIECES = " in pieces"
"""A store whose events and states are all stored in pieces."""


@pytest.fixture(
    params=[*PARAMS, "sqlite" + IN_PIECES, pytest.param("postgres" + IN_PIECES, marks=needs_postgres)]
)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    kind: str = request.param
    if kind.endswith(IN_PIECES):
        kind = kind.removesuffix(IN_PIECES)
        monkeypatch.setattr(state_checkpoints, "LARGE_BYTES", 1)
        monkeypatch.setattr(block_rows, "PIECE_BYTES", 200)
    prepare(request, kind)
    return partial(opened_store, kind, tmp_path)


# ---- logs -----------------------------------------------------------------------------------------------------------


async def test_reads_return_whole_frames_after_any_cursor(opened: Any) -> None:
    async with opened() as (store, clock):
        writer = await Writer().add(store)
        await writer.write("one", "two", "three")
        await writer.end(clock)
        for log in (writer.log, await store.jobs.log("a")):
            for after in range(5):
                chunk = await log.read(Cursor(1, after), 10_000)
                assert chunk.frames == b"".join(writer.frames[after:])
                assert (chunk.last, chunk.ended) == (Cursor(1, 5), True)
            bounded = await log.read(Cursor(1, 1), len(b"".join(writer.frames[1:3])))
            assert bounded.frames == b"".join(writer.frames[1:3])
            assert (bounded.last, bounded.ended) == (Cursor(1, 3), False)
            assert (await log.read(Cursor(1, 1), 1)).frames == writer.frames[1]
            nothing = await log.read(Cursor(1, 5), 10)
            assert (nothing.frames, nothing.last) == (b"", Cursor(1, 5))
            assert await log.read(Cursor(1, 6), 10) is None
            at = await log.state()
            assert (at.cursor, at.columns, at.view.value()) == (
                Cursor(1, 4),
                ("/text",),
                writer.states[4],
            )


async def test_an_append_after_another_head_is_refused(opened: Any) -> None:
    async with opened() as (store, clock):
        writer = await Writer().add(store)
        await writer.write("x")
        for after in (Cursor(1, 1), Cursor(1, 3), Cursor(2, 2)):
            with pytest.raises(HeadMovedError):
                await writer.log.append(after, Block([b"id:1-3\ndata:1\n\n"], writer.at()))
        assert writer.log.extent().head == Cursor(1, 2)
        await writer.end(clock)
        with pytest.raises(HeadMovedError):
            await writer.write("y")


@pytest.mark.heavy
@pytest.mark.parametrize("sizes", [[1], [40], [3000], [20_000], [1, 20_000, 5]], ids=str)
async def test_a_log_stays_within_its_limit_or_keeps_its_newest_block(opened: Any, sizes: list[int]) -> None:
    async with opened() as (store, clock):
        writer = await Writer().add(store)
        largest = 0
        for step in range(400 if max(sizes) < 1000 else 12):
            size = sizes[step % len(sizes)]
            await writer.write("x" * size)
            base, head, *_ = writer.log.extent()
            held = len(b"".join(writer.frames[base.seq :]))
            largest = max(largest, held)
            assert head == writer.head
            assert held <= max(RETENTION.max_log_bytes, len(writer.frames[-1]) + RETENTION.max_log_bytes // 2)
            oldest = await writer.log.state(oldest=True)
            if base.seq:
                assert (oldest.cursor, oldest.view.value()) == (base, writer.states[base.seq])
                assert await writer.log.read(base._replace(seq=base.seq - 1), 100) is None
        assert await everything(writer.log, base, 1000) == b"".join(writer.frames[base.seq :])
        assert largest >= RETENTION.max_log_bytes // 2 or base.seq == 0
        await writer.end(clock)
        again = await store.jobs.log("a")
        assert await everything(again, again.extent().base) == b"".join(
            writer.frames[again.extent().base.seq :]
        )


async def test_an_epoch_continues_where_the_previous_one_ended(opened: Any) -> None:
    async with opened() as (store, clock):
        writer = await Writer().add(store)
        await writer.write("one", "two")
        await writer.reopen(4711)
        await writer.write("three")
        await writer.reopen(5000)
        extent = writer.log.extent()
        assert extent.starts == (Cursor(1, 1), Cursor(4711, 4), Cursor(5000, 6))
        assert [
            extent.logged(Cursor(*each)) for each in [(1, 3), (1, 4), (4711, 3), (4711, 4), (5000, 7)]
        ] == [
            True,
            False,
            False,
            True,
            False,
        ]
        assert await writer.log.read(Cursor(1, 4), 100) is None
        chunk = await writer.log.read(Cursor(1, 2), 10_000)
        assert (chunk.frames, chunk.last) == (b"".join(writer.frames[2:]), Cursor(5000, 6))
        await writer.end(clock)
        log = await store.jobs.log("a")
        assert await everything(log, Cursor(1, 0), 100) == b"".join(writer.frames)
        assert log.extent().starts == extent.starts
        assert (await log.state()).view.value() == writer.states[6]


async def test_the_number_of_remembered_epochs_is_bounded(opened: Any) -> None:
    async with opened(replace(RETENTION, max_log_bytes=1024)) as (store, _):
        writer = await Writer().add(store)
        for epoch in range(2, MAX_EPOCHS + 60):
            await writer.reopen(epoch)
        extent = writer.log.extent()
        assert len(extent.starts) == MAX_EPOCHS
        assert await everything(writer.log, extent.base) == b"".join(writer.frames[extent.base.seq :])


async def test_ephemeral_events_keep_the_latest_of_each_kind_and_notify_watchers(opened: Any) -> None:
    async with opened() as (store, _):
        log = (writer := await Writer().add(store)).log
        woken: list[int] = []
        stop = log.watch(lambda _news: woken.append(1))
        log.set_ephemeral_event("queue", b"q1")
        log.set_ephemeral_event("progress-0", b"p1")
        log.set_ephemeral_event("queue", b"q2")
        frames, version = log.ephemeral_events(0)
        assert sorted(frames) == [b"p1", b"q2"]
        assert log.ephemeral_events(version) == ([], version)
        log.set_ephemeral_event("queue", None)
        assert log.ephemeral_events(0)[0] == [b"p1"]
        assert len(woken) == 3
        await writer.write("x")
        assert len(woken) == 4
        stop()
        log.set_ephemeral_event("queue", b"q3")
        assert len(woken) == 4


async def test_a_cancelled_append_is_still_written(opened: Any) -> None:
    async with opened() as (store, _):
        writer = await Writer().add(store)
        task = asyncio.ensure_future(writer.write("x"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        async with asyncio.timeout(10):
            while writer.log.extent().head != Cursor(1, 2):
                await asyncio.sleep(0.001)


# ---- jobs -----------------------------------------------------------------------------------------------------------


async def add_job(
    store: Store, name: str, clock: Clock, *, ended: bool = True, key: Key | None = None
) -> Writer:
    writer = await Writer(name, at=clock.now).add(store, key)
    if ended:
        await writer.end(clock)
    return writer


async def test_ended_jobs_expire_in_steps(opened: Any) -> None:
    async with opened() as (store, clock):
        jobs, key = store.jobs, Key("ada", "e", "k")
        assert await jobs.find_key(key) is None
        await add_job(store, "a", clock, key=key)
        log = await jobs.log("a")
        assert await jobs.expire(1000) == 1010
        assert await jobs.expire(1010) == 1020
        assert log.extent().base == Cursor(1, 1)
        assert (await log.state()).cursor == Cursor(1, 1)
        assert (await log.read(Cursor(1, 1), 100)).last == Cursor(1, 2)
        assert await log.read(Cursor(1, 0), 100) is None
        assert (await jobs.log("a")).extent() == log.extent()
        clock.now = 1020
        assert await jobs.expire(1020) == 1040
        assert await jobs.get("a") == Tombstone("a", "ada")
        assert await jobs.log("a") is None
        assert (await jobs.find_key(key)).job == "a"
        await jobs.expire(1040)
        assert (await jobs.find_key(key)) is None
        await jobs.expire(1051)
        assert await jobs.get("a") is None


async def kept(store: Store, names: str) -> str:
    """Return the names of those jobs that the store has not deleted."""
    return "".join([name for name in names if isinstance(await store.jobs.get(name), JobRecord)])


async def test_above_max_retained_bytes_the_principal_with_the_most_bytes_loses_its_oldest_jobs(
    opened: Any,
) -> None:
    async with opened(replace(ROOMY, max_retained_bytes=10_000)) as (store, clock):

        async def add(name: str, principal: str, size: int) -> None:
            writer = await Writer(name, principal, clock.now).add(store)
            await writer.write("x" * size)
            await writer.end(clock)
            await store.jobs.expire(clock.now)

        await add("a", "ada", 1000)
        for name in "bcd":  # events and state of 1,000 characters each
            await add(name, "bob", 1000)
        assert await kept(store, "abcd") == "abcd"
        await add("e", "ada", 1000)
        assert await kept(store, "abcde") == "acde"
        await add("f", "eve", 50_000)  # as the newest job, it stays, although it alone exceeds the limit
        assert await kept(store, "abcdef") == "f"
        await add("g", "ada", 10)
        assert await kept(store, "fg") == "g"


async def test_a_job_without_events_counts_with_its_state_only(opened: Any) -> None:
    async with opened(replace(ROOMY, max_retained_bytes=4_000)) as (store, clock):
        for name in "ab":
            await store.jobs.expire(clock.now)
            writer = await Writer(name, at=clock.now).add(store)
            await writer.write("x" * 1000)
            await writer.end(clock)
            clock.now += RETENTION.log_ttl
        clock.now -= 1
        await store.jobs.expire(clock.now)
        assert await kept(store, "ab") == "ab"


async def test_a_running_job_and_its_key_never_expire(opened: Any) -> None:
    async with opened() as (store, clock):
        key = Key("ada", "e", "k")
        writer = await add_job(store, "a", clock, ended=False, key=key)
        await store.jobs.expire(1e9)
        assert await store.jobs.expire(1e9) is None
        assert await store.jobs.get("a") is writer.record
        assert (await store.jobs.find_key(key)).job == "a"
        assert await store.jobs.unfinished("ada") == 1
        assert await store.jobs.unfinished("bob") == 0
        await store.jobs.delete_job("a")
        assert await store.jobs.find_key(key) is None


async def test_ended_jobs_tombstones_and_keys_are_bounded(opened: Any) -> None:
    async with opened() as (store, clock):
        jobs = store.jobs
        for number in range(7):
            await add_job(store, f"j{number}", clock, key=Key("ada", "e", f"k{number}"))
            await jobs.expire(clock.now)
        kinds = [type(await jobs.get(f"j{number}")) for number in range(7)]
        assert kinds == [type(None)] * 2 + [Tombstone] * 2 + [JobRecord] * 3
        assert (await jobs.find_key(Key("ada", "e", "k6"))).job == "j6"
        assert await jobs.find_key(Key("ada", "e", "k0")) is None
        assert await jobs.unfinished("ada") == 0


async def test_deleted_jobs_do_not_delay_the_next_expiry(opened: Any) -> None:
    async with opened() as (store, clock):
        for number in range(7):
            await add_job(store, f"j{number}", clock)
        await store.jobs.expire(clock.now)
        for job in ("j4", "j5", "j6"):
            await store.jobs.delete_job(job)
        assert await store.jobs.expire(clock.now) == clock.now + RETENTION.tombstone_ttl


@pytest.mark.heavy
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("asked_before", [False, True])
async def test_an_open_log_of_a_deleted_job_stays_readable_but_refuses_appends(
    opened: Any,
    ended: bool,
    asked_before: bool,
) -> None:
    async with opened() as (store, clock):
        writer = await add_job(store, "a", clock, ended=False)
        await writer.write("text")
        if ended:
            await writer.end(clock)
            writer.log = None
            gc.collect()
        log = await store.jobs.log("a")
        if asked_before:
            await log.state()
        await store.jobs.delete_job("a")
        assert (await log.state()).view.value() == writer.states[2]
        assert (await log.read(Cursor(1, 2), 100)).frames == (writer.frames[2] if ended else b"")
        with pytest.raises(HeadMovedError):
            await log.append(Cursor(1, 2), Block([b"id:1-3\ndata:1\n\n"], writer.at()))
        assert await store.jobs.unfinished("ada") == 0
        assert await store.jobs.log("a") is None


async def test_jobs_of_a_principal_are_listed_in_pages_newest_first(opened: Any) -> None:
    async with opened(ROOMY) as (store, clock):
        for number in range(6):
            await add_job(store, f"j{number}", clock, ended=number % 2 == 0)
        await Writer("x", "bob").add(store)

        async def page(before: str | None, limit: int = 2, by: str = "ada") -> list[str]:
            found = await store.jobs.list(by, before=before, limit=limit)
            for record, extent in found:
                assert extent == (await store.jobs.log(record.id)).extent()
            return [record.id for record, _ in found]

        assert await page(None) == ["j5", "j4"]
        assert await page("j4", 3) == ["j3", "j2", "j1"]
        assert await page("j0") == []
        assert await page("j5", by="bob") == ["x"]
        await store.jobs.delete_job("j4")
        assert await page("j5") == ["j3", "j2"]
        statuses = [each.status for each, _ in await store.jobs.list("ada", before=None, limit=9)]
        assert statuses == ["queued", "queued", "succeeded", "queued", "succeeded"]


async def test_changes_of_a_job_record_are_stored(opened: Any) -> None:
    async with opened(ROOMY) as (store, clock):
        writer = await Writer().add(store)
        writer.record.started_at, writer.record.status, writer.record.attempt = 1001.5, "running", 2
        writer.record.usage["tokens"] = 7
        await writer.write("x")
        await writer.end(clock)
        found = await store.jobs.get("a")
        assert found == writer.record
        assert (found.started_at, found.attempt, found.usage, found.done.status) == (
            1001.5,
            2,
            {"tokens": 7},
            "succeeded",
        )


async def test_save_cancelled_reports_whether_the_job_is_unfinished_and_changes_no_record(
    opened: Any,
) -> None:
    async with opened() as (store, clock):
        writer = await Writer().add(store)
        assert await store.jobs.save_cancelled("a", [0]) is True
        assert await store.jobs.save_cancelled("a", []) is True
        assert await store.jobs.save_cancelled("unknown", [0]) is False
        assert await store.jobs.get("a") == writer.record
        await writer.end(clock)
        assert await store.jobs.save_cancelled("a", [0]) is False
        assert await store.jobs.get("a") == writer.record
        await store.jobs.delete_job("a")
        assert await store.jobs.save_cancelled("a", [0]) is False


async def test_a_log_in_use_is_the_object_that_readers_and_the_writer_share(opened: Any) -> None:
    async with opened() as (store, clock):
        assert store.jobs.log_in_use("a") is None
        writer = await Writer().add(store)
        assert store.jobs.log_in_use("a") is await store.jobs.log("a")
        await writer.end(clock)
        log = await store.jobs.log("a")
        assert store.jobs.log_in_use("a") is log


# ---- equivalence of the implementations -------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in range(1, 4))])
@pytest.mark.parametrize("other", PARAMS[1:])
async def test_random_operations_give_equal_results_in_all_implementations(
    request: pytest.FixtureRequest, tmp_path: Path, other: str, seed: int
) -> None:
    prepare(request, other)
    clock = Clock()
    retention = replace(ROOMY, max_retained_jobs=8, max_log_bytes=3000)
    stores = [STORES[kind](tmp_path, retention) for kind in ("memory", other)]
    for store in stores:
        store.jobs._clock = clock
    draw = random.Random(seed)
    writers: list[list[Writer]] = []
    try:
        for step in range(250):
            live = [each for each in writers if each[0].record.ended_at is None]
            name = f"j{draw.randrange(max(1, len(writers)))}"
            key = Key("ada", "e", f"k{draw.randrange(12)}")
            action = draw.randrange(9)
            if action <= 1 or not live:
                at = len(writers)
                uses = [await store.jobs.find_key(key) for store in stores]
                assert all(use == uses[0] for use in uses)
                own = None if uses[0] is not None else key
                principal = draw.choice(["ada", "bob"])
                add_job = [await Writer(f"j{at}", principal, clock.now).add(store, own) for store in stores]
                writers.append(add_job)
            elif action <= 4:
                texts = ["é" * draw.choice([1, 5, 700]) for _ in range(draw.randrange(1, 4))]
                for writer in draw.choice(live):
                    await writer.write(*texts)
            elif action == 5:
                for writer in draw.choice(live):
                    await writer.reopen(writer.head.epoch + step + 2)
            elif action == 6:
                clock.now += 0.25
                for store, writer in zip(stores, draw.choice(live), strict=True):
                    await writer.end(clock)
                    await store.jobs.expire(clock.now)
            elif action == 7:
                clock.now += draw.choice([1, 9, 21])
                for store in stores:
                    await store.jobs.expire(clock.now)
                    await store.jobs.expire(clock.now)
                assert len({await store.jobs.expire(clock.now) for store in stores}) == 1
            elif draw.random() < 0.4:
                for each, store in enumerate(stores):
                    await store.jobs.delete_job(name)
                    if name[1:].isdigit() and int(name[1:]) < len(writers):
                        writers[int(name[1:])][each].record.ended_at = -1.0
            records = [await store.jobs.get(name) for store in stores]
            assert all(record == records[0] for record in records)
            for principal in ("ada", "bob"):
                pages = [await each.jobs.list(principal, before=name, limit=5) for each in stores]
                records = [[record for record, _ in page] for page in pages]
                assert all(page == records[0] for page in records)
                assert len({await each.jobs.unfinished(principal) for each in stores}) == 1
            logs = [await store.jobs.log(name) for store in stores]
            assert len({log is None for log in logs}) == 1
            if logs[0] is not None:
                extents = [log.extent() for log in logs]
                assert len({(extent.head, *extent[2:]) for extent in extents}) == 1
                # Implementations may trim at different positions. Events that both keep must be equal.
                base = max(extent.base for extent in extents)
                texts_ = [await everything(log, base, draw.choice([1, 500, 10**6])) for log in logs]
                assert len(set(texts_)) == 1
                states = [await log.state() for log in logs]
                assert len({state.cursor for state in states}) == 1
                assert all(state.view.value() == states[0].view.value() for state in states)
    finally:
        for store in stores:
            await store.close()
