"""Log-probabilities of a batch as columns (`Scoring`, `score_columns`, `values_of`): computed on the device, rounded on the
host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.top_n import score, tie_counts

Values = dict[str, Any]
"""Elements of the columns of one token, by the names of the columns."""


@dataclass(frozen=True)
class Scoring:
    """Log-probabilities that a request asks for."""

    top: int = 0
    """Number of most probable tokens to return for each generated token."""
    max_top: int = 20
    """Maximum number of tokens that are returned with the ties `all`."""
    ranks: bool = False
    ties: Literal["cut", "count", "all"] = "cut"
    mode: Literal["raw", "processed"] = "raw"
    token_ids: tuple[int, ...] = ()
    """Ids whose log-probabilities are returned for each token."""
    decimals: int = 4
    prompt_top: int | None = None
    """Number of most probable tokens for each token of the prompt, or None if the prompt is not scored."""

    @property
    def candidates(self) -> int:
        """Number of most probable tokens that are computed."""
        return self.max_top if self.ties == "all" and self.top else self.top


def score_columns(
    logits: torch.Tensor, chosen: torch.Tensor, scorings: Sequence[Scoring]
) -> list[torch.Tensor]:
    """Compute the log-probabilities of the chosen tokens and the asked ids, the most probable tokens, ranks and ties."""
    n = min(max(s.candidates for s in scorings), logits.shape[-1])
    asked = None
    if any(s.token_ids for s in scorings):
        most = max(len(s.token_ids) for s in scorings)
        padded = [[*s.token_ids, *[0] * (most - len(s.token_ids))] for s in scorings]
        asked = to_device(padded, logits.device)
    found = score(logits, chosen, n, ranks=any(s.ranks for s in scorings), asked=asked)
    tensors = [
        torch.cat([found.chosen[:, None], found.top, found.asked], -1),
        found.top_ids,
        found.ranks,
    ]
    if any(s.ties != "cut" for s in scorings):
        last = [max(1, min(s.top, logits.shape[-1])) for s in scorings]
        tensors.append(torch.stack(tie_counts(logits, last), -1))
    return tensors


def values_of(columns: Sequence[np.ndarray], scorings: Sequence[Scoring]) -> list[Values]:
    """Convert the arrays of `score_columns` to the elements of the columns of each request."""
    if not columns:
        return []
    exact, ids, ranks, *ties = columns
    logprobs = rounded(exact, [s.decimals for s in scorings])
    width = ids.shape[-1]
    counts = ties[0].tolist() if ties else [(0, 0)] * len(scorings)
    values = []
    for scoring, row, top_ids, rank, (above, level) in zip(
        scorings, logprobs, ids.tolist(), ranks.tolist(), counts, strict=True
    ):
        n = scoring.top
        one: Values = {"logprobs": row[0], "ranks": rank}
        if scoring.ties != "cut":
            if scoring.ties == "all" and n:
                n = min(above + level, scoring.max_top, width)
            one["tie_counts"] = max(0, above + level - n) if n else 0
        one["top_ids"], one["top_logprobs"] = top_ids[:n], row[1 : 1 + n]
        if scoring.token_ids:
            one["scored_logprobs"] = row[1 + width : 1 + width + len(scoring.token_ids)]
        values.append(one)
    return values


def rounded(logprobs: np.ndarray, decimals: Sequence[int]) -> list[list[float | None]]:
    """Round log-probabilities for JSON. Infinity becomes None, and -0.0 becomes 0.0.

    Args:
        logprobs: Log-probabilities, [B, n].
        decimals: Number of decimals of each row.
    """
    scale = 10.0 ** np.array(decimals)[:, None]
    numbers = np.rint(logprobs.astype(np.float64) * scale) / scale + 0.0
    rows: list[list[float | None]] = numbers.tolist()
    if not np.isfinite(numbers).all():
        rows = [[x if math.isfinite(x) else None for x in row] for row in numbers.tolist()]
    return rows
