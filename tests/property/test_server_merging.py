"""Merged events: applying them gives the same states as applying the logged events."""

import random

import orjson
import pytest

from support.random_json import NAMES, PIECES, canonical_text, random_change_of, random_value
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.diff import diff
from tidewire.protocol.document import Document
from tidewire.protocol.document.json_pointer import escape
from tidewire_server.http.event_merging import EventMerger

COLUMNS = ("/text", "/rows")
START = {
    "text": "",
    "rows": [],
    "value": {"a": "", "b": [1, 2]},
    "list": [{"t": ""}, {"t": ""}],
    "items": [{"status": "running", "value": {"t": ""}, "stable": {}}],
}


class Writer:
    """Logs random events, and records the state after each event."""

    def __init__(self, seed: int, columns=COLUMNS) -> None:
        self.random = random.Random(seed)
        self.document = Document(START, columns)
        self.frames: list[bytes] = []
        self.states = [START]

    def log(self, ops: list, *checked: str) -> None:
        """Log ops with checks of some texts as they are after the ops."""
        content = ops
        self.document.apply(ops)
        if checked:
            checks = [
                [path, self.document.text_length(path), self.document.text_crc(path)] for path in checked
            ]
            content = {"ops": ops, "check": checks}
        self.write(content)

    def write(self, content: object) -> None:
        self.frames.append(b"id:1-%d\ndata:%b\n\n" % (len(self.frames) + 2, orjson.dumps(content)))
        self.states.append(self.document.value())

    def random_item_step(self, item: dict) -> None:
        """Log one change of an item's text; the stable prefix grows and is never truncated."""
        path, kind = "/items/0/value/t", self.random.random()
        length, stable = len(item["value"]["t"]), item["stable"].get("/t", 0)
        if kind < 0.5:
            self.log([["a", path, self.random.choice(PIECES)]])
        elif kind < 0.75:
            self.log([["t", path, self.random.randrange(length - stable + 1)]], path)
        else:
            self.log([["s", "/items/0/stable", {"/t": self.random.randrange(stable, length + 1)}]])

    def random_step(self) -> None:
        random, document = self.random, self.document
        # Most changes are appends and rows, so that several of them are consecutive.
        kind = random.choice([random.uniform(0, 0.5)] * 4 + [random.uniform(0.5, 1)])
        value = document.value()
        if random.random() < 0.1:
            self.random_item_step(value["items"][0])
            return
        texts = ["/text", *(f"/list/{at}/t" for at in range(len(value["list"])))]
        if kind < 0.35:
            path = random.choice(texts)
            self.log([["a", path, random.choice(PIECES)]], *([path] if random.random() < 0.2 else []))
        elif kind < 0.5:
            self.log(
                [["r", random.choice(PIECES), random_value(random, 1)] for _ in range(random.randrange(1, 3))]
            )
        elif kind < 0.6:
            path = random.choice(texts)
            self.log([["t", path, random.randrange(document.text_length(path) + 1)]], path)
        elif kind < 0.7:
            self.log([["t", "/rows", random.randrange(len(value["rows"]) + 1)]])
        elif kind < 0.75:
            self.log([["s", "/list", [{"t": random.choice(PIECES)} for _ in range(random.randrange(1, 4))]]])
        elif kind < 0.8:
            self.log([["s", f"/list/{len(value['list'])}", {"t": ""}]])
        elif kind < 0.83:
            self.log([["i", "/list/0", {"t": "x"}]])
        elif kind < 0.86 and len(value["list"]) > 1:
            self.log([["d", "/list/0"]])
        elif kind < 0.9:
            name = escape(random.choice(NAMES))
            self.log([["s", f"/value/{name}", random_value(random, 2)]])
        else:
            new = random_change_of(random, value["value"])
            new = new if type(new) is dict else {"a": new}
            ops = [[op[0], f"/value{op[1]}", *op[2:]] for op in diff(value["value"], new)]
            self.log(ops)


def merged(
    frames: list[bytes], after: int, columns=COLUMNS, limit: int = 2**20
) -> list[tuple[int, int, object]]:
    """Return the id, base and data of each merged event."""
    merger = EventMerger(Cursor(1, after), columns, max_bytes=limit, max_ops=1000)
    for frame in frames:
        merger.add(frame.removesuffix(b"\n\n"))
    found = []
    base = after
    for frame in merger.frames().split(b"\n\n")[:-1]:
        head, _, content = frame.partition(b"\ndata:")
        seq, content = int(head.split(b"-")[1]), orjson.loads(content)
        on = content.get("on", seq - 1) if type(content) is dict else seq - 1
        assert on == base
        found.append((seq, on, content))
        base = seq
    return found


@pytest.mark.parametrize("seed", range(100))
def test_merged_events_lead_to_the_states_of_the_logged_events(seed):
    writer = Writer(seed)
    for _ in range(writer.random.randrange(2, 60)):
        writer.random_step()
    after = writer.random.randrange(len(writer.frames))
    reader = Document(writer.states[after], COLUMNS)
    events = merged(writer.frames[after:], after + 1)
    for seq, on, content in events:
        reader.apply(content)  # raises on a wrong check
        assert canonical_text(reader.value()) == canonical_text(writer.states[seq - 1])
        for text in checked_texts(writer.frames[on - 1 : seq - 1]):
            if is_text(reader, text):
                assert text in [check[0] for check in checks_of(content)]
    assert events[-1][0] == len(writer.frames) + 1


def checked_texts(frames: list[bytes]) -> set[str]:
    contents = [orjson.loads(frame.partition(b"\ndata:")[2]) for frame in frames]
    return {check[0] for content in contents for check in checks_of(content)}


def is_text(document: Document, path: str) -> bool:
    try:
        return document.text_length(path) >= 0
    except LookupError:
        return False


def checks_of(content: object) -> list:
    return content.get("check", []) if type(content) is dict else []
