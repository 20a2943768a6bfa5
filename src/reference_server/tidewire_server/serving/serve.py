"""A server on a socket: uvicorn underneath, signals, and an end that leaves nothing behind."""

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Final

try:
    import uvicorn
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"{error.name or error} is not installed: pip install 'tidewire[server]'", name=error.name
    ) from None

from tidewire_server.http.routes import TidewireApp
from tidewire_server.http.uvicorn.uvicorn_internals import SEND_BUFFER_BYTES
from tidewire_server.http.uvicorn.uvicorn_protocol import http_protocol
from tidewire_server.serving.daemon_threads import DaemonThreads
from tidewire_server.serving.fd_limit import room_for
from tidewire_server.serving.log_throttle import LogThrottle, throttle_accept_errors
from tidewire_server.serving.port_file import port_file as told_port
from tidewire_server.settings import SWITCH_INTERVAL, Settings
from tidewire_server.store.interfaces import StoreError

_BACKLOG: Final = 2048
_LAST_GRACE: Final = 2.0
"""Seconds that uvicorn waits for open requests once running jobs had their time."""

_COLLECTIONS: Final = (2_000, 5, 50)
"""Objects that make the garbage collector look at the youngest, for a millisecond; and how often at the older ones."""

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_log = logging.getLogger(__name__)


def bind(host: str, port: int, free: str = "port=0") -> socket.socket:
    """Bind and listen.

    Args:
        host: The address.
        port: The port, 0 for a free one.
        free: How whoever asked says that a free one is wanted.

    Raises:
        OSError: The address cannot be bound to; its `strerror` names the address, and says what to do.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        number = error.errno if isinstance(error, OSError) else None
        why = (isinstance(error, OSError) and error.strerror) or error
        hint = {
            errno.EADDRINUSE: f"; {free} takes a free one",
            errno.EACCES: "; ports below 1024 are the system's: name one above",
            errno.EADDRNOTAVAIL: "; no interface of this machine has that address: 0.0.0.0 is all that it has",
        }.get(number or 0, "")
        raise OSError(number, f"cannot bind to {host}:{port}: {why}{hint}") from None
    except BaseException:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket, root_path: str = "") -> str:
    """Where a listening socket is reached from this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(
        host, host
    )  # an address to bind to is none to connect to
    return f"http://[{host}]:{port}{root_path}" if ":" in host else f"http://{host}:{port}{root_path}"


def serve(
    app: TidewireApp,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    port_file: str | os.PathLike[str] | None = None,
    listener: socket.socket | None = None,
    started: Callable[[str], None] | None = None,
    switch_interval: float = SWITCH_INTERVAL,
) -> None:
    """Serve until SIGINT or SIGTERM. A second signal ends the process at once.

    Args:
        app: What to serve.
        settings: Of the server that it belongs to.
        host: The address to bind to.
        port: The port; 0 takes a free one.
        port_file: A file that gets the port's number once requests are answered.
        listener: A bound socket, instead of host and port.
        started: Told the URL once requests are answered.
        switch_interval: Seconds after which Python takes a busy thread's turn away.

    Raises:
        OSError: The address cannot be bound to.
        StoreError: The log cannot be opened, or another server has it.
        PortFileError: The port file cannot be written.
    """
    listener = listener or bind(host, port)
    url = url_of(listener, settings.root_path)
    with (
        told_port(port_file, listener.getsockname()[1]) as put,
        _short_turns(switch_interval),
        _brief_collections(),
    ):

        def answering() -> None:
            put()
            (started or _say)(url)

        app.open_log()
        connections = room_for(settings.max_connections, raise_limit=True)
        body = UvicornServer(app, uvicorn_config(app, settings, connections), answering)
        loop = (body.config.get_loop_factory() or asyncio.new_event_loop)()
        loop.set_default_executor(pool := DaemonThreads())
        throttle_accept_errors(loop)
        try:
            asyncio.set_event_loop(loop)
            loop.run_until_complete(body.serve(sockets=[listener]))
        finally:
            _close(loop, pool)
            listener.close()


