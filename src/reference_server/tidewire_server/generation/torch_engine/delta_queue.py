"""Delivery of generated tokens from the engine's thread to readers on event loops (`DeltaQueue`, `deliver`)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from tidewire_server.generation.engine_interface import Delta, EngineError


class DeltaQueue:
    """Queue of the token blocks of one request. All blocks that the reader has not taken yet are merged into one block.

    The methods are not thread-safe. Call them on the reader's event loop.
    """

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._delta: Delta | None = None
        self._error: EngineError | None = None

    def put(self, result: Delta | EngineError) -> None:
        """Add a block of tokens, or the error that ends the request."""
        if isinstance(result, EngineError):
            self._error = result
        elif self._delta is None:
            self._delta = result
        else:
            self._delta.extend(result)
        self._ready.set()

    async def take(self) -> Delta:
        """Wait for tokens. Return all tokens that were added since the last call as one block.

        Raises:
            EngineError: The request failed. This error is raised after all tokens that were generated before the failure
                have been returned.
        """
        await self._ready.wait()
        delta, self._delta = self._delta, None
        if delta is None:
            if self._error is None:
                raise RuntimeError("a delta queue was woken without a delta")
            raise self._error
        if self._error is None:
            self._ready.clear()
        return delta


class Recipient(Protocol):
    """A request with a reader that takes its tokens on an event loop."""

    loop: asyncio.AbstractEventLoop
    deltas: DeltaQueue
    cancelled: bool


def deliver(results: Sequence[tuple[Recipient, Delta | EngineError]]) -> None:
    """Deliver results to their readers, from any thread. Schedule only one callback for each event loop, instead of one
    for each token.
    """
    by_loop: defaultdict[asyncio.AbstractEventLoop, list[tuple[Recipient, Delta | EngineError]]] = (
        defaultdict(list)
    )
    for recipient, result in results:
        by_loop[recipient.loop].append((recipient, result))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_put_all, batch)
        except RuntimeError:  # The event loop is closed, so no reader can take the results.
            for recipient, _ in batch:
                recipient.cancelled = True


def _put_all(results: list[tuple[Recipient, Delta | EngineError]]) -> None:
    for recipient, result in results:
        recipient.deltas.put(result)
