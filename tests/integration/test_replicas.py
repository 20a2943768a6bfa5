"""Several servers on one database: submit on one, run on another, read, resume and cancel on any; kill any of them."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from support.checked_reader import Reader, check_reader
from support.postgres_server import PASSWORD_USER, needs_postgres
from support.replicas import LIMIT, Replica, Replicas, eventually
from tidewire import Client
from tidewire.protocol.sse import Event

pytestmark = [*needs_postgres, pytest.mark.timeout(240)]

HALF = {"n": 60, "pause": 0.01, "gate": "half"}
"""Input of a call that waits in the middle of 60 steps, at the gate `half`."""


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


def statuses(found: dict[str, Any]) -> list[str]:
    return [item["status"] for item in found["state"]["items"]]


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


def test_a_stream_token_of_one_server_is_valid_at_the_other(pair):
    front, other = pair.any, pair.other(pair.any)
    job = front.start_job("letters", input={"n": 2, "pause": 0})
    front.ended(job)
    made = front.http.post(f"/v1/jobs/{job}/stream-token").json()["url"]
    path = made[made.index("/v1/") :]
    assert "event:done" in other.http.get(path).text.replace(" ", "")
    forged = path[:-1] + ("A" if path[-1] != "A" else "B")
    refused = other.http.get(forged).text
    assert "event:done" not in refused.replace(" ", "")
    assert "unauthorized" in refused


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
    front.until(running, lambda found: statuses(found)[2] == "cancelled")
    for number in (1, 3):
        pair.open(f"item-{number}")
    found = front.ended(running)
    assert statuses(found) == ["cancelled", "succeeded", "cancelled", "succeeded"]
    assert found["attempt"] == 1
    for number in (0, 3):
        pair.open(f"waits-{number}")
    found = owner.ended(batch)
    assert statuses(found) == ["succeeded", "cancelled", "cancelled", "succeeded"]
    assert found["attempt"] == 1
    assert not pair.noted("start", "never")
    assert front.job(batch) == found
    slot.free()


@pytest.mark.heavy
def test_a_job_that_runs_elsewhere_or_waits_is_deleted_and_its_readers_receive_done(pair):
    slot = Slot(pair, "delete")
    front, owner = slot.server, slot.other
    for number in range(5):
        name = f"deleted-{number}"
        job = front.start_job("hold", input={"name": name})
        assert pair.runner(name) is owner
        _delete(front, job, (front, owner))
        assert eventually(lambda name=name: pair.noted("cancelled", name)) == [owner.name]
    running = front.start_job("hold", input={"name": "runs"})
    assert pair.runner("runs") is owner
    for _ in range(3):
        job = front.start_job("hold", input={"name": "waits"})
        _delete(front, job, (front, owner))
    assert not pair.noted("start", "waits")
    pair.open("runs")
    assert front.ended(running)["status"] == "succeeded"
    slot.free()
    # The rows stay for a moment, so that the readers of all servers receive `done`.
    eventually(lambda: not pair.execute("SELECT FROM job j JOIN tombstone t ON t.id = j.id"))


def _delete(front: Replica, job: str, readers: tuple[Replica, ...]) -> None:
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
    assert job not in {found["id"] for found in front.http.get("/v1/jobs").json()["jobs"]}


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_items_that_were_taken_in_vain_and_a_forgotten_server_are_found_again(pair):
    """The answers of the database to two takes are lost, and another server deletes the row of this server."""
    slot = Slot(pair, "vain")
    front, owner = slot.server, slot.other
    items = front.start_job("hold", inputs=[{"name": "vain-0"}, {"name": "vain-1"}])
    assert pair.runner("vain-0") is owner
    rows = [f"vain-row-{number}" for number in range(6)]
    batch = front.start_job("together", inputs=[{"name": name, "kind": "vain"} for name in rows])
    pair.runner(rows[3])
    waiting = front.start_job("hold", input={"name": "vain-2"})
    lost = "DELETE FROM ticket t USING job j WHERE j.number = t.job AND j.id = %s"
    for job in (items, batch, waiting):
        pair.execute(lost, job)
    (number,) = pair.execute("SELECT owner FROM job WHERE id = %s", items)[0]
    pair.execute("UPDATE job SET owner = %s WHERE id = %s", number, waiting)
    for gate in ("vain-0", "vain-1", "vain-2", "vain"):
        pair.open(gate)
    for job in (items, batch, waiting):
        assert front.ended(job)["status"] == "succeeded"
    slot.free()
    eventually(lambda: not pair.execute("SELECT FROM job WHERE owner IS NOT NULL"))
    # The rows of servers of earlier tests, which have left, do not come back.
    servers = pair.execute("DELETE FROM server WHERE until >= now() RETURNING id")
    assert len(servers) == 2
    eventually(lambda: not {*servers} - {*pair.execute("SELECT id FROM server")})
    slot = Slot(pair, "again")
    job = slot.server.start_job("hold", input={"name": "again"})
    assert pair.runner("again") is slot.other
    pair.open("again")
    assert slot.server.ended(job)["status"] == "succeeded"
    slot.free()


def refusal(server: Replica, endpoint: str, value: Any) -> httpx2.Response | None:
    """Submit a job. Return the response if the job is refused, and otherwise cancel the job."""
    answer = server.submit(endpoint, input=value)
    if answer.status_code != 201:
        return answer
    server.cancel(answer.json()["id"])
    server.ended(answer.json()["id"])
    return None


@pytest.mark.heavy
def test_without_notifications_polls_take_over_and_limits_count_over_all_servers(
    postgres_of_the_run, tmp_path
):
    """A pooler in transaction mode, for example, loses `LISTEN`."""
    with postgres_of_the_run.database() as url:
        name = url.partition("@/")[2].partition("?")[0]
        postgres_of_the_run.execute(f"GRANT CREATE ON DATABASE {name} TO {PASSWORD_USER}")
        postgres_of_the_run.execute("REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC", name)
        address = url.replace("//" + url.partition("//")[2].partition("@")[0], f"//{PASSWORD_USER}")
        with Replicas(tmp_path / "files", address, max_jobs_per_principal=8) as replicas:
            replicas.add()
            replicas.add()
            slot = Slot(replicas, "polls")
            front, owner = slot.server, slot.other
            job = front.start_job("hold", input={"name": "polled"})
            with front.stream(job) as events:
                until_type(events, "snapshot")
                assert replicas.runner("polled") is owner
                waits = [server.start_job("hold_few", input={"name": "few"}) for server in (front, owner) * 2]
                # One item runs at each server, and two items wait, which is the limit of the queue.
                eventually(lambda: len(replicas.noted("start", "few")) == 2)
                for server in (front, owner):
                    # A server learns at the next beat of the other one that the slot there is taken.
                    full = eventually(lambda server=server: refusal(server, "hold_few", {"name": "few"}))
                    assert (full.status_code, full.json()["code"]) == (429, "queue_full")
                more = [server.start_job("hold_too", input={"name": "few"}) for server in (front, owner)]
                for server in (front, owner):
                    full = server.submit("letters", input={"n": 1, "pause": 0})
                    assert (full.status_code, full.json()["code"]) == (429, "too_many_jobs")
                for other in (waits[3], *more):
                    assert front.cancel(other).status_code == 202
                    assert front.ended(other)["status"] == "cancelled"
                replicas.open("polled")
                assert json.loads(until_type(events, "done").data)["status"] == "succeeded"
            deleted = front.start_job("hold", input={"name": "polled-cancel"})
            assert replicas.runner("polled-cancel") is owner
            _delete(front, deleted, (front, owner))
            assert eventually(lambda: replicas.noted("cancelled", "polled-cancel")) == [owner.name]
            replicas.open("few")
            slot.free()


# ---- servers that stop ------------------------------------------------------------------------------------------------


@pytest.mark.heavy
def test_the_jobs_of_a_killed_server_go_on_at_another_one(replicas):
    owner = replicas.add(min_grace=0.5)
    moving = owner.start_job("letters", input=HALF)
    counting = owner.start_job("count", input=HALF)
    once = [owner.start_job("hold_once", input={"name": f"once-{number}"}) for number in range(2)]
    items = owner.start_job("hold", inputs=[{"name": f"item-{number}"} for number in range(4)])
    batch = owner.start_job("together", inputs=[{"name": f"row-{n}", "kind": "rows"} for n in range(2)])
    due = owner.start_job("hold_too", input={"name": "due"}, deadline_ms=12_000)
    unread = owner.start_job("hold_thread", input={"name": "unread"}, on_disconnect="cancel", grace_ms=0)
    for name in ("once-0", "item-0", "row-1", "due", "unread"):
        replicas.runner(name)
    replicas.open("item-0")
    replicas.runner("item-1")
    assert owner.cancel(items, 3).status_code == 202
    owner.until(items, lambda found: statuses(found)[3] == "cancelled")
    front = replicas.add(min_grace=0.5)
    both = [Reader(servers, job) for servers in ([front], [owner, front]) for job in (moving, counting)]
    for reader in both:
        reader.start()
    # The second job of `hold_once` waits for the first one at the owner, so the new server runs it.
    assert replicas.runner("once-1") is front
    with Client(front.url) as client, owner.stream(unread):
        for job in (moving, counting):
            front.until(job, lambda found: int(found["cursor"].split("-")[1]) > 5)
        assert client.job(counting).status() == "running"
        owner.kill()
        replicas.open("once-1")
        replicas.open("half")
        assert front.ended(once[1])["status"] == "succeeded"
        found = front.ended(once[0])
        assert (found["status"], found["done"]["error"]["code"]) == ("failed", "worker_lost")
        assert replicas.runner("unread", 2) is front
        for gate in ("item-1", "item-2", "rows"):
            replicas.open(gate)
        found = front.ended(items)
        assert (statuses(found), found["attempt"]) == (["succeeded"] * 3 + ["cancelled"], 2)
        assert replicas.noted("start", "item-0") == [owner.name]
        assert replicas.noted("start", "item-1") == [owner.name, front.name]
        found = front.ended(batch)
        assert [item["value"] for item in found["state"]["items"]] == ["row-0!", "row-1!"]
        assert client.job(counting).result() == list(range(60))
    for reader, job in zip(both, (moving, counting) * 2, strict=True):
        check_reader(reader, front, job, words(60) if job == moving else list(range(60)))
        assert len(reader.epochs) == 2
    assert front.ended(unread)["status"] == "cancelled"
    found = front.ended(due)
    assert (found["status"], found["done"]["error"]["code"]) == ("failed", "deadline_exceeded")


def words(n: int) -> str:
    return "".join(f"{number} " for number in range(n))


@pytest.mark.heavy
def test_a_server_that_was_frozen_stops_the_jobs_that_another_one_has_adopted(replicas):
    zombie = replicas.add()
    moving = zombie.start_job("letters", input=HALF)
    held = zombie.start_job("hold", input={"name": "held"})
    thread = zombie.start_job("hold_thread", input={"name": "thread"})
    ended = zombie.start_job("hold_too", input={"name": "ended"})
    doomed = zombie.start_job("hold_few", input={"name": "doomed"})
    for name in ("letters", "held", "thread", "ended", "doomed"):
        replicas.runner(name)
    front = replicas.add()
    reader = Reader([front], moving)
    reader.start()
    with (
        zombie.stream(moving) as events,
        front.stream(ended) as end,
        front.stream(doomed) as last,
    ):
        front.until(moving, lambda found: int(found["cursor"].split("-")[1]) > 5)
        # This job ends just before the server freezes.
        replicas.open("ended")
        zombie.ended(ended)
        zombie.signal(signal.SIGSTOP)
        try:
            # The server that adopts this job ends it, and only then its log is deleted.
            assert front.delete(doomed).status_code == 204
            assert front.status(doomed) == 410
            assert json.loads(until_type(last, "done").data)["status"] == "cancelled"
            assert replicas.runner("held", 2) is replicas.runner("thread", 2) is front
            front.until(moving, lambda found: found["attempt"] == 2 and found["status"] == "running")
            assert json.loads(until_type(end, "done").data)["status"] == "succeeded"
        finally:
            zombie.signal(signal.SIGCONT)
        eventually(lambda: zombie.name in replicas.noted("cancelled", "held"))
        eventually(lambda: zombie.name in replicas.noted("cancelled", "thread"))
        eventually(lambda: replicas.noted("cancelled", "doomed") == [zombie.name])
        for gate in ("held", "thread", "half"):
            replicas.open(gate)
        seen = [event for event in events if event.type in {"snapshot", "message", "done"}]
    check_reader(reader, front, moving, words(60))
    assert replicas.noted("end", "letters") == [front.name]
    ids = [event.id for event in seen]
    assert ids == sorted(set(ids), key=lambda each: int(each.split("-")[1]))
    assert {each.split("-")[0] for each in ids} == {str(epoch) for epoch in reader.epochs}
    for job, what in ((held, "held!"), (thread, "thread!"), (ended, "ended!")):
        assert value(front.ended(job)) == what
        assert zombie.ended(job) == front.ended(job)
        assert zombie.events(job) == front.events(job)
    assert zombie.events(moving) == front.events(moving)
    assert front.ended(ended)["attempt"] == 1
    # The server is alive again, and runs jobs.
    slot = Slot(replicas, "alive")
    job = slot.server.start_job("hold", input={"name": "alive"})
    assert replicas.runner("alive") is slot.other
    replicas.open("alive")
    assert slot.server.ended(job)["status"] == "succeeded"


@pytest.mark.heavy
def test_a_server_that_is_stopped_hands_its_jobs_over(replicas):
    leaving = replicas.add(shutdown_timeout=8)
    moving = leaving.start_job("count", input=HALF)
    again = leaving.start_job("letters", input=HALF)
    ending = leaving.start_job("hold", inputs=[{"name": f"ends-{number}"} for number in range(3)])
    replicas.runner("ends-0")
    queued = leaving.start_job("hold", input={"name": "queued"})
    staying = replicas.add()
    assert replicas.runner("queued") is staying
    waiting = leaving.start_job("hold", input={"name": "waiting"})
    jobs = (moving, again, ending, queued, waiting)
    readers = {job: Reader([leaving, staying], job) for job in jobs}
    for reader in readers.values():
        reader.start()
    eventually(lambda: all(reader.at for reader in readers.values()))
    leaving.signal(signal.SIGTERM)
    eventually(lambda: leaving.submit("letters", input={"n": 1, "pause": 0}).status_code == 503)
    # A new reader of a job that runs elsewhere gets its events while the server drains, and not only `goaway`.
    with leaving.stream(queued) as events:
        until_type(events, "snapshot")
        replicas.open("queued")
        assert json.loads(until_type(events, "done").data)["status"] == "succeeded"
    # The running item ends in time, and the other items of its job run elsewhere.
    replicas.open("ends-0")
    staying.until(ending, lambda found: statuses(found)[0] == "succeeded")
    newest = replicas.add()
    assert replicas.runner("ends-1") is newest or replicas.runner("waiting") is newest
    for gate in ("waiting", "ends-1", "ends-2"):
        replicas.open(gate)
    assert leaving.exit_code() == 0
    assert "Traceback" not in leaving.errors()
    replicas.open("half")
    for job in (waiting, queued, again, moving, ending):
        reader = readers[job]
        reader.join(LIMIT)
        assert (reader.faults, reader.done and reader.done["status"]) == ([], "succeeded")
    assert staying.job(waiting)["attempt"] == staying.job(queued)["attempt"] == 1
    assert replicas.noted("start", "ends-0") == [leaving.name]
    check_reader(readers[moving], staying, moving, list(range(60)))
    check_reader(readers[again], newest, again, words(60))
    assert staying.job(moving)["attempt"] == staying.job(again)["attempt"] == 2


@pytest.mark.heavy
def test_a_function_that_ignores_its_cancellation_does_not_keep_its_job(replicas):
    leaving = replicas.add(shutdown_timeout=0.5, cancel_timeout=30)
    job = leaving.start_job("hold_deaf", input={"name": "deaf"})
    assert replicas.runner("deaf") is leaving
    staying = replicas.add()
    leaving.signal(signal.SIGTERM)
    assert replicas.runner("deaf", 2) is staying
    os.kill(leaving.pid, 0)  # The process still exists, because it waits for its function.
    replicas.open("deaf")
    assert value(staying.ended(job)) == "deaf!"
    assert staying.job(job)["attempt"] == 2
    assert leaving.exit_code() == 0
    assert "Traceback" not in leaving.errors()
