"""The suite's own event stream decoder and diff engine, tested against the vectors."""

import base64
import hashlib
import json

import pytest

from support.tables import for_each_case
from tidewire_conformance import specification
from tidewire_conformance.judging import apply_diffs
from tidewire_conformance.judging.apply_diffs import InvalidDiffError, State
from tidewire_conformance.wire.event_stream_decoder import EventStreamDecoder


def decode(stream, size):
    reader = EventStreamDecoder()
    blocks = [block for at in range(0, len(stream), size) for block in reader.feed(stream[at : at + size], 0)]
    return [
        (block.type, block.data.decode("utf-8", "replace"), block.last_id)
        for block in blocks
        if block.is_event
    ]


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
    for size in (1, 2, 3, len(stream) or 1):
        assert decode(stream, size) == expected


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
