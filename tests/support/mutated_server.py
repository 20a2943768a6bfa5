"""Reference server whose JSON is changed on its way out, as a half-built server might send it.

A mutation removes a member at any depth, or replaces it by a value of another type or size. `running` serves the reference
server with hooks that change responses and events.
"""

import copy
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from proof.servers.fault_proxy import FaultProxy
from proof.servers.server_process import KIB, SETTINGS
from proof.servers.table_engine import TableEngine
from tidewire_server import Server, Stream
from tidewire_server.generation import generate_endpoint
from tidewire_server.http.application import TidewireApp
from tidewire_server.script_endpoint import add_script

Path = tuple[str | int, ...]

SMALL = {
    "heartbeat": 0.2,
    "max_event_bytes": 2 * KIB,
    "max_state_bytes": 64 * KIB,
    "max_log_bytes": 8 * KIB,
    "max_body_bytes": 64 * KIB,
    "max_inputs": 8,
    "max_jobs_per_principal": 12,
    "max_streams_per_principal": 6,
}
"""Limits that the checks reach with little data, so that a run takes a few seconds."""

WRONG = {"null": None, "text": "x", "number": 7, "negative": -1, "list": [1], "object": {"x": 1}, "true": True,
         "surrogate": "\ud83d\x1b[2J", "empty text": "", "empty list": [], "empty object": {}}  # fmt: skip
"""Values that replace a member, by name."""
HUGE = {int: 10**15, str: "x" * 70_000, list: [0] * 3000, dict: {str(n): n for n in range(2000)}}
"""Values that replace a member of the same type."""
FAULTS = ("absent", "huge", *WRONG)


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """Yield the path of each part of a JSON value, without the value itself. Only the first elements of a list count."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, child in [*children][:40]:
        yield (*at, name)
        yield from paths(child, (*at, name))


def mutated(value: Any, path: Path, fault: str) -> Any:
    """Return a copy of a value with a fault at a path."""
    whole = copy.deepcopy(value)
    container = whole
    for token in path[:-1]:
        container = container[token]
    if fault == "absent":
        del container[path[-1]]
    else:
        old = container[path[-1]]
        container[path[-1]] = HUGE.get(type(old), 1e300) if fault == "huge" else WRONG[fault]
    return whole


class RandomMutations:
    """Hooks that give random faults to a share of the responses and events. Discovery stays usable half of the time."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share

    def install(self, hooks: FaultProxy) -> None:
        hooks.bodies.append(self._body)
        hooks.frames.append(self._frame)

    def _changed(self, text: bytes) -> bytes:
        if self._random.random() >= self._share:
            return text
        value = json.loads(text)
        for _ in range(self._random.choice([1, 1, 1, 2, 4])):
            if found := [*paths(value)]:
                value = mutated(value, self._random.choice(found), self._random.choice(FAULTS))
        return json.dumps(value).encode()

    def _body(self, exchange: Any, status: int, body: bytes) -> tuple[int, bytes] | None:
        if not body or (exchange.path == "/v1" and self._random.random() < 0.5):
            return None
        changed = self._changed(body)
        if exchange.path == "/v1":
            changed = json.dumps({**json.loads(changed), "protocol": "tidewire/1"}).encode()
        return status, changed

    def _frame(self, exchange: Any, frame: bytes) -> bytes:
        head, mark, data = frame.partition(b"data:")
        return head + mark + self._changed(data) + b"\n\n" if mark else frame


@contextmanager
def running(hooks: FaultProxy) -> Iterator[str]:
    """Run the reference server with hooks in this process, and yield its URL."""
    server = Server(**SETTINGS | SMALL)

    @server.endpoint(examples=[{"words": 8}], concurrency_limit=None)
    async def talk(words: int, stream: Stream[str]) -> None:
        for at in range(words):
            stream.append(f"word {at} né 😀, ")

    @server.endpoint(batch=True, max_batch_size=8, batch_timeout=0.005, examples=[{"word": "tide"}])
    def shout(word: list[str]) -> list[str]:
        return [each.upper() for each in word]

    generate_endpoint.add_engine(server, TableEngine())
    add_script(server)
    call = TidewireApp.__call__

    async def changed(app: Any, scope: Any, receive: Any, send: Any) -> None:
        await hooks.wrap(lambda *arguments: call(app, *arguments))(scope, receive, send)

    TidewireApp.__call__ = changed  # type: ignore[method-assign]
    try:
        with server.running() as url:
            yield url
    finally:
        TidewireApp.__call__ = call  # type: ignore[method-assign]
