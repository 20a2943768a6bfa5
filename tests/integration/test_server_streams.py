"""Event streams of the server: opening, replay, cursors, snapshots, heartbeats, problems and shutdown."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator

import httpx2
import pytest

from support.reference_server import QUICK, STREAM, Fold, Peer, Reading, data, eventually, logged, serving
from support.server_address import address_of
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.sse import Decoder
from tidewire_server import Server, Stream

TEXT = "Hé🎉llo, wörld. " * 3


def make_server(**settings: object) -> Server:
    server = Server(**(QUICK | {"default_concurrency_limit": None, "merge_window": 0.0} | settings))

    @server.endpoint
    async def spell(stream: Stream[str], text: str = TEXT, pause: float = 0.0) -> None:
        for letter in text:
            stream.append(letter)
            await asyncio.sleep(pause)
        stream.progress(len(text), len(text), unit="letter")

    @server.endpoint
    async def count(n: int = 5) -> AsyncIterator[int]:
        for number in range(n):
            yield number
            await asyncio.sleep(0)

    @server.endpoint
    async def hold(stream: Stream[str], text: str = "held") -> None:
        stream.append(text)
        await asyncio.Event().wait()

    @server.endpoint
    async def flood(stream: Stream[str], kilobytes: int = 1000) -> None:
        for _ in range(kilobytes):
            stream.append("x" * 1024)
            await asyncio.sleep(0)

    return server


@pytest.fixture(scope="module")
def peer():
    with serving(make_server()) as peer:
        yield peer


def test_submit_returns_the_stream_of_the_job(peer):
    with peer.http.stream(
        "POST", "/v1/endpoints/spell/jobs", json={"input": {"text": "hi"}}, headers=STREAM
    ) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-store, no-transform"
        assert answer.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in answer.headers
        reading = Reading(answer)
        events = list(reading)
    hello = data(events[0])
    assert events[0].type == "hello"
    assert 7.5 <= reading.decoder.retry_ms <= 15
    assert answer.headers["location"] == f"/v1/jobs/{hello['job']}"
    assert answer.headers["content-location"] == hello["events"] == f"/v1/jobs/{hello['job']}/events"
    assert hello | {"protocol": "tidewire/1", "heartbeat_ms": 5000} == hello
    first, *_, last = logged(events)
    assert (first.type, first.id, data(first)["reason"]) == ("snapshot", "1-1", "start")
    assert data(first)["columns"] == ["/items/0/value"]
    assert last.type == "done"
    fold = Fold().take(events)
    assert fold.items == [{"status": "succeeded", "value": "hi"}]
    assert fold.done["status"] == "succeeded"


def test_an_append_is_sent_as_two_lines(peer):
    job = peer.start("spell", {"text": "ab"})
    peer.ended(job)
    raw = peer.http.get(f"/v1/jobs/{job}/events?after=0-0").content
    assert b'\n\nid:1-3\ndata:"a"\n\nid:1-4\ndata:"b"\n\n' in raw
    assert b"\r" not in raw
    assert raw.endswith(b"\n\n")


def test_replay_from_every_cursor_yields_the_remaining_events(peer):
    job = peer.start("spell")
    whole = peer.events(job, after="0-0")
    fold = Fold().take(whole)
    assert fold.items == [{"status": "succeeded", "value": TEXT}]
    ids = [event.id for event in logged(whole)]
    assert ids == [f"1-{seq}" for seq in range(1, len(TEXT) + 5)]
    for position, cursor in enumerate(ids[:-1]):
        tail = logged(peer.events(job, cursor))
        assert tail == logged(whole)[position + 1 :]
    assert Fold().take(peer.events(job)).items == fold.items
    assert peer.http.get(f"/v1/jobs/{job}/events", headers={"last-event-id": ids[-1]}).status_code == 204


def test_a_stream_continues_from_the_cursor_of_a_job_read(peer):
    job = peer.start("spell", {"pause": 0.002})
    read = peer.job(job)
    fold = Fold()
    fold.take(peer.events(job, after="0-0"))
    assert fold.states[read["cursor"]] == read["state"]["items"]
    follower = Fold()
    follower.cursor = Cursor.parse(read["cursor"])
    tail = logged(peer.events(job, read["cursor"]))
    assert tail[0].id == f"1-{follower.cursor.seq + 1}"


# ---- cursors ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(peer):
    job = peer.start("count", {"n": 3})
    return job, logged(peer.events(job, after="0-0"))


def test_the_cursor_of_a_fatal_problem_is_answered_with_204(peer):
    assert peer.http.get("/v1/jobs/nothing/events", headers={"last-event-id": "0-1"}).status_code == 204


def test_a_running_job_without_a_cursor_opens_with_a_snapshot_at_its_head(peer):
    job = peer.start("hold", {"text": "so far"})
    eventually(lambda: peer.job(job)["state"]["items"][0]["value"])
    with peer.stream(job) as reading:
        snapshot = reading.until("snapshot")
        assert data(snapshot)["state"]["items"][0]["value"] == "so far"
        assert snapshot.id == peer.job(job)["cursor"]
    peer.http.post(f"/v1/jobs/{job}/cancel")


def test_repeated_and_invalid_parameters_are_refused(peer, ended):
    job, _ = ended
    for query in (
        "after=1-1&after=1-2&diffs=0",
        "diffs=2",
        "errors=loud&diffs=0",
        "min_interval_ms=x",
        "min_interval_ms=-1",
        "diffs=0&min_interval_ms=x",
        "diffs=0&min_interval_ms=-1",
    ):
        answer = peer.http.get(f"/v1/jobs/{job}/events?{query}")
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_parameter"), query
    assert peer.http.get(f"/v1/jobs/{job}/events?colour=blue").status_code == 200


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("text/event-stream;q=0, */*", 406),
        ("*/*, text/event-stream; q=0.0", 406),
        ("text/*;q=0, text/event-stream", 200),
        ("text/event-stream;q=0.1", 200),
        ("*/*", 200),
    ],
)
def test_the_most_specific_media_range_applies(peer, ended, accept, status):
    assert peer.http.get(f"/v1/jobs/{ended[0]}/events", headers={"accept": accept}).status_code == status


# ---- several readers, slow readers ---------------------------------------------------------------------------------


def test_two_readers_hold_equal_states_at_equal_ids(peer):
    job = peer.start("spell", {"text": TEXT * 3, "pause": 0.001})
    folds = [Fold(), Fold()]
    cursors = [None, "1-4"]

    def read(position: int) -> None:
        with Peer(peer.url) as other, other.stream(job, after="0-0") as reading:
            folds[position].take(list(reading))

    threads = [threading.Thread(target=read, args=(position,)) for position in range(len(cursors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folds[0].states == folds[1].states
    assert folds[0].done == folds[1].done


def test_trimmed_events_are_replaced_by_a_snapshot():
    with serving(make_server(max_log_bytes=4096)) as peer:
        job = peer.start("spell", {"text": "abcdefgh" * 200})
        final = peer.ended(job)
        opened = logged(peer.events(job, "1-2"))
        assert [(event.type, data(event).get("reason")) for event in opened[:1]] == [
            ("snapshot", "compacted")
        ]
        assert [event.type for event in opened] == ["snapshot", "done"]
        everything = logged(peer.events(job, after="0-0"))
        assert (everything[0].type, data(everything[0])["reason"]) == ("snapshot", "compacted")
        assert 10 < len(everything) < 1600
        assert sum(len(event.data) for event in everything[1:]) < 8192
        fold = Fold().take(everything)
        assert fold.items == final["state"]["items"]
        assert logged(peer.events(job, everything[0].id)) == everything[1:]


@pytest.mark.heavy
def test_a_stuck_reader_is_closed_without_affecting_the_job_or_others():
    with serving(make_server(stall_timeout=1.5, max_log_bytes=512 * 1024)) as peer:
        job = peer.start("flood", {"kilobytes": 1000})
        with socket.create_connection(address_of(peer.url)) as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.sendall(f"GET /v1/jobs/{job}/events?after=0-0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            fold = Fold(keep_states=False).take(peer.events(job))
            assert fold.done["status"] == "succeeded"
            assert len(fold.items[0]["value"]) == 1000 * 1024
            eventually(lambda: peer.metrics()["tidewire_streams_stalled_total"] == 1)
            eventually(lambda: peer.metrics()["tidewire_open_streams"] == 0)


def test_a_slow_reader_gets_a_snapshot_in_place_of_trimmed_events():
    with serving(make_server(max_log_bytes=16 * 1024)) as peer:
        job = peer.start("flood", {"kilobytes": 1000})
        fold, reasons = Fold(), []
        decoder = Decoder()
        with socket.create_connection(address_of(peer.url)) as slow:
            slow.sendall(f"GET /v1/jobs/{job}/events?after=0-0 HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            eventually(lambda: peer.job(job)["status"] == "succeeded")
            received = b""
            while chunk := slow.recv(65536):
                received += chunk
        events = decoder.feed(received.partition(b"\r\n\r\n")[2])
        reasons = [data(event)["reason"] for event in events if event.type == "snapshot"]
        assert "compacted" in reasons
        assert fold.take(events).done["status"] == "succeeded"
        assert len(fold.items[0]["value"]) == 1000 * 1024


# ---- events that are not logged ------------------------------------------------------------------------------------


def test_pings_with_the_head_are_sent_during_silence():
    with serving(make_server(heartbeat=0.05)) as peer:
        job = peer.start("hold")
        with peer.stream(job) as reading:
            reading.until_text("held")
            pings = [reading.until("ping"), reading.until("ping")]
        assert [data(ping)["head"] for ping in pings] == [peer.job(job)["cursor"]] * 2
        assert reading.decoder.last_event_id == peer.job(job)["cursor"]


def test_the_latest_progress_is_sent_again_on_connect():
    server = make_server()

    @server.endpoint
    async def half(stream: Stream[str]) -> None:
        stream.progress(1, 2, unit="half", phase="first")
        stream.append("x")
        await asyncio.Event().wait()

    with serving(server) as peer:
        job = peer.start("half")
        for _ in range(2):
            with peer.stream(job) as reading:
                progress = data(reading.until("progress"))
        assert progress == {"current": 1, "total": 2, "unit": "half", "phase": "first", "item": 0}


def test_snapshots_only_streams_are_paced_and_end_with_done(peer):
    job = peer.start("spell", {"pause": 0.002})
    events = logged(peer.events(job, diffs="0", min_interval_ms="50"))
    assert {event.type for event in events[:-1]} == {"snapshot"}
    assert events[-1].type == "done"
    assert len({event.id for event in events}) == len(events) <= 12
    fold = Fold()
    fold.take(events)
    assert fold.items == [{"status": "succeeded", "value": TEXT}]


def test_snapshots_only_streams_handle_cursors_like_other_streams(peer, ended):
    job, events = ended
    for cursor, reason in [("17-3", "rewound"), (events[1].id, "compacted"), ("0-0", "compacted")]:
        found = logged(peer.events(job, cursor, diffs="0"))
        assert [(event.type, event.id) for event in found] == [
            ("snapshot", events[-2].id),
            ("done", events[-1].id),
        ]
        assert data(found[0])["reason"] == reason
    headers = {"last-event-id": events[-1].id}
    assert peer.http.get(f"/v1/jobs/{job}/events?diffs=0", headers=headers).status_code == 204


# ---- in-band problems -----------------------------------------------------------------------------------------------


def test_a_fatal_in_band_problem_has_the_id_that_ends_an_event_source(peer):
    with peer.stream("no-such-job", errors="inband") as reading:
        (event,) = list(reading)
    assert (event.type, event.id, data(event)["code"]) == ("problem", "0-1", "job_not_found")
    assert reading.decoder.retry_ms is not None


def test_a_retryable_in_band_problem_has_no_id_but_a_retry_field():
    with serving(make_server(max_streams_per_principal=1)) as peer:
        job = peer.start("hold")
        with peer.stream(job) as first:
            first.until("snapshot")
            before = peer.metrics()["tidewire_events_logged_total"]
            submit = peer.http.post("/v1/endpoints/spell/jobs", json={"input": {}}, headers=STREAM)
            assert (submit.status_code, submit.json()["code"]) == (429, "too_many_streams")
            assert peer.metrics()["tidewire_events_logged_total"] == before
            answer = peer.http.get(f"/v1/jobs/{job}/events")
            assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
            assert answer.headers["retry-after"] == "5"
            with peer.stream(job, errors="inband") as reading:
                (event,) = list(reading)
            assert (event.type, event.id, reading.decoder.retry_ms) == ("problem", "", 5000)
        eventually(lambda: peer.metrics()["tidewire_open_streams"] == 0)
        with peer.stream(job) as again:
            assert again.until("snapshot")


# ---- shutdown --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("readers", "longest"), [(3, 15), (60, 128)])
def test_a_goaway_at_shutdown_has_a_random_wait_that_grows_with_the_number_of_readers(
    tmp_path, readers, longest
):
    """The server asks at most 500 readers per second to come back: 60 of them within 7.5 to 127.5 ms."""
    server = make_server(log=f"sqlite:///{tmp_path}/log.db", shutdown_timeout=0)

    async def read(http: httpx2.AsyncClient, events_url: str) -> tuple[str, int]:
        decoder, events = Decoder(), []
        async with http.stream("GET", events_url) as answer:
            async for chunk in answer.aiter_raw():
                events += decoder.feed(chunk)
        return events[-1].type, data(events[-1])["retry_ms"]

    async def read_until_shutdown() -> list[tuple[str, int]]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(timeout=30, limits=limits) as http:
            with serving(server) as peer:
                job = peer.start("hold")
                events_url = f"{peer.url}/v1/jobs/{job}/events"
                reading = asyncio.gather(*(read(http, events_url) for _ in range(readers)))
                while peer.metrics()["tidewire_open_streams"] < readers:
                    await asyncio.sleep(0.01)
            return await reading

    ends = asyncio.run(read_until_shutdown())
    assert {end for end, _ in ends} == {"goaway"}
    waits = [wait for _, wait in ends]
    assert all(7 <= wait <= longest for wait in waits)
    assert max(waits) > longest / 2
