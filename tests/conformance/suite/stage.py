"""The reference server as the suite meets it in these tests, as it is or with one fault, in a process of its own.

Run as a file it serves: `python stage.py [MUTANT]` prints its process and its URL.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Self

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


class Nursery:
    """A process that has imported all there is, and forks a server for each name: what takes long is done once."""

    def __enter__(self) -> Self:
        command = [sys.executable, str(Path(__file__)), "--nursery"]
        self._process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.terminate()

    @contextlib.contextmanager
    def staged(self, mutant: str = "") -> Iterator[str]:
        """The reference server, or a mutant of it; gives the URL."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{mutant}\n")
        self._process.stdin.flush()
        pid, _, url = self._process.stdout.readline().strip().partition(" ")
        assert url.startswith("http://"), f"the stage for {mutant or 'the reference'} did not open"
        try:
            yield url
        finally:
            os.kill(int(pid), signal.SIGKILL)


@contextlib.contextmanager
def staged(mutant: str = "") -> Iterator[str]:
    """One server, by itself."""
    with Nursery() as nursery, nursery.staged(mutant) as url:
        yield url


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
    if hooks.has_script:
        add_script(server)
    inner = App.__call__

    async def call(app, scope, receive, send):
        async def bound(scope, receive, send):
            await inner(app, scope, receive, send)

        await hooks.around(bound)(scope, receive, send)

    if name:
        App.__call__ = call
    serve(server, port=0, started=lambda url: print(os.getpid(), url, flush=True))


def _nurse() -> None:
    """For each name that is read, fork a server; it tells its process and its URL."""
    import tidewire_server.generation.endpoint
    import tidewire_server.serving  # noqa: F401 - imported once for all that are forked

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.stdin.close()
            _serve(line.strip())


if __name__ == "__main__":
    _nurse() if sys.argv[1:] == ["--nursery"] else _serve("".join(sys.argv[1:2]))
