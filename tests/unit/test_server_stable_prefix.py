"""Stable text of a stream: readers treat it as final, so the server refuses changes to it."""

import pytest

from support.stream_harness import StreamHarness
from tidewire_server.errors import StreamClosedError


async def test_stable_length_is_logged_and_never_decreases():
    job = StreamHarness({"te/xt": "", "n": 1}, ("/te~1xt",))
    job.stream.append("hello wörld 🎉")
    job.stream.stable(5)
    job.stream.stable(3)
    job.stream.stable()
    job.stream.stable(0)
    stable_events = [event for event in await job.events() if "stable" in str(event)]
    assert stable_events == [
        [["s", "/items/0/stable", {"/te~1xt": 5}]],
        [["s", "/items/0/stable/~1te~01xt", 13]],
    ]
    assert await job.read() == {"te/xt": "hello wörld 🎉", "n": 1}


async def test_changes_to_stable_text_are_refused():
    job = StreamHarness({"text": "", "rows": [{"text": "first"}]}, ("/text",))
    stream = job.stream
    stream.append("hello world")
    stream.stable(5)
    stream.stable(at="/rows/0/text")
    before = stream.value
    for breaks in (
        lambda: stream.truncate(7),
        lambda: stream.set("/text", "hell"),
        lambda: stream.set("/text", 5),
        lambda: stream.set("", {"text": "other", "rows": [{"text": "first"}]}),
        lambda: stream.set("/rows", []),
        lambda: stream.set("/rows/0", {}),
        lambda: stream.truncate(1, at="/rows"),
        lambda: job.writer.replace({"text": "hello", "rows": []}),
    ):
        with pytest.raises(ValueError, match="stable"):
            breaks()
        assert stream.value == before == await job.read()
    stream.truncate(6)
    stream.append("!")
    stream.set("/text", "hello again")
    job.writer.replace({"text": "hello", "rows": [{"text": "first and more"}, 2]})
    assert stream.value == await job.read() == {"text": "hello", "rows": [{"text": "first and more"}, 2]}


async def test_stable_length_must_not_exceed_the_text():
    job = StreamHarness({"text": "abc", "n": 1}, ("/text",))
    for n, at in ((4, None), (-1, None), (True, None), (1.0, None), (1, "/n"), (1, "/none"), (1, "")):
        with pytest.raises(ValueError, match="stable"):
            job.stream.stable(n, at=at)
    job.writer.close()
    with pytest.raises(StreamClosedError):
        job.stream.stable(1)
    assert await job.events() == []


async def test_replacing_a_long_text_keeps_its_stable_prefix_in_each_event():
    job = StreamHarness({"text": ""}, ("/text",), max_event_bytes=1024)
    kept = "é🎉" * 1000
    job.stream.append(kept + "x" * 5000)
    job.stream.stable(len(kept))
    job.stream.set("/text", kept + "y" * 9000)
    # The reader's document refuses an event that changes stable text.
    assert await job.read() == {"text": kept + "y" * 9000}
