import asyncio
import random
from typing import Any

import pytest

from tidewire_server.store.interfaces import Queue, QueueEntry
from tidewire_server.store.memory_queue import MemoryQueue

BODIES = [MemoryQueue]


@pytest.fixture(params=BODIES)
def queue(request: pytest.FixtureRequest) -> Queue:
    return request.param()


def run(work: Any) -> Any:
    return asyncio.run(work)


def ticket(job: str, index: int = 0, *, by: str = "ada", at: str = "e") -> QueueEntry:
    return QueueEntry(at, job, index, by, 1000.0)


def of(principal: str, count: int) -> list[QueueEntry]:
    return [ticket(f"{principal}{number}", by=principal) for number in range(count)]


async def drain(queue: Queue, *, limit: int) -> list[QueueEntry]:
    taken: list[QueueEntry] = []
    while part := await queue.take("e", limit=limit):
        assert len(part) <= limit
        taken += part
    return taken


def test_one_callers_items_come_first_in_first_out_and_leave_from_the_middle(queue: Queue):
    async def body() -> None:
        tickets = of("ada", 4)
        await queue.put([*tickets, ticket("x", at="other")])
        await queue.discard(tickets[1])
        await queue.discard(tickets[1])
        await queue.discard(ticket("x", at="nowhere"))
        assert queue.size("e") == 3
        assert list(queue.waiting("e")) == [tickets[0], tickets[2], tickets[3]]
        assert await drain(queue, limit=1) == [tickets[0], tickets[2], tickets[3]]
        assert (queue.size("e"), queue.size("other"), queue.size("nowhere")) == (0, 1, 0)
        assert await queue.take("nowhere") == []

    run(body())


def test_ten_thousand_items_of_one_caller_do_not_delay_the_first_of_another(queue: Queue):
    async def body() -> None:
        await queue.put(of("ada", 10_000))
        await queue.take("e", limit=10)
        await queue.put(of("bob", 2))
        assert [each.job for each in await queue.take("e", limit=5)] == [
            "ada10",
            "bob0",
            "ada11",
            "bob1",
            "ada12",
        ]

    run(body())


def test_the_turn_goes_on_from_call_to_call(queue: Queue):
    async def body() -> None:
        for principal in ("ada", "bob", "eve"):
            await queue.put(of(principal, 3))
        expected = ["ada0", "bob0", "eve0", "ada1", "bob1", "eve1", "ada2", "bob2", "eve2"]
        assert [each.job for each in queue.waiting("e")] == expected
        first = await queue.take("e", limit=2)
        assert [each.job for each in first + await drain(queue, limit=1)] == expected

    run(body())


def test_what_does_not_fit_keeps_its_place_and_its_turn(queue: Queue):
    async def body() -> None:
        await queue.put([ticket("ada0"), ticket("ada1"), ticket("bob0", by="bob"), ticket("bob1", by="bob")])
        asked: list[str] = []

        def fits(each: QueueEntry) -> bool:
            asked.append(each.job)
            return each.job == "bob1"

        assert [each.job for each in await queue.take("e", limit=3, fits=fits)] == ["bob1"]
        assert sorted(asked) == ["ada0", "ada1", "bob0", "bob1"]
        assert [each.job for each in queue.waiting("e")] == ["ada0", "bob0", "ada1"]
        assert await queue.take("e", fits=lambda _: False) == []
        assert [each.job for each in await drain(queue, limit=2)] == ["ada0", "bob0", "ada1"]

    run(body())


def test_nothing_is_asked_that_need_not_be(queue: Queue):
    """What a call costs does not grow with the queue."""

    async def body() -> None:
        await queue.put(of("ada", 5000))
        for number in range(5000):
            await queue.put([ticket("j", by=f"p{number}")])
        asked: list[QueueEntry] = []
        await queue.take("e", limit=3, fits=lambda each: not asked.append(each))
        assert len(asked) == 3

    run(body())


def test_an_item_that_is_put_in_twice_waits_once(queue: Queue):
    async def body() -> None:
        await queue.put(of("ada", 1))
        await queue.put(of("ada", 1))
        assert queue.size("e") == 1

    run(body())


def test_whatever_is_done_the_queue_takes_in_the_order_that_it_shows(queue: Queue):
    async def body() -> None:
        draw = random.Random(7)
        here: list[QueueEntry] = []
        for step in range(2000):
            match draw.randrange(4):
                case 0 | 1:
                    new = [ticket(f"j{step}", n, by=draw.choice("abcd")) for n in range(draw.randrange(4))]
                    await queue.put(new)
                    here += new
                case 2 if here:
                    gone = draw.choice(here)
                    await queue.discard(gone)
                    here.remove(gone)
                case _:
                    limit = draw.randrange(1, 5)
                    shown = list(queue.waiting("e"))
                    taken = await queue.take("e", limit=limit)
                    assert taken == shown[:limit]
                    here = [each for each in here if each not in taken]
            shown = list(queue.waiting("e"))
            assert queue.size("e") == len(shown) == len(here)
            for principal in "abcd":
                assert [each for each in shown if each.principal == principal] == [
                    each for each in here if each.principal == principal
                ]

    run(body())
