"""Requests that an engine does not take: the item returns to the queue of the endpoint, with its turn, and runs only once."""

import asyncio
import json
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import pytest

from support.reference_server import QUICK, eventually
from support.scripted_engine import MARK, ScriptedEngine, expected, scripted_engine, until_ready
from support.server_process import ServerProcess
from support.upstream_front import running_front
from tidewire import Client
from tidewire.errors import JobFailedError
from tidewire_server import Server, Stream
from tidewire_server.endpoints.stream import writer_of
from tidewire_server.generation.upstream import url_pool

pytest_plugins = ["support.engine_fixtures"]

FRONT = "support.upstream_front:upstream_front"
BUSY = {"status": 429, "headers": {"retry-after": "30"}}
ANN, BOB = "a-token-of-ann", "a-token-of-bob"
CALLERS = {"tokens": (f"ann:{ANN}", f"bob:{BOB}")}


def prompts(engine: ScriptedEngine) -> list[str]:
    return [entry["body"]["prompt"].partition(MARK)[0] for entry in engine.journal()]


def state_of(url: str, job: str) -> Any:
    return httpx2.get(f"{url}/v1/jobs/{job}").json()


def first_position(url: str, job: str) -> int:
    """Return the first queue position that a new reader of a job receives."""
    with httpx2.stream("GET", f"{url}/v1/jobs/{job}/events", timeout=20) as answer:
        lines = answer.iter_lines()
        for line in lines:
            if line == "event:queue":
                return json.loads(next(lines).removeprefix("data:"))["position"]
    raise AssertionError("the stream ended without a position")


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("on_restart", ["continue", "rerun", "fail"])
def test_busy_engine_is_asked_again(engine: ScriptedEngine, status: int, on_restart: Any):
    engine.script(answers=[{"status": status, "headers": {"retry-after": "0"}}] * 3 + [{}])
    with running_front(engine.url, on_restart=on_restart) as client:
        assert "".join(client.submit("generate", prompt=MARK, max_tokens=3).iter_text()) == expected(3)
    assert len(engine.journal()) == 4


def test_job_of_a_busy_engine_is_queued_and_has_a_position(engine: ScriptedEngine):
    engine.script(answers=[BUSY])
    with running_front(engine.url) as client:
        url = client.url
        jobs = [client.submit("generate", prompt=f"{n}{MARK}", max_tokens=3) for n in range(3)]
        # Requests that were sent before the first answer are refused, too.
        eventually(lambda: all(state_of(url, job.id)["status"] == "queued" for job in jobs))
        assert sorted(first_position(url, job.id) for job in jobs) == [1, 2, 3]
        assert {state_of(url, job.id)["state"]["items"][0]["status"] for job in jobs} == {"queued"}
        sent = len(engine.journal())
        assert sent <= 3
        jobs[0].cancel()
        jobs[0].wait()
        assert jobs[0].status() == "cancelled"
        assert first_position(url, jobs[1].id) == 1
        assert len(engine.journal()) == sent  # Nothing is sent before the time of Retry-After.


