"""Compute log-probabilities, ranks and the n most probable tokens. They are computed before temperature and filters are
applied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scores:
    """Log-probabilities and ranks for a batch of B rows. Log-probabilities are in nats, float32."""

    chosen: torch.Tensor
    """Log-probabilities of the chosen tokens, [B]."""
    ranks: torch.Tensor
    """Ranks of the chosen tokens, [B], int64. A rank is 1 + the number of tokens with a higher logit, so that tokens with
    equal logits have the same rank."""
    top_ids: torch.Tensor
    """Ids of the most probable tokens, [B, n], int64."""
    top: torch.Tensor
    """Log-probabilities of the most probable tokens, [B, n]."""


def score(logits: torch.Tensor, chosen: torch.Tensor, n: int) -> Scores:
    """Compute the log-probabilities and ranks of the chosen tokens, and the n most probable tokens.

    Args:
        logits: Logits, [B, V], float32.
        chosen: Ids of the chosen tokens, [B], int64.
        n: Number of most probable tokens to return, from 0 to V.
    """
    picked = logits.gather(-1, chosen[:, None])
    peak = logits.amax(-1, keepdim=True)
    # Subtract the highest logit first. Otherwise large logits would cause rounding errors in the sum of their exponentials.
    log_sum = (logits - peak).exp_().sum(-1, keepdim=True).log_()
    ids = top_ids(logits, n)
    return Scores(
        chosen=((picked - peak) - log_sum)[:, 0],
        ranks=(logits > picked).sum(-1) + 1,
        top_ids=ids,
        top=(logits.gather(-1, ids) - peak) - log_sum,
    )


def top_ids(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Return the ids of the n highest logits per row, [B, n], ordered by descending logit, then by ascending id.

    The ids that `torch.topk` returns are not used. It does not define which of several equal logits it selects, or in
    which order, so the ids would differ between devices.
    """
    size = logits.shape[-1]
    if n == 0:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    lowest = logits.topk(n, dim=-1).values[:, -1:]
    above = logits > lowest
    level = logits == lowest
    room = n - above.sum(-1, keepdim=True)
    chosen = above | (level & (level.cumsum(-1) <= room))
    every = torch.arange(size, device=logits.device).expand_as(logits)
    ids = torch.where(chosen, every, size).topk(n, dim=-1, largest=False, sorted=True).values
    # If a row of logits contains NaN, no token is chosen, and the ids for this row are invalid. Clamp them, because
    # `gather` would otherwise fail for the whole batch.
    ids = ids.clamp(max=size - 1)
    order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, order)
