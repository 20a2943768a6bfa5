"""Reference server in a separate process, unchanged or with one fault.

`python -m proof.servers.server_process [NAME]` starts one server and prints its URL.
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import socket
from typing import Any
from urllib.parse import urlsplit

from proof.forked_process import ROOT, Forked

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
    "max_event_ops": 100,
    "max_state_bytes": 3 * MIB,
    "max_log_bytes": 256 * KIB,
    "max_body_bytes": MIB,
    "max_inputs": 32,
    "max_jobs_per_principal": 64,
    "max_streams_per_principal": 32,
    "tokens": (f"alice:{ALICE}", f"bob:{BOB}"),
    "cors_origins": (ORIGIN,),
}
"""Settings with short timeouts and low limits, so that checks can reach them."""


IMPORTS = (
    "proof.servers.faults",
    "tidewire_server.generation.generate_endpoint",
    "tidewire_server.serving.serve",
    "tidewire_server.store.sqlite.sqlite_store",
)


@contextlib.contextmanager
def running_server(name: str = "") -> Iterator[str]:
    """Run the reference server, or the named faulty server, and yield its URL."""
    with Forked("proof.servers.server_process", name, cwd=ROOT, imports=IMPORTS) as process:
        url = process.stdout.readline().strip()
        if not url:
            raise ChildProcessError(
                f"{name or 'the reference server'} did not start: {process.stderr.read()}"
            )
        try:
            yield url
        finally:
            # Remove the folder before the port becomes free, because another server with this port would use the same
            # folder.
            shutil.rmtree(folder_of(url), ignore_errors=True)
            os.killpg(process.pid, signal.SIGKILL)


def folder_of(url: str) -> Path:
    """Return the folder of the server at a URL.

    It contains the server's process id (`pid`), second address (`replica`) and log.
    """
    return Path(tempfile.gettempdir()) / f"tidewire-proof-{urlsplit(url).port}"


def restart_of(url: str) -> str:
    """Shell command that kills the server at a URL. The parent process starts it again."""
    return f"kill -KILL $(cat {folder_of(url)}/pid)"


def expiry_of(url: str) -> str:
    """Shell command that makes the server at a URL delete the states of its ended jobs."""
    done = folder_of(url) / "expired"
    return f"rm -f {done}; kill -USR1 $(cat {folder_of(url)}/pid); until [ -e {done} ]; do sleep 0.02; done"


def replica_of(url: str) -> str:
    """Second address of the server at a URL, which acts as another replica."""
    return (folder_of(url) / "replica").read_text()


def _serve_with_restarts(name: str) -> None:
    """Serve from a child process. When the child is killed, start a new child with the same address and the same log."""
    from tidewire_server.serving.listener import bind, url_of

    os.setpgrp()
    listeners = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    url, replica = map(url_of, listeners)
    shutil.rmtree(folder_of(url), ignore_errors=True)  # from a killed server with the same port
    folder_of(url).mkdir()

    def report(prefix: str) -> None:
        (folder_of(url) / "replica").write_text(replica + prefix)
        print(url + prefix, flush=True)

    for start_count in itertools.count(1):
        if (child := os.fork()) == 0:
            report_started = (report) if start_count == 1 else lambda prefix: None
            _serve(name, *listeners, start_count, report_started)
            raise RuntimeError("the server stopped without being killed")
        # Rename the file, so that a reader never sees a partially written number.
        (folder_of(url) / "next").write_text(str(child))
        (folder_of(url) / "next").rename(folder_of(url) / "pid")
        if os.WIFEXITED(os.waitpid(child, 0)[1]):
            os._exit(1)  # the child was not killed but failed, and a new child would fail, too


def _serve(
    name: str, listener: socket, second: socket, start_count: int, report_started: Callable[[str], None]
) -> None:
    from proof.servers import table_engine
    from proof.servers.fault_proxy import FaultProxy
    from proof.servers.faults import FAULTY_SERVERS
    from proof.servers.raw_proxy import RawProxy
    from tidewire_server import Server, Stream
    from tidewire_server.generation import generate_endpoint
    from tidewire_server.http.application import TidewireApp
    from tidewire_server.script_endpoint import add_script
    from tidewire_server.serving.listener import bind, url_of
    from tidewire_server.serving.serve import serve

    folder = folder_of(url_of(listener))
    hooks = FaultProxy(shared={"life": start_count, "replica": second.getsockname()[1]})
    if name:
        FAULTY_SERVERS[name].install(hooks)
    log = {"log": f"sqlite:///{folder}/log.sqlite"} if hooks.has_durable_log else {}
    server = Server(**SETTINGS | log | hooks.settings)

    @server.endpoint(examples=[{"words": 8}], concurrency_limit=None)
    async def talk(words: int, stream: Stream[str]) -> None:
        for at in range(words):
            stream.append(f"word {at} né 😀, ")
            stream.stable()

    if hooks.has_durable_log:

        @server.endpoint(on_restart="continue", examples=[{"letters": 80}], concurrency_limit=None)
        async def spell(letters: int, stream: Stream[str]) -> None:
            for at in range(len(stream.value), letters):
                stream.append("tide"[at % 4])
                await asyncio.sleep(0.01)

    @server.endpoint(examples=[{"n": 3}])
    def square(n: int) -> int:
        return n * n

    # The result is longer than one event, and shorter than what slow readers get as a snapshot.
    @server.endpoint(examples=[{"length": server.settings.max_event_bytes + 4 * KIB}])
    def report(length: int) -> str:
        return "x" * length

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
        # No process reads the messages of a server that has started, and a full pipe would block it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, lambda: loop.create_task(_expire(server, folder)))
        port = urlsplit(url).port
        RawProxy(second, port).__enter__()
        if is_behind_a_proxy:
            head = hooks.raw_head or bytes
            RawProxy(listener, port, head=head, http_1_0=hooks.speaks_http_1_0).__enter__()
        report_started(hooks.prefix)

    is_behind_a_proxy = hooks.raw_head or hooks.speaks_http_1_0
    serve(
        server.app,
        server.settings,
        listener=bind("127.0.0.1", 0) if is_behind_a_proxy else listener,
        started=started,
    )


async def _expire(server: Any, folder: Path) -> None:
    """Let the states of all ended jobs expire."""
    await server.app.service.store.jobs.expire(time.time() + server.settings.state_ttl + 1)
    (folder / "expired").touch()


if __name__ == "__main__":
    _serve_with_restarts("".join(sys.argv[1:2]))
