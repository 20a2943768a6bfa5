"""The job queue over HTTP: start order, slots, concurrency groups, and queue positions."""

import asyncio
import re
import threading

import pytest

from support.controlled_server import held
from support.reference_server import QUICK, Peer, data, eventually, serving
from support.server_address import address_of
from tidewire_server import Server
from tidewire_server.endpoints.endpoint import Endpoint, Options
from tidewire_server.jobs.job_scheduler import JobScheduler
from tidewire_server.jobs.replicas.live_workers import LiveWorkers
from tidewire_server.settings import Settings
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.records import QueueEntry


@pytest.fixture(scope="module")
def url():
    with held(tokens=("ada:1", "bo:2"), max_queue_size=20, max_share=1) as found:
        yield found


@pytest.fixture
def peer(url):
    with Peer(url, authorization="Bearer 1") as found:
        yield found


@pytest.fixture
def other(url):
    with Peer(url, authorization="Bearer 2") as found:
        yield found


def came(peer, first):
    """The names that came to a gate and begin with `first`, without this prefix."""
    return [name.removeprefix(first) for name in peer.value("came") if name.startswith(first)]


def open_gates(peer, *names):
    peer.run("open_gate", {"names": list(names)})


def test_each_endpoint_has_its_own_queue_and_slot(peer):
    # Requests 1 to 7 go to the endpoints A, B, A, A, C, B, A. Requests 1, 2 and 5 start at once. When a request
    # ends, the next request for its endpoint starts.
    jobs = [peer.start(endpoint, {"name": f"seven{number}"}) for number, endpoint in enumerate("ABAACBA", 1)]
    eventually(lambda: came(peer, "seven") == ["1", "2", "5"])
    assert [peer.job(job)["status"] for job in jobs] == [
        "running" if number in {1, 2, 5} else "queued" for number in range(1, 8)
    ]
    open_gates(peer, "seven1")
    assert peer.ended(jobs[0])["status"] == "succeeded"
    eventually(lambda: came(peer, "seven") == ["1", "2", "5", "3"])
    open_gates(peer, "seven2")
    eventually(lambda: came(peer, "seven")[4:] == ["6"])
    open_gates(peer, *(f"seven{number}" for number in range(3, 8)))
    assert {peer.ended(job)["status"] for job in jobs} == {"succeeded"}
    assert came(peer, "seven") == ["1", "2", "5", "3", "6", "4", "7"] or came(peer, "seven")[5:] == ["4", "7"]


def test_a_cancelled_queued_item_leaves_the_others_to_share_a_batch(peer):
    tabs = []
    for name in ("t1", "t2", "t3", "t4"):
        tabs.append(peer.start("tabs", {"names": name}))
        if name == "t1":
            eventually(lambda: came(peer, "t") == ["1"])
    with peer.stream(tabs[3]) as reading:
        assert data(reading.until("queue"))["position"] == 3
        peer.http.post(f"/v1/jobs/{tabs[1]}/cancel")
        assert data(reading.until("queue"))["position"] == 2
    open_gates(peer, "t1", "t3+t4")
    ended = [peer.ended(tab) for tab in tabs]
    assert [job["status"] for job in ended] == ["succeeded", "cancelled", "succeeded", "succeeded"]
    assert [job["state"]["items"][0].get("batch", {}).get("size") for job in ended] == [1, None, 2, 2]
    assert came(peer, "t") == ["1", "3+t4"]


def test_endpoints_of_a_concurrency_group_share_slots_like_one_queue(peer):
    jobs = [peer.start(endpoint, {"name": f"g{n}"}) for n, endpoint in enumerate("XZXYZ", 1)]
    eventually(lambda: sorted(came(peer, "g")) == ["1", "2"])  # both start at once, each in a thread
    open_gates(peer, "g1")
    eventually(lambda: came(peer, "g")[2:] == ["3"])
    open_gates(peer, "g2", "g3", "g4", "g5")
    assert {peer.ended(job)["status"] for job in jobs} == {"succeeded"}
    assert came(peer, "g")[3:] in (["4", "5"], ["5", "4"])


def test_callers_take_turns_within_a_concurrency_group(peer, other):
    holding = [peer.start("X", {"name": f"h{n}"}) for n in (1, 2)]
    eventually(lambda: sorted(came(peer, "h")) == ["1", "2"])
    crowd = [peer.start("X", {"name": f"h{n}"}) for n in (3, 4, 5)]
    late = other.start("Z", {"name": "h6"})
    open_gates(peer, "h1", "h3", "h4", "h5", "h6")
    assert other.ended(late)["status"] == "succeeded"
    open_gates(peer, "h2")
    assert {peer.ended(job)["status"] for job in holding + crowd} == {"succeeded"}
    assert came(peer, "h").index("6") == 2


def test_a_full_queue_responds_with_retry_after_until_a_job_leaves(peer):
    jobs = [peer.start("C", {"name": "full"}) for _ in range(21)]
    answer = peer.submit("C", {"name": "full"})
    assert (answer.status_code, answer.json()["code"]) == (429, "queue_full")
    assert answer.json()["retryable"] is True
    assert int(answer.headers["retry-after"]) >= 1
    assert peer.submit("C", inputs=[{"name": "full"}] * 2).status_code == 429
    assert peer.value("plain", {"how": "well"}) == "fine"  # Each endpoint has a queue of its own.
    peer.http.post(f"/v1/jobs/{jobs[-1]}/cancel")
    jobs.append(peer.start("C", {"name": "full"}))
    open_gates(peer, "full")
    assert [peer.ended(job)["status"] for job in jobs] == ["succeeded"] * 20 + ["cancelled", "succeeded"]
    assert len(came(peer, "full")) == 21


