"""What a client holds of a long document: never more than three times the document, whatever way it comes.

Counted by `tracemalloc` at its peak, from the first byte to the value in the application's hand; the bytes that the
server sends are made before.
"""

import asyncio
import gc
import tracemalloc

import pytest

from support.scripted_server import CLOSE, STREAM, ScriptedServer, done, event, hello, snapshot, state
from tidewire import AsyncClient, Client
from tidewire.protocol import strict_json
from tidewire.protocol.document.digests import text_check
from tidewire.types import ResultType

SIZE = 2_000_000
MOST = 2.7
"""The bar is 3; what the client takes is 2.1 to 2.3."""
PLACE = "/items/0/value"
TEXT = ("of the order of the document, " * (SIZE // 30 + 1))[:SIZE]
ITEMS = [{"status": "running", "value": TEXT}]
CHECK = [text_check(PLACE, TEXT)]


def begun(text):
    return STREAM + hello() + snapshot("1-1", state(text, status="running"), columns=[PLACE])


def appended(step):
    parts = [TEXT[at : at + step] for at in range(0, SIZE, step)]
    events = b"".join(event(part, id=f"1-{number}") for number, part in enumerate(parts, 2))
    return begun("") + events + done(f"1-{len(parts) + 2}", ITEMS, check=CHECK)


def by_updates(url):
    async def read():
        async with AsyncClient(url) as client:
            return sum([len(update.text) async for update in client.job("j1").iter_text_deltas()])

    return asyncio.run(read())


def by_result(url):
    with Client(url) as client:
        return len(client.job("j1").result())


WAYS = {
    "a snapshot": (lambda: begun(TEXT) + done("1-2", ITEMS, check=CHECK), by_updates),
    "a value that is set": (
        lambda: begun("") + event([["s", PLACE, TEXT]], id="1-2") + done("1-3", ITEMS),
        by_result,
    ),
    "long appends": (lambda: appended(1_000_000), by_updates),
    "a snapshot that goes on": (
        lambda: (
            begun(TEXT[: SIZE // 10])
            + snapshot("1-9", state(TEXT, status="running"), columns=[PLACE], reason="compacted")
            + done("1-10", ITEMS)
        ),
        by_updates,
    ),
    "short appends": (lambda: appended(4_000), by_result),
}


@pytest.fixture(scope="module", autouse=True)
def _loaded():
    """What is loaded at the first use counts for no document."""
    short = begun("a") + done("1-2", [{"status": "running", "value": "a"}])
    with ScriptedServer(lambda _: iter([short, CLOSE])) as server:
        assert (by_updates(server.url), by_result(server.url)) == (1, 1)


def peak(read, source):
    gc.collect()
    tracemalloc.start()
    try:
        length = read(source)
        return length, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("way", WAYS)
def test_a_long_document_is_held_less_than_three_times(way):
    make, read = WAYS[way]
    stream = make()
    with ScriptedServer(lambda _: iter([stream, CLOSE])) as server:
        length, most = peak(read, server.url)
    assert length == SIZE
    assert most < MOST * SIZE


def test_a_snapshot_after_a_cut_does_not_hold_what_was_there_several_times():
    ahead = appended(100_000)
    cut = ahead[: ahead.index(b"id:1-16\n")]
    turns = [
        cut,
        STREAM
        + hello()
        + snapshot("1-41", state(TEXT, status="running"), columns=[PLACE], reason="compacted"),
    ]
    turns[1] += done("1-42", ITEMS)
    asked = []

    def script(_):
        asked.append(1)
        return iter([turns[(len(asked) - 1) % 2], CLOSE])

    with ScriptedServer(script) as server:
        length, most = peak(by_updates, server.url)
    assert (length, len(asked)) == (SIZE, 2)
    # What was there (0.7), what came as JSON and as a text, and what is new of it.
    assert most < 3.2 * SIZE


def test_a_long_text_of_code_is_parsed_at_no_other_cost():
    # Its brackets make the depth worth a look, which once remembered each character.
    body = strict_json.dumps({"text": "x = [f(a) for a in {1: [2]}]" * 20_000})
    length, most = peak(lambda body: len(strict_json.loads(body)["text"]), body)
    assert length < len(body)
    assert most < 3 * len(body)


def test_a_long_text_is_validated_without_a_copy_beside_what_is_written_of_it():
    shape = ResultType(str)
    length, most = peak(lambda text: len(shape.validate(text)), TEXT)
    assert length == SIZE
    # Its JSON, and the text that is made of that.
    assert most < 2.1 * SIZE
