"""Delivery of new events to the subscribers of a log, in bounded turns of the event loop."""

import asyncio
from types import SimpleNamespace

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.interfaces import Block, StateAt
from tidewire_server.store.subscribers import PER_TURN, Subscribers


def block(epoch: int, seq: int, *frames: bytes, done: bool = False) -> Block:
    return Block(frames, StateAt(Cursor(epoch, seq), (), SimpleNamespace()), done)


class Readers:
    """Subscribers that record the frames that they were called with."""

    def __init__(self, log: Subscribers, count: int) -> None:
        self.received: list[list[bytes]] = [[] for _ in range(count)]
        self.calls = 0
        self.stops = [
            log.watch(lambda each, number=number: self._on(number, each)) for number in range(count)
        ]

    def _on(self, number: int, each: Block | None) -> None:
        self.calls += 1
        self.received[number] += [b"-"] if each is None else each.frames


async def finished(log: Subscribers) -> None:
    async with asyncio.timeout(20):
        while log._in_pass:
            await asyncio.sleep(0)


def test_subscribers_of_one_turn_are_called_at_once():
    log = Subscribers()
    readers = Readers(log, PER_TURN)
    log.wake(block(1, 1, b"a"))  # needs no event loop
    assert readers.received == [[b"a"]] * PER_TURN


def test_more_subscribers_are_called_in_several_turns():
    async def body() -> None:
        log, calls = Subscribers(), []
        readers = Readers(log, 3 * PER_TURN + 1)
        log.wake(block(1, 1, b"a"))
        while log._in_pass and len(calls) < 10:
            calls.append(readers.calls)
            await asyncio.sleep(0)
        assert calls[:4] == [PER_TURN, 2 * PER_TURN, 3 * PER_TURN, 3 * PER_TURN + 1]
        assert readers.received == [[b"a"]] * (3 * PER_TURN + 1)

    asyncio.run(body())


def test_blocks_appended_during_a_pass_are_joined_and_stay_in_order():
    async def body() -> None:
        log = Subscribers()
        readers = Readers(log, PER_TURN + 1)
        log.wake(block(1, 1, b"a"))
        log.wake(block(1, 2, b"b"))
        log.wake()
        log.wake(block(1, 4, b"c", b"d"))
        log.wake(block(2, 1, b"e"))
        log.wake(block(2, 1, b"f", done=True))
        await finished(log)
        assert readers.received == [[b"a", b"b", b"c", b"d", b"e", b"f", b"-"]] * (PER_TURN + 1)
        assert readers.calls == 4 * (
            PER_TURN + 1
        )  # one call for each epoch and pass, and one without a block
        log.wake(block(2, 2, b"g"))
        assert readers.received[0][-1] == b"g"
        await finished(log)

    asyncio.run(body())


def test_subscriber_that_stops_during_a_pass_is_not_called():
    async def body() -> None:
        log = Subscribers()
        readers = Readers(log, 2 * PER_TURN)
        log.wake(block(1, 1, b"a"))
        for stop in readers.stops[PER_TURN:]:
            stop()
            stop()
        await finished(log)
        assert readers.calls == PER_TURN

    asyncio.run(body())


def test_subscriber_that_starts_during_a_pass_is_called_in_the_next_one():
    async def body() -> None:
        log = Subscribers()
        Readers(log, 2 * PER_TURN)
        log.wake(block(1, 1, b"a"))
        late = Readers(log, 1)
        log.wake(block(1, 2, b"b"))
        await finished(log)
        assert late.received == [[b"b"]]

    asyncio.run(body())
