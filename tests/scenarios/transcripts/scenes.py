"""The transcripts of the specification, and the servers that they are played against."""

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from scenarios.transcripts.player import PATIENCE, Player, job_ends
from scenarios.transcripts.stage import Scene, Served
from support.foreign_programs import address, standard_library_server
from support.reference_server import eventually
from support.spec_document import document
from tidewire_server import ItemError, Server, Stream

TRANSCRIPTS = {fence.tags["transcript"]: fence for fence in document.fences if "transcript" in fence.tags}
SCRIPTS = "POST /v1/endpoints/tidewire.script/jobs"


def one_runs_and_one_waits(player: Player) -> None:
    """Leave a job that runs and one that waits; a third has ended, so that the server knows how long one takes."""
    player.submit({"script": []})
    job_ends(player)
    for name in ("first", "second"):
        player.names.values[name] = player.submit({"script": [{"sleep_ms": 60_000}]})


def cancel(name: str) -> Callable[[Player], None]:
    return lambda player: player.ask(f"POST /v1/jobs/{player.names.values[name]}/cancel").close()


def a_job_has_ended(*steps: Any) -> Callable[[Player], None]:
    def before(player: Player) -> None:
        player.names.values["job"] = player.submit({"script": steps})
        job_ends(player)

    return before


def its_log_is_trimmed(player: Player) -> None:
    """Wait until the job that has ended cannot be replayed from its start."""
    a_job_has_ended({"append": "one "}, {"append": "two "}, {"append": "three"})(player)

    def trimmed() -> bool:
        with contextlib.closing(player.ask(f"GET /v1/jobs/{player.job}/events?after=0-0")) as answer:
            return b'"reason":"start"' not in answer.whole()

    eventually(trimmed)


def generate(server: Server) -> None:
    pytest.importorskip("torch")
    from tidewire_server.generation import add_generate

    add_generate(server, device="cpu", threads=1, slots=2)


def several_kinds(server: Server) -> None:
    @server.endpoint
    async def square(n: int) -> int:
        if n < 0:
            raise ItemError(f"no root of {n}")
        return n * n

    @server.endpoint
    async def liar() -> int:
        return cast("int", "one")


def drafts(server: Server) -> None:
    @server.endpoint
    async def draft(stream: Stream[str]) -> None:
        stream.append("Held")
        stream.stable(3)
        stream.truncate(1)
        stream.append("lo")
        stream.stable()


class Number(BaseModel):
    n: int


def filled_up(server: Server) -> None:
    @server.endpoint(batch=True, sizes=[4], batch_timeout=0.05)
    def double(numbers: list[Number]) -> list[int | ItemError]:
        assert len(numbers) == 4
        return [ItemError("too small") if one.n < 0 else 2 * one.n for one in numbers]


def until(player: Player, target: str, condition: Callable[[int, str], bool]) -> None:
    """Ask until the answer is as it has to be."""

    def holds() -> bool:
        with contextlib.closing(player.ask(target)) as answer:
            return condition(answer.response.status, answer.whole().decode())

    eventually(holds)


def its_state_goes_and_its_tombstone(player: Player) -> None:
    for status in (410, 404):
        until(player, f"GET /v1/jobs/{player.job}", lambda got, body, wanted=status: got == wanted)


def it_has_ended_unread(player: Player) -> None:
    until(player, f"GET /v1/jobs/{player.job}", lambda status, body: '"cancelled"' in body)


def the_value_is_abc(player: Player) -> None:
    until(player, f"GET /v1/jobs/{player.job}", lambda status, body: '"abc"' in body)


def passes(seconds: float) -> None:
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > end)


def it_is_told_to_stop(player: Player) -> None:
    assert player.tell_to_stop is not None
    player.tell_to_stop()
    until(player, "GET /readyz", lambda status, body: status == 503)


def its_token_expires(player: Player) -> None:
    # A cursor that is none, so that a token that still holds opens no stream.
    url = f"GET /v1/jobs/{player.job}/events?{player.names.values['query']}&after=none"
    until(player, url, lambda status, body: "unauthorized" in body)


class Mortal:
    """The server as a process that can be killed, with a log in a file, and started again at the same address."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = Path()

    @contextlib.contextmanager
    def serve(self, scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
        with tempfile.TemporaryDirectory() as folder:
            self.folder = Path(folder)
            (self.folder / "mine.py").write_text(MORTAL)
            try:
                port = self.start(0)
                yield ("127.0.0.1", port), None
            finally:
                self.kill()

    def start(self, port: int) -> int:
        told = self.folder / "port"
        told.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "tidewire_server",
            "mine.py:server",
            "--script",
            "--merge-window",
            "0",
        ]
        command += ["--log", f"sqlite:///{self.folder}/log", "--port", str(port), "--port-file", str(told)]
        self.process = subprocess.Popen(
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        eventually(told.exists, within=20)
        return int(told.read_text())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def loses(self, player: Player) -> None:
        """Lose the event 1-4 of its log, without a trace."""
        self.kill()
        with contextlib.closing(sqlite3.connect(self.folder / "log")) as file:
            assert file.execute("DELETE FROM block WHERE epoch = 1 AND seq = 4").rowcount == 1
            file.commit()
        self.start(player.address[1])

    def dies_and_comes_back(self, player: Player) -> None:
        self.kill()
        self.start(player.address[1])


MORTAL = """\
import asyncio
from tidewire_server import Server, Stream

