"""Several servers on one database: submit on one, run on another, read, resume and cancel on any; kill any of them."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.checked_reader import Reader, check_reader
from support.postgres_server import needs_postgres
from support.replicas import Replica, Replicas, eventually
from tidewire import Client
from tidewire.protocol.sse import Event

pytestmark = needs_postgres


@pytest.fixture(scope="module")
def pair(postgres_of_the_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """Two servers that tests share, which must not stop them."""
    folder = tmp_path_factory.mktemp("pair")
    with postgres_of_the_run.database() as url, Replicas(folder, url, min_grace=0.5) as replicas:
        replicas.add()
        replicas.add()
        yield replicas


@pytest.fixture
def replicas(database_url: str, tmp_path: Any) -> Iterator[Replicas]:
    """Function that starts servers on a new database."""
    with Replicas(tmp_path / "files", database_url) as found:
        yield found


class Slot:
    """A job that occupies the only slot of an endpoint at one server, so that the next one runs at the other one."""

    def __init__(self, replicas: Replicas, name: str, endpoint: str = "hold") -> None:
        self._replicas = replicas
        self._name = f"slot-{name}"
        first = replicas.any
        self.job = first.start_job(endpoint, input={"name": self._name})
        self.server = replicas.runner(self._name)
        self.other = replicas.other(self.server)

    def free(self) -> None:
        self._replicas.open(self._name)
        assert self.server.ended(self.job)["status"] == "succeeded"


def value(found: dict[str, Any]) -> Any:
    return found["state"]["items"][0]["value"]


def until_type(events: Iterator[Event], kind: str) -> Event:
    """Read events up to the next one of a type, and return it."""
    return next(event for event in events if event.type == kind)


def test_a_job_that_runs_elsewhere_is_read_and_resumed_at_both_servers(pair):
    slot = Slot(pair, "read")
    front, owner = slot.server, slot.other
    job = front.start_job("hold", input={"name": "read"})
    assert pair.runner("read") is owner
    with front.stream(job) as events:
        assert until_type(events, "snapshot")
        front.until(job, lambda found: value(found) == "read")
        assert front.job(job) == owner.job(job)
        with Client(front.url) as client, Client(owner.url) as other:
            assert other.job(job).status() == "running"
            pair.open("read")
            assert other.job(job).result() == client.job(job).result() == "read!"
        assert json.loads(until_type(events, "done").data)["status"] == "succeeded"
    assert front.job(job) == owner.job(job)
    whole = front.events(job)
    assert whole == owner.events(job)
    ids = [line[4:] for line in whole.decode().split("\n") if line.startswith("id: ")]
    for cursor in ids[:-1]:
        assert front.events(job, cursor) == owner.events(job, cursor)
        assert whole.endswith(front.events(job, cursor))
    slot.free()


def test_one_idempotency_key_at_two_servers_at_once_creates_one_job(pair):
    front = pair.any
    for number in range(10):
        together, answers = threading.Barrier(4), []

        def submit(
            server: Replica, number: int = number, together: Any = together, answers: Any = answers
        ) -> None:
            together.wait()
            answer = server.submit("letters", f"key-{number}", input={"n": 1, "pause": 0})
            answers.append((answer.status_code, answer.json()))

        threads = [
            threading.Thread(target=submit, args=(server,)) for server in (front, pair.other(front)) * 2
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ids = {body["id"] for status, body in answers if status in {200, 201}}
        assert len(ids) == 1, answers
        assert {body["code"] for status, body in answers if status not in {200, 201}} <= {
            "idempotency_in_flight"
        }
        again = pair.other(front).submit("letters", f"key-{number}", input={"n": 1, "pause": 0})
        assert again.json()["id"] in ids
        reused = front.submit("letters", f"key-{number}", input={"n": 2, "pause": 0})
        assert reused.json()["code"] == "idempotency_key_reused"


@pytest.mark.parametrize("endpoint", ["hold", "hold_thread"])
def test_a_cancel_at_another_server_reaches_the_function(pair, endpoint):
    slot = Slot(pair, endpoint, endpoint)
    front, owner = slot.server, slot.other
    name = f"cancel-{endpoint}"
    job = front.start_job(endpoint, input={"name": name})
    assert pair.runner(name) is owner
    assert front.cancel(job).status_code == 202
    assert eventually(lambda: pair.noted("cancelled", name)) == [owner.name]
    assert front.ended(job)["status"] == "cancelled"
    assert front.job(job) == owner.job(job)
    assert front.cancel(job).status_code == 200
    slot.free()


def test_waiting_jobs_and_single_items_are_cancelled_at_any_server(pair):
    slot = Slot(pair, "waiting")
    front, owner = slot.server, slot.other
    running = front.start_job("hold", inputs=[{"name": f"item-{number}"} for number in range(4)])
    assert pair.runner("item-0") is owner
    waiting = front.start_job("hold", input={"name": "never"})
    batch = front.start_job("hold", inputs=[{"name": f"waits-{number}"} for number in range(4)])
    # At both servers at once, so that only one of them can claim the job.
    together, answers = threading.Barrier(2), []

    def cancel(server: Replica, *items: int) -> None:
        together.wait()
        answers.append(server.cancel(batch, *items).status_code)

    threads = [threading.Thread(target=cancel, args=each) for each in ((front, 1), (owner, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [202, 202]
    threads = [threading.Thread(target=server.cancel, args=(waiting,)) for server in (front, owner)]
    for thread in threads:
        thread.start()
    assert front.ended(waiting)["status"] == "cancelled"
    for thread in threads:
        thread.join()
    assert front.cancel(running, 0, 2).status_code == 202
    for number in (0, 1, 3):
        pair.open(f"item-{number}")
    found = front.ended(running)
    assert [item["status"] for item in found["state"]["items"]] == [
        "cancelled",
        "succeeded",
        "cancelled",
        "succeeded",
    ]
    assert found["attempt"] == 1
    for number in (0, 3):
        pair.open(f"waits-{number}")
    found = owner.ended(batch)
    assert [item["status"] for item in found["state"]["items"]] == [
        "succeeded",
        "cancelled",
        "cancelled",
        "succeeded",
    ]
    assert found["attempt"] == 1
    assert not pair.noted("start", "never")
    assert front.job(batch) == found
    slot.free()


def test_a_job_that_runs_elsewhere_or_waits_is_deleted_and_its_readers_receive_done(pair):
    slot = Slot(pair, "delete")
    front, owner = slot.server, slot.other
    for number in range(5):
        name = f"deleted-{number}"
        job = front.start_job("hold", input={"name": name})
        assert pair.runner(name) is owner
        _delete(pair, front, job, (front, owner))
        assert eventually(lambda name=name: pair.noted("cancelled", name)) == [owner.name]
    running = front.start_job("hold", input={"name": "runs"})
    assert pair.runner("runs") is owner
    for _ in range(3):
        job = front.start_job("hold", input={"name": "waits"})
        _delete(pair, front, job, (front, owner))
    assert not pair.noted("start", "waits")
    assert not pair.execute("SELECT FROM ticket t WHERE NOT EXISTS (SELECT FROM job WHERE number = t.job)")
    pair.open("runs")
    assert front.ended(running)["status"] == "succeeded"
    slot.free()


def _delete(replicas: Replicas, front: Replica, job: str, readers: tuple[Replica, ...]) -> None:
    """Delete a job while it has readers at some servers."""
    with contextlib.ExitStack() as streams:
        opened = [streams.enter_context(server.stream(job)) for server in readers]
        for events in opened:
            until_type(events, "snapshot")
        assert front.delete(job).status_code == 204
        assert [server.status(job) for server in readers] == [410, 410]
        for events in opened:
            assert json.loads(until_type(events, "done").data)["status"] == "cancelled"
    assert [server.delete(job).status_code for server in readers] == [410, 410]
    eventually(lambda: not replicas.execute("SELECT FROM job WHERE id = %s", job))


def test_a_job_is_cancelled_when_no_server_has_a_reader(pair):
    slot = Slot(pair, "grace")
    front, owner = slot.server, slot.other
    unread = {"on_disconnect": "cancel", "grace_ms": 500}
    job = front.start_job("hold", input={"name": "unread"}, **unread)
    assert pair.runner("unread") is owner
    waits = [front.start_job("hold", input={"name": "unread-waits"}, **unread) for _ in range(2)]
    due = front.start_job("hold", input={"name": "due"}, deadline_ms=500)
    with front.stream(job) as events, front.stream(waits[0]) as waiting:
        until_type(events, "snapshot")
        until_type(waiting, "snapshot")
        # The second waiting job has no reader, and the third one has a deadline.
        assert owner.ended(waits[1])["status"] == "cancelled"
        found = owner.ended(due)
        assert (found["status"], found["done"]["error"]["code"]) == ("failed", "deadline_exceeded")
        ended = owner.start_job("letters", input={"n": 30, "pause": 0.1, "name": "meanwhile"})
        owner.ended(ended)
        assert owner.job(job)["status"] == "running"
        assert front.job(waits[0])["status"] == "queued"
    assert eventually(lambda: pair.noted("cancelled", "unread")) == [owner.name]
    assert front.ended(job)["status"] == "cancelled"
    assert front.ended(waits[0])["status"] == "cancelled"
    assert not pair.noted("start", "unread-waits")
    assert not pair.noted("start", "due")
    slot.free()


def test_a_waiting_job_gets_queue_positions_that_move_at_a_server_that_does_not_run_it(pair):
    slot = Slot(pair, "positions")
    front, owner = slot.server, slot.other
    running = [front.start_job("hold", input={"name": f"before-{number}"}) for number in range(3)]
    pair.runner("before-0")
    job = front.start_job("hold", input={"name": "moves"})
    with front.stream(job) as events:
        positions = [json.loads(until_type(events, "queue").data)["position"]]
        for number, earlier in enumerate(running):
            pair.open(f"before-{number}")
            owner.ended(earlier)
            while number < 2 and positions[-1] != 2 - number:
                positions.append(json.loads(until_type(events, "queue").data)["position"])
        assert positions[0] == 3
        assert positions[-1] == 1
        pair.open("moves")
        assert json.loads(until_type(events, "done").data)["status"] == "succeeded"
    slot.free()


def test_items_of_a_batched_endpoint_are_run_by_the_server_with_a_free_slot(pair):
    first = pair.any
    slot = first.start_job("together", input={"name": "slot-batch", "kind": "slot"})
    front = pair.runner("slot-batch")
    owner = pair.other(front)
    names = [f"row-{number}" for number in range(4)]
    job = front.start_job("together", inputs=[{"name": name, "kind": "rows"} for name in names])
    assert {pair.runner(name) for name in names} == {owner}
    pair.open("rows")
    found = front.ended(job)
    assert [item["value"] for item in found["state"]["items"]] == [f"{name}!" for name in names]
    assert {item["batch"]["size"] for item in found["state"]["items"]} == {4}
    pair.open("slot")
    assert owner.ended(slot)["status"] == "succeeded"
