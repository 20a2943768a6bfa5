"""SSE decoding: each chunking of a stream gives the same events, at the same byte, as the standard requires.

The reference is `read_stream`, an independent and slow decoder, which reads a whole stream character by character and
follows the wording of the standards.
"""

import base64
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.sse_decoding import decode
from tidewire.protocol.sse import MAX_RETRY_MS, Decoder, Event, EventTooLargeError, encode

VECTORS = Path(__file__).parents[2] / "spec" / "vectors" / "sse" / "framing.json"

# --- reference decoder


def decode_utf8(octets):
    """The UTF-8 decoder of the Encoding Standard, with the error mode "replacement" (section 8.1.1)."""
    text = []
    code_point = seen = needed = 0
    lower, upper = 0x80, 0xBF
    position = 0
    while position < len(octets):
        octet = octets[position]
        position += 1
        if needed == 0:
            if octet <= 0x7F:
                text.append(chr(octet))
            elif 0xC2 <= octet <= 0xDF:
                needed, code_point = 1, octet & 0x1F
            elif 0xE0 <= octet <= 0xEF:
                lower = 0xA0 if octet == 0xE0 else 0x80
                upper = 0x9F if octet == 0xED else 0xBF
                needed, code_point = 2, octet & 0xF
            elif 0xF0 <= octet <= 0xF4:
                lower = 0x90 if octet == 0xF0 else 0x80
                upper = 0x8F if octet == 0xF4 else 0xBF
                needed, code_point = 3, octet & 0x7
            else:
                text.append("\ufffd")
        elif not lower <= octet <= upper:
            code_point = needed = seen = 0
            lower, upper = 0x80, 0xBF
            position -= 1  # restore the byte
            text.append("\ufffd")
        else:
            lower, upper = 0x80, 0xBF
            code_point = code_point << 6 | octet & 0x3F
            seen += 1
            if seen == needed:
                text.append(chr(code_point))
                code_point = needed = seen = 0
    if needed:
        text.append("\ufffd")
    return "".join(text)


def read_lines(text):
    """Return the terminated lines; text after the last line end is not a line."""
    lines, line, position = [], "", 0
    while position < len(text):
        if text[position : position + 2] == "\r\n":
            lines.append(line)
            line, position = "", position + 2
        elif text[position] in "\r\n":
            lines.append(line)
            line, position = "", position + 1
        else:
            line, position = line + text[position], position + 1
    return lines


def read_stream(octets, last_event_id=""):
    """Implement "Interpreting an event stream" of the HTML standard, step by step."""
    events, retry_ms = [], None
    text = decode_utf8(octets[3:] if octets[:3] == b"\xef\xbb\xbf" else octets)
    data_buffer, event_type_buffer, last_event_id_buffer = "", "", last_event_id
    for line in read_lines(text):
        if line == "":
            last_event_id = last_event_id_buffer
            if data_buffer == "":
                event_type_buffer = ""
                continue
            if data_buffer[-1] == "\n":
                data_buffer = data_buffer[:-1]
            event_type = "message"
            if event_type_buffer != "":
                event_type = event_type_buffer
            events.append((event_type, data_buffer, last_event_id))
            data_buffer, event_type_buffer = "", ""
            continue
        if line[0] == ":":
            continue
        field, value = line, ""
        if ":" in line:
            colon = line.index(":")
            field, value = line[:colon], line[colon + 1 :]
            if value[:1] == " ":
                value = value[1:]
        if field == "event":
            event_type_buffer = value
        elif field == "data":
            data_buffer += value + "\n"
        elif field == "id" and "\0" not in value:
            last_event_id_buffer = value
        elif field == "retry" and value and all(digit in "0123456789" for digit in value):
            retry_ms = 0
            for digit in value:
                retry_ms = min(retry_ms * 10 + "0123456789".index(digit), MAX_RETRY_MS)
    return events, last_event_id, retry_ms


def first_byte_over(octets, limit):
    """Return the index of the byte at which an event exceeds the limit, or None."""
    if b"\xef\xbb\xbf".startswith(octets):
        return None  # possibly an incomplete byte order mark, which does not count toward the limit
    ended = current = 0
    comment = False
    start = 3 if octets[:3] == b"\xef\xbb\xbf" else 0
    for index in range(start, len(octets)):
        octet = octets[index]
        if octet == 0x0A and index > start and octets[index - 1] == 0x0D:
            continue
        if octet in {0x0A, 0x0D}:
            if current == 0:
                ended = 0
            elif not comment:
                ended += current
            current, comment = 0, False
        else:
            if current == 0:
                comment = octet == 0x3A
            current += 1
            if ended + current > limit:
                return index
    return None


# --- random streams and cuts

