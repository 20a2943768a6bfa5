"""Functions that continue after a restart: `ctx.attempt`, `ctx.previous`, and endpoints with `on_restart="continue"`."""

import contextlib
import random
import threading
import time
from typing import Any

import httpx2
import pytest

from support.killable_server import Killed, killed_server
from support.random_seed import SEED
from tidewire import Client, RetryPolicy, Update
from tidewire.protocol.sse import Decoder
from tidewire_server import Context, Server

RETRY = RetryPolicy(max_delay=0.1)
PATIENCE = 60


@pytest.fixture(scope="module")
def server():
    with killed_server() as server:
        yield server


def has_value(found: dict[str, Any]) -> bool:
    return all(item["value"] for item in found["state"]["items"])


def is_running(found: dict[str, Any]) -> bool:
    return found["status"] == "running"


def restarts(server: Killed, job: str) -> list[str]:
    """Return the data of the snapshots that opened a new attempt."""
    logged = [each for each in Decoder().feed(server.events(job)) if each.id]
    return [each.data for each in logged if each.type == "snapshot" and '"reason":"restart"' in each.data]


def test_the_text_of_a_generator_without_annotation_is_retracted_and_sent_again(server):
    with Client(server.url, retry=RETRY) as client:
        job = client.submit("seen_untyped")
        changes = []
        for change in job.iter_text_deltas():
            changes.append((change.deleted, change.text))
            if len(changes) == 1:
                server.again()
    assert changes[0] == (0, "draft")
    assert sum(deleted for deleted, _ in changes) == len("draft")
    assert "".join(text for _, text in changes[1:]) == job.result() == "draft 2"


def test_each_kind_of_function_sees_its_attempt_and_the_value_of_the_attempt_before(server):
    first = {"attempt": 1, "previous": None}
    jobs = {
        kind: server.submit(f"seen_{kind}").json()["id"] for kind in ("async", "sync", "generator", "stream")
    }
    batch = server.submit("seen_batch", inputs=[{"name": "a"}, {"name": "b"}]).json()["id"]
    for kind in ("async", "sync"):
        server.until(jobs[kind], is_running)
    for job in (jobs["generator"], jobs["stream"], batch):
        server.until(job, has_value)
    server.again()
    values = {kind: server.ended(job)["state"]["items"][0]["value"] for kind, job in jobs.items()}
    # The value was retracted, because the endpoint runs again, but `previous` still had it.
    assert '"value":{}' in restarts(server, jobs["stream"])[0]
    second = {"attempt": 2, "previous": first}
    nothing_logged = {"attempt": 2, "previous": None}
    assert values == {
        "async": nothing_logged,
        "sync": nothing_logged,
        "generator": second,
        "stream": second,
    }
    for item, name in zip(server.ended(batch)["state"]["items"], "ab", strict=True):
        earlier = item["value"]["previous"]
        assert (earlier["name"], earlier["attempt"], earlier["previous"]) == (name, 1, None)
        assert (item["value"]["name"], item["value"]["attempt"]) == (name, 2)
        assert "ctx.rows[row].attempt" in item["value"]["refused"]


def test_a_function_without_a_server_is_in_its_first_attempt():
    server, seen = Server(), []

    @server.endpoint
    def once(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.previous))

    server.call("once")
    assert seen == [(1, None)]
    assert (Context().attempt, Context().previous, Context().cancelled) == (1, None, False)


def test_an_endpoint_says_how_its_items_continue(server):
    said = {
        name: server.http.get(f"/v1/endpoints/{name}").json()["on_restart"]
        for name in ("count", "pay", "talk")
    }
    assert said == {"count": "continue", "pay": "fail", "talk": "rerun"}


def test_an_unknown_way_to_restart_is_refused():
    with pytest.raises(ValueError, match="on_restart must be 'rerun', 'fail' or 'continue', not 'again'"):

        @Server().endpoint(on_restart="again")  # type: ignore[call-overload]
        def once() -> None: ...


def follow(server: Killed, job_id: str, received: list[Any], *, text: bool = False) -> threading.Thread:
    """Read the updates of a job, or the pieces of its text, in a thread."""
    connected = threading.Event()

    def read() -> None:
        with Client(server.url, retry=RETRY) as client:
            job = client.job(job_id)
            job.status()
            connected.set()
            received.extend(job.iter_text() if text else job)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    assert connected.wait(PATIENCE)
    return thread


@pytest.mark.heavy
def test_a_counting_function_counts_each_number_once_whenever_the_server_is_killed():
    print(f"CHAOS_SEED={SEED}")
    draw = random.Random(SEED)
    n, letters = 300, "né😀 " * 60
    with killed_server(shutdown_timeout=0.05, cancel_timeout=0.05) as server:
        counts = [server.submit("count", input={"n": n, "pause": 0.002}).json()["id"] for _ in range(2)]
        spelled = server.submit("spell", input={"text": letters}).json()["id"]
        together = server.submit("count_together", inputs=[{"n": 80}, {"n": 60}]).json()["id"]
        updates: dict[str, list[Update[Any]]] = {counts[0]: [], spelled: []}
        pieces: list[str] = []
        readers = [follow(server, job, received) for job, received in updates.items()]
        readers.append(follow(server, spelled, pieces, text=True))
        for _ in range(5):
            if draw.random() < 0.3:
                server.kill()
                server.start_and_kill_after(draw.uniform(0, 0.15))
            else:
                time.sleep(draw.uniform(0, 0.1))
                server.kill() if draw.random() < 0.7 else server.stop()
            server.start()
        expected = {job: [list(range(n))] for job in counts}
        expected |= {spelled: [letters], together: [list(range(80)), list(range(60))]}
        for job, values in expected.items():
            found = server.ended(job)
            assert [item["value"] for item in found["state"]["items"]] == values
        assert restarts(server, counts[0])
        for reader in readers:
            reader.join(PATIENCE)
        assert updates[counts[0]][-1].value == list(range(n))
        assert "".join(update.text for update in updates[spelled]) == "".join(pieces) == letters
        assert {update.deleted for update in updates[spelled]} == {0}


def test_a_job_that_crashes_the_server_in_each_attempt_ends_after_max_attempts_although_it_continues(server):
    server.kill()
    server.start(max_attempts=2)
    key = {"endpoint": "continuing_poison", "key": "poison"}
    with contextlib.suppress(httpx2.TransportError):
        server.submit(**key)
    server.died()
    crashes = 1
    while True:
        server.start(max_attempts=2)
        try:
            found = server.ended(server.submit(**key).json()["id"])
            break
        except httpx2.TransportError:
            server.died()
            crashes += 1
            assert crashes <= 2
    (item,) = found["state"]["items"]
    assert (item["status"], item["error"]["code"], item["value"]) == ("failed", "worker_lost", [1, 2])
    assert "max_attempts" in item["error"]["detail"]