@contextlib.contextmanager
def in_background(
    app: TidewireApp, settings: Settings, *, host: str = "127.0.0.1", port: int = 0
) -> Iterator[str]:
    """Serve from a thread of its own while the block runs, for tests and notebooks.

    Args:
        app: What to serve.
        settings: Of the server that it belongs to.
        host: The address to bind to.
        port: The port; 0 takes a free one.

    Yields:
        The URL.

    Raises:
        OSError: The address cannot be bound to.
    """
    listener = bind(host, port)
    try:
        app.open_log()
    except BaseException:
        listener.close()
        raise
    ready = threading.Event()
    connections = room_for(settings.max_connections)
    body = UvicornServer(app, uvicorn_config(app, settings, connections), ready.set)
    loop = (body.config.get_loop_factory() or asyncio.new_event_loop)()
    loop.set_default_executor(pool := DaemonThreads())
    throttle_accept_errors(loop)

    refused: list[StoreError] = []

    def run() -> None:
        try:
            loop.run_until_complete(body.serve(sockets=[listener]))
        except StoreError as error:
            refused.append(error)
        finally:
            _close(loop, pool)
            ready.set()

    thread = threading.Thread(target=run, name="tidewire-server", daemon=True)
    thread.start()
    ready.wait()
    if refused:
        thread.join()
        listener.close()
        raise refused[0]
    try:
        yield url_of(listener, settings.root_path)
    finally:
        with contextlib.suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(body.end)
        thread.join()
        listener.close()


@contextlib.contextmanager
def _short_turns(seconds: float) -> Iterator[None]:
    """Have plain functions that compute keep the event loop waiting no longer than this for its turn."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@contextlib.contextmanager
def _brief_collections() -> Iterator[None]:
    """Have the garbage collector leave alone what was there before, and look at the rest a little at a time.

    It would stop all streams for as long as it takes to walk a loaded model and thousands of kept jobs.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _say(url: str) -> None:
    print(f"serving on {url}", flush=True)


def uvicorn_config(app: TidewireApp, settings: Settings, connections: int) -> uvicorn.Config:
    """How uvicorn is set up, for so many connections."""
    return uvicorn.Config(
        app,
        http=http_protocol(settings, connections),
        timeout_keep_alive=settings.keep_alive_timeout,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        root_path=settings.root_path,
        timeout_graceful_shutdown=round(_LAST_GRACE),
    )


class UvicornServer(uvicorn.Server):
    """uvicorn with an end in two parts: first the streams go away and jobs end, then the connections close."""

    def __init__(self, app: TidewireApp, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._tidewire = app
        self._tell_started = started
        self._settling: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Not left to the lifespan: what fails there ends the process without saying why to whoever called.
        await self._tidewire.start()
        await super().startup(sockets=sockets)
        if self.started:
            self._tell_started()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or ():  # whoever is accepted inherits it
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            self._tidewire.send_buffers_bounded = True
        logger, seldom = logging.getLogger("uvicorn.error"), LogThrottle()
        logger.addFilter(seldom)
        try:
            await super().serve(sockets=sockets)
        finally:
            logger.removeFilter(seldom)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals. uvicorn's own way raises them again at the end: as an exit code, or as a traceback."""
        if threading.current_thread() is not threading.main_thread():
            yield  # whoever runs the loop ends it
            return
        loop = asyncio.get_running_loop()
        told = False

        def handle(_signum: int, _frame: object) -> None:
            nonlocal told
            if told:
                os._exit(1)
            told = True
            loop.call_soon_threadsafe(self.end)

        # Not by the event loop: a second signal must end the process also where a function never gives the loop back.
        before = [(each, signal.signal(each, handle)) for each in _SIGNALS]
        try:
            yield
        finally:
            for each, handler in before:
                signal.signal(each, handler)

    def end(self) -> None:
        """Begin to shut down; call on the event loop."""
        if self._settling is None:
            self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        try:
            await self._tidewire.settle()
        finally:
            self.should_exit = True


def _close(loop: asyncio.AbstractEventLoop, pool: DaemonThreads) -> None:
    """Cancel what is left, for a bounded time: a function that swallows its cancellation must not keep the process."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        _, stuck = loop.run_until_complete(asyncio.wait(left, timeout=_LAST_GRACE))
        for task in stuck:
            _log.warning("left behind at exit: %r", task.get_name())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    pool.leave(_LAST_GRACE)
