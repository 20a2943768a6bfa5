"""The suite's own event stream decoder and diff engine, tested against vectors and two other decoders."""

import base64
import hashlib
import json

import httpx_sse._decoders
import pytest

from support.tables import for_each_case
from tidewire.protocol.sse import Decoder
from tidewire_conformance import specification
from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.apply_diffs import InvalidDiffError, State
from tidewire_conformance.wire.event_stream_decoder import EventStreamDecoder

STREAMS = [
    b"id:1-1\ndata:a\n\nid:1-2\nevent:done\ndata:b\n\n",
    b"data:a\r\n\r\ndata:b\r\rdata:c\n\n",
    b"data:a\ndata:b\n\n: a comment\n\nevent:x\n\ndata: c\n\n",
    "data:né 😀 \u2028 \u0085\n\nretry:10\n\n".encode(),
    b"id:1\n\ndata:x\n\nid:a\0b\ndata:y\n\n",
    b"data\n\nid\ndata:z\n\ndata:unfinished",
    b"\xef\xbb\xbfdata:after a mark\n\n\xef\xbb\xbfdata:no field\n\n",
    b"data:\xff\xfe\n\nunknown:1\ndata:  two spaces\n\n",
]

UNLIKE_HTTPX_SSE = {2, 3, 4, 6}
"""Indexes of streams that httpx-sse decodes differently from the standard.

It dispatches events for a type, an id or a retry without data, and loses the first event after a byte order
mark.
"""


def decode_with_suite(stream, size):
    reader = EventStreamDecoder()
    blocks = [block for at in range(0, len(stream), size) for block in reader.feed(stream[at : at + size], 0)]
    return [
        (block.type, block.data.decode("utf-8", "replace"), block.last_id)
        for block in blocks
        if block.is_event
    ]


def decode_with_client(stream):
    decoder = Decoder()
    return [(event.type, event.data, event.id or "") for event in decoder.feed(stream)]


def decode_with_httpx_sse(stream):
    decoder, found = httpx_sse._decoders.SSEDecoder(), []
    for line in stream.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        if (event := decoder.decode(line)) is not None:
            found.append((event.event, event.data, event.id))
    return found


@pytest.mark.parametrize("stream", STREAMS)
def test_decoding_does_not_depend_on_chunk_sizes(stream):
    assert len({tuple(decode_with_suite(stream, size)) for size in range(1, len(stream) + 1)}) == 1


@pytest.mark.parametrize("stream", STREAMS)
def test_the_suite_decodes_like_the_client(stream):
    assert decode_with_suite(stream, len(stream)) == decode_with_client(stream)


def test_differences_from_httpx_sse_are_listed():
    unlike = {
        at
        for at, stream in enumerate(STREAMS)
        if decode_with_suite(stream, len(stream)) != decode_with_httpx_sse(stream)
    }
    assert unlike == UNLIKE_HTTPX_SSE


def vectors(folder):
    for file in sorted((specification.folder() / "vectors" / folder).glob("*.json")):
        for vector in json.loads(file.read_text())["vectors"]:
            yield f"{file.stem}-{vector['name']}", vector


FRAMING = [
    (name, vector)
    for name, vector in vectors("sse")
    if name.startswith("framing-") and "initial_last_event_id" not in vector
]


@for_each_case(FRAMING, ids=lambda name, vector: name)
def test_decoding_matches_the_framing_vectors(name, vector):
    stream = base64.b64decode(vector["stream"])
    expected = [
        (event.get("type", "message"), event["data"], event.get("id", "")) for event in vector["events"]
    ]
    assert decode_with_suite(stream, 3) == expected


def test_blocks_keep_the_raw_bytes():
    stream = b"id:1-1\r\ndata:a\r\rdata:b\n\n"
    reader = EventStreamDecoder()
    blocks = [block for byte in stream for block in reader.feed(bytes([byte]), 0)]
    assert b"".join(block.raw for block in blocks) + reader.unfinished == stream
    assert blocks[0].line_ends == {b"\r\n", b"\r"}


DIFFS = [
    (name, vector)
    for name, vector in vectors("diff")
    if {"before", "diff"} <= vector.keys()
    and "stable" not in name  # The vectors named "stable" belong to another check.
]


@for_each_case(DIFFS, ids=lambda name, vector: name)
def test_applying_diffs_matches_the_vectors(name, vector):
    before = json.dumps(vector["before"])
    state = State(vector["before"], tuple(vector.get("columns", ())))
    try:
        got = apply_diffs.apply(state, vector["diff"]).value
    except InvalidDiffError:
        got = "refused"
    assert json.dumps(got, sort_keys=True) == json.dumps(vector.get("after", "refused"), sort_keys=True)
    assert json.dumps(state.value) == before, "what was held is not changed"


DIGESTS = [vector for _, vector in vectors("diff") if {"items", "digest"} <= vector.keys()]


@pytest.mark.parametrize("vector", DIGESTS, ids=lambda vector: vector["name"])
def test_digests_match_the_vectors(vector):
    assert apply_diffs.digest(vector["items"]) == vector["digest"]


@pytest.mark.parametrize("number", [2**53 - 1, 2**53, 1 - 2**53, -(2**53)])
def test_integers_up_to_2_to_the_53_have_the_digest_of_the_equal_number(number):
    """The canonical JSON of each number is its digits (TW-OVR-003, TW-DIF-055)."""
    items = [{"value": [number, True]}]
    assert apply_diffs.digest(items) == hashlib.sha256(b'[{"value":[%d,true]}]' % number).hexdigest()[:16]


def test_an_integer_beyond_2_to_the_53_has_no_digest():
    with pytest.raises(InvalidDiffError, match="no digest"):
        apply_diffs.digest([2**53, 2**53 + 1])
