"""The reference server as the suite meets it here, as it is or with one fault, in a process of its own.

`python -m proof.servers.server_process [NAME]` serves one, and prints its process group and its URL.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket
from subprocess import DEVNULL, PIPE
from typing import Any, Self

ROOT = Path(__file__).parents[2]
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
    "max_jobs_per_principal": 64,
    "max_streams_per_principal": 32,
    "tokens": (f"alice:{ALICE}", f"bob:{BOB}"),
    "cors_origins": (ORIGIN,),
}
"""Everything that waits is short, and every limit within reach."""


class ForkServer:
    """A process that has imported everything, and forks a server for each name: the slow imports happen once."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "proof.servers.server_process", "--fork-server"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.terminate()

    @contextlib.contextmanager
    def running(self, name: str = "") -> Iterator[str]:
        """The reference server, or the faulty server of this name; yields its URL."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        pid, _, url = answer.partition(" ")
        assert url.startswith("http://"), f"{name or 'the reference server'} did not start: {answer}"
        try:
            yield url
        finally:
            # In this order: once the port is free, another server may have it, and a folder of the same name.
            shutil.rmtree(folder_of(url), ignore_errors=True)
            os.killpg(int(pid), signal.SIGKILL)


def folder_of(url: str) -> Path:
    """A folder of the server at a URL: the process that serves (`pid`), its second address (`replica`), its log."""
    return Path(tempfile.gettempdir()) / f"tidewire-proof-{url.rpartition(':')[2]}"


def restart_of(url: str) -> str:
    """A command that kills the server at a URL; what has started it starts another in its place."""
    return f"kill -KILL $(cat {folder_of(url)}/pid)"


def expiry_of(url: str) -> str:
    """A command that lets the states of all jobs of the server at a URL expire that have ended."""
    told = folder_of(url) / "expired"
    return f"rm -f {told}; kill -USR1 $(cat {folder_of(url)}/pid); until [ -e {told} ]; do sleep 0.02; done"


def replica_of(url: str) -> str:
    """The second address of the server at a URL."""
    return (folder_of(url) / "replica").read_text()


@contextlib.contextmanager
def running_server(name: str = "") -> Iterator[str]:
    """One server, by itself."""
    with ForkServer() as fork_server, fork_server.running(name) as url:
        yield url


def _keep_serving(name: str) -> None:
    """Serve from a child, and from another one each time that it dies: the address stays, and so does the log."""
    from tidewire_server.serving.serve import bind, url_of

    os.setpgrp()
    listeners = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    url, replica = map(url_of, listeners)
    shutil.rmtree(
        folder_of(url), ignore_errors=True
    )  # of one that was killed with its tests, and had this port
    folder_of(url).mkdir()
    (folder_of(url) / "replica").write_text(replica)
    for life in itertools.count(1):
        if (child := os.fork()) == 0:
            told = (lambda: print(os.getppid(), url, flush=True)) if life == 1 else lambda: None
            _serve(name, *listeners, life, told)
            raise RuntimeError("it ended by itself")
        # In one step: whoever reads it gets a whole number.
        (folder_of(url) / "next").write_text(str(child))
        (folder_of(url) / "next").rename(folder_of(url) / "pid")
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            os._exit(1)  # nobody killed it: it has told why, and another one would fare no better


def _serve(name: str, listener: socket, second: socket, life: int, told: Callable[[], None]) -> None:
    from proof.servers import table_engine
    from proof.servers.fault_proxy import FaultProxy
    from proof.servers.faults import FAULTY_SERVERS
    from proof.servers.raw_proxy import serve_before
    from tidewire_server import Server, Stream
    from tidewire_server.generation import generate_endpoint
    from tidewire_server.http.routes import TidewireApp
    from tidewire_server.script_endpoint import add_script
    from tidewire_server.serving.serve import bind, serve, url_of

    folder = folder_of(url_of(listener))
    hooks = FaultProxy(shared={"life": life, "replica": second.getsockname()[1]})
    if name:
        FAULTY_SERVERS[name].install(hooks)
    log = {"log": f"sqlite:///{folder}/log.sqlite"} if hooks.has_durable_log else {}
    server = Server(**SETTINGS | log | hooks.settings)

    @server.endpoint(examples=[{"words": 8}], concurrency_limit=None)
    async def talk(words: int, stream: Stream[str]) -> None:
        for at in range(words):
            stream.append(f"word {at} né 😀, ")
            stream.stable()

    @server.endpoint(examples=[{"n": 3}])
    def square(n: int) -> int:
        return n * n

    @server.endpoint(batch=True, max_batch_size=8, batch_timeout=0.005, examples=[{"word": "tide"}])
    def shout(word: list[str]) -> list[str]:
        return [each.upper() for each in word]

    def change(delta, request):
        for hook in hooks.deltas:
            delta = hook(delta, request) or delta
        return delta

    initial = generate_endpoint.initial_of
    generate_endpoint.initial_of = lambda request: initial(request) | table_engine.prompt_columns(request)
    generate_endpoint.add_engine(server, table_engine.TableEngine(change))
    if hooks.has_script:
        add_script(server)
    inner = TidewireApp.__call__

    async def call(app, scope, receive, send):
        async def bound(scope, receive, send):
            await inner(app, scope, receive, send)

        await hooks.wrap(bound)(scope, receive, send)

    if name:
        TidewireApp.__call__ = call

    def started(url: str) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: loop.create_task(_expire(server, folder)))
        port = int(url.rpartition(":")[2])
        serve_before(second, port)
        if is_behind_a_proxy:
            serve_before(listener, port, head=hooks.raw_head or bytes, old=hooks.speaks_http_1_0)
        told()

    is_behind_a_proxy = hooks.raw_head or hooks.speaks_http_1_0
    serve(
        server.app,
        server.settings,
        listener=bind("127.0.0.1", 0) if is_behind_a_proxy else listener,
        started=started,
    )


async def _expire(server: Any, folder: Path) -> None:
    """Have all that has ended be too old."""
    await server.app.service.store.jobs.expire(time.time() + server.settings.state_ttl + 1)
    (folder / "expired").touch()


def _fork_servers() -> None:
    """For each name that is read, fork a server; it tells its process and its URL."""
    import tidewire_server.generation.generate_endpoint
    import tidewire_server.serving.serve
    import tidewire_server.store.sqlite.sqlite_store  # noqa: F401 - imported once for all that are forked

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.stdin.close()
            try:
                _keep_serving(line.strip())
            except BaseException as error:  # or who waits for its address would wait for ever
                print("the server did not start:", repr(error), flush=True)
            os._exit(1)


if __name__ == "__main__":
    _fork_servers() if sys.argv[1:] == ["--fork-server"] else _keep_serving("".join(sys.argv[1:2]))
