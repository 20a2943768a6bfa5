"""Pieces of large events and states in a database: what happens to them when their append, their log or their job ends.

The store contract tests show that the contents are the same as without pieces.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.postgres_server import needs_postgres
from support.store_log_writer import RETENTION, ROOMY, Clock, Writer, everything
from support.stores import STORES, opened_store, prepare
from tidewire.protocol.cursor import Cursor
from tidewire_server.store.database import block_rows
from tidewire_server.store.database.block_rows import PIECE_BYTES, Content
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.store_errors import HeadMovedError, StoreError
from tidewire_server.store.store_interface import Store

LARGE = 3 * PIECE_BYTES + 1
RETAINED = replace(ROOMY, max_log_bytes=20 * PIECE_BYTES)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=needs_postgres)])
def kind(request: pytest.FixtureRequest) -> str:
    prepare(request, request.param)
    return str(request.param)


@pytest.fixture
def opened(kind: str, tmp_path: Path) -> Callable[..., contextlib.AbstractAsyncContextManager[Any]]:
    @contextlib.asynccontextmanager
    async def opening(retention: Any = RETAINED) -> AsyncIterator[tuple[Store, Clock, Callable[..., Any]]]:
        async with opened_store(kind, tmp_path, retention) as (store, clock):

            async def pieces(store: Store = store) -> list[tuple[int, bool]]:
                """Return the members `seq` and `is_state` of all pieces."""
                query = "SELECT seq, is_state FROM piece ORDER BY seq, is_state, number"
                if kind == "sqlite":
                    found = await store.jobs._file.do(lambda db: db.execute(query).fetchall())
                else:
                    found = await store.jobs._logs.threads.reads.run(query)
                return [(seq, bool(is_state)) for seq, is_state in found]

            yield store, clock, pieces

    return opening


def text_of(size: int) -> str:
    return random.Random(size).randbytes(size // 2).hex()


def in_pieces(*places: tuple[int, bool]) -> list[tuple[int, bool]]:
    return [place for place in sorted(places) for _ in range(4)]


@pytest.mark.heavy
async def test_an_event_and_a_state_above_the_limit_are_stored_in_pieces_until_they_are_deleted(
    opened: Any,
) -> None:
    async with opened() as (store, clock, pieces):
        writer = await Writer().add(store)
        await writer.write("x")
        assert await pieces() == []
        await writer.write(text_of(LARGE))
        assert await pieces() == in_pieces((3, False), (3, True))
        await writer.write("y")
        await writer.end(clock)
        assert await pieces() == in_pieces((3, False), (3, True), (4, True))
        again = await store.jobs.log("a")
        assert await everything(again, Cursor(1, 0)) == b"".join(writer.frames)
        assert (await again.state()).view.value() == writer.states[4]

        clock.now += RETENTION.log_ttl + 1
        await store.jobs.expire(clock.now)
        assert await pieces() == in_pieces((4, True))
        assert (await again.state()).view.value() == writer.states[4]

        await store.jobs.delete_job("a")
        assert await pieces() == []


@pytest.mark.heavy
async def test_a_log_that_is_trimmed_loses_the_pieces_of_its_oldest_events(opened: Any) -> None:
    async with opened(replace(ROOMY, max_log_bytes=2 * LARGE)) as (store, _clock, pieces):
        writer = await Writer().add(store)
        for _ in range(4):
            await writer.write(text_of(LARGE))
        base = writer.log.extent().base
        assert base.seq >= 3
        assert min(await pieces()) == (base.seq, True)
        assert await everything(writer.log, base) == b"".join(writer.frames[base.seq :])
        assert (await writer.log.state(oldest=True)).view.value() == writer.states[base.seq]


async def test_pieces_of_an_append_that_was_not_committed_do_no_harm_and_are_deleted(
    kind: str, opened: Any, tmp_path: Path
) -> None:
    async with opened() as (store, _clock, pieces):
        writer = await Writer().add(store)
        # The process ends after the first three pieces of an event.
        state = StateAt(Cursor(1, 2), writer.document.columns, writer.document.mark())
        block = Block([b'id:1-2\ndata:"%b"\n\n' % text_of(LARGE).encode()], state)
        _, parts = Content.of(block, with_state=False).divided(2)
        for piece in parts[:3]:
            await writer.log._write_piece(piece)
        assert await pieces() == [(2, False)] * 3
        next_store = store
        if kind == "sqlite":
            await store.close()
            next_store = STORES[kind](tmp_path, RETAINED)
            assert [*await next_store.jobs.adopt({"e"})] == ["a"]
            writer.log = (await next_store.jobs.reopen("a")).log
        other = text_of(LARGE + 2)
        await writer.reopen(7)
        assert await pieces(next_store) == []
        await writer.write(other)
        assert await pieces(next_store) == in_pieces((3, False), (3, True))
        assert await everything(writer.log, Cursor(7, 2)) == writer.frames[-1]
        if next_store is not store:
            await next_store.close()


async def test_an_append_in_pieces_fails_when_its_file_is_closed_in_between(tmp_path: Path) -> None:
    async with opened_store("sqlite", tmp_path, RETAINED) as (store, _clock):
        writer = await Writer().add(store)
        append = asyncio.create_task(writer.write(text_of(LARGE)))
        await asyncio.sleep(0)  # its first piece waits for the thread
        await store.close()
        with pytest.raises(StoreError, match="the file is closed"):
            await append
    next_store = STORES["sqlite"](tmp_path, RETAINED)
    assert [*await next_store.jobs.adopt({"e"})] == ["a"]
    log = (await next_store.jobs.reopen("a")).log
    assert log.extent().head == Cursor(1, 1)
    await next_store.close()


@pytest.mark.heavy
async def test_a_repeated_append_writes_the_same_pieces_again(opened: Any) -> None:
    async with opened() as (store, _clock, pieces):
        writer = await Writer().add(store)
        before = writer.head
        await writer.write(text_of(LARGE))
        stored = await pieces()
        # The answer to the first append was lost, so the writer does not know that it was committed.
        block = Block([writer.frames[-1]], writer.at())
        append = writer.log._prepare(writer.head, block)._replace(after=before)
        await writer.log._write_in_pieces(append)
        assert await pieces() == stored


@pytest.mark.heavy
async def test_an_append_to_a_job_that_is_deleted_meanwhile_is_refused_and_leaves_nothing(
    opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (store, _clock, pieces):
        writer = await Writer().add(store)
        write, written = writer.log._write_piece, 0

        async def write_and_delete(piece: Any) -> None:
            nonlocal written
            await write(piece)
            written += 1
            if written == 2:
                await store.jobs.delete_job("a")

        monkeypatch.setattr(writer.log, "_write_piece", write_and_delete)
        with pytest.raises(HeadMovedError):
            await writer.write(text_of(LARGE))
        assert await pieces() == []


@pytest.mark.heavy
async def test_appends_of_another_job_do_not_wait_for_all_pieces(opened: Any) -> None:
    async with opened() as (store, _clock, _pieces):
        large, small = await Writer("large").add(store), await Writer("small").add(store)
        task = asyncio.ensure_future(large.write(text_of(12 * PIECE_BYTES)))
        appended = 0
        while not task.done():
            await small.write("x")
            appended += 1
        await task
        assert appended >= 5


@pytest.mark.parametrize("size", [PIECE_BYTES, PIECE_BYTES + 1])
def test_content_is_divided_above_the_limit(size: int) -> None:
    writer = Writer()
    block = Block([b"x" * size], writer.at())
    whole = Content.of(block, with_state=True)
    content, pieces = whole.divided(1)
    assert content.state == whole.state
    assert block_rows.is_key(content.rows[0].frames) == (size > PIECE_BYTES)
    assert b"".join(piece.content for piece in pieces) == (b"x" * size if size > PIECE_BYTES else b"")
