"""Compute log-probabilities, ranks and the n most probable tokens.

At 64 rows, a vocabulary of 32,000 and one CPU thread, the five most probable tokens take 2 ms and the sums of the
probabilities 2 ms (bench/engine_sampling.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.sampler import row_blocks

MARGIN = 8
"""Number of tokens that are selected in addition to the n most probable ones, so that ties at the cut can be resolved."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities and ranks for a batch of B rows. Log-probabilities are in nats, float32."""

    chosen: torch.Tensor
    """Log-probabilities of the chosen tokens, [B]."""
    ranks: torch.Tensor
    """Ranks of the chosen tokens, [B], int64, or all 0 if they were not requested. A rank is 1 + the number of tokens with
    a higher logit, so that tokens with equal logits have the same rank."""
    top_ids: torch.Tensor
    """Ids of the most probable tokens, [B, n], int64."""
    top: torch.Tensor
    """Log-probabilities of the most probable tokens, [B, n]."""
    asked: torch.Tensor
    """Log-probabilities of further tokens, [B, s], in the order in which they were requested."""


def score(
    logits: torch.Tensor,
    chosen: torch.Tensor,
    n: int,
    *,
    ranks: bool = True,
    asked: torch.Tensor | None = None,
) -> Scores:
    """Compute the log-probabilities and ranks of the chosen tokens, and the n most probable tokens.

    Args:
        logits: Logits, [B, V], float32.
        chosen: Ids of the chosen tokens, [B], int64.
        n: Number of most probable tokens to return, from 0 to V.
        ranks: Whether to compute the ranks.
        asked: Ids of further tokens whose log-probabilities to return, [B, s], int64.
    """
    if asked is None:
        asked = chosen.new_empty((len(chosen), 0))
    parts = [
        _score(logits[rows], chosen[rows, None], n, asked[rows], ranks=ranks) for rows in row_blocks(logits)
    ]
    return Scores(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _score(
    logits: torch.Tensor, chosen: torch.Tensor, n: int, asked: torch.Tensor, *, ranks: bool
) -> tuple[torch.Tensor, ...]:
    picked = logits.gather(-1, chosen)
    peak = logits.amax(-1, keepdim=True)
    # Subtract the highest logit first. Otherwise large logits would cause rounding errors in the sum of their exponentials.
    log_sum = (logits - peak).exp_().sum(-1, keepdim=True).log_()
    ids = top_ids(logits, n)
    return (
        ((picked - peak) - log_sum)[:, 0],
        (logits > picked).sum(-1) + 1 if ranks else torch.zeros_like(chosen[:, 0]),
        ids,
        (logits.gather(-1, ids) - peak) - log_sum,
        (logits.gather(-1, asked) - peak) - log_sum,
    )


def tie_counts(logits: torch.Tensor, n: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the tokens around the n-th most probable token of each row.

    Args:
        logits: Logits, [B, V].
        n: Position of a token in each row's order, from 1 to V.

    Returns:
        The number of tokens whose logit is higher than that of the n-th token, [B], and the number of tokens whose logit is
        equal to it, [B].
    """
    largest = logits.topk(max(n), dim=-1).values
    last = largest.gather(-1, to_device(n, logits.device)[:, None] - 1)
    return (logits > last).sum(-1), (logits == last).sum(-1)


def top_ids(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Return the ids of the n highest logits per row, [B, n], ordered by descending logit, then by ascending id.

    `torch.topk` does not define which of several equal logits it selects, or in which order, so the ids would differ
    between devices. On a CPU, a few more tokens than n are selected and sorted. Rows with so many ties at the cut that even
    these do not contain all of them are processed as a whole. On a GPU, all rows are processed as a whole, because reading
    the values would stop the device.
    """
    size = logits.shape[-1]
    if n == 0:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    if logits.device.type != "cpu":
        return _top_ids_of_whole_rows(logits, n)
    more = min(n + MARGIN, size)
    if more * 64 <= size:
        selected = logits.topk(more, dim=-1).indices
    else:
        # From this number on, `topk` takes another way. numpy selects 72 of 2,048 values in a quarter of its time.
        selected = torch.from_numpy(np.argpartition(logits.numpy(), size - more, axis=-1)[:, size - more :])
    ids = _sorted(logits, selected.sort(dim=-1).values)
    if more < size:
        values = logits.gather(-1, ids)
        # Compare with "not greater", so that rows with NaN, whose order is not defined, take the same way.
        open_ties = (~(values[:, n - 1] > values[:, -1])).nonzero()[:, 0]
        if len(open_ties):
            ids[open_ties, :n] = _top_ids_of_whole_rows(logits[open_ties], n)
    return ids[:, :n]


def _top_ids_of_whole_rows(logits: torch.Tensor, n: int) -> torch.Tensor:
    size = logits.shape[-1]
    lowest = logits.topk(n, dim=-1).values[:, -1:]
    above = logits > lowest
    level = logits == lowest
    room = n - above.sum(-1, keepdim=True)
    chosen = above | (level & (level.cumsum(-1) <= room))
    every = torch.arange(size, device=logits.device).expand_as(logits)
    ids = torch.where(chosen, every, size).topk(n, dim=-1, largest=False, sorted=True).values
    # If a row of logits contains NaN, no token is chosen, and the ids for this row are invalid. Clamp them, because
    # `gather` would otherwise fail for the whole batch.
    return _sorted(logits, ids.clamp(max=size - 1))


def _sorted(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Order ascending ids by descending logit. Ids with equal logits stay in ascending order."""
    order = logits.gather(-1, ids).sort(dim=-1, descending=True, stable=True).indices
    return ids.gather(-1, order)
