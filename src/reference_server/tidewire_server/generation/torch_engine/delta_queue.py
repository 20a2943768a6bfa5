"""Queue that delivers generated tokens to a reader on an event loop (`DeltaQueue`)."""

from __future__ import annotations

import asyncio

from tidewire_server.generation.engine import Delta, EngineError


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
