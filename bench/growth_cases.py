"""The cases of `growth.py`: operations of the client and the server on inputs of size n, including adversarial ones.

Each case is a function that prepares an input of size n, and returns the function to measure.
"""

import asyncio
import contextlib
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from finding import job

from tidewire import Client
from tidewire.following.follower import Follower
from tidewire.http.chunked_coding import ChunkedDecoder
from tidewire.jobs.streamed_text import StreamedText
from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import apply, diff
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest, text_check
from tidewire.protocol.sse import Decoder, Event
from tidewire.protocol.strict_json import StrictJsonError, loads
from tidewire.result_type import ResultType
from tidewire.testing import FakeServer
from tidewire.updates import ItemChange, Position
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

Call = Callable[[], object]
Case = Callable[[int], Call]
HUGE: Final = 2**40
TEXT: Final = "/items/0/value"


def cases() -> dict[str, dict[str, Case]]:
    """Return the cases by the part of the client or of the server that they measure, and by name."""
    return {
        "client: decode event streams": _decoder(),
        "client: decode HTTP chunks": _chunks(),
        "client: parse JSON": _strict_json(),
        "client: diff": {name: _diff_case(pair) for name, pair in _PAIRS.items()},
        "client: apply the diff": {name: _apply_case(pair) for name, pair in _PAIRS.items()},
        "client: apply one diff of n ops": {
            name: _one_diff(value, ops) for name, (value, ops) in _OPS.items()
        },
        "client: document, one diff of n ops": {
            name: _document(value, ops, at_once=True) for name, (value, ops) in _OPS.items()
        },
        "client: document, n diffs": {
            name: _document(value, ops, at_once=False) for name, (value, ops) in _OPS.items()
        }
        | _document_reads(),
        "client: follow": _follower(),
        "client: digests": _digests(),
        "client: iterate": _iteration(),
        "server: write": _server_writes(),
        "server: merge": _server_events(),
        "server: store": _server_store(),
        "server: queue": _server_queue(),
    }


# --- decoding


def _decoder() -> dict[str, Case]:
    shapes: dict[str, Callable[[int], bytes]] = {
        "events": lambda n: b'id:1-5\ndata:"word"\n\n' * n,
        "one event of n data lines": lambda n: b"data:x\n" * n + b"\n",
        "comments": lambda n: b": ping\n" * n,
        "carriage returns": lambda n: b"\r" * n,
        "line feeds": lambda n: b"\n" * n,
        "CR LF pairs": lambda n: b"\r\n" * n,
        "one data line": lambda n: b"data:" + b"x" * n + b"\n\n",
        "an unterminated line": lambda n: b"data:" + b"x" * n,
        "field names without a colon": lambda n: b"data\n" * n + b"\n",
        "ids": lambda n: b"id:1-5\n" * n + b"\n",
        "retry fields": lambda n: b"retry:1000\n" * n + b"\n",
        "mixed line ends": lambda n: b"id:1-5\rdata:x\r\n\r\ndata:y\n\r\n" * n,
    }

    def case(shape: Callable[[int], bytes], step: int | None) -> Case:
        def make(n: int) -> Call:
            stream = shape(n)
            size = step or len(stream)
            parts = [stream[at : at + size] for at in range(0, len(stream), size)]

            def decode() -> None:
                decoder = Decoder(max_event_bytes=HUGE)
                for part in parts:
                    decoder.feed(part)

            return decode

        return make

    return {
        f"{name}, {how}": case(shape, step)
        for name, shape in shapes.items()
        for how, step in (("one read", None), ("1-byte reads", 1))
    }


def _chunks() -> dict[str, Case]:
    def case(body: Callable[[int], bytes], step: int) -> Case:
        def make(n: int) -> Call:
            stream = body(n)
            parts = [stream[at : at + step] for at in range(0, len(stream), step)]

            def decode() -> None:
                decoder = ChunkedDecoder()
                for part in parts:
                    decoder.feed(part)

            return decode

        return make

    return {
        "one chunk": case(lambda n: b"%x\r\n%b\r\n" % (n, b"x" * n), 65_536),
        "1-byte chunks": case(lambda n: b"1\r\nx\r\n" * n, 65_536),
        "one chunk, 1-byte reads": case(lambda n: b"%x\r\n%b\r\n" % (n, b"x" * n), 1),
    }


