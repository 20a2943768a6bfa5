"""Postprocessing of a step (`postprocess`): from the logits to sampled tokens, log-probabilities and ranks.

Everything is computed on the device and packed into one tensor, so that a step needs one copy to the host. Nothing is
computed that no request of the step asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from tidewire_server.generation.torch_engine.sampling.encoded_values import Scoring, Values, values_of
from tidewire_server.generation.torch_engine.sampling.logits_processors import LogitsProcessor
from tidewire_server.generation.torch_engine.sampling.sampler import Sampling, processed_logits, sample
from tidewire_server.generation.torch_engine.sampling.top_n import score, tie_counts


class Scored(Protocol):
    """The part of a running request that postprocessing needs."""

    prompt: list[int]
    sampling: Sampling
    scoring: Scoring | None
    processor: LogitsProcessor | None

    @property
    def length(self) -> int: ...


class Sampled(NamedTuple):
    """Token that was sampled for one request."""

    token: int
    values: Values
    """JSON of the columns that depend on the logits. Log-probabilities are in nats, rounded, and null for a probability of
    0."""
    is_number: bool = True
    """Whether the logits are valid. False if their maximum is NaN or infinite."""


def sample_and_score(logits: torch.Tensor, requests: Sequence[Scored]) -> list[Sampled]:
    """Sample the next token of each request, with the log-probabilities that it asks for.

    Args:
        logits: Logits of the next tokens, [B, V], float32.
        requests: The requests of the rows.
    """
    changed = _processed(logits, requests)
    tokens = sample(changed, [r.sampling for r in requests], [r.length for r in requests])
    tensors = [tokens, logits.amax(-1).isfinite()]
    rows = [i for i, r in enumerate(requests) if r.scoring is not None]
    scorings = [r.scoring for r in requests if r.scoring is not None]
    if rows:
        distributions = logits if len(rows) == len(requests) else logits[rows]
        if any(scoring.mode == "processed" for scoring in scorings):
            distributions = _with_processed(distributions, changed, requests, rows)
        tensors.extend(_score(distributions, tokens[rows], scorings))
    chosen, valid, *columns = to_host(tensors)
    values: list[Values] = [{}] * len(requests)
    for i, found in zip(rows, values_of(columns, scorings), strict=True):
        values[i] = found
    sampled = [*map(Sampled, chosen.tolist(), values, valid.astype(bool).tolist())]
    for request, one in zip(requests, sampled, strict=True):
        if request.processor is not None and one.is_number:
            request.processor.add(one.token)
    return sampled


def score_prompt(logits: torch.Tensor, request: Scored, start: int) -> list[Values] | None:
    """Score a part of a prompt. The log-probabilities of the prompt are always raw.

    Args:
        logits: Logits after the tokens of the prompt from position `start` on, [T, V], float32. They belong to the tokens
            from position `start + 1` on.
        request: The request.
        start: Position in the prompt. If it is 0, the result begins with the first token, which has no log-probability.

    Returns:
        The JSON of the prompt's columns of each token, or None if the logits are invalid (NaN).
    """
    scoring = request.scoring
    if scoring is None or scoring.prompt_top is None:
        raise ValueError("the request does not ask for the log-probabilities of its prompt")
    ids = request.prompt[start + 1 : start + 1 + len(logits)]
    first: list[Values] = [] if start else [{"logprobs": b"null", "top_ids": b"[]", "top_logprobs": b"[]"}]
    rest: list[Values] = []
    if ids:
        plain = Scoring(top=scoring.prompt_top, decimals=scoring.decimals)
        chosen = torch.tensor(ids, device=logits.device)
        scorings = [plain] * len(ids)
        columns = to_host(_score(logits, chosen, scorings))
        if np.isnan(columns[0][:, 0]).any():
            return None
        rest = values_of(columns, scorings)
    ids = request.prompt[start : start + 1] * len(first) + ids
    return [
        {"prompt_token_ids": b"%d" % token, **{f"prompt_{name}": value for name, value in one.items()}}
        for token, one in zip(ids, first + rest, strict=True)
    ]


def to_host(tensors: Sequence[torch.Tensor]) -> list[np.ndarray]:
    """Copy tensors to the host in one piece. Integers and booleans become int32."""
    bits = [
        (one if one.dtype == torch.float32 else one.int()).contiguous().view(torch.int32).view(-1)
        for one in tensors
    ]
    whole = torch.cat(bits).cpu().numpy()
    arrays, start = [], 0
    for one in tensors:
        part = whole[start : start + one.numel()]
        start += one.numel()
        arrays.append((part.view(np.float32) if one.dtype == torch.float32 else part).reshape(one.shape))
    return arrays


def _processed(logits: torch.Tensor, requests: Sequence[Scored]) -> torch.Tensor:
    """Apply bias, penalties and grammars. The logits of the model stay unchanged, because log-probabilities may be raw."""
    processors = [(i, r.processor) for i, r in enumerate(requests) if r.processor is not None]
    if not processors:
        return logits
    changed = logits.clone()
    for i, processor in processors:
        processor.apply(changed[i])
    return changed


def _with_processed(
    distributions: torch.Tensor, changed: torch.Tensor, requests: Sequence[Scored], rows: Sequence[int]
) -> torch.Tensor:
    """Replace the logits of the requests that ask for the distribution from which their token was sampled."""
    mixed = distributions.clone()
    for at, i in enumerate(rows):
        scoring = requests[i].scoring
        if scoring is not None and scoring.mode == "processed":
            mixed[at : at + 1] = processed_logits(changed[i : i + 1], [requests[i].sampling])
    return mixed


def _score(logits: torch.Tensor, chosen: torch.Tensor, scorings: Sequence[Scoring]) -> list[torch.Tensor]:
    """Compute the log-probabilities of the chosen tokens and the asked ids, the most probable tokens, ranks and ties."""
    n = min(max(s.candidates for s in scorings), logits.shape[-1])
    asked = None
    if any(s.token_ids for s in scorings):
        most = max(len(s.token_ids) for s in scorings)
        padded = [[*s.token_ids, *[0] * (most - len(s.token_ids))] for s in scorings]
        asked = torch.tensor(padded, device=logits.device)
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
