"""The transcripts of the specification, and the servers that they are played against."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from conformance.transcripts import Player, job_ends
from integration.reference_server import eventually
from tidewire_server import Server
from tidewire_server.script import add_script
from unit.spec_document import document

TRANSCRIPTS = {fence.tags["transcript"]: fence for fence in document.fences if "transcript" in fence.tags}
SCRIPTS = "POST /v1/endpoints/tidewire.script/jobs"


@dataclass(frozen=True)
class Scene:
    """What a transcript takes for granted."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    concurrency_limit: int | None = None
    endpoints: Callable[[Server], None] = lambda server: None
    before: Callable[[Player], None] = lambda player: None
    cues: Mapping[str, Callable[[Player], None]] = field(default_factory=dict)


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

    add_generate(server, device="cpu", threads=1, slots=1)


SCENES: Mapping[str, Scene] = {
    "queue-wait": Scene(
        settings={"queue_interval": 0},
        concurrency_limit=1,
        before=one_runs_and_one_waits,
        cues={"The job that runs ends.": cancel("first"), "So does the next one.": cancel("second")},
    ),
    "resume-after-trimming": Scene(settings={"log_ttl": 0}, before=its_log_is_trimmed),
    "purge": Scene(before=a_job_has_ended({"append": "x"})),
    "generate-refusals": Scene(endpoints=generate),
}


@contextlib.contextmanager
def playing(scene: Scene, **settings: Any) -> Iterator[Player]:
    # Without a window for merging each call of a script is one event, so that a transcript can be exact.
    exact = {"merge_window": 0, "cancel_timeout": 0.3, "shutdown_timeout": 0}
    server = Server(**(exact | dict(scene.settings) | settings))
    add_script(server, concurrency_limit=scene.concurrency_limit)
    scene.endpoints(server)
    with server.running() as url:
        where = urlsplit(url)
        with Player((where.hostname or "", where.port or 0), cues=scene.cues) as player:
            scene.before(player)
            yield player
