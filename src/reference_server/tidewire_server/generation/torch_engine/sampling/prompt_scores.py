"""Log-probabilities of a part of a prompt (`PromptScores`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.sampling.score_columns import (
    Scoring,
    Values,
    score_columns,
    values_of,
)


class PromptScores:
    """Log-probabilities of a part of a prompt, on the device. They are always raw.

    Args:
        logits: Logits after the tokens of the prompt from position `start` on, [T, V], float32. They belong to the tokens
            from position `start + 1` on.
        prompt: Ids of all tokens of the prompt.
        scoring: Log-probabilities that the request asks for.
        start: Position in the prompt. If it is 0, the result begins with the first token, which has no log-probability.
    """

    def __init__(self, logits: torch.Tensor, prompt: list[int], scoring: Scoring | None, start: int) -> None:
        if scoring is None or scoring.prompt_top is None:
            raise ValueError("the request does not ask for the log-probabilities of its prompt")
        self._first = prompt[:1] if start == 0 else []
        self._ids = prompt[start + 1 : start + 1 + len(logits)]
        self._scorings = [Scoring(top=scoring.prompt_top, decimals=scoring.decimals)] * len(self._ids)
        self.tensors: list[torch.Tensor] = []
        """Tensors to copy to the host for `on_host`."""
        if self._ids:
            self.tensors = score_columns(logits, to_device(self._ids, logits.device), self._scorings)

    def on_host(self, arrays: Sequence[np.ndarray]) -> list[Values] | None:
        """Convert the copies of `tensors` to the JSON of the prompt's columns of each token, or None if the logits are invalid (NaN)."""
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
