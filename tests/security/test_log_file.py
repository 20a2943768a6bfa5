"""Attacks on the log file: other users, a second server, a removed or damaged file, and files of older versions."""

import asyncio
import contextlib
import os
import resource
import signal
import sqlite3
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from support.killable_server import killed_server
from support.reference_server import eventually
from support.store_log_writer import ROOMY, Clock, Writer
from tidewire_server.commands.compact import compact
from tidewire_server.store.records import Tombstone
from tidewire_server.store.sqlite.sqlite_file import APPLICATION_ID, MIGRATIONS, MIN_FREE_PAGES, explain
from tidewire_server.store.sqlite.sqlite_store import SqliteStore
from tidewire_server.store.store_errors import StoreError


@contextlib.contextmanager
def opened(path: Path) -> Any:
    store = SqliteStore(path, ROOMY)
    try:
        yield store
    finally:
        asyncio.run(store.close())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---- other users --------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_the_files(tmp_path):
    before = os.umask(0o022)
    try:
        with opened(tmp_path / "log.db"):
            modes = {each.name: mode_of(each) for each in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(["log.db", "log.db-owner", "log.db-shm", "log.db-wal"], 0o600)


def test_a_file_or_folder_that_other_users_can_access_is_reported(tmp_path, caplog):
    path = tmp_path / "log.db"
    with opened(path):
        pass
    assert not caplog.records
    path.chmod(0o640)
    tmp_path.chmod(0o770)
    with opened(path):
        pass
    tmp_path.chmod(0o1777)  # In a folder such as /tmp, other users cannot replace the file.
    with opened(path):
        pass
    found = [record.message for record in caplog.records]
    assert [f"chmod 600 {path}*" in each for each in found] == [False, True, True]
    assert f"chmod go-w {tmp_path}" in found[0]


# ---- a second server ----------------------------------------------------------------------------------------------


def test_a_symbolic_link_leads_to_the_same_lock(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere/link.db"
    link.symlink_to(tmp_path / "log.db")
    with opened(link), pytest.raises(StoreError, match="another server is using this file"):
        SqliteStore(tmp_path / "log.db", ROOMY)
    assert (tmp_path / "log.db").is_file()


def test_a_file_with_a_hard_link_is_refused(tmp_path):
    with opened(tmp_path / "log.db"):
        os.link(tmp_path / "log.db", tmp_path / "other.db")
        with pytest.raises(StoreError, match="2 names"):
            SqliteStore(tmp_path / "other.db", ROOMY)


def test_a_forked_child_keeps_neither_the_lock_nor_the_port_of_a_killed_server():
    with killed_server() as server:
        forked = server.submit("fork", input={}).json()["id"]
        child = server.ended(forked)["state"]["items"][0]["value"]
        try:
            server.again()
            os.kill(child, 0)  # The child is still running.
            assert server.job(forked)["status"] == "succeeded"
        finally:
            os.kill(child, signal.SIGKILL)


# ---- a removed, replaced or damaged file --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.db", "log.db-owner"])
@pytest.mark.parametrize("replaced", [False, True])
def test_a_server_whose_file_is_gone_is_not_ready_and_refuses_jobs(replaced, name):
    """Without the lock file, a second server could use the log, too."""
    with killed_server() as server:
        file = server.folder / name
        ended = server.submit("shout", input={"text": "a"}).json()["id"]
        server.ended(ended)
        file.rename(server.folder / "moved.db")
        if replaced:
            file.touch()
        eventually(lambda: server.http.get("/readyz").status_code == 503, within=30)
        refused = server.submit("shout", input={"text": "a"})
        assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
        assert server.job(ended)["status"] == "succeeded"
        (server.folder / "moved.db").rename(file)
        eventually(lambda: server.http.get("/readyz").status_code == 200, within=30)
        assert server.submit("shout", input={"text": "a"}).status_code == 201
        assert server.errors().count("\n") == 1
        assert "removed or replaced while the server was running" in server.errors()


def test_a_start_on_a_full_disk_is_refused_with_the_reason(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"log.db: disk I/O error; a disk quota or .*ulimit -f"):
            SqliteStore(tmp_path / "log.db", ROOMY)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


DAMAGE = [
    "UPDATE state SET state = x'7b22ff' WHERE job = ?",
    "UPDATE state SET state = '[]' WHERE job = ?",
    "UPDATE state SET columns = x'ff' WHERE job = ?",
    "UPDATE job SET done = x'ff' WHERE number = ?",
    "UPDATE job SET usage = 'x' WHERE number = ?",
    "UPDATE block SET ends = x'ff' WHERE job = ?",
    "UPDATE block SET frames = 5 WHERE job = ?",
]


def test_a_damaged_row_is_unavailable_and_takes_one_line_of_the_log():
    with killed_server() as server:
        jobs = [server.submit("shout", input={"text": "a"}).json()["id"] for _ in range(len(DAMAGE) + 1)]
        for job in jobs:
            server.ended(job)
        server.stop()
        with contextlib.closing(sqlite3.connect(server.log)) as file, file:
            for number, damage in enumerate(DAMAGE, 1):
                file.execute(damage, (number,))
        server.start()
        for job, damage in zip(jobs, DAMAGE, strict=False):
            before = server.errors().count("\n")
            if "block" in damage:
                server.http.get(f"/v1/jobs/{job}/events", headers={"last-event-id": "0-0"})
            else:
                refused = server.http.get(f"/v1/jobs/{job}")
                assert (refused.status_code, refused.json()["code"]) == (503, "unavailable"), damage
            assert server.errors().count("\n") == before + 1, damage
        assert "Traceback" not in server.errors()
        assert server.errors().count("damaged") == len(DAMAGE)
        assert server.job(jobs[-1])["status"] == "succeeded"
        assert server.submit("shout", input={"text": "a"}).status_code == 201


def test_random_bytes_in_the_file_never_cause_an_internal_error(tmp_path):
    with killed_server() as server:
        jobs = [server.submit("shout", input={"text": "a" * 3000}).json()["id"] for _ in range(6)]
        for job in jobs:
            server.ended(job)
        server.stop()
        raw = bytearray(server.log.read_bytes())
        place = (
            raw.index(b"A" * 1000) // 4096 * 4096
        )  # the page of an event, which is not read when the file is opened
        raw[place : place + 6000] = bytes(range(256)) * 23 + bytes(112)
        server.log.write_bytes(raw)
        server.start()
        statuses = {server.http.get(f"/v1/jobs/{job}").status_code for job in jobs}
        assert statuses <= {200, 404, 503}
        assert "Traceback" not in server.errors()


def test_a_damaged_name_in_the_schema_is_reported_in_one_line(tmp_path):
    path = tmp_path / "log.db"
    with opened(path):
        pass
    content = path.read_bytes()
    for intact, damaged in (
        (b"tablejobjob", b"table\xff\nbjob"),
        (b"CREATE TABLE job (", b"CREATE TABL\x1b job ("),
    ):
        assert intact in content
        content = content.replace(intact, damaged)
    path.write_bytes(content)
    message = f"log {path}: malformed database schema (\ufffd?b) - near"
    with pytest.raises(StoreError) as refused, opened(path):
        pass
    compacted = CliRunner().invoke(compact, [str(path)])
    for found in (str(refused.value), compacted.stderr.removeprefix("tidewire compact: ").rstrip("\n")):
        assert found.startswith(message), found
        assert found.endswith("the file is damaged; restore a backup, or use a different file"), found
        assert found.isprintable()


def test_a_damaged_text_in_a_row_is_explained_with_advice(tmp_path):
    with contextlib.closing(sqlite3.connect(":memory:")) as db, pytest.raises(sqlite3.Error) as undecodable:
        db.execute("SELECT CAST(x'ff' AS TEXT)").fetchone()
    assert explain(tmp_path, undecodable.value).endswith(
        "; the file is damaged; restore a backup, or use a different file"
    )


async def test_a_damaged_job_does_not_stop_the_deletion_of_others(tmp_path):
    store, clock = SqliteStore(tmp_path / "log.db", ROOMY), Clock()
    await fill(store, clock, 3)
    await store._file.do(lambda db: db.execute("DELETE FROM block WHERE job = 1") and None)
    clock.now += 1000
    await store.jobs.expire(clock.now)
    found = [await store.jobs.get(f"j{number}") for number in range(3)]
    assert found == [Tombstone(f"j{number}", "ada") for number in range(3)]
    await store.close()


# ---- size and older formats ---------------------------------------------------------------------------------------


async def fill(store: SqliteStore, clock: Clock, jobs: int) -> None:
    store.jobs._clock = clock
    for number in range(jobs):
        writer = await Writer(f"j{number}").add(store)
        await writer.write("x" * 200_000)
        await writer.end(clock)


async def test_a_file_shrinks_in_steps_after_its_jobs_have_expired(tmp_path):
    store, clock = SqliteStore(tmp_path / "log.db", ROOMY), Clock()
    await fill(store, clock, 40)
    before = await store._file.do(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    now = clock.now + 1000
    steps = 0
    while await store.jobs.expire(now) == now:
        steps += 1
    after = await store._file.do(lambda db: db.execute("PRAGMA page_count").fetchone()[0])
    assert after <= MIN_FREE_PAGES + 60 < before
    assert steps > 4
    await store.close()
    assert (tmp_path / "log.db").stat().st_size == after * 4096


def test_compact_shrinks_an_old_file_and_lets_it_shrink_later(tmp_path):
    path = tmp_path / "log.db"

    async def body() -> None:
        store, clock = SqliteStore(path, ROOMY), Clock()
        await fill(store, clock, 20)
        await store.jobs.expire(clock.now + 1000)
        await store.close()

    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            f"PRAGMA application_id = {APPLICATION_ID}; {MIGRATIONS[0]} PRAGMA user_version = 1;"
        )
    asyncio.run(body())
    before = path.stat().st_size
    found = CliRunner().invoke(compact, [f"sqlite:///{path}"])
    assert found.exit_code == 0
    after = path.stat().st_size
    assert found.stdout == f"{path}: {before:,} bytes before, {after:,} bytes after\n"
    assert after < before // 4
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)
    with opened(path) as store:
        assert not store.may_have_lost


def test_compact_refuses_a_file_in_use_and_other_files(tmp_path):
    path, text = tmp_path / "log.db", tmp_path / "text"
    text.write_text("not a database " * 100)
    with opened(path):
        refused = CliRunner().invoke(compact, [str(path)])
        assert (refused.exit_code, "another server is using this file" in refused.output) == (1, True)
    for log, code, why in [
        (tmp_path / "none.db", 1, "does not exist"),
        (text, 1, "not a database"),
        ("memory", 2, "has no file"),
        ("sqlite://x", 2, "not a valid log"),
        ("postgresql://ann:sesame@db/x", 2, "the log postgresql://ann:***@db/x has no file; name a file"),
    ]:
        refused = CliRunner().invoke(compact, [str(log)])
        assert (refused.exit_code, why in refused.output) == (code, True), refused.output
        assert refused.stderr.startswith("tidewire compact: ")


def test_a_copy_of_the_file_is_kept_before_its_migration(tmp_path):
    path = tmp_path / "log.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            f"{MIGRATIONS[0]} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;"
            "INSERT INTO tombstone (id, principal, until) VALUES ('gone', 'ada', 4e9);"
        )
    with opened(path):
        pass
    copy = tmp_path / "log.db-format1"
    assert mode_of(copy) == 0o600
    with contextlib.closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
        assert db.execute("SELECT id FROM tombstone").fetchall() == [("gone",)]
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    written = copy.stat().st_mtime_ns
    with opened(path) as store:
        assert isinstance(asyncio.run(store.jobs.get("gone")), Tombstone)
    assert copy.stat().st_mtime_ns == written  # The file needs no second migration.


# ---- transactions with several tasks ------------------------------------------------------------------------------


async def test_a_read_succeeds_in_a_transaction_that_a_full_disk_fails(tmp_path):
    store = SqliteStore(tmp_path / "log.db", ROOMY)
    writer = await Writer().add(store)
    await store._file.do(lambda db: db.execute("PRAGMA max_page_count = 40").fetchone())

    arrived = threading.Event()

    def hold(_: Any) -> None:
        arrived.wait(30)  # The next three tasks arrive meanwhile, so they share a transaction.

    first = asyncio.ensure_future(store._file.do(hold))
    read = asyncio.ensure_future(store.jobs.get("unknown"))
    write = asyncio.ensure_future(writer.write("x" * 500_000))
    again = asyncio.ensure_future(store.jobs.log("unknown"))
    # Each of the four tasks enters the queue in its first step, and these steps run before this callback.
    asyncio.get_running_loop().call_soon(arrived.set)
    await asyncio.wait([first, read, write, again])
    assert (read.result(), again.result()) == (None, None)
    with pytest.raises(StoreError, match="free some space"):
        write.result()
    await store.close()
