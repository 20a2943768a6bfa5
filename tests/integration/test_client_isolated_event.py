"""Number of Python calls in the client for one event that arrives alone, from its bytes to the user's loop."""

import asyncio
import sys
from pathlib import Path
from queue import SimpleQueue

import tidewire
from support.scripted_server import ScriptedServer, event, hello, snapshot, state
from tidewire import AsyncClient

TEXT = "/items/0/value"
SRC = str(Path(tidewire.__file__).parent)
MAX_CALLS = 14
"""Maximum number of functions and coroutines of the client that run for one event. A resumed coroutine counts as a
call. Constructors that Python generates for dataclasses and named tuples do not count, because they have no source."""
MAX_CALLS_OUTSIDE_PROTOCOL = 8
"""Maximum number of these calls that are neither in `tidewire.protocol` nor in `tidewire.following`."""
EVENTS = range(10, 30)
"""Sequence numbers of the events. They have the same size, because the sizes of chunks are cached."""


def chunk(content):
    return b"%x\r\n%b\r\n" % (len(content), content)


async def calls_for_each_event(url, send):
    """Read a job whose events arrive one at a time. Return the names of the functions that ran for each event, and the
    number of timers that were started.
    """
    seen, found, timers = [], [], 0

    def watch(frame, what, _):
        nonlocal timers
        if what == "call":
            code = frame.f_code
            if code.co_name == "data_received":
                seen.clear()
            elif code.co_filename.startswith(SRC):
                timers += code.co_name == "call_later"
                seen.append(f"{code.co_filename.removeprefix(SRC)} {code.co_qualname}")

    async with AsyncClient(url) as client, client.job("j1").updates() as updates:
        assert (await anext(updates)).value == ""
        for seq in EVENTS:
            send(chunk(event(f"{seq} ", id=f"1-{seq}")))
            sys.setprofile(watch)
            try:
                update = await anext(updates)
            finally:
                sys.setprofile(None)
            assert update.text == f"{seq} "
            found.append([*seen])
    return found, timers


def test_an_isolated_event_takes_few_calls():
    pieces = SimpleQueue()

    def script(_request):
        yield b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        yield chunk(hello() + snapshot("1-9", state("", status="running"), columns=[TEXT]))
        while piece := pieces.get():
            yield piece

    with ScriptedServer(script) as server:
        found, timers = asyncio.run(calls_for_each_event(server.url, pieces.put))
        pieces.put(b"")
    # The first events may take longer ways, for example past the `retry` field of the first event.
    for calls in found[2:]:
        outside = [each for each in calls if not each.startswith(("/protocol/", "/following/"))]
        assert len(outside) <= MAX_CALLS_OUTSIDE_PROTOCOL, "\n".join(outside)
        assert len(calls) <= MAX_CALLS, "\n".join(calls)
    assert timers <= 1
