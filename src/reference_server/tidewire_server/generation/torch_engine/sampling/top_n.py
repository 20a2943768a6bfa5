"""Compute log-probabilities, ranks and the n most probable tokens.

With 64 rows, a vocabulary of 32,000 and one CPU thread, finding the five most probable tokens takes 2 ms, and adding up the
probabilities takes another 2 ms (bench/engine_sampling.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.sampler import row_blocks


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
    """Log-probabilities of the explicitly requested token ids, [B, s], in the order of the request."""


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
        asked: Ids of other tokens whose log-probabilities to return, [B, s], int64.
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
    # torch subtracts the highest logit first, so large logits cause no rounding errors in the sum of exponentials.
    logprobs = logits.log_softmax(-1)
    ids = top_ids(logits, n)
    return (
        logprobs.gather(-1, chosen)[:, 0],
        (logits > logits.gather(-1, chosen)).sum(-1) + 1 if ranks else torch.zeros_like(chosen[:, 0]),
        ids,
        logprobs.gather(-1, ids),
        logprobs.gather(-1, asked),
    )


def tie_counts(logits: torch.Tensor, n: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Count the tokens around the n-th most probable token of each row.

    Args:
        logits: Logits, [B, V].
        n: Position of a token in each row's order, from 1 to V.

    Returns:
        The number of tokens with a higher logit than the n-th token, [B], and the number of tokens with an equal logit, [B].
    """
    largest = logits.topk(max(n), dim=-1).values
    last = largest.gather(-1, to_device(n, logits.device)[:, None] - 1)
    return (logits > last).sum(-1), (logits == last).sum(-1)


def top_ids(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Return the ids of the n highest logits per row, [B, n], ordered by descending logit, then by ascending id.

    `torch.topk` does not define which of several equal logits it selects, or in which order, so its ids would differ between
    devices. On a CPU, a comparison selects the tokens whose logits are at least the n-th highest logit. Rows with several
    tokens at exactly this logit are processed separately. A GPU processes all rows like these, because the host would have to
    wait for the device to find them.
    """
    size = logits.shape[-1]
    if n == 0:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    if logits.device.type != "cpu":
        return _top_ids_with_ties(logits, n)
    # Use numpy, which finds the n-th highest of 2,048 logits in a quarter of the time of `topk` with SIMD instructions.
    values = logits.numpy()
    level = np.partition(values, size - n, axis=-1)[:, size - n, None]
    above = values >= level
    selected = np.flatnonzero(above)
    if len(selected) == n * len(values):
        ids = selected.reshape(-1, n) - size * np.arange(len(values))[:, None]
        if ((ids >= 0) & (ids < size)).all():
            return _sorted(logits, torch.from_numpy(ids))
    # Rows with equal logits can have more than n tokens here. Rows with NaN have fewer, because comparisons with NaN are false.
    exact = above.sum(-1) == n
    found = torch.empty((len(values), n), dtype=torch.int64)
    ids = np.flatnonzero(above[exact]).reshape(-1, n) % size
    found[exact] = _sorted(logits[exact], torch.from_numpy(ids))
    found[~exact] = _top_ids_with_ties(logits[~exact], n)
    return found


def _top_ids_with_ties(logits: torch.Tensor, n: int) -> torch.Tensor:
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
