"""Log-probabilities, top-n and ranks of the model's own distribution: before temperature and before any filter."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Scores:
    """Of B rows; log-probabilities in nats, float32."""

    chosen: torch.Tensor
    """[B]"""
    ranks: torch.Tensor
    """[B], int64: 1 + the number of tokens with a higher logit, so an argmax in a tie is first, too."""
    top_ids: torch.Tensor
    """[B, n], int64"""
    top: torch.Tensor
    """[B, n]"""


def score(logits: torch.Tensor, chosen: torch.Tensor, n: int) -> Scores:
    """Score the chosen tokens and find the n most probable.

    Args:
        logits: [B, V], float32.
        chosen: [B], int64.
        n: 0…V.
    """
    picked = logits.gather(-1, chosen[:, None])
    peak = logits.amax(-1, keepdim=True)
    # log-sum-exp apart from the peak: a large common offset of the logits then rounds nothing away.
    log_sum = (logits - peak).exp_().sum(-1, keepdim=True).log_()
    ids = top_ids(logits, n)
    return Scores(
        chosen=((picked - peak) - log_sum)[:, 0],
        ranks=(logits > picked).sum(-1) + 1,
        top_ids=ids,
        top=(logits.gather(-1, ids) - peak) - log_sum,
    )


def top_ids(logits: torch.Tensor, n: int) -> torch.Tensor:
    """The n highest of each row, [B, n], in a total order: logit descending, then id ascending.

    `topk` alone leaves the order of equal logits, and which of them make the cut, to the device.
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
    ids = ids.clamp(
        max=size - 1
    )  # a row with NaN selects nothing; an id out of range would fail its neighbours, too
    order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, order)
