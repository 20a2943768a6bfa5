"""Comparison with httpx-sse 0.4: equal on ordinary streams, and different only in the known cases."""

import codecs
import random

import pytest
from httpx_sse._decoders import SSEDecoder, SSELineDecoder

from tidewire.protocol.sse import Decoder


def decode_with_ours(stream):
    return [tuple(event) for event in Decoder().feed(stream)]


def decode_with_httpx_sse(chunks):
    """Return the events that `httpx_sse.EventSource.iter_sse` yields for these chunks, as `(type, data, id)`."""
    text, lines, decoder = codecs.getincrementaldecoder("utf-8")("replace"), SSELineDecoder(), SSEDecoder()
    decoded = [text.decode(chunk) for chunk in chunks]
    decoded.append(text.decode(b"", final=True))
    ended = [line for part in decoded for line in lines.decode(part)]
    events = [decoder.decode(line.rstrip("\n")) for line in [*ended, *lines.flush()]]
    return [(event.event, event.data, event.id) for event in events if event is not None]


# name: (stream, our events, the events of httpx-sse, reason for the difference)
KNOWN_DIFFERENCES = {
    "comment after an id": (
        b"id: 1\ndata: a\n\n: ping\n\n",
        [("message", "a", "1")],
        [("message", "a", "1"), ("message", "", "1")],
        "a blank line after an id dispatches an event, even without a data line",
    ),
    "extra blank line after an id": (
        b"id: 1\ndata: a\n\n\n",
        [("message", "a", "1")],
        [("message", "a", "1"), ("message", "", "1")],
        "as above",
    ),
    "block with an id and no data": (b"id: 1\n\n", [], [("message", "", "1")], "as above"),
    "block with a type and no data": (b"event: t\n\n", [], [("t", "", "")], "as above, for a type"),
    "block with retry alone": (b"retry: 5\n\n", [], [("message", "", "")], "as above, for retry"),
    "byte order mark": (
        b"\xef\xbb\xbfdata: a\n\ndata: b\n\n",
        [("message", "a", ""), ("message", "b", "")],
        [("message", "b", "")],
        "the mark stays part of the first field name, which is therefore unknown",
    ),
}


@pytest.mark.parametrize("name", KNOWN_DIFFERENCES)
def test_known_difference_still_exists(name):
    stream, our_events, their_result, _ = KNOWN_DIFFERENCES[name]
    assert decode_with_ours(stream) == our_events
    assert decode_with_httpx_sse([stream]) == their_result


@pytest.mark.parametrize(
    ("value", "their_result"), [("+5", 5), ("-1", -1), ("3_5", 35), ("  5", 5), ("5 ", 5), ("\u0663", 3)]
)
def test_known_difference_httpx_sse_parses_retry_with_int(value, their_result):
    decoder = Decoder()
    decoder.feed(f"retry:{value}\n\n".encode())
    assert decoder.retry_ms is None
    their_decoder = SSEDecoder()
    their_decoder.decode(f"retry:{value}")
    assert their_decoder.decode("").retry == their_result


def test_known_difference_httpx_sse_holds_back_a_cr_until_the_next_chunk():
    assert Decoder().feed(b"data: a\r\r") == [("message", "a", "")]
    lines, decoder = SSELineDecoder(), SSEDecoder()
    assert [decoder.decode(line) for line in lines.decode("data: a\r\r")] == [None]


# Lines that both decoders read alike. Each block contains a data line, and each blank line ends a block; otherwise
# a random search finds only the first entries of KNOWN_DIFFERENCES.
LINES = [
    *(
        "data: a",
        "data:b",
        "data:  c",
        "data",
        "data:",
        "data: {}: x",
        "data: é…😀",
        "data: a\u2028b\x85\x0b\x1e\0",
        "data: \ufeff",
    ),
    *(
        "id: 1",
        "id:2-7",
        "id",
        "id:",
        "id: 3\0",
        "id: é",
        "id:  4",
        "event: t",
        "event:u",
        "event",
        "event:  v",
    ),
    *(
        ": ping",
        ":",
        ":data: x",
        "DATA: x",
        "datax: y",
        " data: z",
        "foo",
        "foo: x",
        "\ufeffdata: x",
        " ",
        "\t",
    ),
    *("retry: 5", "retry: x", "retry:"),
]


def block(rng):
    lines = [rng.choice(LINES) for _ in range(rng.randrange(5))]
    lines.insert(rng.randrange(len(lines) + 1), "data: d")
    return lines


def test_5_000_ordinary_streams_are_decoded_alike():
    rng = random.Random(20_264)
    events = 0
    for _ in range(5_000):
        ends = rng.choice((["\n"], ["\r\n"], ["\r"], ["\n", "\r\n", "\r"]))
        lines = [line for _ in range(rng.randrange(6)) for line in [*block(rng), ""]]
        lines += rng.choice(([], ["data: unfinished"], ["id: 9", "event: unfinished"]))
        stream = "".join(line + rng.choice(ends) for line in [": start", *lines]).encode()
        size = rng.choice((1, 5, 50, len(stream) + 1))
        expected = decode_with_ours(stream)
        assert decode_with_httpx_sse(stream[i : i + size] for i in range(0, len(stream), size)) == expected, (
            stream
        )
        events += len(expected)
    assert events > 10_000
