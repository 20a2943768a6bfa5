"""The warning of a client whose job waits in the queue for longer than `QUEUE_WARNING_AFTER`."""

import json
import logging
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest

from support.reference_server import QUICK
from support.scripted_server import CLOSE, STREAM, ScriptedServer, done, event, hello, snapshot, state
from support.terminal import run
from tidewire import AsyncClient, Client
from tidewire.errors import QueueTimeoutError
from tidewire.jobs import job_reader
from tidewire_server import Context, Server

ENDED = event(
    [["s", "/status", "running"], ["s", "/items/0", {"status": "succeeded", "value": "x"}]], id="1-2"
) + done("1-3", [{"status": "succeeded", "value": "x"}])
SCRIPT = """
import sys
from tidewire import Client
with Client(sys.argv[1]) as client:
    job = client.submit("hold", seconds=0)
    print(job.id, flush=True)
    print(job.result(), flush=True)
"""


@pytest.fixture
def url():
    server = Server(**QUICK)

    @server.endpoint(concurrency_limit=1)
    async def hold(ctx: Context, seconds: float = 30.0) -> str:
        ctx.progress(0, 1)
        await anyio.sleep(seconds)
        return "done"

    with server.running() as url:
        yield url


@pytest.fixture
def at_once(monkeypatch):
    """Let the client log the position of a queued job almost at once."""
    monkeypatch.setattr(job_reader, "QUEUE_WARNING_AFTER", 0.01)


class Warnings(logging.Handler):
    """The warnings of the client, for which a test can wait."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self._changed = threading.Condition()
        self.texts = []

    def emit(self, record):
        with self._changed:
            self.texts.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.texts) >= count, 30), self.texts


@pytest.fixture
def warnings():
    logger, handler = logging.getLogger("tidewire"), Warnings()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.mark.heavy
def test_a_script_behind_the_job_of_an_earlier_one_prints_its_position_and_the_remedy(url):
    with Client(url) as client:
        orphan = client.submit("hold").id
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        job, line = process.stdout.readline().strip(), process.stderr.readline()
        assert line.startswith(f"job {job} is still in the queue, at position 1. ")
        listing, cancelling = re.findall("`tidewire ([^`]*)`", line)
        assert (listing, cancelling) == (f"jobs {url}", f"cancel {url} JOB")
        listed = map(json.loads, run(*listing.split(), "--json").stdout.splitlines())
        assert [each["id"] for each in listed if each["status"] == "running"] == [orphan]
        assert run(*cancelling.replace("JOB", orphan).split()).exit_code == 0
        assert process.communicate() == ("done\n", "")
        guard.cancel()


def test_a_job_that_runs_at_once_logs_nothing(url, at_once, warnings):
    with Client(url) as client:
        assert client.run("hold", seconds=0.1) == "done"
    assert warnings.texts == []


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
@pytest.mark.parametrize("how", ["loop", "result", "batch"])
async def test_a_waiting_job_logs_one_line(url, at_once, warnings, how):
    async def read(client):
        if how == "batch":
            job = await client.submit_batch("hold", [{}])
            await job.results()
        job = await client.submit("hold")
        if how == "result":
            await job.result()
        async for _ in job:
            pass

    async with AsyncClient(url) as client:
        first = await client.submit("hold")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, client)
            await anyio.to_thread.run_sync(warnings.wait_for, 1)
            # Positions that arrive later are not logged.
            behind = await client.submit("hold")
            await behind.cancel()
            tasks.cancel_scope.cancel()
        await first.cancel()
    assert len(warnings.texts) == 1
    assert "is still in the queue, at position 1." in warnings.texts[0]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_warning_that_is_due_interrupts_no_request(at_once):
    streams = []

    def script(request):
        streams.append(request.cursor)
        if len(streams) == 1:
            yield STREAM + hello() + snapshot("1-1", state(None, status="queued"))
        else:
            # The warning becomes due while the request is in flight. No condition shows this, because nothing must happen.
            time.sleep(20 * job_reader.QUEUE_WARNING_AFTER)
            yield STREAM + hello() + ENDED
        yield CLOSE

    with ScriptedServer(script) as server:
        async with AsyncClient(server.url) as client:
            await client.job("j1").wait()
    assert streams == [None, "1-1"]


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_all_jobs_that_wait_within_an_interval_share_a_line(url, at_once, warnings, monkeypatch):
    async with AsyncClient(url) as client:
        first = await client.submit("hold")
        for lines, interval in ((1, 300.0), (1, 300.0), (2, 0.0)):
            monkeypatch.setattr(job_reader, "QUEUE_WARNING_INTERVAL", interval)
            jobs = [await client.submit("hold", seconds=0) for _ in range(20 if interval else 1)]
            async with anyio.create_task_group() as tasks:
                for job in jobs:
                    tasks.start_soon(job.wait)
                # A second line would be due within this time.
                await anyio.sleep(10 * job_reader.QUEUE_WARNING_AFTER)
                await anyio.to_thread.run_sync(warnings.wait_for, lines)
                await first.cancel()
            assert len(warnings.texts) == lines
            first = await client.submit("hold")
        await first.cancel()


@pytest.mark.parametrize("has_listener", [True, False])
def test_a_job_with_a_listener_logs_nothing_because_the_listener_gets_the_position(
    url, at_once, warnings, has_listener
):
    received = threading.Event()
    with Client(url) as client, ThreadPoolExecutor(2) as pool:
        first, logged = client.submit("hold"), client.submit("hold", seconds=0)
        logged.listener = (lambda _: received.set()) if has_listener else None
        results = [pool.submit(logged.result)]
        if has_listener:
            assert received.wait(30)
            # The warning about a third job is due later, so that one about the second would have been logged before it.
            logged = client.submit("hold", seconds=0)
            results.append(pool.submit(logged.result))
        warnings.wait_for(1)
        first.cancel()
        assert {result.result() for result in results} == {"done"}
    assert [logged.id in text for text in warnings.texts] == [True]


def test_a_queue_timeout_that_ends_first_logs_nothing(url, warnings):
    with Client(url, queue_timeout=0.1) as client:
        first = client.submit("hold")
        with pytest.raises(QueueTimeoutError):
            client.run("hold")
        first.cancel()
    assert warnings.texts == []


def test_the_command_map_shows_the_line(url, at_once, warnings, tmp_path):
    file = tmp_path / "inputs.jsonl"
    file.write_text('{"seconds": 0}\n')
    with Client(url) as client:
        first = client.submit("hold")

        def cancel_when_logged():
            warnings.wait_for(1)
            first.cancel()

        cancelling = threading.Thread(target=cancel_when_logged)
        cancelling.start()
        result = run("map", url, "hold", str(file))
        cancelling.join()
    assert result.exit_code == 0
    assert result.stderr.count("is still in the queue, at position 1. ") == 1


def test_the_command_call_does_not_repeat_the_line_that_it_shows_anyway(url, at_once, warnings):
    with Client(url) as client:
        first = client.submit("hold")
        result = run("call", url, "hold", "--timeout", "0.5")
        first.cancel()
    assert result.exit_code == 124
    assert result.stderr.splitlines()[0] == "queued: position 1"
    assert "is still in the queue" not in result.stderr
    assert warnings.texts == []
