"""`tidewire.protocol.sse`: chunks, limits and encoding.

`vectors/test_sse` covers decoding in general, `property/test_sse_chunking` prompt delivery and limits at any chunking.
"""

import pickle
import tracemalloc

import pytest

from support.sse_decoding import decode, in_chunks_of
from tidewire.protocol.sse import MAX_RETRY_MS, Decoder, Event, EventTooLargeError, encode

BOM = b"\xef\xbb\xbf"


# --- chunks and events


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_chunk_is_accepted(kind):
    stream = b"id: 1\r\ndata: a\r\n\r\ndata: b\n\ndata: c"
    chunks = [kind(chunk) for chunk in in_chunks_of(3, stream)]
    assert decode(chunks) == ([Event("message", "a", "1"), Event("message", "b", "1")], "1", None)


def test_changing_a_chunk_after_it_was_fed_has_no_effect():
    decoder, chunk = Decoder(), bytearray(b"data: a")
    decoder.feed(chunk)
    chunk[:] = b"xxxxxxx"
    assert decoder.feed(b"\n\n") == [Event("message", "a", "")]


@pytest.mark.parametrize("wrong", ["data: a\n\n", 5, None, [100, 97]])
def test_chunk_that_is_not_bytes_like_is_refused_without_side_effects(wrong):
    decoder = Decoder()
    decoder.feed(b"data: a\n")
    with pytest.raises(TypeError, match="bytes-like"):
        decoder.feed(wrong)
    assert decoder.feed(b"\n") == [Event("message", "a", "")]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_has_id_reports_an_id_field_in_the_own_block(size):
    """The id of a block without data applies to the next event, but is not that event's own."""
    stream = (
        b"data:a\n\n" b"id:1-1\ndata:b\n\n" b"data:c\n\n" b"id:1-2\n\n" b"data:d\n\n"
        b"data:e\nid:1-3\n\n" b"id:\ndata:f\n\n" b"id:a\0b\ndata:g\n\n"
    )  # fmt: skip
    events, _, _ = decode(in_chunks_of(size, stream))
    found = [(event.data, event.id, event.has_id) for event in events]
    assert found == [
        ("a", "", False),
        ("b", "1-1", True),
        ("c", "1-1", False),
        ("d", "1-2", False),
        ("e", "1-3", True),
        ("f", "", True),
        ("g", "", False),
    ]


@pytest.mark.parametrize("separate", [False, True])
def test_has_id_of_events_of_the_usual_shape(separate):
    blocks = [b"id:1-1\ndata:a\n\n", b"data:b\n\n", b"id:1-2\ndata:c\n\n"]
    events, _, _ = decode(blocks if separate else [b"".join(blocks)])
    assert [event.has_id for event in events] == [True, False, True]
    assert events == [
        Event("message", "a", "1-1"),
        Event("message", "b", "1-1"),
        Event("message", "c", "1-2"),
    ]
    assert [pickle.loads(pickle.dumps(event)).has_id for event in events] == [True, False, True]
    assert [event._replace(data="").has_id for event in events] == [True, False, True]


def test_event_is_an_immutable_value():
    event = Event("message", "a", "1-1")
    assert event == Event(type="message", data="a", id="1-1") != Event("message", "a", "1-2")
    assert len({event, Event("message", "a", "1-1")}) == 1
    with pytest.raises(AttributeError):
        event.data = "b"
    (decoded,) = Decoder().feed(b"id:1-1\ndata:a\n\n")
    assert type(decoded) is Event
    assert pickle.loads(pickle.dumps(decoded)) == event


# --- size limit of an event

LIMIT = 100


def fill(size, begin=b"data:"):
    return begin + b"x" * (size - len(begin))


AT_LIMIT = {
    "one line": fill(100),
    "line ends do not count": fill(60) + b"\n" + fill(40),
    "line ends of two bytes do not count": fill(60) + b"\r\n" + fill(40),
    "a comment that has ended does not count": fill(60) + b"\n" + fill(40, b":") + b"\n" + fill(40),
    "a comment counts until it ends": fill(60) + b"\n" + fill(40, b":"),
    "an unknown name counts": fill(60, b"foo:") + b"\n" + fill(40),
    "an id counts": fill(50, b"id:") + b"\n" + fill(50),
    "each of many lines counts": b"data\n" * 24 + b"data",
    "bytes count, not characters": b"data:" + "é".encode() * 47 + b"x",
    "a byte order mark does not count": BOM + fill(100),
}


def decode_until_refused(chunks):
    decoder, events = Decoder(max_event_bytes=LIMIT), []
    for chunk in chunks:
        try:
            events += decoder.feed(chunk)
        except EventTooLargeError as error:
            return events + error.events, decoder.last_event_id, decoder.retry_ms
    return pytest.fail(f"{sum(map(len, chunks))} bytes were accepted without an error")


@pytest.mark.parametrize("head", [b"", b"\n", b"id:7\nretry:5\ndata:before\n\n", b": c\n\n" * 50])
@pytest.mark.parametrize("at_limit", AT_LIMIT.values(), ids=AT_LIMIT)
def test_event_at_the_limit_is_accepted_and_one_byte_more_is_refused(at_limit, head):
    stream = at_limit if at_limit.startswith(BOM) else head + at_limit
    accepted, before = decode([stream + b"\n\n"]), decode([stream])
    for chunks in ([stream], in_chunks_of(1, stream), in_chunks_of(7, stream)):
        assert decode([*chunks, b"\n\n"], max_event_bytes=LIMIT) == accepted
        assert decode_until_refused([*chunks, b"x"]) == before
    assert decode([stream + b"\n\n"], max_event_bytes=LIMIT) == accepted
    assert decode_until_refused([stream + b"x\n\ndata:never\n\n"]) == before


