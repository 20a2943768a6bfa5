"""Append blocks of events to a job's log, and retry while the store fails."""

import asyncio
import contextlib
import logging
from typing import Final

from tidewire.protocol.cursor import Cursor
from tidewire_server.store.log_interface import Block, Log
from tidewire_server.store.store_errors import HeadMovedError, StoreError

_log = logging.getLogger(__name__)

RETRY_INTERVAL: Final = 1.0
"""Number of seconds between two attempts to write to a log while the store fails."""


class AppendRetries:
    """State of the retries for one job's log.

    Attributes:
        retrying: Whether the store refused the last block, so that its write is being retried.
        stopped: Whether the server is stopping, so that no write is retried.
    """

    __slots__ = ("_wake", "retrying", "stopped")

    def __init__(self) -> None:
        self.retrying: bool = False
        self.stopped: bool = False
        self._wake: asyncio.Event | None = None

    def stop(self) -> None:
        """End the retries. A block that the store has refused is lost."""
        self.stopped = True
        if self._wake is not None:
            self._wake.set()

    async def pause(self) -> None:
        """Wait until the next attempt, or until `stop`."""
        # Create the event in the first pause, because most jobs never need it.
        self._wake = self._wake or asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self.stopped else RETRY_INTERVAL):
                await self._wake.wait()


async def append(log: Log, head: Cursor, block: Block, retries: AppendRetries) -> None:
    """Write a block to a log. If the store fails, retry until the write succeeds or the server stops.

    Until the write succeeds, readers do not get the block. Worker threads that write to this job may have to wait.

    Raises:
        HeadMovedError: The log was deleted, or another process writes it, or the server stopped before a retry
            succeeded.
    """
    while True:
        try:
            await log.append(head, block)
        except StoreError as error:
            if not (retries.retrying or error.logged):
                _log.error(
                    "%s; a job cannot continue, and retries the write every %g s", error, RETRY_INTERVAL
                )
            retries.retrying = True
            await retries.pause()
            if retries.stopped:
                raise HeadMovedError(f"the server is stopping, and {error}") from None
        else:
            retries.retrying = False
            return
