"""The cases of `growth.py` for the client: operations on inputs of size n, including adversarial ones.

Each case is a function that prepares an input of size n, and returns the function to measure.
"""

import contextlib
import json
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from tidewire import Client
from tidewire.following.follower import Follower
from tidewire.http.chunked_coding import ChunkedDecoder
from tidewire.jobs.streamed_text import StreamedText
from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import apply, diff
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest, text_check
from tidewire.protocol.resources import Limits
from tidewire.protocol.sse import Decoder, Event
from tidewire.protocol.strict_json import StrictJsonError, loads
from tidewire.result_type import ResultType
from tidewire.testing import FakeServer
from tidewire.updates import ItemChange, Position

Call = Callable[[], object]
Case = Callable[[int], Call]
HUGE: Final = 2**40
TEXT: Final = "/items/0/value"


def client_cases() -> dict[str, dict[str, Case]]:
    """Return the cases by the part of the client that they measure, and by name."""
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
    }


# --- decoding


def _in_parts(decoder: Callable[[], Any], stream: Callable[[int], bytes], part_size: int | None) -> Case:
    """Return a case that feeds a stream to a new decoder, in parts of this size, or at once if it is None."""

    def make(n: int) -> Call:
        whole = stream(n)
        size = part_size or len(whole)
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]

        def decode() -> None:
            feed = decoder().feed
            for part in parts:
                feed(part)

        return decode

    return make


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

    return {
        f"{name}, {how}": _in_parts(lambda: Decoder(max_event_bytes=HUGE), shape, part_size)
        for name, shape in shapes.items()
        for how, part_size in (("one read", None), ("1-byte reads", 1))
    }


def _chunks() -> dict[str, Case]:
    def one(n: int) -> bytes:
        return b"%x\r\n%b\r\n" % (n, b"x" * n)

    return {
        "one chunk": _in_parts(ChunkedDecoder, one, 65_536),
        "1-byte chunks": _in_parts(ChunkedDecoder, lambda n: b"1\r\nx\r\n" * n, 65_536),
        "one chunk, 1-byte reads": _in_parts(ChunkedDecoder, one, 1),
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


# --- documents


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


# --- following a job


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


# --- digests


def _digests() -> dict[str, Case]:
    return {
        "a text": lambda n: _digest_of([{"value": "é" * n}]),
        "numbers": lambda n: _digest_of([{"value": [at / 7 for at in range(n)]}]),
        "members": lambda n: _digest_of([{"value": {f"é{at}": at for at in reversed(range(n))}}]),
    }


def _digest_of(items: Any) -> Call:
    return lambda: digest(items)


# --- iteration over updates and results


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
                final = StreamedText(delivered=0, column=lambda: TEXT, job_id="j1", latest=lambda: None)
                for position, seq in changes:
                    list(final.project(ItemChange(position, ResultType(None), seq, text="word ")))
                list(final.finish())

            return run

        return make

    def with_fake(script: Callable[[FakeServer, int], None], read: Callable[[Client, int], object]) -> Case:
        def make(n: int) -> Call:
            def run() -> None:
                with FakeServer(limits=Limits(max_inputs=10**9)) as server, Client(server.url) as client:
                    script(server, n)
                    read(client, n)

            return run

        return make

    def texts(server: FakeServer, n: int) -> None:
        server.endpoint("e").streams(["word "] * n)

    def values(server: FakeServer, _: int) -> None:
        server.endpoint("e", batch=10**9).returns(1)

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
