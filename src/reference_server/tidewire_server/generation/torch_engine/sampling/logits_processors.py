"""Bias, penalties and the mask of a grammar, which change the logits before temperature and filters (`LogitsProcessor`).

The changes are applied in this order. Raw log-probabilities are computed from the unchanged logits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.structured_output import Grammar


class LogitsProcessor:
    """Changes the logits of one request, and records which tokens have occurred in the request.

    Args:
        prompt: Ids of the prompt's tokens.
        size: Size of the vocabulary.
        device: Device of the logits.
        bias: Numbers that are added to the logits, by token id.
        repetition: Divisor of the positive logits, and factor of the negative logits, of tokens that occurred.
        presence: Number that is subtracted from the logits of tokens that were generated.
        frequency: Number that is subtracted for each time that a token was generated.
        grammar: Grammar that the text must match, or None.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        size: int,
        device: torch.device,
        *,
        bias: Mapping[int, float],
        repetition: float,
        presence: float,
        frequency: float,
        grammar: Grammar | None = None,
    ) -> None:
        self._bias_ids = to_device([*bias], device, torch.int64)
        self._bias = to_device([*bias.values()], device, torch.float32)
        self._repetition, self._presence, self._frequency = repetition, presence, frequency
        self._grammar = grammar
        self._occurred: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None
        if repetition != 1:
            self._occurred = torch.zeros(size, dtype=torch.bool, device=device)
            self._occurred.index_fill_(0, to_device(prompt, device), value=True)
        if presence or frequency:
            self._counts = torch.zeros(size, device=device)
            self._one = torch.ones(1, device=device)

    def apply(self, logits: torch.Tensor) -> None:
        """Change the logits of the next token, [V], in place."""
        if len(self._bias):
            logits.index_add_(0, self._bias_ids, self._bias)
        if self._occurred is not None:
            penalized = torch.where(logits < 0, logits * self._repetition, logits / self._repetition)
            torch.where(self._occurred, penalized, logits, out=logits)
        if self._counts is not None:
            logits -= self._frequency * self._counts + self._presence * (self._counts > 0)
        if self._grammar is not None:
            self._grammar.mask(logits)

    def add(self, tokens: torch.Tensor) -> None:
        """Record generated tokens for the penalties, [N], int64, on the device. Allocate no memory here. If an allocation failed,
        the step would be repeated, and its token would be counted twice.
        """
        if self._occurred is not None:
            self._occurred.index_fill_(0, tokens, value=True)
        if self._counts is not None:
            self._counts.index_add_(0, tokens, self._one.expand(len(tokens)))
