"""The SQLite store: reopening a file, foreign writes, lost tails and full disks."""

import asyncio
import contextlib
import gc
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.reference_server import serving
from support.store_log_writer import ROOMY, Clock, Writer, everything
from tidewire.protocol.cursor import Cursor
from tidewire_server import Server
from tidewire_server.store import sqlite as store_sqlite
from tidewire_server.store.database.block_rows import ROW_BYTES
from tidewire_server.store.database.cached_log import TAIL_BYTES
from tidewire_server.store.database.state_checkpoints import CHECKPOINT_EVERY
from tidewire_server.store.database.thread_tasks import TaskQueue
from tidewire_server.store.database.write_probe import PROBE_INTERVAL
from tidewire_server.store.records import JobRecord, Key, QueueLimits, Tombstone
from tidewire_server.store.sqlite.sqlite_file import APPLICATION_ID, MIGRATIONS
from tidewire_server.store.sqlite.sqlite_store import SqliteStore
from tidewire_server.store.store_errors import HeadMovedError, QueueFullError, StoreError, TooManyJobsError
from tidewire_server.user_paths import file_of

LARGE = replace(ROOMY, max_log_bytes=64 * CHECKPOINT_EVERY)


def opened(folder: Path, *, fsync: bool = False, **retention: int) -> SqliteStore:
    return SqliteStore(folder / "log.db", replace(LARGE, **retention), fsync=fsync)


async def count_rows(store: SqliteStore, table: str) -> int:
    found: int = await store._file.do(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    return found


async def test_a_file_of_the_first_format_is_migrated_with_its_content(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "log.db")) as db, db:
        db.executescript(
            f"{MIGRATIONS[0]} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;"
            "INSERT INTO tombstone (id, principal, until) VALUES ('gone', 'ada', 4e9);"
        )
    store = opened(tmp_path)
    first = store.secret
    assert isinstance(await store.jobs.get("gone"), Tombstone)
    await store.close()
    store = opened(tmp_path)
    assert store.secret == first
    await store.close()


async def test_interrupted_jobs_are_reopened_at_their_head(tmp_path):
    store, clock = opened(tmp_path), Clock()
    assert not store.may_have_lost
    writers = [await Writer(name).add(store, submit=name.encode()) for name in "abc"]
    for size in (3, 90_000, 30_000, 5):
        await writers[1].write("x" * size, "é", "z" * size)
    await writers[1].reopen(77)
    writers[1].record.attempt = 2
    await writers[1].write("more")
    await writers[2].end(clock)
    await store.close(clean=False)
    store = opened(tmp_path)
    assert store.may_have_lost
    assert await store.jobs.adopt({"e"}) == ("a", "b")
    assert await store.jobs.unfinished("ada") == 2
    left = await store.jobs.reopen("b")
    assert (left.submit, left.record.attempt, left.crashed) == (b"b", 2, True)
    assert left.log.extent() == writers[1].log.extent()
    assert (await left.log.state()).view.value() == writers[1].document.value()
    writers[1].log = left.log
    await writers[1].write("and more")
    assert await everything(left.log, Cursor(1, 0), 5000) == b"".join(writers[1].frames)
    assert await store.jobs.adopt({"e"}) == ("a",)
    assert await store.jobs.reopen("b") is None
    await writers[1].end(clock)
    assert await store.jobs.unfinished("ada") == 1
    await store.close()
    store = opened(tmp_path)
    assert not store.may_have_lost
    assert not (await store.jobs.reopen("a")).crashed
    await store.close(clean=False)
    store = opened(tmp_path, fsync=True)
    assert store.may_have_lost
    assert (await store.jobs.reopen("a")).crashed
    await store.close()


async def test_a_reopened_file_keeps_count_of_the_bytes_of_ended_jobs(tmp_path):
    store, clock = opened(tmp_path, max_retained_bytes=10_000), Clock()
    for name in "abc":
        writer = await Writer(name).add(store)
        await writer.write("x" * 1000)
        await writer.end(clock)
    await store.close()
    store = opened(tmp_path, max_retained_bytes=5_000)
    await store.jobs.expire(clock.now)
    kept = [name for name in "abc" if isinstance(await store.jobs.get(name), JobRecord)]
    await store.close()
    assert kept == ["b", "c"]


async def test_a_reopened_job_has_the_items_that_were_cancelled(tmp_path):
    store, clock = opened(tmp_path), Clock()
    writers = [await Writer(name).add(store) for name in "abcd"]
    await asyncio.gather(store.jobs.save_cancelled("a", [2]), store.jobs.save_cancelled("a", [0, 2]))
    await store.jobs.save_cancelled("b", [])
    # The end of a job that is cancelled at the same time must not be overwritten.
    await asyncio.gather(writers[3].end(clock), store.jobs.save_cancelled("d", [0]))
    await store.close(clean=False)
    store = opened(tmp_path)
    for name, cancelled in [("a", {0, 2}), ("b", set()), ("c", set())]:
        left = await store.jobs.reopen(name)
        assert (left.cancelled, left.record.status) == (cancelled, "queued")
    await store.jobs.save_cancelled("a", [1])
    await store.close(clean=False)
    store = opened(tmp_path)
    assert (await store.jobs.reopen("a")).cancelled == {0, 1, 2}
    ended = await store.jobs.get("d")
    assert (ended.status, ended.done.status) == ("succeeded", "succeeded")
    await store.close()


