"""Test writes that show whether a store can be written, for `Store.check`."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from tidewire_server.store.store_errors import StoreError

PROBE_INTERVAL: Final = 0.5
"""Time in seconds for which `check` relies on a test write that succeeded, unless a transaction fails in the meantime. This
limits the number of test writes, because any client may request `/readyz`."""


class WriteProbe:
    """Test writes of one store. All methods must be called on one event loop."""

    def __init__(
        self,
        write: Callable[[], Awaitable[None]],
        failed: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create the probe.

        Args:
            write: Function that writes to the store, or raises a `StoreError`.
            failed: Function that returns whether the last transaction of the store has failed.
            clock: Function that returns the time in seconds.
        """
        self._write = write
        self._failed = failed
        self._clock = clock
        self._probe: asyncio.Task[StoreError | None] | None = None
        """The test write that is in progress, or None."""
        self._failing = False
        """Whether the last test write failed."""
        self._writable_until = float("-inf")
        """Time until which the result of the last successful test write is used."""

    async def check(self) -> None:
        """Check that the store can be written. Concurrent calls share one test write. The result of a successful test write is
        reused for `PROBE_INTERVAL`.

        Raises:
            StoreError: The store cannot be written.
        """
        if not self._failed() and self._clock() < self._writable_until:
            return
        if self._probe is None:
            self._probe = asyncio.create_task(self._test_write())
        error = await asyncio.shield(self._probe)
        if error is not None:
            own, error.logged = error.copy(), True
            raise own

    async def _test_write(self) -> StoreError | None:
        """Write to the store, and return the error if that fails."""
        try:
            await self._write()
        except StoreError as error:
            error.logged, self._failing = error.logged or self._failing, True
            self._writable_until = float("-inf")
            return error
        else:
            self._failing, self._writable_until = False, self._clock() + PROBE_INTERVAL
            return None
        finally:
            self._probe = None

    async def close(self) -> None:
        """Wait until the test write that is in progress has ended."""
        if self._probe is not None:
            await asyncio.wait([self._probe])
