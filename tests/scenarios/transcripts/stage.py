"""Setup of a transcript: a server with its settings, a player, and the checks of the suite for all its exchanges."""

import contextlib
import random
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scenarios.transcripts.player import DifferenceError, Player
from tidewire_conformance.judging.server_probe import Endpoint
from tidewire_conformance.judging.server_probe import Server as DescribedServer
from tidewire_conformance.judging.state_history import Histories
from tidewire_conformance.judging.verdict import Assertion
from tidewire_conformance.registry import checks
from tidewire_conformance.session import Hooks, Session, Skip
from tidewire_conformance.wire.recording_client import IncompleteResponseError
from tidewire_server import Server
from tidewire_server.script_endpoint import add_script

Served = tuple[tuple[str, int], Callable[[], None] | None]
"""Address of a server, and a function that asks it to shut down."""


@dataclass(frozen=True)
class Scene:
    """Preconditions of a transcript."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    concurrency_limit: int | None = None
    endpoints: Callable[[Server], None] = lambda server: None
    before: Callable[[Player], None] = lambda player: None
    cues: Mapping[str, Callable[[Player], None]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """Initial values of names in the transcript."""
    server: Callable[["Scene", Mapping[str, Any]], contextlib.AbstractContextManager[Served]] | None = None
    """Context manager that starts the server; None starts the reference server in this process."""


WHOLE_RUN_CHECKS = [check for check in checks() if check.whole_run]
"""Checks of the conformance suite that judge all recorded requests and responses of a run."""


@contextlib.contextmanager
def playing(scene: Scene, **settings: Any) -> Iterator[Player]:
    """A player for a scene. At the end, the whole-run checks of the suite judge all exchanges."""
    settings = {**scene.settings, **settings}
    with (
        (scene.server or reference_server)(scene, settings) as (address, stop),
        Player(address, cues=scene.cues) as player,
    ):
        player.request_shutdown = stop
        player.names.values |= scene.names
        server = describe(player)
        scene.before(player)
        yield player
        judge_exchanges(player, server, settings)


def describe(player: Player) -> DescribedServer:
    """Read the discovery document and the descriptions of the endpoints."""
    with contextlib.closing(player.ask("GET /v1")) as answer:
        answer.whole()
        server = DescribedServer(answer.exchange)
    for listed in server.discovery_body.get("endpoints", ()):
        with contextlib.closing(player.ask(f"GET {listed['href']}")) as answer:
            answer.whole()
            name = listed["name"]
            server.endpoints[name] = Endpoint(name, answer.exchange, f"{listed['href']}/jobs")
    return server


def judge_exchanges(player: Player, server: DescribedServer, settings: Mapping[str, Any]) -> None:
    """Run the whole-run checks on everything that the player has received.

    The player takes the place of the proxy at `root_path`, and the checks judge what the client of that proxy sees.

    Raises:
        DifferenceError: A requirement is violated; the message lists all violations.
    """
    root_path = settings.get("root_path", "")
    for exchange in player.wire.record:
        exchange.url = re.sub(f"({root_path})?/v1", f"{root_path}/v1", exchange.url, count=1)
    token = player.names.values.get("token")
    header = [("Authorization", f"Bearer {token}")] if token else ()
    wire = player.wire.as_caller(header, base_url=player.wire.base_url + root_path)
    hooks = Hooks(origin=next(iter(settings.get("cors_origins", ())), ""))

    async def broken() -> list[Assertion]:
        found: list[Assertion] = []
        histories: dict[int, Histories] = {}
        for check in WHOLE_RUN_CHECKS:
            session = Session(wire.as_check(check.name), server, hooks, random.Random(0), histories)
            # A check may have nothing to judge, or may send a request although the server was shut down.
            with contextlib.suppress(Skip, IncompleteResponseError):
                await check.run(session)
            found += [each for each in session.assertions if not each.holds]
        return found

    if found := player.portal.call(broken):
        raise DifferenceError(
            "\n".join(f"{x.requirement}: expected {x.expected}, got {x.got} ({x.exchange})" for x in found)
        )


@contextlib.contextmanager
def reference_server(scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
    # With a merge window of 0, each call of a script is one event, so transcripts can be exact.
    exact = {"merge_window": 0, "cancel_timeout": 0.3, "shutdown_timeout": 0}
    server = Server(**(exact | dict(settings)))
    add_script(server, concurrency_limit=scene.concurrency_limit)
    scene.endpoints(server)
    with contextlib.ExitStack() as stack:
        where = urlsplit(stack.enter_context(server.running()))
        stopping = threading.Thread(target=stack.close, name="told-to-stop")
        yield (where.hostname or "", where.port or 0), stopping.start
        if stopping.ident is not None:
            stopping.join()
