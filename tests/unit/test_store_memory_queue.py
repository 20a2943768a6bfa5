import random

import pytest

from tidewire_server.store.memory.memory_batches import BatchQueue
from tidewire_server.store.memory.memory_queue import MemoryQueue
from tidewire_server.store.queue_interface import Queue
from tidewire_server.store.records import BatchBounds, BatchSlot, QueueEntry


@pytest.fixture
def queue() -> Queue:
    return MemoryQueue()


def queue_entry(job: str, index: int = 0, *, by: str = "ada", at: str = "e") -> QueueEntry:
    return QueueEntry(at, job, index, by, 1000.0)


def entries_of(principal: str, count: int) -> list[QueueEntry]:
    return [queue_entry(f"{principal}{number}", by=principal) for number in range(count)]


async def drain(queue: Queue, *, limit: int) -> list[QueueEntry]:
    taken: list[QueueEntry] = []
    while part := await queue.take("e", limit=limit):
        assert len(part) <= limit
        taken += part
    return taken


async def test_entries_of_one_principal_are_taken_in_order_and_can_be_discarded(queue: Queue):
    entries = entries_of("ada", 4)
    await queue.put([*entries, queue_entry("x", at="other")])
    await queue.put(entries[:1])  # it is in the queue already
    await queue.discard(entries[1])
    await queue.discard(entries[1])
    await queue.discard(queue_entry("x", at="nowhere"))
    assert queue.size("e") == 3
    assert await queue.waiting("e") == [entries[0], entries[2], entries[3]]
    assert await drain(queue, limit=1) == [entries[0], entries[2], entries[3]]
    assert (queue.size("e"), queue.size("other"), queue.size("nowhere")) == (0, 1, 0)
    assert await queue.take("nowhere") == []


async def test_ten_thousand_entries_of_one_principal_do_not_delay_another_principal(queue: Queue):
    await queue.put(entries_of("ada", 10_000))
    await queue.take("e", limit=10)
    await queue.put(entries_of("bob", 2))
    assert [each.job for each in await queue.take("e", limit=5)] == [
        "ada10",
        "bob0",
        "ada11",
        "bob1",
        "ada12",
    ]


async def test_round_robin_continues_across_calls(queue: Queue):
    for principal in ("ada", "bob", "eve"):
        await queue.put(entries_of(principal, 3))
    expected = ["ada0", "bob0", "eve0", "ada1", "bob1", "eve1", "ada2", "bob2", "eve2"]
    assert [each.job for each in await queue.waiting("e")] == expected
    first = await queue.take("e", limit=2)
    assert [each.job for each in first + await drain(queue, limit=1)] == expected


async def test_entry_that_does_not_fit_a_batch_keeps_its_position(queue: Queue):
    queue.serve({"e": BatchBounds(max_size=2, max_cost=10, timeout=60)}, lambda _: None)
    await queue.put(entries_of("ada", 2), [BatchSlot("x")] * 2)
    await queue.put(entries_of("bob", 3), [BatchSlot("y"), BatchSlot("z"), BatchSlot("z")])
    assert [each.entry.job for each in await queue.take_batch("e")] == ["ada0", "ada1"]
    assert [each.entry.job for each in await queue.take_batch("e")] == ["bob1", "bob2"]
    assert await queue.take_batch("e") == []
    assert [each.job for each in await queue.waiting("e")] == ["bob0"]


async def test_take_batch_checks_no_more_entries_than_it_returns(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
):
    """The cost of a call does not depend on the length of the queue."""
    queue.serve({"e": BatchBounds(max_size=3, max_cost=10, timeout=0)}, lambda _: None)
    await queue.put(entries_of("ada", 5000), [BatchSlot()] * 5000)
    for number in range(5000):
        await queue.put([queue_entry("j", by=f"p{number}")], [BatchSlot()])
    checked: list[QueueEntry] = []
    monkeypatch.setattr(BatchQueue, "is_ready", lambda *args: not checked.append(args[1]))
    assert len(await queue.take_batch("e")) == 3
    assert len(checked) == 1


async def test_entries_are_taken_in_the_listed_order(queue: Queue):
    draw = random.Random(7)
    expected: list[QueueEntry] = []
    for step in range(2000):
        match draw.randrange(4):
            case 0 | 1:
                new = [queue_entry(f"j{step}", n, by=draw.choice("abcd")) for n in range(draw.randrange(4))]
                await queue.put(new)
                expected += new
            case 2 if expected:
                gone = draw.choice(expected)
                await queue.discard(gone)
                expected.remove(gone)
            case _:
                limit = draw.randrange(1, 5)
                shown = await queue.waiting("e")
                taken = await queue.take("e", limit=limit)
                assert taken == shown[:limit]
                expected = [each for each in expected if each not in taken]
        shown = await queue.waiting("e")
        assert queue.size("e") == len(shown) == len(expected)
        for principal in "abcd":
            assert [each for each in shown if each.principal == principal] == [
                each for each in expected if each.principal == principal
            ]
