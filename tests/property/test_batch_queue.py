"""Random arrivals, keys, costs and cancels, by a clock that only the test moves: what a batch former must hold."""

import math
import random
from collections import Counter, defaultdict

import pytest

from tidewire_server.batching.batch_queue import BatchQueue
from tidewire_server.endpoints.batch_options import BatchSlot, read_batching
from tidewire_server.store.interfaces import QueueEntry
from tidewire_server.store.memory_queue import MemoryQueue

RUNS = 400


def now_(work):
    """What a coroutine returns that never waits."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waited")


class World:
    """One endpoint, its workers and its callers."""

    def __init__(self, rng):
        self.rng = rng
        costly = rng.random() < 0.5
        self.bounds = read_batching(
            max_batch_size=rng.choice([1, 2, 3, 8, 16]),
            batch_timeout=rng.choice([0, 0, 0.005, 1]),
            sizes=None,
            pad=None,
            cost=(lambda _: 0) if costly else None,
            max_cost=10 if costly else None,
            key=None,
            bisect=False,
        )
        self.keys = rng.choice([1, 1, 2, 5])
        self.former = BatchQueue(self.bounds)
        self.queue = MemoryQueue()
        self.workers = rng.choice([1, 1, 2, 3])
        self.now = 0.0
        self.ends = []
        self.arrived, self.places = {}, {}
        self.ran, self.cancelled, self.batches = [], set(), []

    def arrive(self):
        tickets = []
        principal = self.rng.choice("aaabc")
        for index in range(self.rng.choice([1, 1, 1, 4, 20])):
            ticket = QueueEntry("e", f"{len(self.arrived)}", index, principal, self.now)
            cost = self.rng.choice([0, 1, 3, 10]) if self.bounds.max_cost < math.inf else 0
            self.places[ticket] = BatchSlot(self.rng.randrange(self.keys), cost)
            self.arrived[ticket] = self.now
            tickets.append(ticket)
        now_(self.queue.put(tickets))
        for ticket in tickets:
            self.former.add(ticket, self.places[ticket], principal, self.now)

    def cancel(self):
        waiting = list(self.queue.waiting("e"))
        if waiting:
            ticket = self.rng.choice(waiting)
            self.former.remove([ticket])
            now_(self.queue.discard(ticket))
            self.cancelled.add(ticket)

    def start(self):
        """What a worker does when it is idle."""
        while len(self.ends) < self.workers and self.former.due() <= self.now:
            draft = self.former.draft(self.now)
            tickets = now_(self.queue.take("e", limit=draft.room, fits=draft))
            assert tickets, "a batch was due, and there was none"
            self.former.remove(tickets)
            self.batches.append((self.now, tickets))
            self.ran += tickets
            self.ends.append(self.now + self.rng.choice([0.001, 0.02, 0.5]))

    def run(self):
        for _ in range(self.rng.randrange(1, 60)):
            self.rng.choice([self.arrive, self.arrive, self.cancel, self.pass_time])()
            self.start()
            self.check_idle()
        while self.former.due() < math.inf or self.ends:
            self.pass_time()
            self.start()
            self.check_idle()
        return self

    def pass_time(self):
        """To the next moment at which something may happen, and no further."""
        moments = [*self.ends, self.now + self.rng.choice([0.0004, 0.003, 0.1])]
        if len(self.ends) < self.workers and self.former.due() > self.now:
            moments.append(self.former.due())
        self.now = max(self.now, min(moments))
        self.ends = [end for end in self.ends if end > self.now]

    def check_idle(self):
        if len(self.ends) < self.workers:
            rows, costs = Counter(), Counter()
            for ticket in self.queue.waiting("e"):
                key, cost = self.places[ticket]
                rows[key] += 1
                costs[key] += cost
                assert self.now - self.arrived[ticket] < self.bounds.timeout
                assert rows[key] < self.bounds.max_size
                assert costs[key] < self.bounds.max_cost


@pytest.mark.parametrize("seed", range(4))
def test_each_item_runs_once_in_order_within_bounds_and_in_time(seed):
    rng = random.Random(seed)
    together = 0
    for _ in range(RUNS // 4):
        world = World(rng).run()
        assert len(set(world.ran)) == len(world.ran)
        assert set(world.ran) | world.cancelled == set(world.arrived)
        assert not set(world.ran) & world.cancelled
        assert len(world.former) == world.queue.size("e") == 0
        assert not world.former._groups
        assert not world.former._full
        for _, batch in world.batches:
            together += len({ticket.job for ticket in batch}) > 1
            places = [world.places[ticket] for ticket in batch]
            assert len(batch) <= world.bounds.max_size
            assert len({place.key for place in places}) == 1
            assert len(batch) == 1 or sum(place.cost for place in places) <= world.bounds.max_cost
        order = {ticket: number for number, ticket in enumerate(world.arrived)}
        lines = defaultdict(list)
        for ticket in world.ran:
            lines[ticket.principal, world.places[ticket].key].append(order[ticket])
        assert all(line == sorted(line) for line in lines.values())
    assert together > 50


def test_a_caller_with_a_thousand_items_does_not_keep_another_from_the_next_batch():
    former, queue = BatchQueue(_bounds(max_batch_size=4)), MemoryQueue()
    crowd = [QueueEntry("e", "many", index, "a", 0.0) for index in range(1000)]
    other = QueueEntry("e", "one", 0, "b", 1.0)
    now_(queue.put([*crowd, other]))
    for ticket in (*crowd, other):
        former.add(ticket, BatchSlot(ticket.principal), ticket.principal, ticket.arrived_at)
    taken = []
    for _ in range(2):
        draft = former.draft(2.0)
        batch = now_(queue.take("e", limit=draft.room, fits=draft))
        former.remove(batch)
        taken.append(batch)
    assert taken == [crowd[:4], [other]]


def test_newcomers_join_what_runs_without_waiting_for_more():
    former, queue = (
        BatchQueue(_bounds(max_batch_size=4, batch_timeout=60, cost=len, max_cost=10)),
        MemoryQueue(),
    )
    places = [BatchSlot("k", 4), BatchSlot("other", 1), BatchSlot("k", 5), BatchSlot("k", 1)]
    tickets = [QueueEntry("e", "j", index, "a", 0.0) for index in range(4)]
    now_(queue.put(tickets))
    for ticket, place in zip(tickets, places, strict=True):
        former.add(ticket, place, "a", 0.0)
    draft = former.joining(1.0, "k", 2, 3.0)
    # The second of its key does not fit, so that the third, which would, may not pass it.
    assert now_(queue.take("e", limit=draft.room, fits=draft)) == [tickets[0]]


def test_newcomers_do_not_keep_a_batch_running_while_an_older_item_of_another_key_is_ready():
    former, queue = BatchQueue(_bounds(max_batch_size=4, batch_timeout=5)), MemoryQueue()
    other, newcomer = QueueEntry("e", "a", 0, "a", 0.0), QueueEntry("e", "b", 0, "b", 1.0)
    now_(queue.put([other, newcomer]))
    former.add(other, BatchSlot("other"), "a", 0.0)
    former.add(newcomer, BatchSlot("k"), "b", 1.0)
    assert former.joining(5.0, "k", 2, 0).room == 0
    draft = former.joining(4.9, "k", 2, 0)
    assert now_(queue.take("e", limit=draft.room, fits=draft)) == [newcomer]


def _bounds(**given):
    names = ("max_batch_size", "batch_timeout", "sizes", "pad", "cost", "max_cost", "key")
    return read_batching(**(dict.fromkeys(names) | {"bisect": False} | given))
