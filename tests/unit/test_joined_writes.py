"""Joined writes: the head and the body of a request are sent together, and nothing stays unsent."""

import asyncio

import httpcore
import pytest

from tidewire.http.joined_writes import LONGEST, JoinedWrites


class Recorder(httpcore.AsyncNetworkStream):
    """A connection that records the parts that were sent."""

    def __init__(self):
        self.sent = []

    async def write(self, buffer, timeout=None):
        if buffer:
            self.sent.append(buffer)

    async def read(self, max_bytes, timeout=None):
        return b"HTTP/1.1 200 OK"

    async def start_tls(self, ssl_context, server_hostname=None, timeout=None):
        return self


async def sent(*parts, read=False):
    """Write parts, and return what was sent."""
    recorder = Recorder()
    stream = JoinedWrites(recorder)
    for part in parts:
        await stream.write(part)
    if read:
        assert await stream.read(100) == b"HTTP/1.1 200 OK"
    return recorder.sent


LONG = b"x" * (LONGEST + 1)


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((b"head", b"body", b""), [b"headbody"]),
        ((b"head", b""), [b"head"]),
        ((b"head", LONG, b""), [b"head", LONG]),
        ((LONG, b"body", b""), [LONG, b"body"]),
        ((b"head", b"body", b"", b"next", b"body", b""), [b"headbody", b"nextbody"]),
    ],
    ids=["body", "no body", "long body", "long head", "two requests"],
)
def test_head_and_body_are_sent_together_unless_one_is_long(parts, expected):
    assert asyncio.run(sent(*parts)) == expected


def test_read_sends_what_is_held_back():
    assert asyncio.run(sent(b"greeting of a proxy", read=True)) == [b"greeting of a proxy"]


def test_writes_over_tls_are_joined():
    async def over_tls():
        recorder = Recorder()
        stream = await JoinedWrites(recorder).start_tls(None)
        await stream.write(b"head")
        await stream.write(b"body")
        return recorder.sent

    assert asyncio.run(over_tls()) == [b"headbody"]