FRAGMENTS = [
    *(b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n", b"\n\r", b"\n", b"\n\n"),
    *(
        b"data",
        b"data:",
        b"data: ",
        b"data:  ",
        b"event:",
        b"event: t",
        b"event",
        b"id",
        b"id:",
        b"id: 1",
        b"id:2",
    ),
    *(b"retry:", b"retry: 5", b"retry:007", b"retry", b"9" * 12, b"DATA:", b"foo: x"),
    *(b":", b": c", b" ", b"x", b"\t", b"\0", b"\x0b", b"\x1e", b"1"),
    *(
        b"\xef\xbb\xbf",
        b"\xef\xbb",
        b"\xef",
        b"\xbb\xbf",
        b"\xff\xfe",
        b"\x80",
        b"\xff",
        b"\xc0",
        b"\xed\xa0\x80",
    ),
    *("é".encode(), "…".encode(), "😀".encode(), b"\xe2\x82", b"\xf0\x9f", b"\xf0\x9f\x98"),
    *("\u2028".encode(), "\u0085".encode(), "\u0663".encode()),
]
EVENTS = [
    *(
        b"data:a\n\n",
        b"data: a\n\n",
        b"id:1-7\ndata:b\n\n",
        b"id: 8\ndata: {}\n\n",
        b"id:1\nevent:t\ndata:c\n\n",
    ),
    *(
        b"event: u\ndata: d\n\n",
        b"event: \ndata: d\n\n",
        b"id: \ndata: e\n\n",
        b"id\ndata:f\n\n",
        b"id:  x\ndata:  y\n\n",
    ),
    *(
        b": ping\n\n",
        b":\n",
        b"id:3\0\ndata:g\n\n",
        b"data:h\ndata:i\n\n",
        b"data:j\nid:4\n\n",
        b"retry:5\ndata:k\n\n",
    ),
    *(
        "id:é\ndata:😀…\n\n".encode(),
        b"data:\xe2\x82\n\n",
        b"id:5\n\n",
        b"event:v\n\n",
        b"\n",
        b"data:" + b"l" * 60 + b"\n\n",
    ),
]


def random_stream(rng):
    """Return a random stream: only fragments, or well-formed events with some fragments; sometimes other line ends."""
    share = rng.choice((0.0, 0.5, 0.9, 1.0))
    parts = [rng.choice(EVENTS if rng.random() < share else FRAGMENTS) for _ in range(rng.randrange(1, 16))]
    if rng.random() < 0.1:
        parts.insert(0, b"\xef\xbb\xbf")
    stream = b"".join(parts)
    line_end = rng.choice((b"\n", b"\n", b"\r", b"\r\n"))
    return stream if line_end == b"\n" else stream.replace(b"\n", line_end)


def random_chunks(rng, stream):
    size = rng.choice((1, 2, 3, 8, 40, len(stream)))
    chunks, position = [], 0
    while position < len(stream):
        step = rng.randrange(2 * size) if rng.random() < 0.5 else size
        chunks.append(stream[position : position + step])
        position += step
    return chunks


def decode_within(limit, chunks):
    decoder, events = Decoder(max_event_bytes=limit), []
    for chunk in chunks:
        try:
            events += decoder.feed(chunk)
        except EventTooLargeError as error:
            return "refused", events + error.events, decoder.last_event_id, decoder.retry_ms
    return "taken", events, decoder.last_event_id, decoder.retry_ms


def read_within(limit, stream):
    index = first_byte_over(stream, limit)
    return ("taken", *read_stream(stream)) if index is None else ("refused", *read_stream(stream[:index]))


# --- properties


def test_reference_decoder_agrees_with_every_vector():
    for vector in json.loads(VECTORS.read_text(encoding="utf-8"))["vectors"]:
        events = [(e["type"], e["data"], e["id"]) for e in vector["events"]]
        stream, before = base64.b64decode(vector["stream"]), vector.get("initial_last_event_id", "")
        expected = events, vector["last_event_id"], vector["retry_ms"]
        assert read_stream(stream, before) == expected, vector["name"]


@pytest.mark.parametrize("count", [4_000, pytest.param(40_000, marks=pytest.mark.slow)])
def test_random_streams_are_decoded_as_the_standard_requires(count):
    rng = random.Random(20_261)
    events = 0
    for _ in range(count):
        stream = random_stream(rng)
        chunks = random_chunks(rng, stream)
        expected = read_stream(stream)
        assert decode([stream]) == expected, stream
        assert decode(chunks) == expected, chunks
        events += len(expected[0])
    assert events > count


@pytest.mark.parametrize("count", [400, pytest.param(4_000, marks=pytest.mark.slow)])
def test_event_is_delivered_with_the_chunk_that_completes_it(count):
    rng = random.Random(20_262)
    for _ in range(count):
        chunks = random_chunks(rng, random_stream(rng))
        decoder, events, fed = Decoder(), [], b""
        for chunk in chunks:
            events += decoder.feed(chunk)
            fed += chunk
            assert (events, decoder.last_event_id, decoder.retry_ms) == read_stream(fed), chunks


def test_size_limit_applies_at_the_same_byte_for_every_chunking():
    rng = random.Random(20_263)
    refused = 0
    for _ in range(5_000):
        stream, limit = random_stream(rng), rng.randrange(1, 40)
        chunks = random_chunks(rng, stream)
        expected = read_within(limit, stream)
        assert decode_within(limit, [stream]) == expected, (limit, stream)
        assert decode_within(limit, chunks) == expected, (limit, chunks)
        refused += expected[0] == "refused"
    assert 500 < refused < 4_500


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=6)


@pytest.mark.heavy
@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            texts, st.none() | names, st.none() | names.filter(bool), st.none() | st.integers(0, MAX_RETRY_MS)
        ),
        max_size=5,
    ),
    st.integers(1, 9),
)
def test_encoded_events_are_decoded_unchanged_for_any_chunking(written, size):
    stream, expected, last_id, last_retry = b"", [], "", None
    for data, id_, event, retry_ms in written:
        stream += encode(data, id=id_, event=event, retry_ms=retry_ms)
        last_id = last_id if id_ is None else id_
        last_retry = last_retry if retry_ms is None else retry_ms
        expected.append(Event(event or "message", data, last_id))
    chunks = [stream[i : i + size] for i in range(0, len(stream), size)]
    assert decode(chunks) == decode([stream]) == (expected, last_id, last_retry)
