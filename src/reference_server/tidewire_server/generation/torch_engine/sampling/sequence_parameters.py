"""Translation of a request's input to the parameters of the sampler, the logits processor and the log-probabilities."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tidewire_server.generation.generate_input_and_value import (
    MIN_REPETITION_PENALTY,
    MIN_TEMPERATURE,
    Generate,
)
from tidewire_server.generation.torch_engine.sampling.logits_processors import LogitsProcessor
from tidewire_server.generation.torch_engine.sampling.sampler import Sampling
from tidewire_server.generation.torch_engine.sampling.score_columns import Scoring
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar

UNSCORED = frozenset({"text", "token_ids", "token_text"})
"""Columns that need no log-probabilities."""


@dataclass(frozen=True)
class Parameters:
    """Parameters for the sampling and the log-probabilities of one request."""

    sampling: Sampling
    scoring: Scoring | None
    """Log-probabilities of generated tokens to compute, or None if the request asks for none."""
    prompt_scoring: Scoring | None
    """Log-probabilities of the prompt to compute, or None if the request asks for none."""
    processor: LogitsProcessor | None
    """Bias, penalties and grammar, or None if the request has none."""


def parameters_of(
    request: Generate,
    prompt: Sequence[int],
    *,
    size: int,
    device: torch.device,
    max_top: int,
    grammar: Grammar | None = None,
) -> Parameters:
    """Return the parameters of a request.

    Args:
        request: The input.
        prompt: Ids of the prompt's tokens.
        size: Number of logits at each position.
        device: Device of the logits.
        max_top: Maximum number of most probable tokens per position.
        grammar: Grammar of the request's `json_schema`, or None.
    """
    scoring = prompt_scoring = None
    if {*request.columns} - UNSCORED:
        scoring = Scoring(
            top=request.top_logprobs,
            max_top=max_top,
            ranks=request.ranks,
            ties=request.ties,
            mode=request.logprobs_mode,
            token_ids=tuple(request.logprob_token_ids),
            decimals=request.logprob_decimals,
        )
    if request.prompt_logprobs is not None:
        prompt_scoring = Scoring(top=request.prompt_logprobs, decimals=request.logprob_decimals)
    processor = _processor_of(request, prompt, size, device, grammar)
    return Parameters(_sampling_of(request), scoring, prompt_scoring, processor)


def _sampling_of(request: Generate) -> Sampling:
    return Sampling(
        temperature=request.temperature if request.temperature >= MIN_TEMPERATURE else 0.0,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        typical_p=request.typical_p,
        seed=secrets.randbits(53) if request.seed is None else request.seed,
    )


def _processor_of(
    request: Generate, prompt: Sequence[int], size: int, device: torch.device, grammar: Grammar | None
) -> LogitsProcessor | None:
    changes = (
        request.logit_bias,
        request.repetition_penalty != 1,
        request.presence_penalty,
        request.frequency_penalty,
        grammar,
    )
    if not any(changes):
        return None
    return LogitsProcessor(
        prompt,
        size,
        device,
        bias={int(token): number for token, number in request.logit_bias.items()},
        repetition=max(request.repetition_penalty, MIN_REPETITION_PENALTY),
        presence=request.presence_penalty,
        frequency=request.frequency_penalty,
        grammar=grammar,
    )
