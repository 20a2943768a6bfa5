"""Connection of this process to a Ray cluster. All endpoints with Ray actors share the connection."""

import asyncio
import contextlib
import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tidewire.install_command import install_command
from tidewire_server.errors import WorkersUnavailableError

CONNECT_TIMEOUT: Final = 5.0
"""Number of seconds within which a cluster must accept a connection. `ray.init` itself would try for two minutes."""


class RayCluster:
    """Connection to a cluster. The first call of `join` opens it, and the last call of `leave` closes it."""

    def __init__(self) -> None:
        # This thread must never end, because the kernel kills a local cluster when the thread that started it ends.
        self._thread = ThreadPoolExecutor(1, "ray")
        self._users = 0
        self._connected = False
        """Whether this object has called `ray.init`. False if the application had already called it."""
        self.ray: Any = None
        """The module `ray`, which the first call of `join` imports."""

    async def join(self, address: str | None) -> None:
        """Connect to the cluster, unless this process is already connected to one. Each call needs a later call of `leave`.

        Raises:
            WorkersUnavailableError: Ray is not installed, or the cluster cannot be reached.
        """
        self._users += 1
        try:
            self.ray = await self.do(_import_ray)
            self._connected |= await self.do(_connect, self.ray, address)
        except BaseException:
            await self.leave()
            raise
        # Keep the current handler of SIGTERM. Ray's own handler would abort a graceful shutdown after three seconds.
        handler = signal.getsignal(signal.SIGTERM)
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    async def leave(self) -> None:
        """Undo one call of `join`. After the last one, disconnect, which ends a local cluster."""
        self._users -= 1
        if self._users == 0 and self._connected:
            self._connected = False
            await self.do(self.ray.shutdown)

    def do(self, function: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """Call a blocking function of Ray in the thread of the connection."""
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *args)


CLUSTER: Final = RayCluster()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        reason = f"ray_workers needs {error.name}, which is not installed: {install_command('ray')}"
        raise WorkersUnavailableError(reason) from None


def _connect(ray: Any, address: str | None) -> bool:
    """Connect to a cluster, or start a local one. Return False if the application has already connected this process."""
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    host, _, port = address.rpartition(":")
    try:
        if address.startswith("ray://"):
            reason = "run the server on a node of the cluster, because ray:// transports no generators"
            raise ConnectionError(reason)
        if port.isdigit():
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT).close()
        with on_loopback() if address == "local" else contextlib.nullcontext():
            ray.init(address, include_dashboard=False, logging_level=logging.ERROR)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - Ray raises many types
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise WorkersUnavailableError(
            f"cannot use the Ray cluster {address!r}: {reason} (set by address of ray_workers, or RAY_ADDRESS)"
        ) from None
    return True


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Make `ray.init` start a local cluster on the loopback interface. Otherwise it would listen on all interfaces.

    Ray offers only a private variable for this. `test_local_cluster_listens_on_loopback_only` fails if Ray changes it.
    """
    from ray._private import ray_constants  # noqa: PLC0415 - only needed for a local cluster

    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
