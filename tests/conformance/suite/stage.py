"""The reference server as the suite meets it in these tests, as it is or with one fault, in a process of its own.

Run as a file it serves and prints its URL: `python stage.py [MUTANT]`.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ALICE, BOB = "alice-" + "a" * 26, "bob-" + "b" * 28
ORIGIN = "https://page.example"
KIB, MIB = 1024, 1024 * 1024

SETTINGS = {
    "heartbeat": 0.4,
    "retry": 0.05,
    "min_snapshot_interval": 0.05,
    "cancel_timeout": 0.1,
    "shutdown_timeout": 0.1,
    "max_event_bytes": 64 * KIB,
    "max_state_bytes": 3 * MIB,
    "max_log_bytes": 256 * KIB,
    "max_body_bytes": MIB,
    "max_inputs": 32,
    "tokens": (f"alice:{ALICE}", f"bob:{BOB}"),
    "cors_origins": (ORIGIN,),
}
"""Everything that waits is short, and every limit within reach."""


@contextlib.contextmanager
def staged(mutant: str = "") -> Iterator[str]:
    """Serve; gives the URL."""
    command = [sys.executable, str(Path(__file__)), mutant]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://"), f"the stage for {mutant or 'the reference'} did not open"
            yield url
        finally:
            process.kill()


def _serve(name: str) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from conformance.suite.meddling import Meddling
    from conformance.suite.mutants import MUTANTS
    from conformance.suite.table_engine import TableEngine
    from tidewire_server import Server, Stream
    from tidewire_server.app import App
    from tidewire_server.generation.endpoint import add_engine
    from tidewire_server.script import add_script
    from tidewire_server.serving import serve

    hooks = Meddling()
    if name:
        MUTANTS[name].meddle(hooks)
    server = Server(**SETTINGS | hooks.settings)

    @server.endpoint(examples=[{"words": 8}], concurrency_limit=None)
    async def talk(words: int, stream: Stream[str]) -> None:
        for at in range(words):
            stream.append(f"word {at} né 😀, ")
            stream.stable()

    def change(delta, request):
        for hook in hooks.deltas:
            delta = hook(delta, request) or delta
        return delta

    add_engine(server, TableEngine(change))
    if not hooks.settings.get("without_script"):
        add_script(server)
    inner = App.__call__

    async def call(app, scope, receive, send):
        async def bound(scope, receive, send):
            await inner(app, scope, receive, send)

        await hooks.around(bound)(scope, receive, send)

    App.__call__ = call
    serve(server, port=0, started=lambda url: print(url, flush=True))


if __name__ == "__main__":
    _serve(sys.argv[1] if len(sys.argv) > 1 else "")