def test_too_large_event_stops_the_decoder_with_an_error_that_names_the_limit():
    decoder = Decoder(max_event_bytes=LIMIT)
    with pytest.raises(
        EventTooLargeError, match=r"max_event_bytes=100 .*'1-9'.*raise the limit.*resume"
    ) as first:
        decoder.feed(b"id:1-9\ndata:a\n\n" + b"x" * 101)
    for chunk in (b"", b"\n\n", b"data:b\n\n"):
        with pytest.raises(EventTooLargeError, match=r"stopped, .*max_event_bytes=100.*new decoder") as later:
            decoder.feed(chunk)
        assert later.value.events == []
    assert isinstance(first.value, ValueError)
    assert first.value.limit == later.value.limit == LIMIT
    copy = pickle.loads(pickle.dumps(first.value))
    assert (str(copy), copy.limit, copy.events) == (str(first.value), LIMIT, [Event("message", "a", "1-9")])


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match="max_event_bytes must be at least 1"):
        Decoder(max_event_bytes=limit)


# --- encoding


@pytest.mark.parametrize(
    ("arguments", "frame"),
    [
        ({"data": '" world"', "id": "1-17"}, b'id:1-17\ndata:" world"\n\n'),
        ({"data": "a"}, b"data:a\n\n"),
        ({"data": ""}, b"data:\n\n"),
        ({"data": " a"}, b"data:  a\n\n"),
        ({"data": "\ta"}, b"data:\ta\n\n"),
        ({"data": "a\nb"}, b"data:a\ndata:b\n\n"),
        ({"data": "\n a\n"}, b"data:\ndata:  a\ndata:\n\n"),
        ({"data": "{}", "event": "done", "id": "1-2"}, b"id:1-2\nevent:done\ndata:{}\n\n"),
        ({"data": "a", "id": ""}, b"id:\ndata:a\n\n"),
        ({"data": "a", "id": " 1", "event": " t"}, b"id:  1\nevent:  t\ndata:a\n\n"),
        ({"data": "{}", "event": "goaway", "retry_ms": 0}, b"retry:0\nevent:goaway\ndata:{}\n\n"),
        ({"data": "a", "retry_ms": MAX_RETRY_MS}, b"retry:2147483647\ndata:a\n\n"),
        ({"data": "é\u2028\0\ufeff"}, "data:é\u2028\0\ufeff\n\n".encode()),
        ({"data": "a", "event": "t\0", "id": "é"}, "id:é\nevent:t\0\ndata:a\n\n".encode()),
    ],
)
def test_encoded_event_is_minimal_and_decodes_to_the_same_event(arguments, frame):
    assert encode(**arguments) == frame
    decoder = Decoder(last_event_id="before")
    id_, type_ = arguments.get("id", "before"), arguments.get("event", "message")
    assert decoder.feed(frame) == [Event(type_, arguments["data"], id_)]
    assert decoder.retry_ms == arguments.get("retry_ms")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "a\rb"}, r"data of an event cannot contain CR \(found at index 1\)"),
        ({"data": "a\n\r\nb"}, r"data of an event cannot contain CR \(found at index 2\)"),
        ({"data": "a", "id": "1\0"}, "id of an event cannot contain NUL, CR or LF: '1"),
        ({"data": "a", "id": "1\r"}, "id of an event cannot contain"),
        ({"data": "a", "id": "1\ndata: injected"}, "id of an event cannot contain"),
        ({"data": "a", "event": "t\r"}, "type of an event cannot be empty or contain CR or LF"),
        ({"data": "a", "event": "t\nid: 1"}, "type of an event cannot be empty or contain CR or LF"),
        ({"data": "a", "event": ""}, "type of an event cannot be empty"),
        ({"data": "a", "retry_ms": -1}, "retry_ms must be from 0 to 2147483647, not -1"),
        (
            {"data": "a", "retry_ms": MAX_RETRY_MS + 1},
            "retry_ms must be from 0 to 2147483647, not 2147483648",
        ),
        ({"data": "a", "retry_ms": 1.5}, "float"),
        ({"data": "\ud83d"}, "surrogates"),
        ({"data": "a", "id": "\ud83d"}, "surrogates"),
    ],
)
def test_encode_refuses_values_that_cannot_be_transmitted(arguments, message):
    with pytest.raises(ValueError, match=message):
        encode(**arguments)


def test_long_event_in_pieces_uses_at_most_twice_its_size():
    # The decoder holds the received bytes and the decoded text, but no further copies of the line.
    stream = b"id:1-1\nevent:snapshot\ndata:" + b"x" * 4_000_000 + b"\n\n"
    decoder = Decoder(max_event_bytes=8_000_000)
    tracemalloc.start()
    try:
        events = [
            event for at in range(0, len(stream), 16_384) for event in decoder.feed(stream[at : at + 16_384])
        ]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [len(event.data) for event in events] == [4_000_000]
    assert most < 2.5 * 4_000_000
