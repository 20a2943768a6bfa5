"""Memory of the server after many jobs: only retained jobs remain, within the configured limits."""

import gc
from collections import Counter

import pytest

from support.reference_server import JSON, QUICK, eventually, serving
from tidewire_server import Context, ItemError, Server, Stream
from tidewire_server.endpoints.item_writer import ItemWriter
from tidewire_server.http.event_stream import EventStream
from tidewire_server.http.uvicorn.slow_reader_sender import BackpressuredSender
from tidewire_server.job_log.log_writer import LogWriter
from tidewire_server.jobs.job import Job

KEPT = 5
ROUNDS = 14


def live_objects() -> Counter[str]:
    """Count the live objects of the server, asyncio, uvloop and Starlette by type."""
    gc.collect()
    types = (type(each) for each in gc.get_objects())
    counted = (f"{each.__module__}.{each.__qualname__}" for each in types)
    return Counter(
        name
        for name in counted
        if name.startswith(("tidewire", "asyncio", "_asyncio", "uvloop", "starlette"))
    )


def test_objects_of_a_job_are_freed_at_its_end_without_the_garbage_collector():
    server = Server(**QUICK)

    @server.endpoint
    async def talk(stream: Stream[str]) -> None:
        stream.append("hello")
        stream.progress(1, 2)

    @server.endpoint
    def plain(context: Context, n: int = 1) -> int:
        return n + len(context.rows)

    @server.endpoint(batch=True)
    def together(n: list[int]) -> list[int]:
        return n

    kinds = (Job, Stream, ItemWriter, LogWriter, EventStream, BackpressuredSender)

    def alive() -> int:
        return sum(type(each) in kinds for each in gc.get_objects())

    with serving(server) as peer:
        gc.collect()
        gc.disable()
        others = alive()  # Objects that earlier tests may have left.
        try:
            for endpoint, value in (("talk", {}), ("plain", {"n": 1}), ("together", {"n": 1})):
                assert peer.events(peer.start(endpoint, value))[-1].type == "done"
            eventually(lambda: alive() <= others)
        finally:
            gc.enable()


@pytest.mark.heavy
def test_memory_after_many_jobs_equals_memory_after_a_few():
    server = Server(**QUICK | {"max_retained_jobs": KEPT, "max_tombstones": KEPT})

    @server.endpoint(concurrency_limit=None)
    async def talk(fail: bool = False, stream: Stream[str] = None) -> None:  # type: ignore[assignment]
        stream.append("hello")
        stream.progress(1, 2)
        if fail:
            raise ItemError(
                "on purpose"
            )  # pytest keeps log records with tracebacks, so the function raises an error that is not logged.

    @server.endpoint
    def plain(n: int = 1) -> int:
        return n

    @server.endpoint(batch=True, max_batch_size=4, time_limit=60)
    def together(n: list[int]) -> list[int]:
        return n

    with serving(server) as peer:
        keys = iter(range(10_000))

        def some_jobs() -> None:
            peer.run("talk", {"fail": True})
            peer.run("plain", deadline_ms=60_000)
            peer.run("together", inputs=[{"n": 1}, {"n": 2}, {"n": 3}])
            body = b'{"input": {}, "on_disconnect": "cancel", "grace_ms": 600000, "deadline_ms": 600000}'
            headers = JSON | {"idempotency-key": f"key-{next(keys)}", "accept": "text/event-stream"}
            answer = peer.http.post("/v1/endpoints/talk/jobs", content=body, headers=headers)
            assert b"event:done" in answer.content
            gone = peer.start("plain")
            assert peer.http.delete(f"/v1/jobs/{gone}").status_code == 204
            assert peer.http.get("/v1/jobs/none").status_code == 404

        def at_rest() -> Counter[str]:
            eventually(lambda: peer.metrics()["tidewire_open_streams"] == 0)
            return live_objects()

        for _ in range(KEPT + 5):
            some_jobs()
        before = at_rest()
        for _ in range(ROUNDS):
            some_jobs()
        # Some objects are released a moment after their readers finish. A leak would leave one object per
        # round.
        eventually(lambda: max((at_rest() - before).values(), default=0) < ROUNDS // 2)
        assert (at_rest() - before).total() < ROUNDS