def test_queue_events_estimate_the_wait_from_recent_calls():
    server, gate = Server(**QUICK), threading.Event()

    @server.endpoint
    def one(n: int) -> None:
        assert gate.wait(20)

    def announced(peer, job):
        with peer.stream(job) as reading:
            return data(reading.until("queue"))

    with serving(server) as peer:
        jobs = [peer.start("one", {"n": 1}) for _ in range(2)]
        assert announced(peer, jobs[1]) == {"position": 1}
        threading.Event().wait(0.05)
        gate.set()
        assert {peer.ended(job)["status"] for job in jobs} == {"succeeded"}
        gate.clear()
        jobs = [peer.start("one", {"n": 1}) for _ in range(3)]
        first, second = announced(peer, jobs[1]), announced(peer, jobs[2])
        assert (first["position"], second["position"]) == (1, 2)
        assert first["eta_ms"] > 10
        assert abs(second["eta_ms"] - 2 * first["eta_ms"]) <= 1
        gate.set()


def test_the_number_of_queue_announcements_grows_linearly():
    def announcement_cost(waiting):
        announced, visited = [], [0]

        class CountingQueue(MemoryQueue):
            async def waiting(self, endpoint, *, limit=None, skip=()):
                found = await super().waiting(endpoint, limit=limit, skip=skip)
                visited[0] += len(found)
                return found

        async def leave_one_by_one():
            endpoint, slots = Endpoint(_wait, Options(name="e")), asyncio.Semaphore(0)

            async def start(ticket, free):
                await slots.acquire()
                await free()

            queue = CountingQueue()
            scheduler = JobScheduler(
                queue,
                {"e": endpoint},
                Settings(queue_interval=0, default_concurrency_limit=1),
                start=start,
                find=lambda ticket: WaitingJob(),
                open_job=None,
                announce=lambda job, message: announced.append((job, message.position)) is None,
                workers=LiveWorkers(),
            )
            for number in range(waiting):
                entries = [QueueEntry("e", str(number), 0, "a", 0.0)]
                await queue.put(entries)
                await scheduler.added(entries)
            while scheduler.depth("e") != (0, 0):
                slots.release()
                # In these iterations, the call ends, the next call begins, the timer fires, and positions are published.
                for _ in range(5):
                    await asyncio.sleep(0)
            return announced

        asyncio.run(leave_one_by_one())
        positions = {}
        for job, queue_place in announced:
            positions.setdefault(job, []).append(queue_place)
        # No job receives the same position twice, and nearly every job receives position 1.
        assert all(each == sorted(set(each), reverse=True) for each in positions.values())
        assert sum(1 in each for each in positions.values()) >= waiting - 2
        return len(announced), visited[0]

    small, large = announcement_cost(250), announcement_cost(1000)
    assert large[0] < 25_000
    for few, many in zip(small, large, strict=True):
        assert many < 5.5 * few


@pytest.mark.heavy
@pytest.mark.parametrize("waiting", [250, pytest.param(1000, marks=pytest.mark.slow)])
def test_readers_in_a_long_queue_receive_few_queue_events_each(waiting):
    server, begin = Server(**QUICK, max_streams_per_principal=waiting), threading.Event()

    @server.endpoint
    async def work(n: int) -> int:
        while not begin.is_set():
            await asyncio.sleep(0.002)
        return n

    with server.running() as url:
        streams = asyncio.run(submit_and_read(address_of(url), waiting, begin))
    positions = [
        [int(queue_place) for queue_place in re.findall(rb'"position":(\d+)', stream)] for stream in streams
    ]
    # No reader receives a position twice, all waiting readers receive one, and all jobs succeed.
    assert all(each == sorted(set(each), reverse=True) for each in positions)
    assert sum(bool(each) for each in positions) == waiting - 1
    assert all(b"event:done" in stream for stream in streams)
    # If every move were announced, each reader would receive half of `waiting` events on average.
    assert sum(map(len, positions)) < 30 * waiting


async def submit_and_read(address, number, begin):
    """Submit `number` jobs one after the other and read all their streams to the end."""
    readers = []
    for n in range(number):
        reader, writer = await asyncio.open_connection(*address)
        body = b'{"input":{"n":%d}}' % n
        writer.write(SUBMIT % len(body) + body)
        opened = await reader.readuntil(b"event:hello")
        readers.append((reader, writer, opened))
    begin.set()
    streams = await asyncio.gather(*(reader.read() for reader, _, _ in readers))
    for _, writer, _ in readers:
        writer.close()
    return [opened + rest for (_, _, opened), rest in zip(readers, streams, strict=True)]


SUBMIT = (
    b"POST /v1/endpoints/work/jobs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/event-stream\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


class WaitingJob:
    def waits(self, index):
        return True


async def _wait() -> None: ...
