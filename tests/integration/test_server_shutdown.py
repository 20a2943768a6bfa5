"""Shutdown of a server: the loop of the README survives it, or gets a typed error at once.

Most tests use a real `tidewire serve` process that receives SIGTERM or SIGINT.
"""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from proof.forked_process import Forked
from support.faulty_proxy import FaultyProxy
from support.free_port import free_port
from support.readme_loop import ReadmeLoop
from support.reference_server import JSON, STREAM, Fold, Peer, data, eventually, logged, serving
from support.serve_command import served
from support.server_address import address_of
from tidewire import Client, RetryPolicy
from tidewire.errors import JobFailedError, TidewireError
from tidewire.protocol.sse import Decoder
from tidewire_server import Append, Server
from tidewire_server.jobs import shutdown
from tidewire_server.serving import serve

STORY = """
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tidewire_server import Append, Server

server = Server()


@server.endpoint
async def count(n: int = 10, pause: float = 0.01) -> AsyncIterator[Append[str]]:
    for i in range(n):
        yield Append(f"{i} ")
        await asyncio.sleep(pause)


@server.endpoint
async def tell(gate: str, rest: str = "the rest") -> AsyncIterator[Append[str]]:
    yield Append("the beginning, ")
    while not Path(gate).exists():
        await asyncio.sleep(0.005)
    yield Append(rest)


@server.endpoint(on_restart="fail")
async def once(gate: str) -> str:
    with open("journal", "a") as journal:
        journal.write("once\\n")
    while not Path(gate).exists():
        await asyncio.sleep(0.005)
    return "once"


@server.endpoint
async def flood(megabytes: int) -> AsyncIterator[Append[str]]:
    for _ in range(megabytes * 20):
        yield Append("x" * 50_000)
        await asyncio.sleep(0)
    await asyncio.sleep(600)
"""
SITE = """
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from story import server

server.configure(log=os.environ["LOG"])


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    await server.app.start()
    yield
    await server.app.close()


site = Starlette(lifespan=lifespan)
site.mount("/ai", server.app)
"""
SQLITE = ("--log", "sqlite:///jobs.db")
LOGS = pytest.mark.parametrize("log", [(), SQLITE], ids=["memory", "sqlite"])
QUICK_RETRY = {"TIDEWIRE_RETRY": "0.05"}
NEVER = "never.gate"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "story.py").write_text(STORY)
    (tmp_path / "site_of_story.py").write_text(SITE)
    return tmp_path


def counted(n: int) -> str:
    return "".join(f"{i} " for i in range(n))


def stop(process: Forked, peer: Peer, signum: int = signal.SIGTERM) -> None:
    """Send a signal, and wait until the server has received it."""
    process.send_signal(signum)
    eventually(lambda: peer.http.get("/readyz").status_code == 503)


def exited(process: Forked) -> str:
    """Wait until the server has exited with code 0, and return what it printed to stderr."""
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return err


def jobs_ended(peer: Peer) -> float:
    """Number of ended jobs. Unlike a request for a job, a request for the metrics does not count as a reader."""
    metrics = peer.metrics().items()
    return sum(value for name, value in metrics if name.startswith("tidewire_jobs_ended_total"))


# ---- the loop of the README -----------------------------------------------------------------------------------------


@LOGS
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_the_loop_of_the_readme_survives_a_signal(folder, signum, log):
    with served(folder, "story.py", *log) as (process, peer):
        script = ReadmeLoop(peer.url, "count", n=40)
        eventually(lambda: script.text)
        process.send_signal(signum)
        assert script.ended() == script.text == counted(40)
        err = exited(process)
    assert "stopping: waiting up to 10 s for 1 job; press Ctrl-C again to end at once\n" in err


