"""From the engine's thread to a reader on an event loop."""

from __future__ import annotations

import asyncio

from tidewire_server.generation.engine import Delta, EngineError


class DeltaQueue:
    """Blocks of one request on their way to its reader. Lives on the reader's event loop; what waits is merged."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._delta: Delta | None = None
        self._error: EngineError | None = None

    def put(self, news: Delta | EngineError) -> None:
        if isinstance(news, EngineError):
            self._error = news
        elif self._delta is None:
            self._delta = news
        else:
            self._delta.extend(news)
        self._news.set()

    async def take(self) -> Delta:
        """All tokens since the last call, as one block; an error only after the tokens before it."""
        await self._news.wait()
        delta, self._delta = self._delta, None
        if delta is None:
            if self._error is None:
                raise RuntimeError("a delta queue was woken without a delta")
            raise self._error
        if self._error is None:
            self._news.clear()
        return delta
