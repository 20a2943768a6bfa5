"""Run the application on a socket with uvicorn, with signal handling and graceful shutdown."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from tidewire.install_command import install_command

try:
    import uvicorn
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"the server needs {error.name or error}, which is not installed: {install_command('server')}",
        name=error.name,
    ) from None

from tidewire_server.errors import WorkersUnavailableError
from tidewire_server.http.application import TidewireApp
from tidewire_server.http.uvicorn.uvicorn_internals import SEND_BUFFER_BYTES
from tidewire_server.http.uvicorn.uvicorn_protocol import http_protocol
from tidewire_server.serving.descriptors import max_connections_within_fd_limit, throttle_accept_errors
from tidewire_server.serving.exposure_check import check_exposure, is_local
from tidewire_server.serving.listener import is_unix, removed_at_exit, url_of
from tidewire_server.serving.log_format import LogThrottle
from tidewire_server.serving.port_file import port_file as prepare_port_file
from tidewire_server.serving.process_loop import (
    LAST_GRACE,
    announce_drain,
    run_to_the_end,
    short_gc_pauses,
    stop_signals,
    thread_switch_interval,
)
from tidewire_server.settings import SWITCH_INTERVAL, Settings, share_of
from tidewire_server.store.store_errors import StoreError

_log = logging.getLogger(__name__)


_serving: Final = weakref.WeakSet[socket.socket]()
"""Listening sockets of the servers in this process."""

_servers: Final = weakref.WeakSet["UvicornServer"]()
"""Servers in this process. A forked child closes their connections."""


def _inherited_sockets() -> Iterator[int]:
    for listener in list(_serving):
        yield listener.fileno()
    for server in list(_servers):
        for connection in list(server.server_state.connections):
            # A new connection has no transport yet, and a closed one has no socket.
            with contextlib.suppress(AttributeError):
                yield connection.transport.get_extra_info("socket").fileno()


def _close_in_child() -> None:
    """Close the sockets in a forked child. Otherwise, a child that outlives a killed server would keep the port, and a
    client would not notice that the server has closed its connection.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in _inherited_sockets():
        if descriptor >= 0:
            # Replace the socket instead of closing it. uvloop prevents `close`, and a closed descriptor could be reused
            # and then closed a second time.
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_close_in_child)


def serve(
    app: TidewireApp,
    settings: Settings,
    *,
    listener: socket.socket,
    port_file: str | os.PathLike[str] | None = None,
    started: Callable[[str], None] | None = None,
    switch_interval: float = SWITCH_INTERVAL,
) -> None:
    """Serve until SIGINT or SIGTERM. A second signal ends the process immediately.

    Args:
        app: Application to serve.
        settings: Settings of the server.
        listener: Listening socket, which is closed at the end.
        port_file: File to write the port number to when the server is ready.
        started: Function that is called with the URL when the server is ready.
        switch_interval: Python's thread switch interval in seconds (`sys.setswitchinterval`) while the server runs.

    Raises:
        ExposedServerError: Other machines can reach the address, although the server has no tokens or `debug` is on.
        StoreError: The log cannot be opened, or another server is using it.
        PortFileError: The port file cannot be written.
    """
    url = url_of(listener, settings.root_path)
    with (
        removed_at_exit(listener) as path,
        contextlib.closing(listener),
        prepare_port_file(port_file, None if path else listener.getsockname()[1]) as publish_port,
        thread_switch_interval(switch_interval),
        short_gc_pauses(),
    ):

        def announce() -> None:
            publish_port()
            if started is not None:
                started(url)
            else:
                where = url if path is None else f"{url} (Unix domain socket {path})"
                print(f"serving on {where}", flush=True)

        _prepare(
            app, settings, listener, announce, raise_limit=True, shutdown_timeout=settings.shutdown_timeout
        ).run_on(listener)


@contextlib.contextmanager
def in_background(app: TidewireApp, settings: Settings, listener: socket.socket) -> Iterator[str]:
    """Serve from a background thread during a `with` block, for tests and notebooks.

    Args:
        app: Application to serve.
        settings: Settings of the server.
        listener: Listening socket, which is closed at the end.

    Yields:
        URL of the server.

    Raises:
        ExposedServerError: Other machines can reach the address, although the server has no tokens or `debug` is on.
        StoreError: The log cannot be opened, or another server is using it.
        WorkersUnavailableError: The workers of an endpoint cannot be started.
    """
    ready = threading.Event()
    start_errors: list[StoreError | WorkersUnavailableError] = []
    with removed_at_exit(listener), contextlib.closing(listener):
        runner = _prepare(app, settings, listener, ready.set)

        def run() -> None:
            try:
                runner.run_on(listener)
            except (StoreError, WorkersUnavailableError) as error:
                start_errors.append(error)
            finally:
                ready.set()

        thread = threading.Thread(target=run, name="tidewire-server", daemon=True)
        thread.start()
        ready.wait()
        try:
            if start_errors:
                raise start_errors[0]
            yield url_of(listener, settings.root_path)
        finally:
            with contextlib.suppress(
                RuntimeError
            ):  # The server has already stopped and closed its event loop.
                runner.loop.call_soon_threadsafe(runner.end)
            thread.join()


