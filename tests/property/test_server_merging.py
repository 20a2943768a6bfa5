"""Merged events: applying them gives the same states as applying the logged events."""

import random

import orjson
import pytest

from support.random_json import PIECES, canonical_text, random_value
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire_server.http.event_merging import EventMerger

COLUMNS = ("/text", "/rows")
START = {"text": "", "rows": [], "list": [{"t": ""}, {"t": ""}], "other": []}
TEXTS = ("/text", "/list/0/t", "/list/1/t")


class Writer:
    """Logs random events, and records the state after each event. Most of them are appends and rows."""

    def __init__(self, seed: int, columns: tuple[str, ...]) -> None:
        self.random = random.Random(seed)
        self.document = Document(START, columns)
        self.events: list[bytes] = []
        self.states = [START]

    def step(self) -> None:
        text, piece = self.random.choice(TEXTS), self.random.choice(PIECES)
        number, count = self.random.randrange(9), len(self.document.columns)
        row = ["r", piece, number][: 1 + count]
        changes = {
            "append": [["a", text, piece]],
            "text": piece if count == 1 else [["a", "/text", piece]],
            "rows": [row] * self.random.randrange(1, 4),
            "array": [["a", "/other", [number]]],
            "several": [["a", "/text", piece], row, ["a", text, piece]],
            "mixed": [["a", text, "ab"], ["t", text, 1]],
            "set": [["s", self.random.choice(["/list/0", "/list/1"]), {"t": piece}]],
            "truncate": [["t", text, self.random.randrange(self.document.text_length(text) + 1)]],
            "insert": [["i", "/other/0", random_value(self.random, 1)]],
        }
        kind = self.random.choices([*changes], [9, 9, 9, 5, 3, 1, 1, 1, 1])[0]
        content = changes[kind]
        ops = [["a", "/text", content]] if isinstance(content, str) else content
        self.document.apply(ops)
        if kind == "truncate" or self.random.random() < 0.1:
            document = self.document
            checks = [[each, document.text_length(each), document.text_crc(each)] for each in (text, "/text")]
            content = {"ops": ops, "check": checks}
        self.events.append(b"id:1-%d\ndata:%b" % (len(self.events) + 2, orjson.dumps(content)))
        self.states.append(self.document.value())


def checked_texts(content: object) -> set[str]:
    return {check[0] for check in content.get("check", [])} if isinstance(content, dict) else set()


def content_of(event: bytes) -> object:
    return orjson.loads(event.partition(b"\ndata:")[2])


@pytest.mark.parametrize(
    "seed", [*range(20), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20, 100))]
)
def test_merged_events_lead_to_the_states_of_the_logged_events(seed):
    columns = COLUMNS[: 1 + seed % 2]
    writer = Writer(seed, columns)
    for _ in range(60):
        writer.step()
    seq = 1 + writer.random.randrange(20)
    merger = EventMerger(Cursor(1, seq), columns, max_bytes=writer.random.choice([512, 2**20]), max_ops=100)
    for event in writer.events[seq - 1 :]:
        merger.add(event)
    merged = merger.frames().split(b"\n\n")[:-1]
    assert len(merged) < len(writer.events[seq - 1 :])
    reader = Document(writer.states[seq - 1], columns)
    for event in merged:
        content, before = content_of(event), seq
        seq = int(event.partition(b"\n")[0].removeprefix(b"id:1-"))
        assert before == (content.get("on", seq - 1) if isinstance(content, dict) else seq - 1)
        reader.apply(content)  # raises on a wrong check
        assert canonical_text(reader.value()) == canonical_text(writer.states[seq - 1])
        logged = [content_of(each) for each in writer.events[before - 1 : seq - 1]]
        assert set().union(*map(checked_texts, logged)) <= checked_texts(content)
    assert seq == len(writer.events) + 1
