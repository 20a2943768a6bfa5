"""Reader of a job on behalf of one request to the OpenAI surface (`JobWatch`). Each change of the job wakes the reader."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from typing import Final

from starlette.requests import ClientDisconnect

from tidewire_server.errors import refuse
from tidewire_server.jobs.job_service import JobService
from tidewire_server.store.log_interface import Block, LogReader, StateAt
from tidewire_server.store.records import JobRecord

COMMENT_HEARTBEATS: Final = 3
"""A stream sends a comment after this many intervals (`heartbeat`) without an event: by default, after 15 s."""


class JobWatch:
    """Reader of one job. All methods must be called on the event loop of the service."""

    def __init__(
        self, service: JobService, record: JobRecord, log: LogReader, release_slot: Callable[[], None]
    ) -> None:
        """Create a reader. When `attached` exits, it calls `release_slot`, so that the principal may open another stream."""
        self.service = service
        self.record = record
        self._log = log
        self._release_slot = release_slot
        self._wake = asyncio.Event()
        self._reason_to_end: Exception | None = None

    @property
    def job_id(self) -> str:
        """Id of the job."""
        return self.record.id

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Register as a reader of the job, and as an open stream that the server ends when it shuts down."""
        shutdown = self.service.shutdown
        detach = self.service.readers.attach(self.record.id)
        unwatch = self._log.watch(self._on_change)
        shutdown.stream_opened(self)
        try:
            yield
        finally:
            shutdown.stream_closed(self)
            # Do not let a shutdown wait until a client reconnects to this job, because OpenAI's clients never reconnect.
            shutdown.expected.answered(self.record.id)
            unwatch()
            detach(0.0)
            self._release_slot()

    async def begun(self) -> None:
        """Wait until the job has begun or ended, but not longer than one `heartbeat`. Raise the exceptions of `states`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.service.settings.heartbeat), aclosing(self.states()) as states:
                async for at in states:
                    if at is not None and at.view.node(("status",)) != "queued":
                        return

    async def states(self) -> AsyncGenerator[StateAt | None]:
        """Yield the state of the job now and after each change, up to the end of the job. Yield None after
        `COMMENT_HEARTBEATS` without a change.

        Raises:
            ClientDisconnect: `disconnect` was called.
            ProblemError: The server stops before the job has ended.
            StoreError: The state cannot be read.
        """
        last, silence = None, COMMENT_HEARTBEATS * self.service.settings.heartbeat
        while True:
            # Clear the flag before reading the log, so that an append during the read sets the flag again.
            self._wake.clear()
            ended, at = self._log.extent().ended, await self._log.state()
            if at.cursor != last:
                last = at.cursor
                yield at
            if ended:
                return
            if self._reason_to_end is not None:
                raise self._reason_to_end
            changed = False
            with suppress(TimeoutError):
                async with asyncio.timeout(silence):
                    changed = await self._wake.wait()
            if not changed:
                yield None

    async def ended_record(self) -> JobRecord:
        """Return the record of the job after its end. Raise a `ProblemError` if the job was deleted."""
        await self.service.outcome(self.record)
        return await self.service.find(self.record.principal, self.record.id)

    def disconnect(self) -> None:
        """Report that the client has disconnected."""
        self._end(ClientDisconnect())

    def go_away(self, *, spread: float = 0.0, even_if_ended: bool = False) -> None:
        """End with an error, because the server stops. See `OpenStream.go_away`."""
        if self._reason_to_end is None:  # A client that has disconnected gets no error, and none is counted.
            self._end(
                refuse("unavailable", "the server stops before this text is complete; it may restart soon")
            )

    def _end(self, reason: Exception) -> None:
        self._reason_to_end = reason
        self._wake.set()

    def _on_change(self, _block: Block | None) -> None:
        self._wake.set()