def test_wait_of_a_busy_engine_is_bounded(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(url_pool, "MAX_PAUSE", 0.2)
    engine.script(answers=[{"status": 503, "headers": {"retry-after": "86400"}}, {}])
    with running_front(engine.url) as client:
        assert client.run("generate", prompt=MARK, max_tokens=3)["text"] == expected(3)


def test_another_caller_has_its_turn_at_a_free_url(engine: ScriptedEngine):
    """Two of three URLs are busy. The items that they refuse do not wait for the free URL in front of Bob's item."""
    with scripted_engine(pause=0.03) as free:
        engine.script(pause=0.03)
        urls = [engine.url, engine.url.replace("127.0.0.1", "localhost"), free.url]
        with running_front(*urls, settings=CALLERS, concurrency=1) as client:
            with Client(client.url, token=ANN) as ann, Client(client.url, token=BOB) as bob:

                def all_urls_have_answered() -> bool:
                    for job in [ann.submit("generate", prompt=MARK, max_tokens=3) for _ in urls]:
                        job.wait()
                    hosts = {entry["headers"]["host"] for entry in engine.journal() + free.journal()}
                    return len(hosts) == len(urls)

                eventually(all_urls_have_answered)
                engine.script(answers=[BUSY])
                free.script(answers=[{"send": ["hang"]}, {}])
                jobs = [ann.submit("generate", prompt=f"ann {n}{MARK}", max_tokens=3) for n in range(4)]
                eventually(lambda: (len(engine.journal()), len(free.journal())) == (2, 1))
                jobs.append(bob.submit("generate", prompt=f"bob{MARK}", max_tokens=3))
                [number] = [int(each.removeprefix("ann ")) for each in prompts(free)]
                jobs[number].cancel()
                for job in jobs:
                    job.wait()
        order = prompts(free)
    assert sorted(order) == ["ann 0", "ann 1", "ann 2", "ann 3", "bob"]
    assert order.index("bob") <= 2


def test_refused_item_keeps_its_turn_among_those_of_its_caller(engine: ScriptedEngine):
    engine.script(answers=[{"status": 429, "headers": {"retry-after": "0"}}])
    with running_front(engine.url, settings=CALLERS, concurrency=1) as client:
        with Client(client.url, token=ANN) as ann, Client(client.url, token=BOB) as bob:
            jobs = [ann.submit("generate", prompt=f"ann {n}{MARK}", max_tokens=3) for n in range(3)]
            jobs.append(bob.submit("generate", prompt=f"bob{MARK}", max_tokens=3))
            eventually(engine.journal)
            engine.script(answers=[{}])
            assert {job.result()["text"] for job in jobs} == {expected(3)}
    order = [prompt for prompt, _ in groupby(prompts(engine))]
    assert order == ["ann 0", "bob", "ann 1", "ann 2"]


def test_items_of_one_job_return_one_by_one(engine: ScriptedEngine):
    engine.script(answers=[{"status": 429, "headers": {"retry-after": "0"}}, {}])
    with running_front(engine.url, concurrency=2) as client:
        inputs = [{"prompt": f"{n}{MARK}", "max_tokens": 3} for n in range(6)]
        results = client.submit_batch("generate", inputs).results()
    assert [value["text"] for value in results] == [expected(3)] * 6
    sent = prompts(engine)
    assert set(sent) == {str(n) for n in range(6)}
    assert len(sent) == 7


def test_job_without_an_engine_ends_at_its_deadline():
    with ScriptedEngine() as engine, running_front(engine.url) as client:
        engine.kill()
        with pytest.raises(JobFailedError) as error:
            client.with_options(deadline=0.5).submit("generate", prompt=MARK).result()
    assert error.value.code == "deadline_exceeded"


def test_job_is_cancelled_before_the_engine_answers(engine: ScriptedEngine):
    engine.script(answers=[{"silent": True}])
    with running_front(engine.url) as client:
        job = client.submit("generate", prompt=MARK)
        eventually(engine.journal)
        assert job.status() == "queued"
        job.cancel()
        job.wait()
        assert job.status() == "cancelled"
        eventually(lambda: engine.journal()[0]["closed"])
    assert len(engine.journal()) == 1


def test_engine_that_never_accepts_a_request_is_worker_lost(engine: ScriptedEngine):
    engine.script(answers=[{"silent": True}])
    with running_front(engine.url, timeout=0.2) as client:
        with pytest.raises(JobFailedError, match="silent") as error:
            client.run("generate", prompt=MARK)
    assert error.value.code == "worker_lost"
    assert len(engine.journal()) == 3


def test_waiting_job_survives_a_kill_of_the_server(engine: ScriptedEngine, tmp_path: Path):
    engine.script(answers=[BUSY, {}])
    settings = {"log": f"sqlite:///{tmp_path / 'log.db'}", "retry": 0.01, "urls": [engine.url]}
    with ServerProcess(tmp_path, FRONT, **settings) as server:
        until_ready(server.url)
        with Client(server.url) as client:
            job = client.submit("generate", prompt=MARK, max_tokens=3)
            eventually(engine.journal)
            server.again()
            assert job.result()["text"] == expected(3)
            assert state_of(server.url, job.id)["state"]["notes"] == []
    assert len(engine.journal()) == 2


@pytest.mark.heavy
def test_planned_stop_leaves_a_waiting_job_to_the_next_process(engine: ScriptedEngine, tmp_path: Path):
    engine.script(answers=[BUSY, {}])
    settings = {"log": f"sqlite:///{tmp_path / 'log.db'}", "retry": 0.01, "urls": [engine.url]}
    with ServerProcess(tmp_path, FRONT, shutdown_timeout=60, **settings) as server:
        until_ready(server.url)
        with Client(server.url) as client:
            job = client.submit("generate", prompt=MARK, max_tokens=3)
            eventually(engine.journal)
            assert server.stop() == 0  # It does not wait for the engine.
            server.start()
            assert job.result()["text"] == expected(3)
    assert len(engine.journal()) == 2


def test_work_that_begins_after_the_end_of_its_item_changes_nothing():
    server, returned = Server(**QUICK), threading.Event()

    @server.endpoint
    async def late(stream: Stream[str]) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.1)
            writer_of(stream).run.begin()
            returned.set()

    server.endpoints["late"].begins_itself = True
    with server.running() as url, Client(url) as client:
        job = client.with_options(deadline=0.2).submit("late")
        with pytest.raises(JobFailedError, match="deadline"):
            job.result()
        assert returned.wait(10)
        assert [item["status"] for item in state_of(url, job.id)["state"]["items"]] == ["failed"]
        assert 'tidewire_items_started_total{endpoint="late"} 0.0' in httpx2.get(f"{url}/metrics").text
