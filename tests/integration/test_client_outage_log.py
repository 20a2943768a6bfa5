"""Warnings of a client whose server cannot be reached, as a script without logging configuration prints them."""

import re
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from support.client_timing import with_timing
from support.killable_server import Killed, killed_server
from support.scripted_server import CLOSE, ScriptedServer, answer, discovery, hurried, job
from tidewire import Client, RetryPolicy

LOST = re.compile(
    r"the connection to (http://127\.0\.0\.1:\d+) failed 2 times in a row \(.+\)\. "
    r"The client retries for at most (\d+) s; to change this, pass retry=RetryPolicy\(patience=…\)"
)
READ = """
import asyncio, sys
from tidewire import AsyncClient

async def read(job, started):
    async for update in job:
        started.set()

async def main(url, count):
    async with AsyncClient(url) as client:
        jobs = [await client.submit("talk", words=20, pause=0.1) for _ in range(count)]
        started = [asyncio.Event() for _ in jobs]
        reading = asyncio.gather(*map(read, jobs, started))
        for each in started:
            await each.wait()
        print("all jobs are running", flush=True)
        await reading

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@contextmanager
def script(text, *arguments):
    """Run a script in a process of its own, with default logging."""
    with subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        guard = threading.Timer(60, process.kill)
        guard.start()
        try:
            yield process
        finally:
            guard.cancel()
            process.kill()


@pytest.fixture
def server():
    with killed_server() as server:
        yield server


def check(lines: list[str], server: Killed) -> None:
    """Check that an outage has printed two lines."""
    assert len(lines) == 2, lines
    found = LOST.fullmatch(lines[0].rstrip("\n"))
    assert found is not None, lines
    assert found[1] == server.url
    assert 290 <= int(found[2]) <= 300
    assert lines[1] == f"the connection to {server.url} is back\n"


@pytest.mark.heavy
@pytest.mark.parametrize("jobs", [1, 100])
def test_an_outage_prints_two_lines_whatever_the_number_of_jobs(server, jobs):
    with script(READ, server.url, jobs) as process:
        assert process.stdout.readline() == "all jobs are running\n"
        server.kill()
        lines = [process.stderr.readline()]
        server.start()
        lines += process.stderr.readlines()
        assert process.wait() == 0
    check(lines, server)


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_an_outage_during_a_call_logs_two_lines(caplog):
    timing, _ = hurried()
    failures = iter([CLOSE] * 5)

    def script(request):
        if request.method == "GET":
            yield answer(200, discovery())
        else:
            yield next(failures, answer(200, job()))

    with ScriptedServer(script) as server, with_timing(Client(server.url), timing) as client:
        client.discover()
        assert warnings(caplog) == []
        client.job("j1").cancel()
        lost, back = warnings(caplog)
        assert LOST.fullmatch(lost)
        assert back == f"the connection to {server.url} is back"


def test_a_limit_of_attempts_is_printed(caplog):
    timing, _ = hurried()

    def broken(request):
        yield answer(201, job()) if request.method == "POST" else CLOSE

    with ScriptedServer(broken) as server:
        retry = RetryPolicy(attempts=5, patience=100.0)
        with (
            with_timing(Client(server.url, retry=retry), timing) as client,
            pytest.raises(Exception, match="gave up"),
        ):
            client.run("count")
    [line] = warnings(caplog)
    assert re.search(
        r"retries for at most \d+ s, or until 3 more attempts have failed; to change this, pass "
        r"retry=RetryPolicy\(patience=…, attempts=…\)",
        line,
    )


def test_a_message_of_the_server_is_printed_on_one_line_without_control_characters(caplog):
    timing, _ = hurried()
    page = b"\x1b]0;title\x07\x1b[2J first\n second" + b"x" * 10_000

    def hostile(request):
        yield answer(201, job()) if request.method == "POST" else answer(502, page, media="text/plain")

    with ScriptedServer(hostile) as server:
        retry = RetryPolicy(attempts=3)
        with (
            with_timing(Client(server.url, retry=retry), timing) as client,
            pytest.raises(Exception, match="gave up"),
        ):
            client.run("count")
    [line] = warnings(caplog)
    assert line.isprintable()
    assert len(line) < 1000
