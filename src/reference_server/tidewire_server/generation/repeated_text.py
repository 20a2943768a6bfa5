"""Suppress text that an engine generates again after a response was lost (`without_repetition`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tidewire_server.generation.engine_interface import Delta, LoggedTokens


async def without_repetition(deltas: AsyncGenerator[Delta], logged: LoggedTokens) -> AsyncGenerator[Delta]:
    """Hold back the text of a request that runs again, until it is longer than the logged text or differs from it.

    Readers see no change while the new text repeats the logged text. The next block then replaces the logged text.

    Args:
        deltas: Blocks of the engine. If the request runs again, `Delta.replaces` is set in the first block.
        logged: The logged text.
    """
    held: Delta | None = None
    text = reasoning = ""
    async with aclosing(deltas):
        async for delta in deltas:
            if delta.replaces:
                held, text, reasoning = Delta(replaces=True), "", ""
            if held is None:
                yield delta
                continue
            held.extend(delta)
            text += "".join([row[0] for row in delta.rows]) + delta.text_after
            reasoning += delta.reasoning
            repeats = logged.text.startswith(text) and logged.reasoning.startswith(reasoning)
            complete = (text, reasoning) == (logged.text, logged.reasoning)
            if complete or not repeats or delta.finish_reason is not None:
                yield held
                held = None
