"""`Context`, the view of a function on its call: cancellation, progress, notes, usage and the time limit."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from support.reference_server import QUICK, data, eventually, serving
from tidewire_server import Context, Server


def make_server():
    server, freed, entered = Server(**QUICK), [], threading.Event()

    @server.endpoint(time_limit=5)
    def thread(ctx: Context) -> str:
        """Asks."""
        entered.set()
        while not ctx.cancelled:
            threading.Event().wait(0.002)
        freed.append("thread")
        return "stopped"

    @server.endpoint
    def generator() -> Iterator[int]:
        entered.set()
        try:
            while True:
                yield 1
                threading.Event().wait(0.002)
        finally:
            freed.append("generator")

    @server.endpoint
    async def task() -> None:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            freed.append("task")

    return server, freed, entered


@pytest.mark.parametrize("endpoint", ["thread", "generator", "task"])
def test_a_cancelled_function_runs_its_cleanup_before_the_job_ends(endpoint):
    server, freed, entered = make_server()
    with serving(server) as peer:
        job = peer.start(endpoint)
        assert entered.wait(10)
        peer.http.post(f"/v1/jobs/{job}/cancel")
        assert peer.ended(job)["status"] == "cancelled"
        assert freed == [endpoint]


@pytest.mark.parametrize("endpoint", ["thread", "generator", "task"])
def test_a_function_beyond_its_time_limit_fails_and_runs_its_cleanup(endpoint):
    server, freed, _ = make_server()
    server.endpoints[endpoint].time_limit = 0.03
    with serving(server) as peer:
        error = peer.run(endpoint)["state"]["items"][0]["error"]
        assert (error["code"], error["status"]) == ("deadline_exceeded", 504)
        assert error["detail"] == (
            f"the function ran longer than 0.03 s, the time_limit of endpoint {endpoint!r}"
        )
        eventually(lambda: freed == [endpoint])


def test_a_context_is_not_an_input_member_and_reports_without_changing_the_value():
    server, progress_read = Server(**QUICK), threading.Event()

    @server.endpoint
    def render(ctx: Context, frames: int = 2) -> str:
        ctx.progress(1, frames, unit="frame", phase="rendering")
        ctx.note("coarse", level="warning")
        ctx.usage(frames=frames)
        assert ctx.rows[0] is ctx
        assert progress_read.wait(10)
        return "done"

    with serving(server) as peer:
        described = peer.http.get("/v1/endpoints/render").json()
        assert list(described["input_schema"]["properties"]) == ["frames"]
        assert described["capabilities"]["streams"] is False
        job = peer.start("render")
        with peer.stream(job) as reading:
            message = {"current": 1, "total": 2, "unit": "frame", "phase": "rendering", "item": 0}
            assert data(reading.until("progress")) == message
            progress_read.set()
        ended = peer.ended(job)
        assert ended["state"]["notes"] == [{"level": "warning", "text": "coarse"}]
        assert ended["state"]["usage"] == {"frames": 2}
        assert ended["state"]["items"][0]["value"] == "done"