def test_jobs_in_memory_that_wait_run_before_the_exit(folder):
    with served(folder, "story.py") as (process, peer):
        scripts = [ReadmeLoop(peer.url, "count", n=n) for n in (30, 20, 10)]
        eventually(lambda: peer.metrics()['tidewire_items_waiting{endpoint="count"}'] == 2)
        process.send_signal(signal.SIGTERM)
        assert [script.ended() for script in scripts] == [counted(n) for n in (30, 20, 10)]
        assert [script.text for script in scripts] == [counted(n) for n in (30, 20, 10)]
        assert "waiting up to 10 s for 3 jobs" in exited(process)


def test_a_job_in_memory_that_does_not_end_in_time_fails_with_worker_lost(folder):
    with served(folder, "story.py", "--shutdown-timeout", "0.2") as (process, peer):
        runs = ReadmeLoop(peer.url, "tell", gate=NEVER)
        eventually(lambda: runs.text)
        waits = ReadmeLoop(peer.url, "tell", gate=NEVER)
        eventually(lambda: peer.metrics()['tidewire_items_waiting{endpoint="tell"}'] == 1)
        process.send_signal(signal.SIGTERM)
        for script, text in ((runs, "the beginning, "), (waits, "")):
            error = script.ended()
            assert isinstance(error, JobFailedError)
            assert (error.code, error.retryable, script.text) == ("worker_lost", True, text)
            assert "submit the job again" in str(error)
        err = exited(process)
    assert err.count("tell failed (worker_lost)") == 2


def test_the_items_of_a_batch_in_memory_run_until_the_time_is_over(folder):
    (folder / "open.gate").touch()
    inputs = [{"gate": "open.gate"}, {"gate": "open.gate"}, {"gate": NEVER}, {"gate": "open.gate"}]
    with (
        served(folder, "story.py", "--shutdown-timeout", "0.5") as (process, peer),
        Client(peer.url) as client,
    ):
        batch = client.submit_batch("tell", inputs)
        process.send_signal(signal.SIGTERM)
        first, second, third, last = batch.results(return_exceptions=True)
        exited(process)
    assert first == second == "the beginning, the rest"
    assert third.code == last.code == "worker_lost"


def test_a_second_process_finishes_the_job_that_waited_for_the_first(folder):
    """The reader of a waiting job gets `goaway` at once, and the one of a running job when its job has ended."""
    port = free_port()
    with served(folder, "story.py", *SQLITE, port=port, **QUICK_RETRY) as (process, peer):
        runs = ReadmeLoop(peer.url, "tell", gate="a.gate")
        eventually(lambda: runs.text)
        waits = ReadmeLoop(peer.url, "tell", gate="a.gate", rest="another end")
        eventually(lambda: peer.metrics()['tidewire_items_waiting{endpoint="tell"}'] == 1)
        waiting = next(
            job["id"] for job in peer.http.get("/v1/jobs").json()["jobs"] if job["status"] == "queued"
        )
        with peer.stream(waiting) as reading:
            process.send_signal(signal.SIGTERM)
            assert [event.type for event in reading][-1] == "goaway"
        with peer.stream(waiting) as reading:
            assert [event.type for event in reading] == ["hello", "goaway"]
        assert runs.text == "the beginning, "
        (folder / "a.gate").touch()
        assert runs.ended() == runs.text == "the beginning, the rest"
        assert "waiting up to 10 s for 1 job" in exited(process)
    with served(folder, "story.py", *SQLITE, port=port):
        assert waits.ended() == waits.text == "the beginning, another end"


def test_running_items_of_a_batch_end_before_their_job_is_left_to_the_next_process(folder):
    inputs = [{"gate": "a.gate"}, {"gate": "a.gate"}]
    with served(folder, "story.py", *SQLITE, **QUICK_RETRY) as (process, peer):
        job = peer.start("once", inputs=inputs)
        eventually((folder / "journal").exists)
        with peer.stream(job) as reading:
            stop(process, peer)
            reading.until("snapshot")
            (folder / "a.gate").touch()
            events = list(reading)
        assert events[-1].type == "goaway"
        assert any('"succeeded"' in event.data for event in events)
        exited(process)
    assert (folder / "journal").read_text() == "once\n"
    with served(folder, "story.py", *SQLITE) as (process, peer):
        found = peer.ended(job)
    assert [item["value"] for item in found["state"]["items"]] == ["once", "once"]
    assert (folder / "journal").read_text() == "once\nonce\n"


