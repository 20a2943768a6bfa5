"""Sampling of tokens with the Gumbel-max trick.

argmax(logit / temperature + Gumbel noise) is a sample from the softmax distribution. The noise depends only on the seed,
the position and the token id. The tokens of a request therefore do not depend on the other requests in the batch, on the
request's row in the batch, or on the number of steps in which the prompt was processed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

MASK32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request.

    At temperature 0, the most probable token is selected. If several tokens are equally probable, the one with the
    lowest id is selected.
    """

    temperature: float
    top_p: float
    top_k: int
    """Number of tokens to sample from, or 0 for no limit."""
    min_p: float
    seed: int

    @property
    def filters(self) -> bool:
        return self.temperature > 0 and (self.top_p < 1 or self.top_k > 0)


def sample(logits: torch.Tensor, sampling: list[Sampling], positions: list[int]) -> torch.Tensor:
    """Sample one token for each row of a batch of logits.

    Args:
        logits: Logits, [B, V], float32.
        sampling: Sampling parameters of each row.
        positions: Position of the sampled token in its sequence, for each row.

    Returns:
        Token ids, [B], int64.
    """
    if all(s.temperature == 0 for s in sampling):
        return logits.argmax(-1)
    device = logits.device
    temperature = torch.tensor([s.temperature for s in sampling], device=device)[:, None]
    greedy = temperature == 0
    scaled = logits / torch.where(greedy, 1.0, temperature)
    noisy = scaled + gumbel([s.seed for s in sampling], positions, logits.shape[-1], device)
    noisy = noisy.masked_fill(~allowed(scaled, sampling), -torch.inf)
    return torch.where(greedy, logits, noisy).argmax(-1)


def allowed(scaled: torch.Tensor, sampling: list[Sampling]) -> torch.Tensor:
    """Return a mask of the tokens that pass the filters `top_k`, `top_p` and `min_p`.

    Tokens are ordered by descending logit, then by ascending id. `top_k` keeps the first k tokens. The probabilities of
    these tokens are renormalized, and `top_p` keeps the shortest prefix whose probabilities add up to at least p.

    Returns:
        Mask, [B, V], bool, with at least one token in each row.
    """
    kept = torch.ones_like(scaled, dtype=torch.bool)
    rows = [i for i, s in enumerate(sampling) if s.filters]
    if rows:
        ordered, ids = scaled[rows].sort(dim=-1, descending=True, stable=True)
        top_k = torch.tensor([sampling[i].top_k or scaled.shape[-1] for i in rows], device=scaled.device)
        top_p = torch.tensor([sampling[i].top_p for i in rows], device=scaled.device)
        first = torch.arange(scaled.shape[-1], device=scaled.device) < top_k[:, None]
        probabilities = ordered.masked_fill(~first, -torch.inf).softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        first &= (before < top_p[:, None]) | (top_p[:, None] >= 1)
        kept[rows] = torch.zeros_like(first).scatter_(-1, ids, first)
    if any(s.min_p > 0 for s in sampling):
        min_p = torch.tensor([s.min_p for s in sampling], device=scaled.device)[:, None]
        kept &= scaled >= scaled.amax(-1, keepdim=True) + min_p.log()
    return kept


def gumbel(seeds: list[int], positions: list[int], size: int, device: torch.device) -> torch.Tensor:
    """Compute Gumbel noise, [B, size], float32.

    A hash of the seed, the position and the token id gives a number u that is uniform between 0 and 1. The noise is
    -log(-log(1 - u)).
    """
    parts = [[s & MASK32, s >> 32, p] for s, p in zip(seeds, positions, strict=True)]
    low, high, position = torch.tensor(parts, device=device).T
    key = _mix(_mix(_mix(low ^ 0x9E3779B9) ^ high) ^ position)
    ids = _mix(torch.arange(size, device=device) ^ 0x85EBCA6B)
    bits = _mix(key[:, None] ^ ids)
    # Large noise decides the argmax. With 1 - u in the formula, large noise comes from small values of u, which float32
    # represents exactly. Clamp u below 1, because the noise would be infinite for u = 1.
    uniform = ((bits.float() + 0.5) * 2.0**-32).clamp(max=1 - 2.0**-24)
    return -torch.log(-torch.log1p(-uniform))


def _mix(x: torch.Tensor) -> torch.Tensor:
    """Hash 32-bit integers, stored as int64. The hash is a bijection with a good avalanche effect."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK32
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK32
    return x ^ (x >> 16)
