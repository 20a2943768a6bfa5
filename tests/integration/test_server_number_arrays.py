"""Jobs whose items are arrays of numbers, such as embeddings: digest, events and threads."""

import math
import threading
from typing import Any

import pytest

from support.reference_server import QUICK, Fold, data, serving
from tidewire.protocol.document.digests import digest
from tidewire_server import ItemError, Server

NUMBERS = [n / 7 for n in range(80)] + [-0.0, 5.0, 3, 1e-7, 1e21, 2.5e-5, 1e16, 2**53]
ITEMS = 12


@pytest.fixture(scope="module")
def peer():
    server = Server(**QUICK)
    threads: set[threading.Thread] = set()
    ended: dict[int, threading.Event] = {}

    @server.endpoint
    def embed(n: int) -> list[float]:
        """Returns the number of threads so far as its last element."""
        threads.add(threading.current_thread())
        return [*NUMBERS, n, len(threads)]

    @server.endpoint(concurrency_limit=ITEMS)
    def embed_in_reverse(n: int) -> list[float]:
        ended.setdefault(n, threading.Event())
        if n < ITEMS - 1:
            ended.setdefault(n + 1, threading.Event()).wait(10)
        threading.Timer(0.01, ended[n].set).start()
        return [*NUMBERS, n]

    @server.endpoint
    def mixed(n: int) -> object:
        if n == 3:
            raise ItemError("no")
        return [[n, *NUMBERS], [*NUMBERS, True], [*NUMBERS, "x"], None, "text", [*NUMBERS], NUMBERS][n % 7]

    buffer: list[float] = [*NUMBERS]

    @server.endpoint
    def reuse_buffer(n: int) -> list[float]:
        buffer[0] = n
        return buffer

    @server.endpoint
    def invalid(kind: str) -> list[float]:
        element: Any = {"nan": math.nan, "text": "x"}[kind]
        return [*map(float, NUMBERS), element]

    @server.endpoint
    def integers(n: int) -> list[float]:
        return [n, True, 0.5]

    with serving(server) as peer:
        yield peer


def test_value_is_a_copy_of_the_returned_list(peer):
    job = peer.start("reuse_buffer", inputs=[{"n": n} for n in range(ITEMS)])
    items = Fold().take(peer.events(job)).items
    assert [item["value"] for item in items] == [[n, *NUMBERS[1:]] for n in range(ITEMS)]


def test_integers_in_a_list_of_floats_are_converted(peer):
    job = peer.start("integers", input={"n": 3})
    (item,) = Fold().take(peer.events(job)).items
    assert repr(item["value"]) == "[3.0, 1.0, 0.5]"


@pytest.mark.parametrize(
    ("kind", "message"),
    [("nan", "/88: nan"), ("text", "/88: ")],
)
def test_list_with_an_invalid_number_is_refused(peer, kind, message):
    job = peer.start("invalid", input={"kind": kind})
    assert message in Fold().take(peer.events(job)).items[0]["error"]["detail"]


@pytest.mark.parametrize("endpoint", ["embed", "embed_in_reverse", "mixed"])
def test_digest_is_that_of_the_final_items(peer, endpoint):
    job = peer.start(endpoint, inputs=[{"n": n} for n in range(ITEMS)])
    events = peer.events(job)
    assert data(events[-1])["digest"] == digest(Fold().take(events).items)


def test_consecutive_calls_of_a_plain_function_share_a_thread(peer):
    job = peer.start("embed", inputs=[{"n": n} for n in range(ITEMS)])
    assert Fold().take(peer.events(job)).items[-1]["value"][-1] < ITEMS / 2
