"""Invariants of `BatchQueue` under random arrivals, keys, costs and cancellations, with a simulated clock."""

import math
import random
from collections import Counter, defaultdict

import pytest
from tidewire_server.batching.batch_queue import BatchQueue

from tidewire_server.endpoints.batch_options import BatchSlot, read_batching
from tidewire_server.store.interfaces import QueueEntry
from tidewire_server.store.memory_queue import MemoryQueue

RUNS = 400


def run_without_waiting(work):
    """Return the result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("the coroutine suspended")


class Simulation:
    """One endpoint with its workers and its clients, on simulated time."""

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
        self.batch_queue = BatchQueue(self.bounds)
        self.queue = MemoryQueue()
        self.workers = rng.choice([1, 1, 2, 3])
        self.now = 0.0
        self.ends = []
        self.arrived, self.slots = {}, {}
        self.ran, self.cancelled, self.batches = [], set(), []

    def arrive(self):
        entries = []
        principal = self.rng.choice("aaabc")
        for index in range(self.rng.choice([1, 1, 1, 4, 20])):
            entry = QueueEntry("e", f"{len(self.arrived)}", index, principal, self.now)
            cost = self.rng.choice([0, 1, 3, 10]) if self.bounds.max_cost < math.inf else 0
            self.slots[entry] = BatchSlot(self.rng.randrange(self.keys), cost)
            self.arrived[entry] = self.now
            entries.append(entry)
        run_without_waiting(self.queue.put(entries))
        for entry in entries:
            self.batch_queue.add(entry, self.slots[entry], principal, self.now)

    def cancel(self):
        waiting = list(self.queue.waiting("e"))
        if waiting:
            entry = self.rng.choice(waiting)
            self.batch_queue.remove([entry])
            run_without_waiting(self.queue.discard(entry))
            self.cancelled.add(entry)

    def start(self):
        """Start batches while a worker is idle and a batch is due."""
        while len(self.ends) < self.workers and self.batch_queue.due() <= self.now:
            draft = self.batch_queue.draft(self.now)
            entries = run_without_waiting(self.queue.take("e", limit=draft.room, fits=draft))
            assert entries, "a batch was due, but no entry was taken"
            self.batch_queue.remove(entries)
            self.batches.append((self.now, entries))
            self.ran += entries
            self.ends.append(self.now + self.rng.choice([0.001, 0.02, 0.5]))

    def run(self):
        for _ in range(self.rng.randrange(1, 60)):
            self.rng.choice([self.arrive, self.arrive, self.cancel, self.pass_time])()
            self.start()
            self.check_idle()
        while self.batch_queue.due() < math.inf or self.ends:
            self.pass_time()
            self.start()
            self.check_idle()
        return self

    def pass_time(self):
        """Advance the clock to the next moment at which something can happen."""
        moments = [*self.ends, self.now + self.rng.choice([0.0004, 0.003, 0.1])]
        if len(self.ends) < self.workers and self.batch_queue.due() > self.now:
            moments.append(self.batch_queue.due())
        self.now = max(self.now, min(moments))
        self.ends = [end for end in self.ends if end > self.now]

    def check_idle(self):
        if len(self.ends) < self.workers:
            rows, costs = Counter(), Counter()
            for entry in self.queue.waiting("e"):
                key, cost = self.slots[entry]
                rows[key] += 1
                costs[key] += cost
                assert self.now - self.arrived[entry] < self.bounds.timeout
                assert rows[key] < self.bounds.max_size
                assert costs[key] < self.bounds.max_cost


@pytest.mark.parametrize("seed", range(4))
def test_each_item_runs_once_in_order_within_limits_and_on_time(seed):
    rng = random.Random(seed)
    mixed_batches = 0
    for _ in range(RUNS // 4):
        simulation = Simulation(rng).run()
        assert len(set(simulation.ran)) == len(simulation.ran)
        assert set(simulation.ran) | simulation.cancelled == set(simulation.arrived)
        assert not set(simulation.ran) & simulation.cancelled
        assert len(simulation.batch_queue) == simulation.queue.size("e") == 0
        assert not simulation.batch_queue._groups
        assert not simulation.batch_queue._full
        for _, batch in simulation.batches:
            mixed_batches += len({entry.job for entry in batch}) > 1
            slots = [simulation.slots[entry] for entry in batch]
            assert len(batch) <= simulation.bounds.max_size
            assert len({slot.key for slot in slots}) == 1
            assert len(batch) == 1 or sum(slot.cost for slot in slots) <= simulation.bounds.max_cost
        order = {entry: number for number, entry in enumerate(simulation.arrived)}
        lines = defaultdict(list)
        for entry in simulation.ran:
            lines[entry.principal, simulation.slots[entry].key].append(order[entry])
        assert all(line == sorted(line) for line in lines.values())
    assert mixed_batches > 50


def test_thousand_items_of_one_principal_leave_room_for_another_in_the_next_batch():
    batch_queue, queue = BatchQueue(_bounds(max_batch_size=4)), MemoryQueue()
    crowd = [QueueEntry("e", "many", index, "a", 0.0) for index in range(1000)]
    other = QueueEntry("e", "one", 0, "b", 1.0)
    run_without_waiting(queue.put([*crowd, other]))
    for entry in (*crowd, other):
        batch_queue.add(entry, BatchSlot(entry.principal), entry.principal, entry.arrived_at)
    taken = []
    for _ in range(2):
        draft = batch_queue.draft(2.0)
        batch = run_without_waiting(queue.take("e", limit=draft.room, fits=draft))
        batch_queue.remove(batch)
        taken.append(batch)
    assert taken == [crowd[:4], [other]]


def test_late_joiners_are_added_without_waiting_for_a_full_batch():
    batch_queue, queue = (
        BatchQueue(_bounds(max_batch_size=4, batch_timeout=60, cost=len, max_cost=10)),
        MemoryQueue(),
    )
    slots = [BatchSlot("k", 4), BatchSlot("other", 1), BatchSlot("k", 5), BatchSlot("k", 1)]
    entries = [QueueEntry("e", "j", index, "a", 0.0) for index in range(4)]
    run_without_waiting(queue.put(entries))
    for entry, slot in zip(entries, slots, strict=True):
        batch_queue.add(entry, slot, "a", 0.0)
    draft = batch_queue.joining(1.0, "k", 2, 3.0)
    # The second entry of key "k" exceeds the cost limit, and the third must not overtake it.
    assert run_without_waiting(queue.take("e", limit=draft.room, fits=draft)) == [entries[0]]


def test_late_joiners_are_refused_while_an_older_item_of_another_key_is_ready():
    batch_queue, queue = BatchQueue(_bounds(max_batch_size=4, batch_timeout=5)), MemoryQueue()
    other, late_joiner = QueueEntry("e", "a", 0, "a", 0.0), QueueEntry("e", "b", 0, "b", 1.0)
    run_without_waiting(queue.put([other, late_joiner]))
    batch_queue.add(other, BatchSlot("other"), "a", 0.0)
    batch_queue.add(late_joiner, BatchSlot("k"), "b", 1.0)
    assert batch_queue.joining(5.0, "k", 2, 0).room == 0
    draft = batch_queue.joining(4.9, "k", 2, 0)
    assert run_without_waiting(queue.take("e", limit=draft.room, fits=draft)) == [late_joiner]


def _bounds(**given):
    names = ("max_batch_size", "batch_timeout", "sizes", "pad", "cost", "max_cost", "key")
    return read_batching(**(dict.fromkeys(names) | {"bisect": False} | given))
