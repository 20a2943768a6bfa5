"""Lifespan of the application (`Lifespan`): starts the job service, shuts it down, and handles the ASGI lifespan protocol."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.types import Receive, Send

from tidewire_server.endpoints.endpoint import Endpoint
from tidewire_server.errors import WorkersUnavailableError
from tidewire_server.http.authentication import Authentication
from tidewire_server.jobs.job_service import JobService
from tidewire_server.metrics import Metrics
from tidewire_server.settings import Settings
from tidewire_server.store.open_store import open_store
from tidewire_server.store.store_errors import StoreError
from tidewire_server.store.store_interface import Store

_log = logging.getLogger(__name__)


class Lifespan:
    """Owner of the application's job service, which exists only while the application is started."""

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        settings: Settings,
        metrics: Metrics,
        authentication: Authentication,
        closers: Sequence[Callable[[], Awaitable[None]]],
    ) -> None:
        """Prepare the lifespan.

        Args:
            endpoints: All endpoints by name.
            settings: The server's settings.
            metrics: Metrics of the application.
            authentication: Authentication of the application. Its `single_user` is read when the application starts.
            closers: Coroutine functions to call at shutdown, such as the `close` of an engine.
        """
        self._endpoints = endpoints
        self._settings = settings
        self._metrics = metrics
        self._authentication = authentication
        self._closers = closers
        self.functions = True
        """Whether this process runs functions. This attribute is read when the application starts."""
        self.caller_share = settings.max_share
        """Fraction of each shared resource that one caller may use. The value is final when the application has started."""
        self._service: JobService | None = None
        self._store: Store | None = None
        self._starting = asyncio.Lock()

    @property
    def service(self) -> JobService:
        """Job service, which exists only while the application is started."""
        if self._service is None:
            raise RuntimeError("the application has not been started; run it with an ASGI server")
        return self._service

    @property
    def started(self) -> bool:
        """Whether the application has been started and is not closed yet."""
        return self._service is not None

    def open_log(self) -> None:
        """Open the log. Commands call this method before `start`, so that they can report early if the log is not
        usable.

        Raises:
            StoreError: The log cannot be opened, or another server is using it.
        """
        if self._store is None and self._service is None:
            self._store = open_store(self._settings)

    async def start(self, *, resume: bool = True) -> None:
        """Start the job service and recover interrupted jobs. If the application has already been started, do nothing.

        Args:
            resume: Whether to run the recovered jobs. If false, the caller calls `resume` when the server's port is open.

        Raises:
            StoreError: The log cannot be opened or read, or another server is using it.
            WorkersUnavailableError: The workers of an endpoint cannot be started.
        """
        async with self._starting:
            if self._service is None:
                self.open_log()
                assert self._store is not None  # noqa: S101 - `open_log` sets it
                single_user = self._authentication.single_user
                self.caller_share = self._settings.caller_share(single_user=single_user)
                service, self._store = (
                    JobService(
                        self._endpoints,
                        self._settings,
                        self._metrics,
                        self._store,
                        share=self.caller_share,
                        functions=self.functions,
                    ),
                    None,
                )
                try:
                    await service.start()
                except BaseException:
                    await service.close()
                    raise
                self._service = service
                if resume:
                    await service.resume()

    async def resume(self) -> None:
        """Run the recovered jobs, after `start(resume=False)`."""
        await self.service.resume()

    async def run(self, receive: Receive, send: Send) -> None:
        """Handle the ASGI lifespan protocol."""
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.start()
                except (StoreError, WorkersUnavailableError) as error:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def drain(self, *, expect_readers: bool = True) -> None:
        """Begin the shutdown: reject new jobs, wait up to `shutdown_timeout` for running jobs to end, and end all streams.

        Args:
            expect_readers: See `Shutdown.drain`.
        """
        if self._service is not None:
            await self._service.shutdown.drain(self._settings.shutdown_timeout, expect_readers=expect_readers)

    @property
    def jobs_to_drain(self) -> int:
        """Number of jobs that `drain` waits for."""
        return 0 if self._service is None else len(self._service.shutdown.jobs_to_wait_for())

    @property
    def seconds_for_readers(self) -> float:
        """Number of seconds for which `drain` waits for readers that may be about to reconnect."""
        return 0.0 if self._service is None else self._service.shutdown.expected.seconds_left()

    async def close(self) -> None:
        """Stop all jobs and release all resources.

        A call of `start` or a request starts the application again.
        """
        service, self._service = self._service, None
        if service is not None:
            await service.close()
            for close in self._closers:
                try:
                    await close()
                except Exception:  # noqa: BLE001 - the remaining functions must be called too
                    _log.exception("a function that was registered with on_close failed")