def test_a_job_in_a_file_that_does_not_end_in_time_sends_goaway(folder):
    port = free_port()
    limit = ("--shutdown-timeout", "0.1")
    with served(folder, "story.py", *SQLITE, *limit, port=port, **QUICK_RETRY) as (process, peer):
        job = peer.start("tell", {"gate": "a.gate"})
        with peer.stream(job) as reading:
            reading.until_text("the beginning")
            process.send_signal(signal.SIGTERM)
            assert [event.type for event in reading] == ["goaway"]
        exited(process)
    (folder / "a.gate").touch()
    with served(folder, "story.py", *SQLITE, port=port) as (_, peer):
        assert peer.ended(job)["state"]["items"][0]["value"] == "the beginning, the rest"


# ---- requests while the server drains --------------------------------------------------------------------------------


@LOGS
def test_a_draining_server_refuses_only_new_jobs(folder, log):
    with served(folder, "story.py", *log) as (process, peer):
        body, key = {"input": {"gate": "a.gate"}}, {"idempotency-key": "k" * 22}
        url = "/v1/endpoints/tell/jobs"
        job = peer.http.post(url, json=body, headers=key).json()["id"]
        eventually(lambda: peer.job(job)["status"] == "running")
        stop(process, peer)
        for headers in (
            JSON,
            STREAM,
            JSON | {"idempotency-key": "n" * 22},
            STREAM | {"idempotency-key": "n" * 22},
        ):
            refused = peer.http.post(url, json=body, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            assert refused.headers["retry-after"] == "1"
        again = peer.http.post(url, json=body, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, job)
        assert again.headers["idempotency-replayed"] == "true"
        other_body = peer.http.post(url, json={"input": {"gate": "b.gate"}}, headers=key)
        assert other_body.json()["code"] == "idempotency_key_reused"
        with (
            peer.http.stream("POST", url, json=body, headers=STREAM | key) as replay,
            peer.stream(job, "1-2") as resumed,
            peer.stream(job, diffs="0") as snapshots,
        ):
            assert replay.headers["location"] == f"/v1/jobs/{job}"
            assert peer.http.get("/v1").status_code == 200
            (folder / "a.gate").touch()
            decoder = Decoder()
            fold = Fold().take([event for chunk in replay.iter_raw() for event in decoder.feed(chunk)])
            assert fold.items == [{"status": "succeeded", "value": "the beginning, the rest"}]
            assert [event.id for event in logged(list(resumed))] == ["1-3", "1-4", "1-5", "1-6"]
            assert list(snapshots)[-1].type == "done"
        exited(process)


@LOGS
def test_a_job_can_be_cancelled_and_deleted_while_the_server_drains(folder, log):
    with served(folder, "story.py", *log) as (process, peer):
        running, waiting = (peer.start("tell", {"gate": NEVER}) for _ in range(2))
        eventually(lambda: peer.job(running)["status"] == "running")
        with peer.stream(running) as reading:
            stop(process, peer)
            assert peer.http.delete(f"/v1/jobs/{waiting}").status_code == 204
            assert peer.http.get(f"/v1/jobs/{waiting}").status_code == 410
            assert peer.http.post(f"/v1/jobs/{running}/cancel").status_code in {200, 202}
            assert data(list(reading)[-1])["status"] == "cancelled"
        exited(process)


# ---- readers that are not connected ------------------------------------------------------------------------------------


def test_a_script_whose_connection_is_cut_resumes_while_the_server_drains(folder):
    with served(folder, "story.py") as (process, peer):
        with FaultyProxy(address_of(peer.url), 0, weights={"none": 1}) as network:
            script = ReadmeLoop(network.url, "tell", gate="a.gate")
            eventually(lambda: script.text)
            stop(process, peer)
            network.break_all()
            eventually(lambda: peer.metrics()["tidewire_open_streams"] == 0)
            (folder / "a.gate").touch()
            assert script.ended() == script.text == "the beginning, the rest"
        exited(process)


def resumes(peer: Peer, job: str) -> Callable[[], Any]:
    with peer.stream(job) as reading:
        cursor = reading.until_text("the beginning").id
    return lambda: peer.events(job, cursor)


def reads_first(peer: Peer, job: str) -> Callable[[], Any]:
    return lambda: peer.events(job)


@pytest.mark.parametrize("reader", [resumes, reads_first])
@pytest.mark.parametrize("ends", ["before the signal", "after the signal"])
def test_a_reader_that_is_about_to_connect_still_receives_the_end(folder, reader, ends):
    """It was cut off or has submitted its job a moment ago, and the job ends before its next request."""
    with served(folder, "story.py") as (process, peer):
        read = reader(peer, peer.start("tell", {"gate": "a.gate"}))
        if ends == "after the signal":
            stop(process, peer)
        (folder / "a.gate").touch()
        eventually(lambda: jobs_ended(peer) == 1)
        if ends == "before the signal":
            stop(process, peer)
        events = read()
        assert (events[-1].type, data(events[-1])["status"]) == ("done", "succeeded")
        exited(process)


# ---- attacks -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stalled_reader_does_not_delay_the_exit_for_long(folder):
    with served(folder, "story.py", "--shutdown-timeout", "0.1") as (process, peer):
        job = peer.start("flood", {"megabytes": 4})
        with socket.create_connection(("127.0.0.1", peer.http.base_url.port)) as stalled:
            stalled.sendall(
                f"GET /v1/jobs/{job}/events?after=0-0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
            assert stalled.recv(12) == b"HTTP/1.1 200"
            with peer.stream(job, diffs="0") as reading:
                reading.until("snapshot")
                process.send_signal(signal.SIGTERM)
                assert data(list(reading)[-1])["error"]["code"] == "worker_lost"
            exited(process)


@pytest.mark.parametrize("path", ["/events?after=0-0", ""], ids=["stream", "job"])
def test_a_stalled_reader_is_cut_off_without_a_traceback(monkeypatch, caplog, path):
    """The short form of the previous test, in this process and with shorter limits."""
    monkeypatch.setattr(shutdown, "LAST_SECONDS", 0.1)
    monkeypatch.setattr(serve, "LAST_GRACE", 0.1)
    server = Server(shutdown_timeout=0, retry=0.01, merge_window=0)

    @server.endpoint
    async def flood() -> AsyncIterator[Append[str]]:
        for _ in range(80):
            yield Append("x" * 50_000)
            await asyncio.sleep(0)
        await asyncio.sleep(600)

    with socket.socket() as stalled, serving(server) as peer:
        job = peer.start("flood")
        eventually(lambda: peer.http.get(f"/v1/jobs/{job}").json()["cursor"] == "1-82")
        stalled.connect(("127.0.0.1", peer.http.base_url.port))
        stalled.sendall(f"GET /v1/jobs/{job}{path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert stalled.recv(12) == b"HTTP/1.1 200"
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.heavy
def test_all_of_many_readers_receive_the_end_of_the_job(folder):
    async def read(http: httpx2.AsyncClient, job: str) -> str:
        decoder, events = Decoder(), []
        async with http.stream("GET", f"/v1/jobs/{job}/events") as answer:
            async for chunk in answer.aiter_raw():
                events += decoder.feed(chunk)
        return Fold(keep_states=False).take(events).items[0]["value"]

    async def read_all(process: Forked, peer: Peer, job: str) -> list[str]:
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(base_url=peer.url, timeout=30, limits=limits) as http:
            readers = [asyncio.create_task(read(http, job)) for _ in range(150)]
            while peer.metrics()["tidewire_open_streams"] < 150:
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            (folder / "a.gate").touch()
            return await asyncio.gather(*readers)

    with served(folder, "story.py") as (process, peer):
        job = peer.start("tell", {"gate": "a.gate"})
        assert asyncio.run(read_all(process, peer, job)) == ["the beginning, the rest"] * 150
        exited(process)


def test_a_signal_among_submits_loses_no_accepted_job(folder):
    """Each submit is refused, or its loop gets the whole text."""
    refused: list[TidewireError] = []
    wrong: list[Any] = []
    texts: list[str] = []

    def loop(url: str) -> None:
        with Client(url, retry=RetryPolicy(patience=1.0)) as client:
            while True:
                try:
                    job = client.submit("count", n=3, pause=0)
                except TidewireError as error:
                    refused.append(error)
                    return
                try:
                    text = "".join(update.text for update in job)
                    texts.append(text)
                    if job.result() != text:
                        wrong.append(text)
                except TidewireError as error:
                    wrong.append(error)

    with served(folder, "story.py") as (process, peer):
        scripts = [threading.Thread(target=loop, args=(peer.url,)) for _ in range(4)]
        for script in scripts:
            script.start()
        eventually(lambda: len(texts) > 20)
        process.send_signal(signal.SIGTERM)
        for script in scripts:
            script.join()
        exited(process)
    assert not wrong
    assert set(texts) == {counted(3)}


# ---- inside another ASGI application --------------------------------------------------------------------------------------


@contextmanager
def mounted(folder: Path, seconds: int, log: str = "memory") -> Iterator[tuple[Forked, Peer]]:
    """Run a site that contains the server with uvicorn, which waits for open responses for some seconds when it is
    stopped.
    """
    port = free_port()
    process = Forked(
        "uvicorn",
        *("site_of_story:site", "--port", str(port), "--timeout-graceful-shutdown", str(seconds)),
        cwd=folder,
        env=os.environ | {"LOG": log},
    )
    try:
        with Peer(f"http://127.0.0.1:{port}/ai") as peer:

            def is_ready() -> bool:
                assert process.poll() is None, process.communicate()
                try:
                    return peer.http.get("/readyz").status_code == 200
                except httpx2.ConnectError:
                    return False

            eventually(is_ready, within=30)
            yield process, peer
    finally:
        process.kill()
        process.communicate()


def test_the_loop_of_the_readme_survives_a_signal_to_uvicorn(folder):
    with mounted(folder, 20) as (process, peer):
        script = ReadmeLoop(peer.url, "count", n=40)
        eventually(lambda: script.text)
        process.send_signal(signal.SIGTERM)
        assert script.ended() == script.text == counted(40)
        _, err = process.communicate(timeout=20)
    assert "Traceback" not in err


def test_a_stream_that_uvicorn_cancels_still_ends_with_worker_lost(folder):
    with mounted(folder, 1) as (process, peer):
        script = ReadmeLoop(peer.url, "tell", gate=NEVER)
        eventually(lambda: script.text)
        process.send_signal(signal.SIGTERM)
        error = script.ended()
        assert isinstance(error, JobFailedError)
        assert (error.code, error.retryable, script.text) == ("worker_lost", True, "the beginning, ")
        _, err = process.communicate(timeout=20)
    assert "Traceback" not in err


def test_a_stream_that_uvicorn_cancels_still_ends_with_goaway(folder):
    with mounted(folder, 1, "sqlite:///jobs.db") as (process, peer):
        job = peer.start("tell", {"gate": NEVER})
        with peer.stream(job) as reading:
            reading.until_text("the beginning")
            process.send_signal(signal.SIGTERM)
            assert [event.type for event in reading] == ["goaway"]
        _, err = process.communicate(timeout=20)
    assert "Traceback" not in err
