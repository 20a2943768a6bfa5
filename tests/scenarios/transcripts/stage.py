"""What a transcript is played on: a server with its settings, a player, and the watch over all that is said."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scenarios.transcripts.invariants import Run, breaches_of
from scenarios.transcripts.player import DifferenceError, Player
from tidewire_server import Server
from tidewire_server.script_endpoint import add_script

Served = tuple[tuple[str, int], Callable[[], None] | None]
"""Where a server listens, and how it is told to stop."""


@dataclass(frozen=True)
class Scene:
    """What a transcript takes for granted."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    concurrency_limit: int | None = None
    endpoints: Callable[[Server], None] = lambda server: None
    before: Callable[[Player], None] = lambda player: None
    cues: Mapping[str, Callable[[Player], None]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """What names of the transcript stand for from the start."""
    server: Callable[["Scene", Mapping[str, Any]], contextlib.AbstractContextManager[Served]] | None = None
    """What serves; None: the reference server, within this process."""


@contextlib.contextmanager
def playing(scene: Scene, **settings: Any) -> Iterator[Player]:
    """A player of a scene; at its end the watch judges all that was said."""
    with (scene.server or reference_server)(scene, settings) as (address, stop):
        with Player(address, cues=scene.cues) as player:
            player.tell_to_stop = stop
            player.names.values |= scene.names
            scene.before(player)
            yield player
            run = watched(player)
    run.origins = frozenset({**scene.settings, **settings}.get("cors_origins", ()))
    if found := breaches_of(run):
        raise DifferenceError("\n".join(found))


def watched(player: Player) -> Run:
    """All that was said, and what the server says of itself now."""
    endpoints: dict[str, Any] = {}
    with contextlib.suppress(OSError, DifferenceError):  # it may have been told to stop
        first = player.ask("GET /v1")
        player.asked.insert(0, player.asked.pop())
        known = json.loads(first.whole()).get("endpoints", ())
        for name in {one["name"] for one in known} & set(player.run().jobs.values()):
            with contextlib.closing(player.ask(f"GET /v1/endpoints/{name}")) as answer:
                endpoints[name] = json.loads(answer.whole())
        if vocabulary := endpoints.get("generate", {}).get("links", {}).get("vocabulary"):
            with contextlib.closing(player.ask(f"GET {vocabulary}")) as answer:
                endpoints["generate"]["vocabulary"] = json.loads(answer.whole())
    run = player.run()
    run.endpoints = endpoints
    return run


@contextlib.contextmanager
def reference_server(scene: Scene, settings: Mapping[str, Any]) -> Iterator[Served]:
    # Without a window for merging each call of a script is one event, so that a transcript can be exact.
    exact = {"merge_window": 0, "cancel_timeout": 0.3, "shutdown_timeout": 0}
    server = Server(**(exact | dict(scene.settings) | dict(settings)))
    add_script(server, concurrency_limit=scene.concurrency_limit)
    scene.endpoints(server)
    with contextlib.ExitStack() as stack:
        where = urlsplit(stack.enter_context(server.running()))
        stopping = threading.Thread(target=stack.close, name="told-to-stop")
        yield (where.hostname or "", where.port or 0), stopping.start
        if stopping.ident is not None:
            stopping.join()
