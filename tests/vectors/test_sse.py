"""Test vectors for SSE: decoding of streams cut at any byte, and encoding."""

import base64

import pytest

from support.spec_vectors import for_each_vector, load_vectors
from support.sse_decoding import decode, in_chunks_of
from tidewire.protocol.sse import Event, encode


@for_each_vector("sse/framing")
def test_stream_is_decoded_at_any_cut(vector):
    stream, before = base64.b64decode(vector["stream"]), vector.get("initial_last_event_id", "")
    expected = (
        [Event(e["type"], e["data"], e["id"]) for e in vector["events"]],
        vector["last_event_id"],
        vector["retry_ms"],
    )
    with_empty_chunks = [b"", *(part for byte in in_chunks_of(1, stream) for part in (byte, b""))]
    assert decode([stream], last_event_id=before) == expected
    assert decode(in_chunks_of(1, stream), last_event_id=before) == expected
    assert decode(with_empty_chunks, last_event_id=before) == expected
    for cut in range(1, len(stream)):
        assert decode([stream[:cut], stream[cut:]], last_event_id=before) == expected, f"cut at byte {cut}"


@for_each_vector("sse/encode")
def test_event_is_encoded_or_refused(vector):
    event = dict(vector["event"])
    arguments = {"data": event.pop("data"), "event": event.pop("type", None), **event}
    if vector["stream"] is None:
        with pytest.raises(ValueError, match=r"cannot|must"):
            encode(**arguments)
        return
    stream = base64.b64decode(vector["stream"])
    assert encode(**arguments) == stream
    read = Event(arguments["event"] or "message", arguments["data"], arguments.get("id", ""))
    assert decode([stream]) == ([read], read.id, arguments.get("retry_ms"))


@pytest.mark.parametrize("name", ["sse/framing", "sse/encode"])
def test_readable_form_of_a_vector_matches_its_bytes(name):
    for vector in load_vectors(name)["vectors"]:
        if vector["stream"] is not None:
            shown = base64.b64decode(vector["stream"]).decode("latin-1").encode("unicode_escape").decode()
            assert shown.startswith(vector["shown"].removesuffix("…")), vector["name"]
