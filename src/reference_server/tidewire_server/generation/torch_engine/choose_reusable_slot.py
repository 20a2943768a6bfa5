"""Choice of the slot whose keys and values a new prompt reuses (`reusable_slot`).

A slot is the part of the key-value cache that one request occupies. A caller can measure whether its prompt was processed
completely, so only requests of the same `Generate.cache_scope` reuse each other's keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

REUSED_TOKENS = 32
"""Minimum number of tokens of a shared prefix whose keys and values are reused. A reuse in a high slot makes each step
compute the rows of the lower slots, so a short prefix is not worth it."""


class KeptText(NamedTuple):
    """The last text of a free slot, whose keys and values remain in the cache."""

    tokens: list[int]
    scope: str
    """Cache scope of the request that wrote the text."""


EMPTY = KeptText([], "")


def reusable_slot(free: Mapping[int, KeptText], prompt: list[int], scope: str) -> tuple[int, int]:
    """Select a free slot for a prompt: the one whose text is of the same scope and shares the longest prefix with the
    prompt, or else the lowest one.

    Tokens are compared in slices, not one by one, because the event loop waits for the engine's lock meanwhile.

    Args:
        free: The last text of each free slot.
        prompt: Tokens of the prompt.
        scope: Cache scope of the request.

    Returns:
        The slot, and the number of tokens whose keys and values are reused: 0, or at least `REUSED_TOKENS`.
    """
    best, reused = min(free), 0
    for slot, (kept, its_scope) in sorted(free.items()):
        if its_scope != scope:
            continue
        # Compare only slots that can share more than the best one so far: they also have the next token of the prompt.
        needed = max(reused + 1, REUSED_TOKENS)
        if kept[needed - 1 : needed] == prompt[needed - 1 : needed]:
            shared = _shared_prefix(kept, prompt)
            if shared >= needed:
                best, reused = slot, shared
    return best, reused


def _shared_prefix(one: list[int], other: list[int]) -> int:
    """Return the length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
