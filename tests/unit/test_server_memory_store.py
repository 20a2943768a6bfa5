import asyncio
from typing import Any

import pytest

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire_server.store.base import (
    Block,
    HeadMovedError,
    JobRecord,
    Key,
    Retention,
    StateAt,
    Tombstone,
)
from tidewire_server.store.memory import MARKS, MemoryJobs, MemoryLog

RETENTION = Retention(
    log_ttl=10,
    state_ttl=20,
    tombstone_ttl=30,
    idempotency_ttl=40,
    max_retained_jobs=3,
    max_tombstones=2,
    max_log_bytes=800,
)


def block(first: int, *frames: bytes, done: bool = False) -> Block:
    last = first + len(frames) - 1
    document = Document({"at": last})
    return Block(list(frames), StateAt(Cursor(1, last - done), (), document.view()), done)


def frame(seq: int, size: int = 10) -> bytes:
    return b"%d:" % seq + b"." * (size - len(b"%d:" % seq))


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_events_are_read_from_any_place_in_whole_frames():
    async def body() -> None:
        log = MemoryLog(block(1, frame(1)), 10_000)
        await log.append(Cursor(1, 1), block(2, frame(2), frame(3), frame(4)))
        await log.append(Cursor(1, 4), block(5, frame(5), done=True))
        for after in range(5):
            chunk = await log.read(Cursor(1, after), 10_000)
            assert chunk.frames == b"".join(frame(seq) for seq in range(after + 1, 6))
            assert (chunk.last, chunk.ended) == (Cursor(1, 5), True)
        bounded = await log.read(Cursor(1, 1), 25)
        assert (bounded.frames, bounded.last, bounded.ended) == (frame(2) + frame(3), Cursor(1, 3), False)
        one = await log.read(Cursor(1, 1), 1)
        assert one.frames == frame(2)
        nothing = await log.read(Cursor(1, 5), 10)
        assert (nothing.frames, nothing.last) == (b"", Cursor(1, 5))
        assert (await log.state()).cursor == Cursor(1, 4)

    run(body())


def test_an_append_that_names_another_head_is_refused():
    async def body() -> None:
        log = MemoryLog(block(1, frame(1)), 10_000)
        await log.append(Cursor(1, 1), block(2, frame(2)))
        for after in (Cursor(1, 1), Cursor(1, 3), Cursor(2, 2)):
            with pytest.raises(HeadMovedError):
                await log.append(after, block(3, frame(3)))
        assert log.extent().head == Cursor(1, 2)
        await log.append(Cursor(1, 2), block(3, frame(3), done=True))
        with pytest.raises(HeadMovedError):
            await log.append(Cursor(1, 3), block(4, frame(4)))

    run(body())


def test_a_log_past_its_bound_loses_its_oldest_events_up_to_a_known_state():
    async def body() -> None:
        log = MemoryLog(block(1, frame(1)), 800)
        for seq in range(2, 500):
            await log.append(Cursor(1, seq - 1), block(seq, frame(seq)))
            assert log.size <= 800
        base, head, *_ = log.extent()
        assert head == Cursor(1, 499)
        assert log.size >= 800 - 800 // MARKS - 20
        oldest = await log.state(oldest=True)
        assert oldest.cursor == base
        assert oldest.view.value() == {"at": base.seq}
        chunk = await log.read(base, 10_000)
        assert chunk.frames == b"".join(frame(seq) for seq in range(base.seq + 1, 500))
        assert await log.read(Cursor(1, base.seq - 1), 100) is None
        await log.append(head, block(500, frame(500), done=True))
        log.forget_events()
        assert (await log.read(Cursor(1, 499), 100)).frames == frame(500)
        assert log.extent().base == Cursor(1, 499)

    run(body())


def test_what_is_told_is_the_latest_of_each_kind_and_wakes_who_watches():
    async def body() -> None:
        log = MemoryLog(block(1, frame(1)), 1000)
        woken: list[int] = []
        stop = log.watch(lambda: woken.append(1))
        log.tell("queue", b"q1")
        log.tell("progress-0", b"p1")
        log.tell("queue", b"q2")
        frames, version = log.told(0)
        assert sorted(frames) == [b"p1", b"q2"]
        assert log.told(version) == ([], version)
        log.tell("queue", None)
        assert log.told(0)[0] == [b"p1"]
        assert len(woken) == 3
        await log.append(Cursor(1, 1), block(2, frame(2)))
        assert len(woken) == 4
        stop()
        log.tell("queue", b"q3")
        assert len(woken) == 4

    run(body())


