"""Invariants of the batches of `MemoryQueue` under random arrivals, keys, costs and cancellations, with a simulated clock."""

import math
import random
from collections import Counter, defaultdict

import pytest

from tidewire_server.endpoints.batch_options import read_batching
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.records import BatchSlot, QueueEntry, RunningBatch

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
        ).bounds
        self.keys = rng.choice([1, 1, 2, 5])
        self.queue = queue_of(self.bounds, lambda: self.now)
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
        run_without_waiting(self.queue.put(entries, [self.slots[entry] for entry in entries]))

    def cancel(self):
        waiting = run_without_waiting(self.queue.waiting("e"))
        if waiting:
            entry = self.rng.choice(waiting)
            run_without_waiting(self.queue.discard(entry))
            self.cancelled.add(entry)

    def start(self):
        """Start batches while a worker is idle and a batch is due."""
        while len(self.ends) < self.workers and self.queue.due("e") <= self.now:
            batch = run_without_waiting(self.queue.take_batch("e"))
            assert batch, "a batch was due, but no entry was taken"
            entries = [item.entry for item in batch]
            assert all(item.slot == self.slots[item.entry] for item in batch)
            assert all(item.waited == self.now - self.arrived[item.entry] for item in batch)
            self.batches.append((self.now, entries))
            self.ran += entries
            self.ends.append(self.now + self.rng.choice([0.001, 0.02, 0.5]))

    def run(self):
        for _ in range(self.rng.randrange(1, 60)):
            self.rng.choice([self.arrive, self.arrive, self.cancel, self.pass_time])()
            self.start()
            self.check_idle()
        while self.queue.due("e") < math.inf or self.ends:
            self.pass_time()
            self.start()
            self.check_idle()
        return self

    def pass_time(self):
        """Advance the clock to the next moment at which something can happen."""
        moments = [*self.ends, self.now + self.rng.choice([0.0004, 0.003, 0.1])]
        if len(self.ends) < self.workers and self.queue.due("e") > self.now:
            moments.append(self.queue.due("e"))
        self.now = max(self.now, min(moments))
        self.ends = [end for end in self.ends if end > self.now]

    def check_idle(self):
        if len(self.ends) < self.workers:
            rows, costs = Counter(), Counter()
            for entry in run_without_waiting(self.queue.waiting("e")):
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
        batch_queue = simulation.queue._batch_queues["e"]
        assert len(batch_queue) == simulation.queue.size("e") == 0
        assert not batch_queue._groups
        assert not batch_queue._full
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
    queue = queue_of(_bounds(max_batch_size=4), lambda: 2.0)
    crowd = [QueueEntry("e", "many", index, "a", 0.0) for index in range(1000)]
    other = QueueEntry("e", "one", 0, "b", 1.0)
    entries = [*crowd, other]
    run_without_waiting(queue.put(entries, [BatchSlot(entry.principal) for entry in entries]))
    assert [taken_batch(queue) for _ in range(2)] == [crowd[:4], [other]]


def test_late_joiners_are_added_without_waiting_for_a_full_batch():
    queue = queue_of(_bounds(max_batch_size=4, batch_timeout=60, cost=len, max_cost=10), lambda: 1.0)
    slots = [BatchSlot("k", 4), BatchSlot("other", 1), BatchSlot("k", 5), BatchSlot("k", 1)]
    entries = [QueueEntry("e", "j", index, "a", 0.0) for index in range(4)]
    run_without_waiting(queue.put(entries, slots))
    # The second entry of key "k" exceeds the cost limit, and the third must not overtake it.
    assert taken_batch(queue, RunningBatch("k", 2, 3.0)) == [entries[0]]


def test_small_late_joiners_do_not_keep_an_item_waiting_that_exceeds_the_cost_limit():
    queue = queue_of(_bounds(max_batch_size=4, cost=len, max_cost=10), lambda: 1.0)
    large, small = QueueEntry("e", "l", 0, "a", 0.0), QueueEntry("e", "s", 0, "b", 0.5)
    run_without_waiting(queue.put([large, small], [BatchSlot("k", 8), BatchSlot("k", 1)]))
    assert taken_batch(queue, RunningBatch("k", 2, 3.0)) == []
    assert taken_batch(queue, RunningBatch("k", 1, 1.0)) == [large, small]


def test_late_joiners_are_refused_while_an_older_item_of_another_key_is_ready():
    now = [0.0]
    queue = queue_of(_bounds(max_batch_size=4, batch_timeout=5), lambda: now[0])
    other, late_joiner = QueueEntry("e", "a", 0, "a", 0.0), QueueEntry("e", "b", 0, "b", 1.0)
    run_without_waiting(queue.put([other], [BatchSlot("other")]))
    now[0] = 1.0
    run_without_waiting(queue.put([late_joiner], [BatchSlot("k")]))
    now[0] = 5.0
    assert taken_batch(queue, RunningBatch("k", 2, 0)) == []
    now[0] = 4.9
    assert taken_batch(queue, RunningBatch("k", 2, 0)) == [late_joiner]


def test_an_item_is_not_taken_before_it_is_placed_and_keeps_its_turn():
    queue = queue_of(_bounds(max_batch_size=1), lambda: 0.0)
    first, second = [QueueEntry("e", "j", index, "a", 0.0) for index in range(2)]
    run_without_waiting(queue.put([first]))
    run_without_waiting(queue.put([second]))
    assert (queue.size("e"), queue.due("e"), taken_batch(queue)) == (2, math.inf, [])
    run_without_waiting(queue.put([second], [BatchSlot()]))
    run_without_waiting(queue.put([first], [BatchSlot()]))
    run_without_waiting(queue.put([first], [BatchSlot()]))
    assert [taken_batch(queue) for _ in range(3)] == [[first], [second], []]


def taken_batch(queue, running=None):
    return [item.entry for item in run_without_waiting(queue.take_batch("e", running))]


def queue_of(bounds, clock):
    queue = MemoryQueue(clock)
    queue.serve({"e": bounds}, lambda _: None)
    return queue


def _bounds(**given):
    names = ("max_batch_size", "batch_timeout", "sizes", "pad", "cost", "max_cost", "key")
    return read_batching(**(dict.fromkeys(names) | {"bisect": False} | given)).bounds
