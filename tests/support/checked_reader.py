"""Reader of one job's stream that checks each event against the rules for ids, and goes on at the next server after a cut."""

import itertools
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx2

from support.killable_server import JobRequests
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.sse import Decoder

PATIENCE = 240


class Reader(threading.Thread):
    """Reads one job's stream to its end across reconnects, at each of the servers in turn, and checks each event."""

    def __init__(self, servers: Sequence[JobRequests], job: str) -> None:
        super().__init__(daemon=True)
        self.servers = itertools.cycle([server.http for server in servers])
        self.url = f"/v1/jobs/{job}/events"
        self.at: Cursor | None = None
        self.document: Document | None = None
        self.seen: dict[Cursor, tuple[str, str]] = {}
        self.faults: list[str] = []
        self.done: Any = None
        self.epochs: list[int] = []
        self.give_up = time.monotonic() + PATIENCE

    def run(self) -> None:
        while self.done is None and not self.faults and time.monotonic() < self.give_up:
            try:
                self._read()
            except httpx2.TransportError:
                time.sleep(0.01)
            except RuntimeError:  # The client was closed, because the test has failed.
                return

    def _read(self) -> None:
        decoder = Decoder()
        cursor = "0-0" if self.at is None else str(self.at)
        headers = {"last-event-id": cursor}
        with next(self.servers).stream("GET", self.url, headers=headers, timeout=5) as answer:
            if answer.status_code == 503:
                time.sleep(0.01)
                return
            if answer.status_code != 200:
                self.faults.append(f"{answer.status_code} at {cursor}: {answer.read()!r}")
                return
            for chunk in answer.iter_raw():
                for event in decoder.feed(chunk):
                    if event.type in {"snapshot", "message", "done"}:
                        self._take(event)

    def _take(self, event: Any) -> None:
        cursor, data, previous = Cursor.parse(event.id), json.loads(event.data), self.at
        if previous is not None and cursor <= previous:
            self.faults.append(f"{cursor} again, after {previous}")
        if event.type == "snapshot":
            # Logged events continue without a gap, so the only valid snapshot is one that opens an epoch.
            if previous is not None and (
                data["reason"] not in {"restart", "rewound"} or cursor.seq != previous.seq + 1
            ):
                self.faults.append(f"snapshot {cursor} {data['reason']} after {previous}")
            self.document = Document(data["state"], data["columns"])
            self.epochs.append(cursor.epoch)
        else:
            base = data.get("on", cursor.seq - 1) if isinstance(data, dict) else cursor.seq - 1
            if previous != Cursor(cursor.epoch, base):
                self.faults.append(f"{cursor} on {base}, after {previous}")
            elif event.type == "done":
                self.done = data
            else:
                self.document.apply(data)
        self.at = cursor
        if not (isinstance(data, dict) and "on" in data):
            self.seen[cursor] = (event.type, event.data)


def check_reader(reader: Reader, server: JobRequests, job: str, value: Any) -> None:
    """Assert that the reader has seen exactly the logged events, and that the value is complete."""
    reader.join(PATIENCE)
    assert not reader.faults, reader.faults
    assert reader.done is not None, f"no `done` event after {reader.at} of {server.job(job)}"
    items = reader.document.value("/items")
    assert items == [{"status": "succeeded", "value": value}]
    assert digest(items) == reader.done["digest"]
    logged = {
        Cursor.parse(each.id): (each.type, each.data)
        for each in Decoder().feed(server.events(job))
        if each.id
    }
    for cursor, event in reader.seen.items():
        assert logged[cursor] == event
    found = server.job(job)
    assert found["state"]["items"] == items
    assert found["attempt"] == len(reader.epochs) or "rewound" in str(reader.seen)
