"""Peak memory of the client for a long document stays below three times the size of the document.

`tracemalloc` measures the peak from the first received byte to the delivered value. The server's bytes are
created before the measurement.
"""

import asyncio
import gc
import tracemalloc

import pytest

from support.scripted_server import CLOSE, STREAM, ScriptedServer, done, event, hello, snapshot, state
from tidewire import AsyncClient, Client
from tidewire.protocol import strict_json
from tidewire.protocol.document.digests import text_check
from tidewire.result_type import ResultType

SIZE = 2_000_000
MAX_MULTIPLE = 2.7
"""Asserted multiple of the document size. The documented bound is 3; the client takes 2.1 to 2.3."""
PLACE = "/items/0/value"
TEXT = ("of the order of the document, " * (SIZE // 30 + 1))[:SIZE]
ITEMS = [{"status": "running", "value": TEXT}]
CHECK = [text_check(PLACE, TEXT)]


def stream_start(text):
    return STREAM + hello() + snapshot("1-1", state(text, status="running"), columns=[PLACE])


def appended(step):
    parts = [TEXT[at : at + step] for at in range(0, SIZE, step)]
    events = b"".join(event(part, id=f"1-{number}") for number, part in enumerate(parts, 2))
    return stream_start("") + events + done(f"1-{len(parts) + 2}", ITEMS, check=CHECK)


def by_updates(url):
    async def read():
        async with AsyncClient(url) as client:
            return sum([len(update.text) async for update in client.job("j1").iter_text_deltas()])

    return asyncio.run(read())


def by_result(url):
    with Client(url) as client:
        return len(client.job("j1").result())


WAYS = {
    "a snapshot": (lambda: stream_start(TEXT) + done("1-2", ITEMS, check=CHECK), by_updates),
    "a value that is set": (
        lambda: stream_start("") + event([["s", PLACE, TEXT]], id="1-2") + done("1-3", ITEMS),
        by_result,
    ),
    "long appends": (lambda: appended(1_000_000), by_updates),
    "a snapshot that goes on": (
        lambda: (
            stream_start(TEXT[: SIZE // 10])
            + snapshot("1-9", state(TEXT, status="running"), columns=[PLACE], reason="compacted")
            + done("1-10", ITEMS)
        ),
        by_updates,
    ),
    "short appends": (lambda: appended(4_000), by_result),
}


@pytest.fixture(scope="module", autouse=True)
def _warm_up():
    """Load modules that the client imports on first use, so the measurements exclude them."""
    short = stream_start("a") + done("1-2", [{"status": "running", "value": "a"}])
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
def test_peak_memory_of_a_long_document_is_below_three_times_its_size(way):
    make, read = WAYS[way]
    stream = make()
    with ScriptedServer(lambda _: iter([stream, CLOSE])) as server:
        length, peak_bytes = peak(read, server.url)
    assert length == SIZE
    assert peak_bytes < MAX_MULTIPLE * SIZE


def test_a_snapshot_after_a_reconnect_stays_within_the_memory_bound():
    ahead = appended(100_000)
    cut = ahead[: ahead.index(b"id:1-16\n")]
    responses = [
        cut,
        STREAM
        + hello()
        + snapshot("1-41", state(TEXT, status="running"), columns=[PLACE], reason="compacted"),
    ]
    responses[1] += done("1-42", ITEMS)
    requests = []

    def script(_):
        requests.append(1)
        return iter([responses[(len(requests) - 1) % 2], CLOSE])

    with ScriptedServer(script) as server:
        length, peak_bytes = peak(by_updates, server.url)
    assert (length, len(requests)) == (SIZE, 2)
    # The bound covers the earlier text (0.7 of `SIZE`), the snapshot as JSON and as text, and its new part.
    assert peak_bytes < 3.2 * SIZE


def test_text_with_many_brackets_is_parsed_within_the_memory_bound():
    # The brackets in the text trigger the check of the nesting depth, which once stored every character.
    body = strict_json.dumps({"text": "x = [f(a) for a in {1: [2]}]" * 20_000})
    length, peak_bytes = peak(lambda body: len(strict_json.loads(body)["text"]), body)
    assert length < len(body)
    assert peak_bytes < 3 * len(body)


def test_validating_a_long_text_makes_no_extra_copy():
    shape = ResultType(str)
    length, peak_bytes = peak(lambda text: len(shape.validate(text)), TEXT)
    assert length == SIZE
    # Memory for the JSON of the text and for the text parsed from it.
    assert peak_bytes < 2.1 * SIZE
