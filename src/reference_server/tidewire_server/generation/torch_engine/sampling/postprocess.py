"""Postprocessing of a step, which computes sampled tokens, log-probabilities and ranks from the logits.

The constructors start the computation on the device, and do not wait for it. The runner then copies all tensors of a step to
the host at once, and `on_host` converts the copies. Only requested results are computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.sampler import processed_logits, sample
from tidewire_server.generation.torch_engine.sampling.score_columns import (
    Scoring,
    Values,
    score_columns,
    values_of,
)
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import Parameters


class Sampled(NamedTuple):
    """Token that was sampled for one request."""

    token: int
    values: Values
    """JSON of the columns that depend on the logits. Log-probabilities are in nats, rounded, and null for a probability of
    0."""
    is_number: bool = True
    """Whether the logits are valid. False if their maximum is NaN or infinite."""


class SampledTokens:
    """Next tokens of several requests, with the requested log-probabilities, on the device.

    Args:
        logits: Logits of the next tokens, [B, V], float32.
        requests: Parameters of the request of each row.
        lengths: Number of tokens of each request before the sampled token.
    """

    def __init__(self, logits: torch.Tensor, requests: Sequence[Parameters], lengths: Sequence[int]) -> None:
        changed = _processed(logits, requests)
        self.tokens = sample(changed, [r.sampling for r in requests], lengths)
        """Token ids, [B], int64."""
        self.tensors = [self.tokens, logits.amax(-1).isfinite()]
        """Tensors to copy to the host for `on_host`."""
        self._scorings = {i: r.scoring for i, r in enumerate(requests) if r.scoring is not None}
        if self._scorings:
            distributions, tokens = logits, self.tokens
            if len(self._scorings) < len(requests):
                rows = to_device([*self._scorings], logits.device)
                distributions, tokens = logits[rows], tokens[rows]
            if any(scoring.mode == "processed" for scoring in self._scorings.values()):
                distributions = distributions.clone()
                for at, (i, scoring) in enumerate(self._scorings.items()):
                    if scoring.mode == "processed":
                        row = processed_logits(changed[i : i + 1], [requests[i].sampling])
                        distributions[at : at + 1] = row
            self.tensors.extend(score_columns(distributions, tokens, [*self._scorings.values()]))

    def on_host(self, arrays: Sequence[np.ndarray]) -> list[Sampled]:
        """Convert copies of `tensors` on the host to the sampled tokens of the requests."""
        chosen, valid, *columns = arrays
        values: list[Values] = [{}] * len(chosen)
        found = values_of(columns, [*self._scorings.values()])
        for i, one in zip(self._scorings, found, strict=True):
            values[i] = one
        return [*map(Sampled, chosen.tolist(), values, valid.astype(bool).tolist())]


class PromptScores:
    """Log-probabilities of a part of a prompt, on the device, before temperature and filters.

    Args:
        logits: Logits, [T, V], float32. The first row was computed at position `start`, and scores the prompt token at
            position `start + 1`.
        prompt: Ids of all tokens of the prompt.
        scoring: The requested log-probabilities of the prompt.
        start: Position in the prompt. If it is 0, the result also contains the first token, which has no log-probability.
    """

    def __init__(self, logits: torch.Tensor, prompt: list[int], scoring: Scoring, start: int) -> None:
        self._first = prompt[:1] if start == 0 else []
        self._ids = prompt[start + 1 : start + 1 + len(logits)]
        self._scorings = [scoring] * len(self._ids)
        self.tensors: list[torch.Tensor] = []
        """Tensors to copy to the host for `on_host`."""
        if self._ids:
            self.tensors = score_columns(logits, to_device(self._ids, logits.device), self._scorings)

    def on_host(self, arrays: Sequence[np.ndarray]) -> list[Values] | None:
        """Convert copies of `tensors` on the host to the JSON columns of each prompt token. Return None if logits are NaN."""
        if self._ids and np.isnan(arrays[0][:, 0]).any():
            return None
        rest = values_of(arrays, self._scorings)
        first: list[Values] = [{"logprobs": b"null", "top_ids": b"[]", "top_logprobs": b"[]"}] * len(
            self._first
        )
        return [
            {"prompt_token_ids": b"%d" % token, **{f"prompt_{name}": value for name, value in one.items()}}
            for token, one in zip(self._first + self._ids, first + rest, strict=True)
        ]


def _processed(logits: torch.Tensor, requests: Sequence[Parameters]) -> torch.Tensor:
    """Apply bias, penalties and grammars to a copy of the logits. Raw log-probabilities need the original logits."""
    processors = [(i, r.processor) for i, r in enumerate(requests) if r.processor is not None]
    if not processors:
        return logits
    changed = logits.clone()
    for i, processor in processors:
        processor.apply(changed[i])
    return changed
