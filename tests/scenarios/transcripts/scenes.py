"""The transcripts of the specification and the server setups for playing them."""

import asyncio
import contextlib
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import BaseModel

from scenarios.transcripts.player import PATIENCE, Player, wait_for_job_end
from scenarios.transcripts.stage import Scene, Served, reference_server
from support.foreign_programs import standard_library_server
from support.reference_server import eventually
from support.server_address import address_of
from support.server_process import ServerProcess
from support.spec_document import document
from tidewire_server import ItemError, Server, Stream

TRANSCRIPTS = {fence.tags["transcript"]: fence for fence in document.fences if "transcript" in fence.tags}
SCRIPTS = "POST /v1/endpoints/tidewire.script/jobs"


def start_running_and_queued_job(player: Player) -> None:
    """Start a running and a queued job. A third job has ended before, so the server can estimate waits."""
    player.submit({"script": []})
    wait_for_job_end(player)
    for name in ("first", "second"):
        player.names.values[name] = player.submit({"script": [{"sleep_ms": 60_000}]})


def cancel(name: str) -> Callable[[Player], None]:
    return lambda player: player.ask(f"POST /v1/jobs/{player.names.values[name]}/cancel").close()


def finish_a_job(*steps: Any) -> Callable[[Player], None]:
    def before(player: Player) -> None:
        player.names.values["job"] = player.submit({"script": steps})
        wait_for_job_end(player)

    return before


def wait_until_log_is_trimmed(player: Player) -> None:
    """Wait until the ended job cannot be replayed from its start."""
    finish_a_job({"append": "one "}, {"append": "two "}, {"append": "three"})(player)

    def trimmed() -> bool:
        with contextlib.closing(player.ask(f"GET /v1/jobs/{player.job}/events?after=0-0")) as answer:
            return b'"reason":"start"' not in answer.whole()

    eventually(trimmed)


def generate(server: Server) -> None:
    pytest.importorskip("torch")
    from tidewire_server.generation import add_generate

    add_generate(server, device="cpu", threads=1, slots=2)


def add_endpoints_of_several_kinds(server: Server) -> None:
    @server.endpoint
    async def square(n: int) -> int:
        if n < 0:
            raise ItemError(f"no root of {n}")
        return n * n

    @server.endpoint
    async def liar() -> int:
        return cast("int", "one")


def add_long_report(server: Server) -> None:
    @server.endpoint
    async def report(length: int) -> str:
        return "x" * length


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


def add_padded_batch(server: Server) -> None:
    @server.endpoint(batch=True, sizes=[4], batch_timeout=0.05)
    def double(numbers: list[Number]) -> list[int | ItemError]:
        assert len(numbers) == 4
        return [ItemError("too small") if one.n < 0 else 2 * one.n for one in numbers]


def until(player: Player, target: str, condition: Callable[[int, str], bool]) -> None:
    """Repeat a request until its response meets the condition."""

    def holds() -> bool:
        with contextlib.closing(player.ask(target)) as answer:
            return condition(answer.exchange.status, answer.whole().decode())

    eventually(holds)


def wait_until_state_and_tombstone_expire(player: Player) -> None:
    for status in (410, 404):
        until(player, f"GET /v1/jobs/{player.job}", lambda got, body, wanted=status: got == wanted)


def wait_until_cancelled(player: Player) -> None:
    until(player, f"GET /v1/jobs/{player.job}", lambda status, body: '"cancelled"' in body)


def wait_until_value_is_abc(player: Player) -> None:
    until(player, f"GET /v1/jobs/{player.job}", lambda status, body: '"abc"' in body)


def passes(seconds: float) -> None:
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > end)


def ask_the_server_to_stop(player: Player) -> None:
    assert player.request_shutdown is not None
    player.request_shutdown()


def shut_the_server_down(player: Player) -> None:
    ask_the_server_to_stop(player)
    until(player, "GET /readyz", lambda status, body: status == 503)


