"""`tidewire.protocol.sse` on megabytes of hostile input: bounded memory and linear time."""

import tracemalloc

import pytest

from support.sse_decoding import decode, in_chunks_of
from tidewire.protocol.sse import Decoder, EventTooLargeError

MEGABYTE = 1_000_000


@pytest.mark.heavy
@pytest.mark.parametrize(
    "chunk",
    [
        b"x",
        b"data:x\n",
        b"id:x\n",
        b"data:" + b"x" * 5000,
        *(
            pytest.param(chunk, marks=pytest.mark.slow)
            for chunk in (b"xyz", b"data\n", b"event:xy\n", b": comment\n")
        ),
    ],
    ids=repr,
)
def test_memory_stays_near_the_size_limit_for_any_input(chunk):
    limit = 100_000
    decoder = Decoder(max_event_bytes=limit)
    tracemalloc.start()
    try:
        for _ in range(2 * limit // len(chunk)):
            decoder.feed(chunk)
    except EventTooLargeError:
        assert not chunk.startswith(b":")
        assert tracemalloc.get_traced_memory()[0] < limit // 2, "the decoder must release its buffers"
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 3 * limit + 20 * len(chunk)


# --- linear time: quadratic time would exceed the timeout by hours


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", [16, 1000, 16 * MEGABYTE])
def test_line_of_16_megabytes_is_decoded_in_linear_time(size):
    decoder = Decoder()
    decoder.feed(b"data:")
    for chunk in in_chunks_of(size, bytes(16 * MEGABYTE)):
        assert decoder.feed(chunk) == []
    (event,) = decoder.feed(b"\n\n")
    assert len(event.data) == 16 * MEGABYTE


@pytest.mark.heavy
@pytest.mark.timeout(20)
def test_event_of_400_000_data_lines_is_decoded_in_linear_time():
    decoder, line = Decoder(), b"data:" + b"x" * 30 + b"\n"
    for _ in range(400_000):
        decoder.feed(line)
    (event,) = decoder.feed(b"\n")
    assert event.data == "\n".join(["x" * 30] * 400_000)


@pytest.mark.heavy
@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "hostile",
    [
        b"data:" * 300_000 + b"\nx\n\n",
        b"id:" * 500_000 + b"\n\n",
        b"data: x\n" * 200_000 + b"\n",
        b"id: 1\nevent: t\n" * 100_000 + b"\n",
        b"\n" * MEGABYTE,
        b"\r" * MEGABYTE,
        b"\n\r" * MEGABYTE,
        b"data:" + b" " * MEGABYTE + b"\nx\n\n",
        b"retry:" + b"9" * MEGABYTE + b"\n\n",
        b"data: x\n\n" * 100_000 + b"data: y\ndata: z\n\n",
    ],
    ids=lambda hostile: repr(hostile[:16]),
)
def test_hostile_megabyte_is_decoded_in_linear_time_for_any_chunking(hostile):
    assert decode([hostile]) == decode(in_chunks_of(4096, hostile)) == decode(in_chunks_of(13, hostile))
