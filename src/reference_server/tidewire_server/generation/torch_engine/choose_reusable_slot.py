"""Choose the slot of the key-value cache for a new prompt, so that cached keys and values are reused (`reusable_slot`).

A slot is the part of the cache that one request occupies. By measuring time, a caller can find out whether its prompt was
already in the cache. Therefore only requests with the same `Generate.cache_scope` reuse each other's keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

REUSED_TOKENS = 32
"""Minimum length of a shared prefix for which keys and values are reused, in tokens. If a request occupies a high slot, each
step also computes the rows of all lower slots. For a short prefix, this costs more than the reuse saves."""


class KeptText(NamedTuple):
    """The last text of a free slot, whose keys and values remain in the cache."""

    tokens: list[int]
    scope: str
    """Cache scope of the request that wrote the text."""


EMPTY = KeptText([], "")


def reusable_slot(free: Mapping[int, KeptText], prompt: list[int], scope: str) -> tuple[int, int]:
    """Select a free slot for a prompt. Among slots with a text of the same scope, select the text that shares the longest
    prefix with the prompt. If no slot can be reused, select the lowest slot.

    Compare tokens in slices, not one by one, because the event loop waits for the engine's lock during the comparison.

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
        # Skip a slot unless its text can share more tokens than the best slot so far.
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
