"""Beam search (`BeamSearch`), which decodes the most probable hypotheses of one request side by side.

A request with `num_beams=k` occupies k slots of the cache. Each step extends the k live hypotheses by every token of the
vocabulary, and keeps the k most probable extensions. The following rules select the same tokens as the method `generate` of
the library transformers with `do_sample=False` and `early_stopping=False`:

1. The candidates of a step are the (1 + number of end tokens) * k most probable continuations, but at least 2k.
2. A candidate that ends its text leaves the search. It counts only if it is among the first k candidates. Its score is its
   log-probability divided by length ** `length_penalty`, and the k best ended hypotheses are kept.
3. The first k candidates that do not end are the live hypotheses of the next step.
4. The search ends if no hypothesis is live, or if k have ended and no live hypothesis has a higher score than these.

The reader sees the best hypothesis of all. When another hypothesis becomes the best, the tokens that differ are retracted.

    logits [k, V] ── topk ──► candidates ── choose ──► Selection ── commit ──► SearchProgress
                   device                 host, pure       │
                                                           └── copies between slots: one index_select per step

A step needs only one copy to the host, like a step without searches. To make this possible, the requested log-probabilities
are computed for all candidates, before the host chooses among them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
import torch

from tidewire_server.generation.engine_interface import FinishReason
from tidewire_server.generation.torch_engine.detokenizer import OutputText
from tidewire_server.generation.torch_engine.device_execution import to_device
from tidewire_server.generation.torch_engine.models.kv_cache import KVCache
from tidewire_server.generation.torch_engine.sampling.score_columns import (
    Scoring,
    Values,
    score_columns,
    values_of,
)
from tidewire_server.generation.torch_engine.sampling.sequence_parameters import Parameters


def candidates_per_beam(end_tokens: int) -> int:
    """Return the number of candidates per beam and step. Enough candidates remain even if some of them end the text."""
    return max(2, 1 + end_tokens)


@dataclass(eq=False, slots=True)
class Token:
    """A token of one or more hypotheses. Hypotheses that begin with the same tokens share the objects of these tokens."""

    before: Token | None
    """The token before this one. None only for the root, which represents the prompt."""
    length: int
    """Number of generated tokens up to this one."""
    id: int
    text: str
    """Text that the token adds."""
    values: Values
    """The token's elements of the columns that depend on the logits."""
    branches: int = 0
    """Number of different tokens that directly follow this token in the live hypotheses and the best ended hypothesis."""


class Hypothesis(NamedTuple):
    """One of the texts among which the search chooses."""

    score: float
    """Sum of the log-probabilities. For an ended hypothesis, it is divided by length ** `length_penalty`."""
    last: Token
    text: OutputText
    slot: int
    """Index of the request's slot that contains the keys and values of all tokens except the last. Meaningless for an ended
    hypothesis."""
    reason: FinishReason | None = None
    """Reason why the hypothesis ended, or None while it is live."""


class Selection(NamedTuple):
    """Result of a step, which `BeamSearch.commit` makes the new state."""

    live: list[Hypothesis]
    """The live hypotheses, in descending order of their scores."""
    ended: list[Hypothesis]
    """The hypotheses that ended in this step."""
    copies: list[tuple[int, int]]
    """Pairs of slots. Keys and values are copied from the first slot to the second. No slot is both a source and a target."""


class SearchProgress(NamedTuple):
    """Change of the text that the reader sees after a step."""

    retracted: int
    """Number of tokens at the end of the shown text that the best hypothesis does not contain."""
    added: list[Token]
    """The tokens of the best hypothesis after the retraction."""
    stable: int
    """Length of the shared beginning of all hypotheses that can still become the result, in tokens."""
    reason: FinishReason | None
    """Reason why the best hypothesis ended, if the search is over."""