server = Server()


@server.endpoint(on_restart="fail")
async def printed(text: str, stream: Stream[str]) -> None:
    stream.append(text)
    await asyncio.sleep(60)
"""
PRINTER, RESTARTED, HOLLOW = Mortal(), Mortal(), Mortal()


def one_item_has_ended(player: Player) -> None:
    until(
        player,
        f"GET /v1/jobs/{player.job}",
        lambda status, body: '"value":"a"' in body and "succeeded" in body,
    )


class Judge:
    """An endpoint that holds its judgement of an input back until it is let go."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def endpoint(self, server: Server) -> None:
        def judge(n: int) -> None:
            self.asked.set()
            assert self.gate.wait(PATIENCE)

        @server.endpoint(validate=lambda given: asyncio.to_thread(judge, given))
        async def judged(n: int) -> int:
            return n


JUDGE = Judge()


@contextlib.contextmanager
def server_of_the_appendix(scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
    with standard_library_server() as url:
        yield address(url), None


PRINCIPALS = {"token": "ada-knows-it", "stranger": "bob-knows-it"}
TOKENS = tuple(f"{token.partition('-')[0]}:{token}" for token in PRINCIPALS.values())


def _set(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


SCENES: Mapping[str, Scene] = {
    "queue-wait": Scene(
        settings={"queue_interval": 0},
        concurrency_limit=1,
        before=one_runs_and_one_waits,
        cues={"The running job ends.": cancel("first"), "The next job ends as well.": cancel("second")},
    ),
    "resume-after-trimming": Scene(settings={"log_ttl": 0}, before=its_log_is_trimmed),
    "purge": Scene(before=a_job_has_ended({"append": "x"})),
    "generate-refusals": Scene(endpoints=generate),
    "generate": Scene(endpoints=generate, settings={"merge_window": 0.005}),
    "vocabulary": Scene(endpoints=generate),
    "behind-a-proxy": Scene(settings={"root_path": "/ai"}),
    "stopping": Scene(
        settings={"shutdown_timeout": PATIENCE}, cues={"The server is asked to stop.": it_is_told_to_stop}
    ),
    "grace-while-stopping": Scene(
        settings={"shutdown_timeout": PATIENCE, "min_grace": 0.2},
        cues={
            "The server is asked to stop.": it_is_told_to_stop,
            "For three times that long no reader can reconnect, and the job continues.": lambda player: (
                passes(0.6)
            ),
        },
    ),
    "two-principals": Scene(settings={"tokens": TOKENS}, names=PRINCIPALS),
    "limits": Scene(
        settings={
            "tokens": TOKENS,
            "max_body_bytes": 2048,
            "max_inputs": 2,
            "max_jobs_per_principal": 1,
            "max_streams_per_principal": 1,
        },
        names=PRINCIPALS,
    ),
    "slow-request": Scene(settings={"body_timeout": 0.2}),
    "long-changes": Scene(settings={"max_event_bytes": 1024, "max_state_bytes": 4096}),
    "heartbeat": Scene(settings={"heartbeat": 0.05}),
    "tombstone": Scene(
        settings={"log_ttl": 0, "state_ttl": 0.2, "tombstone_ttl": 0.5},
        before=a_job_has_ended({"append": "x"}),
        cues={"Its state expires, and then its tombstone.": its_state_goes_and_its_tombstone},
    ),
    "key-in-flight": Scene(
        endpoints=JUDGE.endpoint,
        cues={
            "The server is validating the first submit.": lambda player: _set(JUDGE.asked),
            "The validation of the first submit ends.": lambda player: JUDGE.gate.set(),
        },
    ),
    "nobody-reads": Scene(
        settings={"min_grace": 0.2},
        cues={
            "The job is polled until it has ended: a poll does not count as a reader.": it_has_ended_unread
        },
    ),
    "snapshots-apart": Scene(
        settings={"min_snapshot_interval": 0.02},
        cues={
            'The value is "abc". No snapshot reports it, because less than an hour has passed.': the_value_is_abc
        },
    ),
    "endpoints-of-several-kinds": Scene(endpoints=several_kinds),
    "what-stays": Scene(endpoints=drafts),
    "batch-that-is-filled-up": Scene(endpoints=filled_up),
    "restart-with-a-new-attempt": Scene(
        server=RESTARTED.serve,
        cues={
            "One item has produced its value.": one_item_has_ended,
            "The server is killed and restarted. Work on the job starts again.": RESTARTED.dies_and_comes_back,
        },
    ),
    "hole-in-the-log": Scene(
        server=HOLLOW.serve,
        cues={
            "The server is killed, event 1-4 is lost from its log, and the server is restarted.": HOLLOW.loses
        },
    ),
    "worker-lost": Scene(
        server=PRINTER.serve, cues={"The server is killed and restarted.": PRINTER.dies_and_comes_back}
    ),
    "without-capabilities": Scene(server=server_of_the_appendix),
    "pages-of-another-origin": Scene(settings={"cors_origins": ("https://page.example",)}),
    "stream-tokens": Scene(
        settings={"tokens": TOKENS, "stream_token_ttl": 1},
        names=PRINCIPALS,
        cues={
            "The token expires: a new stream is refused in-band, and the open stream stays open.": its_token_expires
        },
    ),
}