async def test_an_append_behind_the_head_in_the_file_is_refused(tmp_path):
    store = opened(tmp_path)
    writer = await Writer().add(store)
    await store._file.do(
        lambda db: db.execute("INSERT INTO block VALUES (1, 2, 1, 0, x'00', x'00')") and None
    )
    with pytest.raises(HeadMovedError):
        await writer.write("x")
    assert await count_rows(store, "block") == 2
    await store.close()


async def test_a_successful_test_write_counts_for_an_interval_and_a_failed_one_not_at_all(tmp_path):
    async def tried(store: SqliteStore) -> int:
        return await store._file.do(lambda db: db.execute("SELECT tried FROM server").fetchone()[0])

    clock = Clock()
    store = SqliteStore(tmp_path / "log.db", LARGE, clock=clock)
    await asyncio.gather(*[store.check() for _ in range(10)])
    assert await tried(store) == 1
    clock.now += PROBE_INTERVAL - 0.01
    await store.check()
    assert await tried(store) == 1
    clock.now += 0.01
    await store.check()
    assert await tried(store) == 2
    # A failed transaction ends the interval. After a failed test write, each call tries again. The writer thread has logged it.
    await store._file.do(lambda db: db.execute("ALTER TABLE server RENAME TO hidden").fetchone())
    await store.check()
    with pytest.raises(StoreError, match="syntax"):
        await store._file.do(lambda db: db.execute("nonsense").fetchone())
    refused = await asyncio.gather(*[store.check() for _ in range(3)], return_exceptions=True)
    refused += await asyncio.gather(store.check(), return_exceptions=True)
    assert [str(each).count("no such table: server") for each in refused] == [1] * 4
    assert [each.logged for each in refused] == [True] * 4
    await store._file.do(lambda db: db.execute("ALTER TABLE hidden RENAME TO server").fetchone())
    await store.check()
    assert await tried(store) == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "log.db",
        "log.db-owner",
        "log.db-shm",
        "log.db-wal",
    ]
    clock.now += PROBE_INTERVAL
    pending = asyncio.ensure_future(store.check())
    await asyncio.sleep(0)
    await store.close()
    await pending


async def test_a_retried_append_is_stored_once(tmp_path):
    store = opened(tmp_path)
    writer = await Writer().add(store)
    log = writer.log
    added, log._added = (
        log._added,
        lambda *_: None,
    )  # Simulate a commit that succeeds without a confirmation to the writer.
    await writer.write("x" * ROW_BYTES, "y" * ROW_BYTES)
    log._added = added
    block = (await log.state()).cursor
    assert block == Cursor(1, 1)
    writer.document, writer.head = type(writer.document)(writer.states[1], ["/text"]), Cursor(1, 1)
    del writer.frames[1:]
    await writer.write("x" * ROW_BYTES, "y" * ROW_BYTES)
    assert await everything(log, Cursor(1, 0)) == b"".join(writer.frames)
    assert await count_rows(store, "block") == 3
    await store.close()


async def test_a_failed_append_on_a_full_disk_changes_nothing_and_can_be_retried(tmp_path):
    store, key = opened(tmp_path), Key("ada", "e", "k")
    writer = await Writer().add(store)
    await store._file.do(lambda db: db.execute("PRAGMA max_page_count = 40").fetchone())
    before = writer.log.extent()
    with pytest.raises(StoreError, match="free some space on the disk"):
        await writer.write("x" * 500_000)
    assert writer.log.extent() == before
    with pytest.raises(StoreError):
        await Writer("b").add(store, key, b"x" * 500_000)
    assert await store.jobs.get("b") is None
    assert await store.jobs.find_key(key) is None
    await store._file.do(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone())
    await store.check()
    writer.document, writer.head = type(writer.document)(writer.states[1], ["/text"]), Cursor(1, 1)
    await writer.write("x" * 500_000)
    await store.close()


async def test_a_full_disk_is_one_line_of_the_log_and_not_one_for_each_request(tmp_path, caplog):
    store = opened(tmp_path)
    await store._file.do(lambda db: db.execute("PRAGMA max_page_count = 40").fetchone())
    for number in range(5):
        with pytest.raises(StoreError) as refused:
            await Writer(f"j{number}").add(store, submit=b"x" * 500_000)
        assert refused.value.logged
    await store.close()
    (line,) = caplog.messages
    assert line.startswith(f"a transaction failed: log {tmp_path}")
    assert "free some space on the disk" in line


