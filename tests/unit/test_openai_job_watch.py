"""`JobWatch`: the reason for which a reader of a job ends."""

import asyncio
from types import SimpleNamespace

import pytest
from starlette.requests import ClientDisconnect

from tidewire_server.errors import ProblemError
from tidewire_server.openai.job_watch import JobWatch


class RunningLog:
    """Log of a job that does not end. Its state never changes."""

    def extent(self):
        return SimpleNamespace(ended=False)

    async def state(self):
        return SimpleNamespace(cursor=1)


@pytest.mark.parametrize(
    ("calls", "raised"),
    [
        (["go_away"], ProblemError),
        (["disconnect"], ClientDisconnect),
        (["go_away", "disconnect"], ClientDisconnect),
        (["disconnect", "go_away"], ClientDisconnect),
    ],
)
def test_a_client_that_has_disconnected_is_no_failure_of_a_server_that_stops(calls, raised):
    async def read():
        service = SimpleNamespace(settings=SimpleNamespace(heartbeat=10))
        watch = JobWatch(service, SimpleNamespace(id="j"), RunningLog(), lambda: None)
        async for _ in watch.states():
            for call in calls:
                getattr(watch, call)()

    with pytest.raises(raised):
        asyncio.run(asyncio.wait_for(read(), 5))