# ---- jobs -----------------------------------------------------------------------------------------------------------


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def jobs() -> tuple[MemoryJobs, Clock]:
    clock = Clock()
    return MemoryJobs(RETENTION, clock), clock


async def made(
    store: MemoryJobs, name: str, clock: Clock, *, ended: bool = True, key: Key | None = None
) -> JobRecord:
    record = JobRecord(name, "e", "ada", batch=False, created_at=clock.now)
    log = await store.add(record, b"", block(1, frame(1)), key)
    if ended:
        await log.append(Cursor(1, 1), block(2, frame(2), done=True))
        record.ended_at, record.expires_at = clock.now, clock.now + RETENTION.state_ttl
        await store.save(record)
    return record


def test_what_is_over_goes_in_steps_each_when_it_is_due():
    async def body() -> None:
        store, clock = jobs()
        key = Key("ada", "e", "k")
        assert await store.reserve(key, b"hash") is None
        await made(store, "a", clock, key=key)
        log = await store.log("a")
        assert await store.expire(1000) == 1010
        assert await store.expire(1010) == 1020
        assert log.extent().base == Cursor(1, 1)
        clock.now = 1020
        assert await store.expire(1020) == 1040
        assert isinstance(await store.get("a"), Tombstone)
        assert await store.log("a") is None
        assert (await store.reserve(key, b"other")).job == "a"
        await store.expire(1040)
        assert (await store.reserve(key, b"other")) is None
        await store.expire(1051)
        assert await store.get("a") is None

    run(body())


def test_a_key_lives_as_long_as_its_job_where_that_lives_longer():
    async def body() -> None:
        store, clock = jobs()
        key = Key("ada", "e", "k")
        assert await store.reserve(key, b"hash") is None
        await made(store, "a", clock, ended=False, key=key)
        await store.expire(1e6)
        assert (await store.reserve(key, b"other")).job == "a"
        await store.bury("a")
        assert await store.reserve(key, b"other") is None

    run(body())


def test_a_running_job_never_expires():
    async def body() -> None:
        store, clock = jobs()
        await made(store, "a", clock, ended=False)
        assert await store.expire(1e12) is None
        assert isinstance(await store.get("a"), JobRecord)
        assert await store.unfinished("ada") == 1
        assert await store.unfinished("bob") == 0

    run(body())


def test_ended_jobs_tombstones_and_keys_are_bounded():
    async def body() -> None:
        store, clock = jobs()
        for number in range(7):
            await made(store, f"j{number}", clock)
            await store.reserve(Key("ada", "e", f"k{number}"), b"")
        kinds = [type(await store.get(f"j{number}")) for number in range(7)]
        assert kinds == [type(None)] * 2 + [Tombstone] * 2 + [JobRecord] * 3
        assert await store.reserve(Key("ada", "e", "k6"), b"") is not None
        assert await store.reserve(Key("ada", "e", "k0"), b"") is None
        assert await store.unfinished("ada") == 0

    run(body())


def test_nothing_is_kept_for_a_job_that_went_before_its_time():
    async def body() -> None:
        store, clock = jobs()
        for number in range(7):
            await made(store, f"j{number}", clock)
        for job in ("j4", "j5", "j6"):
            await store.bury(job)
        assert await store.expire(clock.now) == clock.now + RETENTION.tombstone_ttl

    run(body())


def test_a_purged_log_stays_readable_for_who_holds_it_and_takes_nothing_more():
    async def body() -> None:
        store, clock = jobs()
        record = await made(store, "a", clock, ended=False)
        log: Any = await store.log("a")
        await store.bury(record.id)
        assert (await log.read(Cursor(1, 0), 100)).frames == frame(1)
        with pytest.raises(HeadMovedError):
            await log.append(Cursor(1, 1), block(2, frame(2)))
        assert await store.unfinished("ada") == 0

    run(body())
