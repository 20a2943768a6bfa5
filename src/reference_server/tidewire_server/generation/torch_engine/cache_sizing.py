"""Allocation of the key-value cache, with the longest context for which all slots fit into the memory limit.

A slot is the part of the cache that one request occupies.
"""

from __future__ import annotations

import logging

from tidewire_server.generation.checkpoint_folder import LoadError, bytes_text
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.models.load_checkpoint import Checkpoint

logger = logging.getLogger(__name__)

MIN_CONTEXT = 16
"""Shortest context with which an engine starts, in tokens."""


def allocate_cache(
    checkpoint: Checkpoint, slots: int, *, context: int | None = None, max_bytes: int = 4 << 30
) -> KVCache:
    """Create the key-value cache of an engine. The arguments are those of `context_that_fits`.

    Raises:
        LoadError: As in `context_that_fits`, or the cache cannot be allocated.
    """
    c = checkpoint
    context = context_that_fits(c, slots, context=context, max_bytes=max_bytes)
    try:
        return KVCache(c.layers, slots, c.kv_heads, context, c.head_size, c.dtype, c.device)
    except RuntimeError as error:  # torch has no more specific class for exhausted memory of a CPU
        needed = (
            slots * KVCache.bytes_per_position(c.layers, c.kv_heads, c.head_size, c.dtype) * (context + 1)
        )
        raise LoadError(
            f"the cache of {slots} slots of {context} tokens needs {bytes_text(needed)}, which cannot be "
            "allocated; use fewer slots or a shorter context"
        ) from error


def context_that_fits(
    checkpoint: Checkpoint, slots: int, *, context: int | None = None, max_bytes: int = 4 << 30
) -> int:
    """Return the number of tokens of each slot of an engine's cache.

    Args:
        checkpoint: The loaded model.
        slots: Maximum number of requests that run at the same time.
        context: Number of tokens per slot. None selects the model's context, or as many tokens as fit into `max_bytes`.
        max_bytes: Maximum size of the cache, in bytes. It has no effect if `context` is set.

    Raises:
        LoadError: `slots` is less than 1, the model's context is shorter than `context`, or a cache of `max_bytes`
            is too small even for a context of `MIN_CONTEXT` tokens.
    """
    if slots < 1:
        raise LoadError(f"the number of slots must be at least 1, not {slots}")
    c = checkpoint
    per_slot = slots * KVCache.bytes_per_position(c.layers, c.kv_heads, c.head_size, c.dtype)
    if context is not None:
        if context > c.context:
            raise LoadError(
                f"the context is {context} tokens, but {c.name} supports at most {c.context}; choose a shorter context"
            )
        max_bytes = per_slot * (context + 1)
    requested = context or c.context
    context = min(requested, max_bytes // per_slot - 1)
    if context < min(MIN_CONTEXT, requested):
        raise LoadError(
            f"{slots} slots of {MIN_CONTEXT} tokens need {per_slot * (MIN_CONTEXT + 1)} bytes of cache, "
            f"which is more than max_cache_bytes ({max_bytes}); raise max_cache_bytes, or use fewer slots"
        )
    if context < requested:
        logger.warning(
            "the context is limited to %d instead of %d tokens, because of max_cache_bytes; use fewer slots (now %d), or set "
            "the context",
            context,
            c.context,
            slots,
        )
    return context
