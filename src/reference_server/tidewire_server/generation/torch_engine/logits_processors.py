"""Changes of the logits before temperature and filters (`LogitsProcessor`): bias and penalties.

The bias is added first. Raw log-probabilities do not contain them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch


class LogitsProcessor:
    """Changes the logits of one request, and remembers the tokens that occurred in it.

    Args:
        prompt: Ids of the prompt's tokens.
        size: Size of the vocabulary.
        device: Device of the logits.
        bias: Numbers that are added to the logits, by token id.
        repetition: Number by which positive logits of tokens that occurred are divided, and negative ones multiplied.
        presence: Number that is subtracted from the logits of tokens that were generated.
        frequency: Number that is subtracted for each time that a token was generated.
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
    ) -> None:
        self._bias_ids = torch.tensor([*bias], dtype=torch.int64, device=device)
        self._bias = torch.tensor([*bias.values()], dtype=torch.float32, device=device)
        self._repetition, self._presence, self._frequency = repetition, presence, frequency
        self._occurred: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None
        if repetition != 1:
            self._occurred = torch.zeros(size, dtype=torch.bool, device=device)
            self._occurred[torch.tensor(prompt, device=device)] = True
        if presence or frequency:
            self._counts = torch.zeros(size, device=device)

    def apply(self, logits: torch.Tensor) -> None:
        """Change the logits of the next token, [V], in place."""
        if len(self._bias):
            logits.index_add_(0, self._bias_ids, self._bias)
        if self._occurred is not None:
            penalized = torch.where(logits < 0, logits * self._repetition, logits / self._repetition)
            torch.where(self._occurred, penalized, logits, out=logits)
        if self._counts is not None:
            logits -= self._frequency * self._counts + self._presence * (self._counts > 0)

    def add(self, token: int) -> None:
        """Record a generated token."""
        if self._occurred is not None:
            self._occurred[token] = True
        if self._counts is not None:
            self._counts[token] += 1
