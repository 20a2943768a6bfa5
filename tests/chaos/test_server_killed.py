"""Servers killed at random moments and restarted: readers lose nothing, and no event is sent twice.

`KILL_SEED` repeats a run.
"""

import json
import os
import random
import threading
import time
from typing import Any

import httpx
import pytest

from support.killable_server import Killed, killed_server, talk_text
from tidewire import Client, RetryPolicy
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire.protocol.document.digests import digest
from tidewire.protocol.sse import Decoder

SEED = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(2**32)))
RETRY = RetryPolicy(max_delay=0.1)
PATIENCE = 240


@pytest.fixture(autouse=True)
def _seed():
    print(f"KILL_SEED={SEED}")


class Reader(threading.Thread):
    """Reads one job's stream to its end across reconnects, and checks each event against the rules for ids."""

    def __init__(self, server: Killed, job: str) -> None:
        super().__init__(daemon=True)
        self.http = server.http
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
            except httpx.TransportError:
                time.sleep(0.01)

    def _read(self) -> None:
        decoder = Decoder()
        cursor = "0-0" if self.at is None else str(self.at)
        with self.http.stream("GET", self.url, headers={"last-event-id": cursor}, timeout=5) as answer:
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


def check_reader(reader: Reader, server: Killed, job: str, text: str) -> None:
    """Assert that the reader has seen exactly the logged events, and that the value is complete."""
    reader.join(PATIENCE)
    assert not reader.faults, reader.faults
    assert reader.done is not None, f"no `done` event after {reader.at}"
    items = reader.document.value("/items")
    assert items == [{"status": "succeeded", "value": text}]
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


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_readers_of_a_killed_server_lose_nothing_and_see_no_repeats(kills):
    draw = random.Random(SEED)
    with killed_server() as server:
        ended = server.submit("shout", input={"text": "before"}).json()["id"]
        server.ended(ended)
        before = server.events(ended)
        words = 250
        jobs = [server.submit("talk", input={"words": words}).json()["id"] for _ in range(3)]
        readers = [Reader(server, job) for job in jobs]
        for reader in readers:
            reader.start()
        values: list[Any] = []
        connected = threading.Event()

        def follow() -> None:
            with Client(server.url, retry=RETRY) as client:
                job, text, seq = client.job(jobs[0]), "", 0
                job.status()
                connected.set()
                for update in job:
                    assert update.first_seq == seq + 1 or seq == 0
                    seq, text = update.seq, update.value
                values.extend([text, job.result()])

        client = threading.Thread(target=follow, daemon=True)
        client.start()
        assert connected.wait(20)
        for _ in range(kills):
            if draw.random() < 0.25:
                server.kill()
                server.start_and_kill_after(draw.uniform(0, 0.15))
                server.start()
            else:
                time.sleep(draw.uniform(0, 0.3))
                server.again()
        for reader, job in zip(readers, jobs, strict=True):
            check_reader(reader, server, job, talk_text(words))
        client.join(PATIENCE)
        assert values == [talk_text(words), talk_text(words)]
        assert server.events(ended) == before


def test_submit_interrupted_by_a_kill_is_retried_by_its_key_and_creates_one_job():
    draw = random.Random(SEED)
    with killed_server() as server:
        first: dict[str, str] = {}
        for number in range(5):
            keys = [f"key-{number}-{each}" for each in range(8)]

            def submit(key: str) -> None:
                try:
                    answer = server.submit("shout", key, input={"text": key})
                except httpx.TransportError:
                    return
                if answer.status_code == 201:
                    first[key] = answer.json()["id"]

            threads = [threading.Thread(target=submit, args=(key,)) for key in keys]
            for thread in threads:
                thread.start()
            time.sleep(draw.uniform(0, 0.1))
            server.again()
            for thread in threads:
                thread.join()
            for key in keys:
                answer = server.submit("shout", key, input={"text": key})
                assert answer.status_code == 201, answer.text
                job = answer.json()["id"]
                assert first.setdefault(key, job) == job
        listed = server.http.get("/v1/jobs", params={"limit": 1000}).json()["jobs"]
        assert sorted(each["id"] for each in listed) == sorted(first.values())
        for key, job in first.items():
            assert server.ended(job)["state"]["items"][0]["value"] == key.upper()


def test_trimmed_log_continues_after_two_kills_in_a_row():
    with killed_server(max_log_bytes=4096, merge_window=0) as server:
        words = 1500
        job = server.submit("talk", input={"words": words, "pause": 0}).json()["id"]
        held = server.submit("talk", input={"words": words, "pause": 0.05}).json()["id"]
        server.ended(job)
        server.until(held, lambda found: int(found["cursor"].split("-")[1]) > 20)
        before = server.events(job)
        server.again()
        server.again()
        assert server.events(job) == before
        assert server.job(job)["state"]["items"][0]["value"] == talk_text(words)
        assert server.job(held)["attempt"] in {
            2,
            3,
        }  # the attempt number depends on whether the job started between the kills
        server.http.post(f"/v1/jobs/{held}/cancel")
        found = server.ended(held)
        assert (found["status"], talk_text(words)[: len(text := found["state"]["items"][0]["value"])]) == (
            "cancelled",
            text,
        )
