"""Log-probabilities of a batch: computed on the device (`score_columns`), and written as JSON on the host (`values_of`).

One call of orjson converts the numbers of all rows of a step to JSON, which is then split by rows. The log, the readers and the
digest of the job use this JSON unchanged, so that no Python object is created for a single candidate. With 5 candidates, this
takes 0.2 µs per token, and with 64 candidates 1.8 µs. With lists of Python numbers, it took 0.4 and 9.6 µs, and the log writer
had to check and copy each number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import orjson
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.top_n import score, tie_counts

Values = dict[str, Any]
"""Name of a column → JSON of one token's element in this column."""


@dataclass(frozen=True)
class Scoring:
    """Parameters of the log-probabilities that one request asks for."""

    top: int = 0
    """Number of most probable tokens to return for each generated token."""
    max_top: int = 20
    """Maximum number of tokens that are returned if the input member `ties` is `all`."""
    ranks: bool = False
    ties: Literal["cut", "count", "all"] = "cut"
    mode: Literal["raw", "processed"] = "raw"
    token_ids: tuple[int, ...] = ()
    """Token ids whose log-probabilities are returned at each position."""
    decimals: int = 4

    @property
    def candidates(self) -> int:
        """Number of most probable tokens that are computed."""
        return self.max_top if self.ties == "all" and self.top else self.top


def score_columns(
    logits: torch.Tensor, chosen: torch.Tensor, scorings: Sequence[Scoring]
) -> list[torch.Tensor]:
    """Compute the log-probabilities of the chosen tokens and the requested ids, the most probable tokens, ranks and ties."""
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
    """Convert the arrays of one step to JSON. For each request, the result contains the JSON of each column's element.

    Args:
        columns: The log-probabilities of the chosen token, of the most probable tokens and of the requested ids,
            [B, 1 + n + s], float32; the ids of the most probable tokens, [B, n], int32; the ranks, [B], int32. If a request
            asks for ties, also the result of `tie_counts` for the last top token, [B, 2], int32. Empty if `scorings` is
            empty.
        scorings: Parameters of each of the B requests.
    """
    if not columns:
        return []
    exact, ids, ranks, *ties = columns
    numbers = rounded(exact, [s.decimals for s in scorings])
    width = ids.shape[-1]
    tops, left_out = _tops(scorings, ties, width)
    values: list[Values] = [{"ranks": rank} for rank in orjson.dumps(ranks.tolist())[1:-1].split(b",")]
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for row, (n, scoring) in enumerate(zip(tops, scorings, strict=True)):
        alike[n, len(scoring.token_ids)].append(row)
    for (n, asked), rows in alike.items():
        group, group_ids = (numbers, ids) if len(rows) == len(scorings) else (numbers[rows], ids[rows])
        logprobs = _json_rows(group[:, : 1 + n])
        top_ids = _json_rows(group_ids[:, :n])
        for row, line, of_top in zip(rows, logprobs, top_ids, strict=True):
            one = values[row]
            one["logprobs"], _, top = line.partition(b",")
            one["top_ids"], one["top_logprobs"] = b"[%b]" % of_top, b"[%b]" % top
        if asked:
            of_asked = _json_rows(group[:, 1 + width : 1 + width + asked])
            for row, line in zip(rows, of_asked, strict=True):
                values[row]["scored_logprobs"] = b"[%b]" % line
    for row, count in left_out.items():
        values[row]["tie_counts"] = b"%d" % count
    return values


def rounded(logprobs: np.ndarray, decimals: Sequence[int]) -> np.ndarray:
    """Round log-probabilities, [B, n], and replace -0.0 by 0.0.

    The results are float64. Their shortest decimal representation, which JSON uses, has at most `decimals` decimals.

    Args:
        logprobs: Log-probabilities, [B, n].
        decimals: Number of decimals of each row.
    """
    scale = 10.0 ** np.array(decimals)[:, None]
    numbers: np.ndarray = np.rint(logprobs.astype(np.float64) * scale) / scale + 0.0
    return numbers


def _tops(
    scorings: Sequence[Scoring], ties: Sequence[np.ndarray], width: int
) -> tuple[list[int], dict[int, int]]:
    """Return the number of top tokens for each row, and, for rows that count ties, the number of ties that are left out."""
    tops = [scoring.top for scoring in scorings]
    left_out = {}
    if ties:
        for row, (scoring, (above, level)) in enumerate(zip(scorings, ties[0].tolist(), strict=True)):
            if scoring.ties == "all" and scoring.top:
                tops[row] = min(above + level, scoring.max_top, width)
            if scoring.ties != "cut":
                left_out[row] = max(0, above + level - tops[row]) if scoring.top else 0
    return tops, left_out


def _json_rows(numbers: np.ndarray) -> list[bytes]:
    """Return the JSON of each row of a matrix, without its brackets. Infinities become null."""
    if not numbers.shape[1]:
        return [b""] * len(numbers)
    text = orjson.dumps(np.ascontiguousarray(numbers), option=orjson.OPT_SERIALIZE_NUMPY)
    return text[2:-2].split(b"],[")