class BeamSearch:
    """State of the beam search of one request.

    Args:
        beams: Number of live hypotheses, k.
        end_tokens: Number of tokens that end a text.
        length_penalty: Exponent of the length by which the log-probability of an ended hypothesis is divided.
        text: Text of the request. The search changes only copies of it.
    """

    def __init__(self, beams: int, *, end_tokens: int, length_penalty: float, text: OutputText) -> None:
        self.beams = beams
        self.candidates = candidates_per_beam(end_tokens) * beams
        self._length_penalty = length_penalty
        root = Token(None, 0, -1, "", {})
        # The root and the tokens of the shown text.
        self._shown = [root]
        self._stable = 0
        self._ended: list[Hypothesis] = []
        # Before the first step, only the prompt's slot is in use. Its index in the request's slots is 0.
        self.live = [Hypothesis(0.0, root, text, 0)]

    @property
    def length(self) -> int:
        """Number of tokens of each live hypothesis."""
        return self.live[0].last.length if self.live else 0

    def choose(
        self, scores: Sequence[float], indexes: Sequence[int], size: int, values: Sequence[Values] = ()
    ) -> Selection:
        """Select the hypotheses of the next step. The state of the search does not change.

        Args:
            scores: Sums of the log-probabilities of the candidates, in descending order.
            indexes: Index of each candidate in the log-probabilities of the live hypotheses, [live * size].
            size: Number of logits of each position.
            values: The columns of each candidate that depend on the logits, if the request asks for any.
        """
        live: list[Hypothesis] = []
        ended: list[Hypothesis] = []
        length = self.length + 1
        for place, (score, index) in enumerate(zip(scores, indexes, strict=True)):
            if len(live) == self.beams or score == -math.inf:
                break
            row, token = divmod(index, size)
            parent = self.live[row]
            text = parent.text.fork()
            piece, reason = text.feed(token)
            last = Token(parent.last, length, token, piece, values[place] if values else {})
            if reason is None:
                live.append(Hypothesis(score, last, text, parent.slot))
            elif place < self.beams:
                ended.append(Hypothesis(self._normalized(score, length), last, text, -1, reason))
        live, copies = self._with_slots(live)
        if live and length == 1:
            # Copy the prompt to all slots. When a slot is assigned later, only generated tokens are copied to it, so its
            # hypothesis would otherwise read keys and values of an earlier request.
            copies = [(0, slot) for slot in range(1, self.beams)]
        return Selection(live, ended, copies)

    def commit(self, selection: Selection) -> SearchProgress:
        """Replace the state of the search, and return the change of the text that the reader sees."""
        before = [*self.live, *self._ended[:1]]
        self.live = selection.live
        ended = sorted([*self._ended, *selection.ended], key=lambda hypothesis: -hypothesis.score)
        self._ended = ended[: self.beams]
        best, over = self._best()
        retracted, added = self._show(best.last)
        if over:
            self.live = []
            self._stable = best.last.length
        else:
            self._count_branches(before, [*self.live, *self._ended[:1]])
            while self._shown[self._stable].branches == 1:
                self._stable += 1
        return SearchProgress(retracted, added, self._stable, best.reason if over else None)

    def _show(self, last: Token) -> tuple[int, list[Token]]:
        """Show the hypothesis with this last token. Return the number of tokens to retract, and the tokens to add."""
        added, token = [], last
        while token.before is not None and (
            token.length >= len(self._shown) or self._shown[token.length] is not token
        ):
            added.append(token)
            token = token.before
        added.reverse()
        retracted = len(self._shown) - 1 - token.length
        self._shown[token.length + 1 :] = added
        return retracted, added

    def _count_branches(self, before: list[Hypothesis], after: list[Hypothesis]) -> None:
        """Update `Token.branches` after a step.

        A token is visited at most twice: when it becomes the last token of a hypothesis, and when no hypothesis contains it
        any more. The cost of a step therefore does not depend on the length of the text.

        Args:
            before: The live hypotheses and the best ended hypothesis before the step.
            after: The live hypotheses and the best ended hypothesis after the step.
        """
        kept = {id(hypothesis.last) for hypothesis in before}
        for hypothesis in after:
            if id(hypothesis.last) not in kept and hypothesis.last.before is not None:
                hypothesis.last.before.branches += 1
        kept = {id(hypothesis.last) for hypothesis in after}
        for hypothesis in before:
            token = hypothesis.last
            while id(token) not in kept and token.branches == 0 and token.before is not None:
                token = token.before
                token.branches -= 1

    def _best(self) -> tuple[Hypothesis, bool]:
        """Return the best hypothesis, and whether the search is over."""
        if not self.live:
            return self._ended[0], True
        score = self._normalized(self.live[0].score, self.length)
        if len(self._ended) == self.beams and score <= self._ended[-1].score:
            return self._ended[0], True
        return (self._ended[0] if self._ended and self._ended[0].score >= score else self.live[0]), False

    def _normalized(self, score: float, length: int) -> float:
        return score / math.pow(length, self._length_penalty)

    def _with_slots(self, live: list[Hypothesis]) -> tuple[list[Hypothesis], list[tuple[int, int]]]:
        """Assign a slot to each live hypothesis. If several continue the same hypothesis, the first keeps its slot."""
        kept = {hypothesis.slot for hypothesis in live}
        free = iter([slot for slot in range(self.beams) if slot not in kept])
        found, copies = [], []
        for hypothesis in live:
            if hypothesis.slot in kept:
                kept.remove(hypothesis.slot)
                found.append(hypothesis)
            else:
                slot = next(free)
                copies.append((hypothesis.slot, slot))
                found.append(hypothesis._replace(slot=slot))
        return found, copies


