"""Encoding of events, and errors for invalid events; the vectors `messages/events` cover decoding."""

import pytest

from tidewire.protocol import messages
from tidewire.protocol.cursor import Cursor
from tidewire.protocol.messages import MessageError
from tidewire.protocol.sse import Decoder

STATE = {"status": "running", "items": [{"status": "running", "value": "é\n"}], "usage": {}, "notes": []}


def decoded(frame: bytes):
    (event,) = Decoder().feed(frame)
    return event


def test_diff_of_one_text_is_encoded_in_two_short_lines():
    assert messages.diff_frame(Cursor(1, 17), " world") == b'id:1-17\ndata:" world"\n\n'


def test_snapshot_is_decoded_as_it_was_encoded():
    event = decoded(messages.snapshot_frame(Cursor(2, 3), STATE, ["/items/0/value"], "start"))
    assert (event.type, event.id) == ("snapshot", "2-3")
    read = messages.read(messages.Snapshot, event.data, what="snapshot")
    assert read.state == STATE
    assert read.columns == ["/items/0/value"]
    assert read.reason == "start"


def test_done_is_decoded_as_it_was_encoded():
    done = messages.Done(status="succeeded", digest="0" * 16, check=[["/items/0/value", 2, 7]])
    event = decoded(messages.done_frame(Cursor(1, 9), done))
    assert (event.type, event.id) == ("done", "1-9")
    assert '"check":[["/items/0/value",2,7]]' in event.data
    assert messages.read(messages.Done, event.data, what="done") == done


def test_ephemeral_event_has_no_id_and_may_carry_a_retry_field():
    decoder = Decoder()
    frame = messages.ephemeral_frame("goaway", messages.Goaway(reason="restart", retry_ms=5), retry_ms=5)
    (event,) = decoder.feed(frame)
    assert (event.type, event.id, decoder.retry_ms) == ("goaway", "", 5)


def test_error_for_an_invalid_event_begins_with_its_name():
    with pytest.raises(MessageError, match="^this event: "):
        messages.read(messages.Ping, "{}", what="this event")