class Restarted:
    """A server process with a log file that can be killed and started again at the same address."""

    @contextlib.contextmanager
    def serve(self, scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
        function = "support.restarted_server:restarted_server"
        with (
            tempfile.TemporaryDirectory() as folder,
            ServerProcess(
                Path(folder), function, log=f"sqlite:///{folder}/log", merge_window=0
            ) as self.process,
        ):
            yield ("127.0.0.1", self.process.port), None

    def lose_an_event(self, player: Player) -> None:
        """Delete the event 1-4 from the log file while the server is down."""
        self.process.kill()
        with contextlib.closing(sqlite3.connect(self.process.folder / "log")) as file:
            assert file.execute("DELETE FROM block WHERE epoch = 1 AND seq = 4").rowcount == 1
            file.commit()
        self.process.start()

    def kill_and_restart(self, player: Player) -> None:
        self.process.again()


PRINTER, RESTARTED, WITH_HOLE, COPIER, HEEDLESS = (Restarted() for _ in range(5))


def wait_until_one_item_ended(player: Player) -> None:
    until(
        player,
        f"GET /v1/jobs/{player.job}",
        lambda status, body: '"value":"a"' in body and "succeeded" in body,
    )


class GatedValidator:
    """An endpoint whose validation of an input waits until a test opens the gate."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()

    def endpoint(self, server: Server) -> None:
        def judge(n: int) -> None:
            self.entered.set()
            assert self.gate.wait(PATIENCE)

        @server.endpoint(validate=lambda given: asyncio.to_thread(judge, given))
        async def judged(n: int) -> int:
            return n


VALIDATOR = GatedValidator()


@contextlib.contextmanager
def server_with_log_file(scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
    with (
        tempfile.TemporaryDirectory() as folder,
        reference_server(scene, {"log": f"sqlite:///{folder}/log", **settings}) as served,
    ):
        yield served


@contextlib.contextmanager
def appendix_server(scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
    with standard_library_server() as url:
        yield address_of(url), None


PRINCIPALS = {"token": "ada-knows-it", "stranger": "bob-knows-it"}
TOKENS = tuple(f"{token.partition('-')[0]}:{token}" for token in PRINCIPALS.values())


def _set(event: threading.Event) -> None:
    assert event.wait(PATIENCE)


SCENES: Mapping[str, Scene] = {
    "queue-wait": Scene(
        settings={"queue_interval": 0},
        concurrency_limit=1,
        before=start_running_and_queued_job,
        cues={"The running job ends.": cancel("first"), "The next job ends as well.": cancel("second")},
    ),
    "resume-after-trimming": Scene(settings={"log_ttl": 0}, before=wait_until_log_is_trimmed),
    "purge": Scene(before=finish_a_job({"append": "x"})),
    "generate-refusals": Scene(endpoints=generate),
    "generate": Scene(endpoints=generate, settings={"merge_window": 0.005}),
    "vocabulary": Scene(endpoints=generate),
    "behind-a-proxy": Scene(settings={"root_path": "/ai"}),
    "stopping": Scene(
        settings={"shutdown_timeout": PATIENCE},
        cues={"The server is asked to stop.": shut_the_server_down},
    ),
    "stopping-in-memory": Scene(
        settings={"shutdown_timeout": 0.2},
        cues={"The server is asked to stop, and its time limit passes.": ask_the_server_to_stop},
    ),
    "grace-while-stopping": Scene(
        settings={"shutdown_timeout": PATIENCE, "min_grace": 0.2},
        concurrency_limit=1,
        server=server_with_log_file,
        cues={
            "The server is asked to stop.": shut_the_server_down,
            "For three times that long, the server keeps all readers away, and does not cancel the job.": lambda player: (
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
    "long-changes": Scene(
        settings={"max_event_bytes": 1024, "max_state_bytes": 4096}, endpoints=add_long_report
    ),
    "heartbeat": Scene(settings={"heartbeat": 0.05}),
    "tombstone": Scene(
        settings={"log_ttl": 0, "state_ttl": 0.2, "tombstone_ttl": 0.5},
        before=finish_a_job({"append": "x"}),
        cues={"Its state expires, and then its tombstone.": wait_until_state_and_tombstone_expire},
    ),
    "key-in-flight": Scene(
        endpoints=VALIDATOR.endpoint,
        cues={
            "The server is validating the first submit.": lambda player: _set(VALIDATOR.entered),
            "The validation of the first submit ends.": lambda player: VALIDATOR.gate.set(),
        },
    ),
    "nobody-reads": Scene(
        settings={"min_grace": 0.2},
        cues={
            "The job is polled until it has ended: a poll does not count as a reader.": wait_until_cancelled
        },
    ),
    "snapshots-apart": Scene(
        settings={"min_snapshot_interval": 0.02},
        cues={
            'The value is "abc". No snapshot reports it, because less than an hour has passed.': wait_until_value_is_abc
        },
    ),
    "endpoints-of-several-kinds": Scene(endpoints=add_endpoints_of_several_kinds),
    "what-stays": Scene(endpoints=drafts),
    "batch-that-is-filled-up": Scene(endpoints=add_padded_batch),
    "restart-with-a-new-attempt": Scene(
        server=RESTARTED.serve,
        cues={
            "One item has produced its value.": wait_until_one_item_ended,
            "The server is killed and restarted. Work on the job starts again.": RESTARTED.kill_and_restart,
        },
    ),
    "hole-in-the-log": Scene(
        server=WITH_HOLE.serve,
        cues={
            "The server is killed, event 1-4 is lost from its log, and the server is restarted.": WITH_HOLE.lose_an_event
        },
    ),
    "worker-lost": Scene(
        server=PRINTER.serve, cues={"The server is killed and restarted.": PRINTER.kill_and_restart}
    ),
    "cancel-before-a-restart": Scene(
        server=HEEDLESS.serve,
        cues={
            "The server is killed and restarted before the function has returned.": HEEDLESS.kill_and_restart
        },
    ),
    "restart-that-continues": Scene(
        server=COPIER.serve,
        cues={
            'The server is killed and restarted. The new attempt continues after "Hel".': COPIER.kill_and_restart
        },
    ),
    "without-capabilities": Scene(server=appendix_server),
    "one-job": Scene(server=appendix_server),
    # The reference server would otherwise protect itself on the loopback address: it refuses pages of other origins.
    "no-origin-by-default": Scene(settings={"allowed_hosts": ("*",)}),
    "pages-of-another-origin": Scene(
        settings={"cors_origins": ("https://page.example",), "allowed_hosts": ("*",)}
    ),
    "stream-tokens": Scene(
        settings={"tokens": TOKENS, "stream_token_ttl": 2},
        names=PRINCIPALS,
    ),
}