class Searching(Protocol):
    """Attributes of a running request that `SearchStep` needs."""

    prompt: list[int]
    slots: list[int]
    parameters: Parameters

    @property
    def length(self) -> int: ...


class Searched(NamedTuple):
    """Result of a step of one beam search, in place of a sampled token."""

    progress: SearchProgress | None
    """Change of the text that the reader sees. None if the logits are invalid (NaN or infinity)."""
    token: int = -1


class SearchStep:
    """One step of all running beam searches.

    The constructor computes the candidates, and `choose` selects the hypotheses. Both can fail, for example because memory is
    exhausted. They change nothing, so that the step can be repeated with fewer requests. `commit` then changes the cache and
    the searches.

    Args:
        requests: The requests, their searches, and the logits of their live hypotheses, [live, V], float32.
        cache: The key-value cache.
    """

    def __init__(
        self, requests: Sequence[tuple[Searching, BeamSearch, torch.Tensor]], cache: KVCache
    ) -> None:
        self._cache = cache
        self._requests = requests
        self._scorings: list[Scoring] = []
        self._selections: list[Selection | None] = []
        self.tensors: list[torch.Tensor] = []
        """Tensors to copy to the host for `choose`."""
        self.results: list[Searched] = []
        """Results in the order of the requests, after `commit`."""
        parents, tokens = [], []
        for request, search, logits in requests:
            so_far = to_device([[one.score] for one in search.live], logits.device, torch.float32)
            sums = (logits.log_softmax(-1) + so_far).view(-1)
            scores, indexes = sums.topk(min(search.candidates, len(sums)))
            self.tensors += [scores, indexes, logits.amax(-1).isfinite().all()]
            if (scoring := request.parameters.scoring) is not None:
                parents.append(logits.index_select(0, indexes // logits.shape[-1]))
                tokens.append(indexes % logits.shape[-1])
                self._scorings.extend([scoring] * len(indexes))
        if self._scorings:
            self.tensors += score_columns(torch.cat(parents), torch.cat(tokens), self._scorings)

    def choose(self, arrays: Sequence[np.ndarray]) -> None:
        """Select the hypotheses of the next step, and prepare the copies between slots. `arrays` are copies of `tensors`."""
        count = 3 * len(self._requests)
        found, values = iter(arrays[:count]), iter(values_of(arrays[count:], self._scorings))
        sources: list[int] = []
        targets: list[int] = []
        starts, ends = [], []
        slots: list[int] = []
        tokens: list[int] = []
        for (request, search, logits), scores, indexes, valid in zip(
            self._requests, found, found, found, strict=True
        ):
            columns = [] if request.parameters.scoring is None else [*islice(values, len(indexes))]
            if not valid:
                self._selections.append(None)
                continue
            selection = search.choose(scores.tolist(), indexes.tolist(), logits.shape[-1], columns)
            self._selections.append(selection)
            slots.extend(request.slots[hypothesis.slot] for hypothesis in selection.live)
            tokens.extend(hypothesis.last.id for hypothesis in selection.live)
            if selection.copies:
                sources.extend(request.slots[source] for source, _ in selection.copies)
                targets.extend(request.slots[target] for _, target in selection.copies)
                # The first step copies the prompt to all slots of the request.
                starts.append(len(request.prompt) if search.length else 0)
                ends.append(request.length)
        # Use one copy for all searches. Positions outside of a request's own range are equal in both slots, or not in use.
        self._positions = slice(min(starts, default=0), max(ends, default=0))
        self._copied = self._cache.take(sources, self._positions) if sources else None
        self._targets = to_device(targets, self._cache.device, torch.int64)
        self._slots = to_device(slots, self._cache.device, torch.int64)
        self._tokens = to_device(tokens, self._cache.device, torch.int64)

    def commit(self, last: torch.Tensor) -> None:
        """Copy the keys and values between the slots, and advance the searches. This allocates no memory on the device.

        Args:
            last: The last token of each slot, which is the input of the next step, [slots], int64. It is changed.
        """
        if self._copied is not None:
            self._cache.put(self._targets, self._positions, self._copied)
        last.index_copy_(0, self._slots, self._tokens)
        self.results = [
            Searched(None if selection is None else search.commit(selection))
            for (_, search, _), selection in zip(self._requests, self._selections, strict=True)
        ]
