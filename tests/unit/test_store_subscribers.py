"""Delivery of appended blocks to the subscribers of a log."""

from tidewire.protocol.cursor import Cursor
from tidewire.protocol.document import Document
from tidewire_server.store.log_interface import Block, StateAt
from tidewire_server.store.subscribers import Subscribers

BLOCK = Block([b"a"], StateAt(Cursor(1, 1), (), Document({}).mark()))


def test_each_subscriber_gets_each_block_and_ephemeral_event_in_order():
    log = Subscribers()
    received = [[] for _ in range(1000)]
    for each in received:
        log.watch(each.append)
    log.deliver(BLOCK)
    log.set_ephemeral_event("queue", b"event:queue\n\n")
    log.deliver(BLOCK)
    assert received == [[BLOCK, None, BLOCK]] * 1000


def test_subscriptions_may_start_and_end_during_a_delivery():
    log, received = Subscribers(), []

    def replace(_block: Block | None) -> None:
        stop()
        stop()
        log.watch(received.append)

    stop = log.watch(replace)
    log.deliver(BLOCK)
    assert received == []
    log.deliver(BLOCK)
    assert received == [BLOCK]
