"""Setup of a transcript: a server with its settings, a player, and the invariants for all its exchanges."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from scenarios.transcripts.invariants import Run, violations
from scenarios.transcripts.player import DifferenceError, Player
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


@contextlib.contextmanager
def playing(scene: Scene, **settings: Any) -> Iterator[Player]:
    """A player for a scene. At the end, the invariants check all exchanges."""
    with (scene.server or reference_server)(scene, settings) as (address, stop):
        with Player(address, cues=scene.cues) as player:
            player.request_shutdown = stop
            player.names.values |= scene.names
            scene.before(player)
            yield player
            run = finish_recording(player)
    run.origins = frozenset({**scene.settings, **settings}.get("cors_origins", ()))
    if found := violations(run):
        raise DifferenceError("\n".join(found))


def finish_recording(player: Player) -> Run:
    """All exchanges, and the endpoint descriptions read at the end."""
    endpoints: dict[str, Any] = {}
    with contextlib.suppress(OSError, DifferenceError):  # The server may have been shut down.
        first = player.ask("GET /v1")
        player.sent_requests.insert(0, player.sent_requests.pop())
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
    # With a merge window of 0, each call of a script is one event, so transcripts can be exact.
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
