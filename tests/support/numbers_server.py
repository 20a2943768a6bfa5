"""Server whose jobs another server can continue, for tests of several servers on one database."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from tidewire_server import Append, Context, Server


def numbers_server(**settings: Any) -> Server:
    server = Server(**settings)

    @server.endpoint(on_restart="continue", concurrency_limit=8)
    async def numbers(n: int, ctx: Context) -> AsyncIterator[Append[str]]:
        for number in range(len((ctx.previous or "").split()), n):
            yield Append(f"{number} ")
            await asyncio.sleep(0.02)

    return server


def text_of(n: int) -> str:
    """Return the result of `numbers`."""
    return "".join(f"{number} " for number in range(n))
