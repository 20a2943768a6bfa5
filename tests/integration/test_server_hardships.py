"""The server where things come at the worst moment: ends while threads write, crowds, odd errors, broken connections."""

import threading

import pytest

from integration.reference_server import QUICK, Fold, eventually, serving
from tidewire_server import Server, Stream
from tidewire_server.errors import StreamClosedError


@pytest.mark.parametrize("count", [1, 2])
def test_a_thread_that_waited_for_room_writes_nothing_once_its_item_has_ended(count):
    server = Server(**(QUICK | {"default_concurrency_limit": None}))
    held, refused = threading.Event(), threading.Event()

    @server.endpoint
    def flood(stream: Stream[str], much: bool = True) -> None:
        assert (held if much else refused).wait(10)
        try:
            while much:
                stream.append("x" * 100_000)
        except StreamClosedError:
            refused.set()
            raise

    @server.endpoint
    async def stop(job: str) -> None:
        # The loop is kept from committing until the thread has to wait for room.
        running = server.app.service._live[job]
        held.set()
        eventually(lambda: running._journal._room._waiters)
        await running._end_item(0, "cancelled")

    with serving(server) as peer:
        job = peer.start("flood", inputs=[{"much": True}, {"much": False}][:count])
        eventually(lambda: peer.job(job)["state"]["items"][0]["status"] == "running")
        assert peer.run("stop", {"job": job})["status"] == "succeeded"
        fold = Fold().take(peer.events(job, "0-0"))
        assert fold.done is not None
        assert refused.is_set()
        ends = [items[0] for items in fold.states.values() if items[0]["status"] == "cancelled"]
        assert all(each == ends[0] for each in ends)
        assert peer.job(job)["state"]["items"] == fold.items