def _prepare(
    app: TidewireApp,
    settings: Settings,
    listener: socket.socket,
    started: Callable[[], None],
    *,
    raise_limit: bool = False,
    shutdown_timeout: float = 0,
) -> "UvicornServer":
    """Check the address, open the log, and create the server. See `serve` and `UvicornServer` for the arguments."""
    check_exposure(listener, settings, authenticates=app.authentication.is_required)
    app.authentication.single_user = settings.is_single_user(on_loopback=is_local(listener))
    _serving.add(listener)
    app.lifespan.open_log()
    connections = max_connections_within_fd_limit(settings.max_connections, raise_limit=raise_limit)
    config = uvicorn_config(app, settings, connections)
    return UvicornServer(app, config, started, shutdown_timeout=shutdown_timeout)


def _with_mapped_addresses(networks: Iterable[str]) -> list[str]:
    """Add the IPv4-mapped IPv6 network of each IPv4 network. On an IPv6 socket, IPv4 clients have such mapped addresses."""
    parsed = [ipaddress.ip_network(each) for each in networks]
    mapped = [f"::ffff:{each.network_address}/{96 + each.prefixlen}" for each in parsed if each.version == 4]
    return [*map(str, parsed), *mapped]


def uvicorn_config(app: TidewireApp, settings: Settings, connections: int) -> uvicorn.Config:
    """Create the uvicorn configuration for an application and a maximum number of connections."""
    per_address = connections if app.single_user else share_of(connections, settings.max_share)
    return uvicorn.Config(
        app,
        http=http_protocol(
            settings, connections, per_address, lambda code: app.metrics.problems.labels(code).inc()
        ),
        # By default, uvicorn trusts the proxy headers of every program on this machine.
        proxy_headers=bool(settings.forwarded_allow_ips),
        forwarded_allow_ips=_with_mapped_addresses(settings.forwarded_allow_ips),
        timeout_keep_alive=settings.keep_alive_timeout,
        lifespan="on",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        root_path=settings.root_path,
        timeout_graceful_shutdown=round(LAST_GRACE),
    )


class UvicornServer(uvicorn.Server):
    """A uvicorn server that waits at shutdown until jobs and streams have ended, before it closes the connections."""

    def __init__(
        self,
        app: TidewireApp,
        config: uvicorn.Config,
        started: Callable[[], None],
        *,
        shutdown_timeout: float = 0,
    ) -> None:
        super().__init__(config)
        self._tidewire = app
        self._shutdown_timeout = shutdown_timeout
        self._on_started = started
        self.loop = (config.get_loop_factory() or asyncio.new_event_loop)()
        self._shutdown_task: asyncio.Task[None] | None = None
        _servers.add(self)

    def run_on(self, listener: socket.socket) -> None:
        """Serve until the server ends. Then cancel the remaining tasks and close the event loop.

        If a task ignores the cancellation, the server waits for it only for a limited time.
        """
        throttle_accept_errors(self.loop)
        run_to_the_end(self.loop, self.serve(sockets=[listener]))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Start the application here and not in the ASGI lifespan, because uvicorn would not pass exceptions to the caller.
        await self._tidewire.lifespan.start(resume=False)
        await super().startup(sockets=sockets)
        if self.started:
            self._on_started()
            await self._tidewire.lifespan.resume()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        # Connections inherit the buffer size of the socket that accepts them.
        for listener in sockets or ():
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            # The connections of a Unix domain socket do not inherit this size.
            self._tidewire.send_buffers_bounded = not is_unix(listener)
        logger, throttle = logging.getLogger("uvicorn.error"), LogThrottle()
        logger.addFilter(throttle)
        try:
            await super().serve(sockets=sockets)
        finally:
            logger.removeFilter(throttle)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle SIGINT and SIGTERM. uvicorn's own handler would raise the signal again after the shutdown, which would
        change the exit code.
        """
        with stop_signals(self._end_by_signal, self._shutdown_timeout + LAST_GRACE):
            yield

    def _end_by_signal(self) -> None:
        announce_drain(self._tidewire.lifespan, self._shutdown_timeout)
        self.end()

    def end(self) -> None:
        """Start the graceful shutdown. This method must be called on the event loop."""
        if self._shutdown_task is None:
            self._shutdown_task = asyncio.get_running_loop().create_task(self._drain_and_exit())

    async def _drain_and_exit(self) -> None:
        try:
            # A server in a background thread need not wait for readers, because they are in the same process and have left.
            await self._tidewire.lifespan.drain(expect_readers=self._shutdown_timeout > 0)
        finally:
            self.should_exit = True
