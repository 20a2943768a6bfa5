"""The cases of `growth.py` for the server: operations on inputs of size n. See `growth_client_cases`."""

import asyncio
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from finding import job
from growth_client_cases import HUGE, TEXT, Call, Case

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import text_check
from tidewire_server.endpoints.stream import writer_of
from tidewire_server.http.event_merging import EventMerger
from tidewire_server.job_log.snapshot_events import snapshot_frame
from tidewire_server.jobs.queue_positions import QueuePositions
from tidewire_server.store.jobs_interface import NewJob
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.memory.memory_store import MemoryLog
from tidewire_server.store.records import JobRecord, QueueEntry, QueueLimits, Retention
from tidewire_server.store.sqlite.sqlite_store import SqliteStore


def server_cases() -> dict[str, dict[str, Case]]:
    """Return the cases by the part of the server that they measure, and by name."""
    return {
        "server: write": _writes(),
        "server: merge": _merging(),
        "server: store": _store(),
        "server: queue": _queue(),
    }


# --- writing


def _writes() -> dict[str, Case]:
    def case(value: Any, columns: tuple[str, ...], write: Callable[[Any, int], object]) -> Case:
        def make(n: int) -> Call:
            async def main() -> None:
                log_writer, stream = job(value(n) if callable(value) else value, columns)
                for at in range(n):
                    write(stream, at)
                    if at % 100 == 0:
                        await log_writer.commit()
                await log_writer.commit()

            return lambda: asyncio.run(main())

        return make

    def yields(
        value: Callable[[int], Any],
        change: Callable[[Any, int], object],
        steps: Callable[[int], int] = lambda n: n,
    ) -> Case:
        def make(n: int) -> Call:
            async def main() -> None:
                whole = value(n)
                log_writer, stream = job(None, ())
                for at in range(steps(n)):
                    change(whole, at)
                    writer_of(stream).replace(whole)
                    if at % 100 == 0:
                        await log_writer.commit()
                await log_writer.commit()

            return lambda: asyncio.run(main())

        return make

    def text_and_member(stream: Any, at: int) -> None:
        stream.append("word ", at=f"/v/{at}/t")
        stream.set(f"/v/{at}/ended", True)

    def text_grows(whole: list[str], _: int) -> None:
        whole[0] += "word "

    return {
        "append to a text": case("", ("",), lambda stream, _: stream.append("word ")),
        "append to an array": case([], ("",), lambda stream, at: stream.append([at])),
        "rows": case({"t": "", "i": []}, ("/t", "/i"), lambda stream, at: stream.row("word ", at)),
        "set each element": case(lambda n: {"v": [0] * n}, (), lambda stream, at: stream.set(f"/v/{at}", 1)),
        "append to n texts and set members": case(
            lambda n: {"v": {str(at): {"t": ""} for at in range(n)}}, (), text_and_member
        ),
        "set members": case({"v": {}}, (), lambda stream, at: stream.set(f"/v/{at}", at)),
        "append and truncate": case(
            "", ("",), lambda stream, at: stream.truncate(1) if at % 2 else stream.append("words")
        ),
        "truncate a text": case(lambda n: "x" * n, ("",), lambda stream, _: stream.truncate(1)),
        "truncate an array": case(lambda n: [0] * n, ("",), lambda stream, _: stream.truncate(1)),
        "notes": case("", ("",), lambda stream, at: stream.note(f"note {at}")),
        # Each yield passes the whole text, so n counts the characters of all yielded texts together.
        "yield a text that grows": yields(
            lambda _: [""], text_grows, lambda n: math.isqrt(2 * n // len("word "))
        ),
        # The same for the elements, because each yield is compared completely.
        "yield an array that grows": yields(
            lambda _: [], lambda whole, at: whole.append(at), lambda n: math.isqrt(2 * n)
        ),
    }


# --- merging


def _merging() -> dict[str, Case]:
    def merged(data: Callable[[int], Any]) -> Case:
        def make(n: int) -> Call:
            events = [
                b"id:1-%d\ndata:%b" % (at + 2, json.dumps(data(at), separators=(",", ":")).encode())
                for at in range(n)
            ]

            def run() -> None:
                merger = EventMerger(Cursor(1, 1), (TEXT,), max_bytes=HUGE, max_ops=HUGE)
                for event in events:
                    merger.add(event)
                merger.frames()

            return run

        return make

    return {
        "merge texts": merged(lambda _: "word "),
        "merge rows": merged(lambda _: [["r", "word "]]),
        "merge appends to n texts": merged(lambda at: [["a", f"/items/{at}/value", "ab"]]),
        "merge checks of n texts": merged(
            lambda at: {
                "ops": [["a", f"/items/{at}/value", "ab"]],
                "check": [text_check(f"/items/{at}/value", "ab")],
            }
        ),
    }  # fmt: skip


# --- the store


_RETENTION: Final = Retention(
    log_ttl=1e6,
    state_ttl=1e6,
    tombstone_ttl=1e6,
    idempotency_ttl=1e6,
    max_retained_jobs=10**9,
    max_retained_bytes=HUGE,
    max_tombstones=10**9,
    max_log_bytes=HUGE,
)


def _blocks(n: int) -> tuple[Block, list[tuple[Cursor, Block]]]:
    document = Document({"status": "running", "text": ""}, ["/text"])
    head = Cursor(1, 1)
    columns = document.columns
    first = Block(
        [snapshot_frame(head, document.value(), columns, "start")], StateAt(head, columns, document.mark())
    )
    blocks = []
    for at in range(n):
        document.apply("word ")
        after, head = head, Cursor(1, at + 2)
        blocks.append(
            (after, Block([b'id:1-%d\ndata:"word "\n\n' % head.seq], StateAt(head, columns, document.mark())))
        )
    return first, blocks


async def _replay(log: Any) -> None:
    after = Cursor(1, 0)
    while (chunk := await log.read(after, 4096)).frames:
        after = chunk.last


def _store() -> dict[str, Case]:
    def memory(*, read: bool) -> Case:
        def make(n: int) -> Call:
            first, blocks = _blocks(n)

            async def main() -> None:
                log = MemoryLog(first, HUGE)
                for after, block in blocks:
                    log.append_at_once(after, block)
                if read:
                    await _replay(log)

            return lambda: asyncio.run(main())

        return make

    def sqlite(n: int) -> Call:
        first, blocks = _blocks(n)

        async def main() -> None:
            with tempfile.TemporaryDirectory() as folder:
                store = SqliteStore(Path(folder) / "log.db", _RETENTION)
                record = JobRecord("j1", "e", "ada", batch=False, created_at=1.0)
                limits = QueueLimits(math.inf, math.inf, math.inf)
                new, logs = NewJob(record, b"{}", first, None, [], None, limits), []
                await store.jobs.add(new, logs.append)
                log = logs[0]
                for at in range(0, n, 100):
                    part = blocks[at : at + 100]
                    frames = [block.frames[0] for _, block in part]
                    await log.append(part[0][0], Block(frames, part[-1][1].state))
                await _replay(log)
                await store.close()

        return lambda: asyncio.run(main())

    return {
        "append to a log in memory": memory(read=False),
        "append to a log in memory, and replay it": memory(read=True),
        "append to a log in SQLite, and replay it": sqlite,
    }


# --- the queue


def _entries(n: int, principals: int) -> list[QueueEntry]:
    return [QueueEntry("e", f"j{at}", 0, f"p{at % principals}", float(at)) for at in range(n)]


def _queue() -> dict[str, Case]:
    def taken(principals: Callable[[int], int]) -> Case:
        def make(n: int) -> Call:
            entries = _entries(n, principals(n))

            async def main() -> None:
                queue = MemoryQueue()
                await queue.put(entries)
                while await queue.take("e"):
                    pass

            return lambda: asyncio.run(main())

        return make

    def positions(n: int) -> Call:
        entries = _entries(n, 1)

        async def main() -> None:
            queue, published = MemoryQueue(), QueuePositions()

            def message(_: str, position: int) -> messages.Queue:
                return messages.Queue(position=position)

            for at, entry in enumerate(entries, 1):
                await queue.put([entry])
                published.entered(entry.job, 1, at, message)
            while await queue.take("e"):
                published.moved()
                limit = published.begin_update(queue.size("e"))
                published.changes(await queue.waiting("e", limit=limit), limit, message)

        return lambda: asyncio.run(main())

    return {
        "items of one principal": taken(lambda _: 1),
        "items of n principals": taken(lambda n: n),
        "positions of n waiting jobs": positions,
    }
