"""Choice of the slot whose keys and values a new prompt reuses (`reusable_slot`)."""

from __future__ import annotations

from collections.abc import Mapping

REUSED_TOKENS = 32
"""Minimum number of tokens of a shared prefix whose keys and values are reused. A reuse in a high slot makes each step
compute the rows of the lower slots, so a short prefix is not worth it."""


def reusable_slot(free: Mapping[int, list[int]], prompt: list[int]) -> tuple[int, int]:
    """Select a free slot for a prompt: the one that shares the longest prefix with it, or else the lowest one.

    The event loop waits for the engine's lock meanwhile, so tokens are compared in slices, not one by one.

    Args:
        free: The tokens of the last text in each free slot.
        prompt: Tokens of the prompt.

    Returns:
        The slot, and the number of tokens whose keys and values are reused: 0, or at least `REUSED_TOKENS`.
    """
    best, reused = min(free), 0
    for slot, kept in sorted(free.items()):
        # A slot that shares more than the best one has the next token of the prompt, too.
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