async def test_a_job_is_owned_and_queued_although_its_caller_was_cancelled_during_the_commit(tmp_path):
    store, writer = opened(tmp_path), Writer("a")
    adding = asyncio.create_task(writer.add(store, items=1))
    await asyncio.sleep(0)
    adding.cancel()
    await asyncio.wait([adding])
    assert adding.cancelled()
    await store.check()  # a later commit
    assert writer.log is store.jobs.log_in_use("a")
    assert await store.queue.take("e") == writer.entries(1)
    await store.close()


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_job_whose_commit_fails_takes_no_place_in_the_queue(tmp_path, cancelled):
    store, limits = opened(tmp_path), QueueLimits(2, 2, 1)
    await store._file.do(lambda db: db.execute("PRAGMA max_page_count = 40").fetchone())
    adding = asyncio.create_task(Writer("a").add(store, submit=b"x" * 500_000, items=2, limits=limits))
    await asyncio.sleep(0)
    with pytest.raises(TooManyJobsError):
        await Writer("b").add(store, items=2, limits=limits)
    with pytest.raises(QueueFullError):
        await Writer("b", "bob").add(store, items=1, limits=limits)
    if cancelled:
        adding.cancel()
    with pytest.raises(asyncio.CancelledError if cancelled else StoreError):
        await adding
    await store._file.do(lambda db: db.execute("PRAGMA max_page_count = 100000").fetchone())
    await Writer("b").add(store, items=2, limits=limits)
    assert store.queue.size("e") == 2
    await store.close()


async def test_only_running_jobs_and_log_tails_are_in_memory(tmp_path):
    store, clock = opened(tmp_path), Clock()
    for number in range(50):
        writer = await Writer(f"j{number}").add(store)
        await writer.end(clock)
    writer = await Writer("live").add(store)
    for _ in range(20):
        await writer.write("x" * 50_000)
    tail = writer.log._tail
    assert TAIL_BYTES // 2 - 60_000 <= tail.size <= TAIL_BYTES
    assert await everything(writer.log, Cursor(1, 0), 70_000) == b"".join(writer.frames)
    del writer
    gc.collect()
    assert (list(store.jobs._live), len(store.jobs._shared_logs)) == (["live"], 0)
    await store.close()


@pytest.mark.parametrize(("size", "repetitions"), [(20, 400), (3000, 40), (2 * CHECKPOINT_EVERY, 3)])
async def test_states_take_less_space_than_twice_the_events(tmp_path, size, repetitions):
    store = opened(tmp_path)
    writer = await Writer().add(store)
    for _ in range(repetitions):
        await writer.write("x" * size)
    query = "SELECT sum(length(state)) FROM state"
    states = await store._file.do(lambda db: db.execute(query).fetchone()[0])
    written = len(b"".join(writer.frames))
    assert states <= 2 * written + 1000
    await store.close()


async def test_appends_of_many_jobs_share_a_commit(tmp_path):
    store = opened(tmp_path)
    writers = [await Writer(f"j{number}").add(store) for number in range(40)]
    commits = 0
    transact: Callable[..., None] = store._file._transact

    def counted(*args: Any) -> None:
        nonlocal commits
        commits += 1
        transact(*args)

    store._file._transact = counted
    await asyncio.gather(*(writer.write("x") for writer in writers))
    assert commits <= 3
    await store.close()


@pytest.mark.parametrize(
    "name", ["sqlite://", "sqlite:///", "sqlite:/log.db", "mysql://x", "", "log.db", "Memory"]
)
def test_an_invalid_log_url_is_refused(name):
    with pytest.raises(ValueError, match="is not a valid log"):
        file_of(name)


def test_log_urls_follow_sqlalchemy_conventions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert file_of("memory") is None
    assert file_of("sqlite:///log.db") == tmp_path / "log.db"
    assert file_of("sqlite:////var/log.db") == Path("/var/log.db")


def test_statements_have_no_numbered_placeholders():
    """With `?1` and a sequence of values, Python 3.12 warns, and Python 3.14 raises an error. Python 3.11 does neither."""
    folder = Path(store_sqlite.__file__).parent
    texts = {path.name: path.read_text() for path in folder.glob("*.py")}
    assert any("?" in text for text in texts.values())
    assert [name for name, text in texts.items() if re.search(r"\?\d", text)] == []


def test_the_list_of_jobs_takes_one_transaction(tmp_path, monkeypatch):
    """Each job of the list was read in a transaction of its own, so that a long list took seconds on a busy machine."""
    groups = []
    original = TaskQueue.next

    def count(queue, timeout=None):
        found = original(queue, timeout)
        groups.extend(found[:1] if found[0] else [])
        return found

    server = Server(log=f"sqlite:///{tmp_path}/log.db")

    @server.endpoint
    async def double(n: int) -> int:
        return 2 * n

    with serving(server) as peer:
        jobs = [peer.start("double", {"n": number}) for number in range(60)]
        for job in jobs:
            peer.ended(job)
        monkeypatch.setattr(TaskQueue, "next", count)
        assert [each["id"] for each in peer.http.get("/v1/jobs?limit=60").json()["jobs"]] == jobs[::-1]
    assert len(groups) <= 1  # not counted if the thread waited for it before `count` was set