def _strict_json() -> dict[str, Case]:
    texts: dict[str, Callable[[int], str]] = {
        "open brackets": lambda n: "[" * n,
        "open objects": lambda n: '{"a":' * n,
        "closing brackets": lambda n: "]" * n,
        "empty arrays": lambda n: "[" + "[]," * n + "[]]",
        "nested arrays of 100 levels": lambda n: "[" + ("[" * 100 + "]" * 100 + ",") * (n // 100) + "1]",
        "a text": lambda n: '"' + "x" * n + '"',
        "an unterminated text": lambda n: '"' + "x" * n,
        "a text of brackets": lambda n: '"' + "[{" * n + '"',
        "escaped quotes": lambda n: '"' + '\\"' * n + '"',
        "escaped code points": lambda n: '"' + "\\u00e9" * n + '"',
        "surrogate pairs, the last one alone": lambda n: '"' + "\\ud83d\\ude00" * n + '\\ud83d"',
        "integers": lambda n: "[" + "1234," * n + "1]",
        "digits of one integer": lambda n: "1" * n,
        "digits of one fraction": lambda n: "0." + "1" * n,
        "members": lambda n: "{" + "".join(f'"m{at}":{at},' for at in range(n)) + '"z":0}',
        "the same member": lambda n: "{" + '"a":1,' * n + '"a":1}',
        "spaces": lambda n: " " * n + "1",
        "an error at the end": lambda n: "[" + '{"a":1e1},' * n + "}",
    }

    def case(text: Callable[[int], str]) -> Case:
        def make(n: int) -> Call:
            found = text(n)

            def parse() -> None:
                with contextlib.suppress(StrictJsonError):
                    loads(found)

            return parse

        return make

    return {name: case(text) for name, text in texts.items()}


# --- diffs


def _shuffled(n: int) -> list[int]:
    found = list(range(n))
    random.Random(n).shuffle(found)
    return found


_PAIRS: Final[dict[str, Callable[[int], tuple[Any, Any]]]] = {
    "a text grew": lambda n: ("x" * n, "x" * n + "y"),
    "a text changed at its end": lambda n: ("x" * n + "y", "x" * n + "z"),
    "a text changed at its start": lambda n: ("y" + "x" * n, "z" + "x" * n),
    "a text was replaced": lambda n: ("x" * n, "y" * n),
    "an array grew": lambda n: (list(range(n)), list(range(n + n // 10))),
    "an element inserted at the front": lambda n: (list(range(n)), [-1, *range(n)]),
    "the front half removed": lambda n: (list(range(n)), list(range(n // 2, n))),
    "reversed": lambda n: (list(range(n)), list(range(n))[::-1]),
    "shuffled": lambda n: (list(range(n)), _shuffled(n)),
    "rotated": lambda n: (list(range(n)), [*range(n // 2, n), *range(n // 2)]),
    "every second element removed": lambda n: (list(range(n)), list(range(0, n, 2))),
    "every second element changed": lambda n: (list(range(n)), [at if at % 2 else -at for at in range(n)]),
    "few distinct elements": lambda n: ([at % 3 for at in range(n)], [at * at % 5 for at in range(n + 1)]),
    "unique elements among equal ones": lambda n: (
        [at if at % 2 else 0 for at in range(n)],
        [0 if at % 2 else n - 1 - at for at in range(n + 1)],
    ),
    "members of an object changed": lambda n: ({f"m{at}": at for at in range(n)}, {f"m{at}": -at for at in range(n)}),
    "texts of nested rows grew": lambda n: (
        [{"role": "user", "text": f"message {at}"} for at in range(n)],
        [{"role": "user", "text": f"message {at} more"} for at in range(n)],
    ),
}  # fmt: skip


def _diff_case(pair: Callable[[int], tuple[Any, Any]]) -> Case:
    def make(n: int) -> Call:
        old, new = pair(n)
        return lambda: diff(old, new)

    return make


def _apply_case(pair: Callable[[int], tuple[Any, Any]]) -> Case:
    def make(n: int) -> Call:
        old, new = pair(n)
        ops: Any = diff(old, new)
        return lambda: apply(old, ops)

    return make


# An op that is not an append copies the array or object that it changes, once for each diff, and can move all of its elements.
# The cost of other ops is therefore bounded by the number of ops of a diff, `max_event_ops`, and not by n log n.
_OPS: Final[dict[str, tuple[Callable[[int], Any], Callable[[int], Iterable[list[Any]]]]]] = {
    "elements appended": (lambda _: {"v": []}, lambda n: (["a", "/v", [at]] for at in range(n))),
    "text appended": (lambda _: {"v": ""}, lambda n: (["a", "/v", "word "] for _ in range(n))),
    "text dropped": (lambda n: {"v": "x" * n}, lambda n: (["t", "/v", 1] for _ in range(n))),
    "text dropped and appended": (
        lambda n: {"v": "x" * n},
        lambda n: (op for _ in range(n // 2) for op in (["t", "/v", 1], ["a", "/v", "yz"])),
    ),
    "texts of rows appended": (
        lambda n: {"v": [{"t": ""} for _ in range(n)]},
        lambda n: (["a", f"/v/{at}/t", "word"] for at in range(n)),
    ),
}  # fmt: skip


def _one_diff(value: Callable[[int], Any], ops: Callable[[int], Iterable[list[Any]]]) -> Case:
    def make(n: int) -> Call:
        old, found = value(n), list(ops(n))
        return lambda: apply(old, found)

    return make


def _document(
    value: Callable[[int], Any], ops: Callable[[int], Iterable[list[Any]]], *, at_once: bool
) -> Case:
    def make(n: int) -> Call:
        found: list[Any] = list(ops(n))
        diffs: list[Any] = [found] if at_once else [[op] for op in found]
        start = value(n)

        def run() -> None:
            document = Document(start)
            for each in diffs:
                document.apply(each)
            document.value()

        return run

    return make


def _document_reads() -> dict[str, Case]:
    def each(n: int, diffs: Iterable[Any], read: Callable[[Document], object], columns: list[str]) -> Call:
        found = list(diffs)

        def run() -> None:
            document = Document({"v": "", "w": [], "m": {}, "rows": [{"t": ""}] * (n // 100)}, columns)
            for one in found:
                document.apply(one)
                read(document)

        return run

    def checked(n: int) -> Call:
        text, diffs = "", []
        for at in range(n):
            text = f"{at % 10} " if at % 1000 == 0 else text + f"{at % 10} "
            op = ["s" if at % 1000 == 0 else "a", "/v", text if at % 1000 == 0 else text[-2:]]
            diffs.append({"ops": [op], "check": [text_check("/v", text)]})
        return each(n, diffs, lambda _: None, [])

    return {
        "texts, with a view of each state": lambda n: each(n, ["word "] * n, lambda d: d.view(), ["/v"]),
        "texts, with the change of each": lambda n: each(n, ["word "] * n, lambda d: d.text_changes, ["/v"]),
        "rows of two columns": lambda n: each(
            n, [[["r", "word", 1]]] * n, lambda d: d.text_changes, ["/v", "/w"]
        ),
        "checks of a text": checked,
    }


def _follower() -> dict[str, Case]:
    state = {"status": "running", "items": [{"status": "running", "value": ""}], "usage": {}, "notes": []}

    def case(data: Callable[[int], Any], *, kind: str = "message", same_id: bool = False) -> Case:
        def make(n: int) -> Call:
            hello = messages.Hello(
                protocol=messages.PROTOCOL, job="j1", events="/e", head="1-1", heartbeat_ms=15_000
            )
            first = {"reason": "start", "state": state, "columns": [TEXT]}
            events = [
                Event("hello", messages.to_text(hello), ""),
                Event("snapshot", json.dumps(first), "1-1"),
            ]
            for at in range(n):
                name = "1-2" if same_id else f"1-{at + 2}"
                events.append(Event(kind, json.dumps(data(at)), name))

            def run() -> None:
                follower = Follower(job_id="j1")
                follower.connected()
                for event in events:
                    follower.receive(event)

            return run

        return make

    checked = "".join(f"{at % 10} " for at in range(1000))
    return {
        "texts": case(lambda _: "word "),
        "appends": case(lambda _: [["a", TEXT, "word "]]),
        "rows": case(lambda _: [["r", "word "]]),
        "rollbacks": case(lambda at: [["t", TEXT, 1]] if at % 2 else [["a", TEXT, "words"]]),
        "duplicates": case(lambda _: "word ", same_id=True),
        "snapshots": case(
            lambda _: {"reason": "compacted", "state": state, "columns": [TEXT]}, kind="snapshot"
        ),
        "checks": case(
            lambda _: {"ops": [["s", TEXT, checked]], "check": [text_check(TEXT, checked)]},
        ),
        "progress": case(lambda at: {"current": at}, kind="progress", same_id=True),
        "notes": case(lambda at: [["a", "/notes", [{"at": at, "level": "info", "text": "x"}]]]),
    }


def _digests() -> dict[str, Case]:
    return {
        "a text": lambda n: _digest_of([{"value": "é" * n}]),
        "numbers": lambda n: _digest_of([{"value": [at / 7 for at in range(n)]}]),
        "members": lambda n: _digest_of([{"value": {f"é{at}": at for at in reversed(range(n))}}]),
    }


def _digest_of(items: Any) -> Call:
    return lambda: digest(items)


def _iteration() -> dict[str, Case]:
    def held(stable: Callable[[int, int], int | None]) -> Case:
        def make(n: int) -> Call:
            item: dict[str, Any] = {"status": "running", "value": ""}
            document = Document({"items": [item]}, [TEXT])
            if stable(0, n) is not None:
                document.apply([["s", "/items/0/stable", {"": 0}]])
            changes = []
            for at in range(n):
                ops: list[Any] = [["a", TEXT, "word "]]
                length = stable(at, n)
                if length is not None and at % 10 == 0:
                    ops.append(["s", "/items/0/stable", {"": length}])
                document.apply(ops)
                position = Position(document.view(), (TEXT,), Cursor(1, at + 2))
                changes.append((position, at + 2))

            def run() -> None:
                final = StreamedText(delivered=0, column=lambda: TEXT, job_id="j1")
                for position, seq in changes:
                    list(final.project(ItemChange(position, ResultType(None), seq, text="word ")))
                list(final.finish())

            return run

        return make

    def with_fake(script: Callable[[FakeServer, int], None], read: Callable[[Client, int], object]) -> Case:
        def make(n: int) -> Call:
            def run() -> None:
                with FakeServer() as server, Client(server.url) as client:
                    script(server, n)
                    read(client, n)

            return run

        return make

    def texts(server: FakeServer, n: int) -> None:
        server.endpoint("e").streams(["word "] * n)

    def values(server: FakeServer, _: int) -> None:
        server.endpoint("e", batch=10**9).returns(1)
        server._limits = server._limits.model_copy(update={"max_inputs": 10**9})

    return {
        "final text, no `stable`": held(lambda _at, _n: None),
        "final text, `stable` now and then": held(lambda at, _n: 4 * at),
        "final text, never stable": held(lambda _at, _n: 0),
        "updates of a text": with_fake(texts, lambda client, _: [each.seq for each in client.submit("e")]),
        "iter_text": with_fake(texts, lambda client, _: list(client.submit("e").iter_text())),
        "updates of a batch of n": with_fake(
            values, lambda client, n: [each.seq for each in client.submit_batch("e", [1] * n)]
        ),
        "as_completed of a batch of n": with_fake(
            values, lambda client, n: list(client.submit_batch("e", [1] * n).as_completed())
        ),
        "results of a batch of n": with_fake(
            values, lambda client, n: client.submit_batch("e", [1] * n).results()
        ),
        "map of n inputs": with_fake(values, lambda client, n: list(client.map("e", [1] * n, batch_size=64))),
    }  # fmt: skip


# --- the server


def _server_writes() -> dict[str, Case]:
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


def _server_events() -> dict[str, Case]:
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


RETENTION: Final = Retention(
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


def _server_store() -> dict[str, Case]:
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
                store = SqliteStore(Path(folder) / "log.db", RETENTION)
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


def _entries(n: int, principals: int) -> list[QueueEntry]:
    return [QueueEntry("e", f"j{at}", 0, f"p{at % principals}", float(at)) for at in range(n)]


def _server_queue() -> dict[str, Case]:
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
